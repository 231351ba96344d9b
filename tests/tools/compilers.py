"""Which compilers for pods are installed."""

import platform
import sys

import pytest

INSTALLED = sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info >= (3, 12)
needs_libtpu = pytest.mark.skipif(not INSTALLED, reason="the lock has libtpu for Linux on x86-64, Python 3.12 or newer")
