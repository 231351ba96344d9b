"""A training step: how it is parallelised, what it keeps and computes again, and its time."""
