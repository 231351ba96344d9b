"""Where tests find what they look at."""

from pathlib import Path

ROOT = Path(__file__).parents[3]
