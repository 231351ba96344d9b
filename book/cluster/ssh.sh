#!/bin/bash
# No scheduler at all: one process on each host, started by ssh. The program needs three arguments then:
#   jax.distributed.initialize(os.environ["MEET"], int(os.environ["COUNT"]), int(os.environ["PLACE"]))
set -euo pipefail
hosts=(host1 host2)
program=("${@:?which program, with its arguments?}")
place=0
for host in "${hosts[@]}"; do
  variables="MEET=${hosts[0]}:8476 COUNT=${#hosts[@]} PLACE=$place"
  ssh -tt "$host" "cd '$PWD' && $variables '$VENV/bin/python' -u ${program[*]@Q}" &
  place=$((place + 1))
done
for _ in "${hosts[@]}"; do
  wait -n || { kill $(jobs -p) 2>/dev/null || true; exit 1; } # one has failed: end all
done
