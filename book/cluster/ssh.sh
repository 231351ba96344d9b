#!/bin/bash
# No scheduler at all: one process on each host, started by ssh. The program needs three arguments then:
#   jax.distributed.initialize(os.environ["MEET"], int(os.environ["COUNT"]), int(os.environ["PLACE"]))
set -euo pipefail
hosts=(host1 host2)
program=${1:?which program?}
place=0
for host in "${hosts[@]}"; do
  ssh "$host" "cd '$PWD' && MEET=${hosts[0]}:8476 COUNT=${#hosts[@]} PLACE=$place python -u '$program'" &
  place=$((place + 1))
done
wait -n || { kill $(jobs -p); exit 1; } # one has failed: end all
wait
