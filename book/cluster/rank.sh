#!/bin/bash
# For launchers that JAX does not know: PBS's mpiexec, LSF's jsrun, Flux, and mpiexec of MPICH or Intel MPI. They start
# this script in each process, and it tells join.py what they say: the number of processes and the process index. The
# job names the address of process 0 before: its first node, and a port.
#
#   export COORDINATOR=$(head -n 1 "$PBS_NODEFILE"):8476            # PBS
#   mpiexec -n 8 --ppn 4 bash rank.sh hello.py
#
#   export COORDINATOR=$(sed -n 2p "$LSB_DJOB_RANKFILE"):8476       # LSF, whose first line is the launch node
#   jsrun -n 8 -a 1 -c 4 -g 1 bash rank.sh hello.py
#
#   export COORDINATOR=$(flux hostlist --nth=0 local):8476          # Flux
#   flux run -N 2 -n 8 -c 4 -g 1 bash rank.sh hello.py
set -euo pipefail
export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda}"
: "${VENV:?export VENV=/path/to/your/environment}"
: "${COORDINATOR:?export COORDINATOR=host:port of process 0, before the launcher}"
unset NUM_PROCESSES PROCESS_ID
# The variables of a rank, of the number of ranks and of a rank on its node. Flux sets MPICH's too, and comes first.
while read -r rank size local; do
  if [[ -n ${!rank-} && -n ${!size-} && -n ${!local-} ]]; then
    export PROCESS_ID="${!rank}" NUM_PROCESSES="${!size}"
    # The GPU with this rank's number, or the only one that the launcher has left it.
    visible="${CUDA_VISIBLE_DEVICES-}${ROCR_VISIBLE_DEVICES-}"
    [[ -n $visible && $visible != *,* ]] && only=0 || only="${!local}"
    export JAX_LOCAL_DEVICE_IDS="${JAX_LOCAL_DEVICE_IDS:-$only}"
    break
  fi
done <<'END'
FLUX_TASK_RANK FLUX_JOB_SIZE FLUX_TASK_LOCAL_ID
JSM_NAMESPACE_RANK JSM_NAMESPACE_SIZE JSM_NAMESPACE_LOCAL_RANK
PMI_RANK PMI_SIZE PMI_LOCAL_RANK
PMI_RANK PMI_SIZE MPI_LOCALRANKID
END
: "${PROCESS_ID:?no variable of a launcher that this script knows: was it started by mpiexec, jsrun or flux run?}"
exec "$VENV/bin/python" -u "${@:-hello.py}"
