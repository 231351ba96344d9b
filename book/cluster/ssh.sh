#!/bin/bash
# No scheduler: start one process on each host by ssh. Every host needs this folder and $VENV at the same path.
# The three variables tell join.py the address of process 0, the number of processes, and the process index.
set -euo pipefail
hosts=(${HOSTS:-host1 host2})
program=("${@:?which program, with its arguments?}")
process_id=0
for host in "${hosts[@]}"; do
  variables="COORDINATOR=${hosts[0]}:${PORT:-8476} NUM_PROCESSES=${#hosts[@]} PROCESS_ID=$process_id"
  ssh -tt "$host" "cd '$PWD' && $variables '$VENV/bin/python' -u ${program[*]@Q}" &
  process_id=$((process_id + 1))
done
for _ in "${hosts[@]}"; do
  wait -n || { kill $(jobs -p) 2>/dev/null || true; exit 1; } # one has failed: end the others
done
