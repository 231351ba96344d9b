"""Chips that are not here: programs compiled for them, or recorded."""
