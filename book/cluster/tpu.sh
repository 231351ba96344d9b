#!/bin/bash
# A Cloud TPU slice has several hosts, and each runs the same program. jax.distributed.initialize() needs no arguments,
# on several slices neither. JAX has to be installed on each host.
set -euo pipefail
name=${1:?name of the TPU} zone=${2:?zone} program=${3:?which program?}
shift 3 # the rest are arguments of the program
gcloud compute tpus tpu-vm scp "$program" "$name": --zone="$zone" --worker=all
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all \
  --command="PROCESSES=2 python3 -u $(basename "$program") ${*@Q}" # 2: more than one
