"""Compiled programs as text: their instructions, collectives, FLOPs, memory and time."""
