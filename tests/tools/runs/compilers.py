"""What tests know of compilers: the flags with which they and their chapters run, and which
compilers are installed.

The flags are named before anything starts JAX, so nothing here may import it.
"""

import platform
import sys

import pytest

# LLVM optimises little here, which saves processor time: XLA's own optimisations, which decide what
# is communicated and held, stay on. Tests mostly compile, chapters run what they compile: `zero`
# took 131 s without LLVM's optimisations and 103 s with the first level of them. JAX 0.7.2, on
# which notebooks run, also compiles faster without fusion emitters (152 s became 104 s); a newer
# jaxlib does not know that flag. Pages that people read are made without any of these, and so is
# the site of the tests, unless CI builds it from nothing.
COMPILE_ONLY = "--xla_backend_optimization_level=0"
COMPILE_AND_RUN = "--xla_backend_optimization_level=1"
IN_COLAB = f"{COMPILE_AND_RUN} --xla_cpu_use_fusion_emitters=false"

# Those for pods.
INSTALLED = (
    sys.platform == "linux" and platform.machine() == "x86_64" and sys.version_info >= (3, 12)
)
needs_libtpu = pytest.mark.skipif(
    not INSTALLED, reason="the lock has libtpu for Linux on x86-64, Python 3.12 or newer"
)
