#!/bin/bash
# Open MPI as launcher: eight processes, four on each of two hosts. JAX detects Open MPI by its environment variables
# (from Open MPI 5 on it needs mpi4py for that).
set -euo pipefail
mpirun --host host1:4,host2:4 --map-by ppr:4:node -x PATH -x VIRTUAL_ENV \
  python -u "${@:-hello.py}"
