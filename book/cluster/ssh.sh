#!/bin/bash
# No scheduler: start one process on each host by ssh. Every host needs this folder and $VENV at the same path.
# Three variables tell join.py the address of process 0, the number of processes, and the process index. The settings of
# JAX, XLA and NCCL go along, as ssh takes over no variables.
set -euo pipefail
export JAX_PLATFORMS="${JAX_PLATFORMS:-cuda}"
: "${VENV:?export VENV=/path/to/your/environment}"
set -f # a name is a name, also with a star
hosts=(${HOSTS:-host1 host2})
: "${hosts[0]:?HOSTS names no host}"
program=("${@:?which program, with its arguments?}")
python="$VENV/bin/python" settings=
for name in $(compgen -e | grep -E '^(JAX|XLA|NCCL|NPROC)'); do settings+="$name=${!name@Q} "; done
end_all() { kill $(jobs -p) 2>/dev/null || true; exit 1; }
trap end_all INT TERM HUP # Ctrl-C does not reach what a script has started in the background
process_id=0
for host in "${hosts[@]}"; do
  address="${hosts[0]#*@}:${PORT:-8476}" # of user@host, the host
  variables="COORDINATOR=${address@Q} NUM_PROCESSES=${#hosts[@]} PROCESS_ID=$process_id"
  # -tt: when this script ends, so do the processes.
  ssh -tt -- "$host" "cd ${PWD@Q} && env $settings$variables ${python@Q} -u ${program[*]@Q}" </dev/null &
  process_id=$((process_id + 1))
done
for _ in "${hosts[@]}"; do
  wait -n || end_all # one has failed: end the others
done
