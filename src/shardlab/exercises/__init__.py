"""Answers and tests: what is checked of values, layouts and communication."""
