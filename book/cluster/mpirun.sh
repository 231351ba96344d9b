#!/bin/bash
# Open MPI as launcher: four processes on each host, each with one GPU. Run it on the first host: JAX detects Open MPI by
# its environment variables, and takes the host of mpirun for that of process 0. From Open MPI 5 on it needs mpi4py.
# (Run on CPUs with Open MPI 4.1 on two nodes, and 5.0 on one.)
set -euo pipefail
export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda}"
: "${VENV:?export VENV=/path/to/your/environment}"
set -f # a name is a name, also with a star
hosts=(${HOSTS:-host1 host2}) each=${EACH:-4}
: "${hosts[0]:?HOSTS names no host}"
[[ $each =~ ^[1-9][0-9]*$ ]] || { echo "EACH=$each: export EACH=the number of processes of a host" >&2; exit 1; }
settings=()
for name in $(compgen -e | grep -E '^(JAX|XLA|NCCL|NPROC|LD_LIBRARY_PATH$)'); do settings+=(-x "$name"); done
mpirun --host "$(IFS=,; echo "${hosts[*]/%/:$each}")" --map-by "ppr:$each:node" --bind-to none "${settings[@]}" \
  "$VENV/bin/python" -u "${@:-hello.py}"
