#!/bin/bash
# A Cloud TPU slice has several hosts, and each runs the same program. jax.distributed.initialize() needs no arguments,
# on several slices neither. JAX has to be installed on each host. The third argument is the number of hosts. The settings
# of JAX, XLA and libtpu go along. (Run with a stand-in for gcloud and two processes, not on a TPU.)
set -euo pipefail
name=${1:?name of the TPU} zone=${2:?zone} hosts=${3:?number of hosts} program=${4:?which program?}
file=$(basename "$program") settings=
shift 4 # the rest are arguments of the program
for setting in $(compgen -e | grep -E '^(JAX|XLA|LIBTPU)' || true); do settings+="$setting=${!setting@Q} "; done
gcloud compute tpus tpu-vm scp "$program" join.py watchdog.py "$name": --zone="$zone" --worker=all
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="${settings}NUM_PROCESSES=${hosts@Q} python3 -u ${file@Q} ${*@Q}"
