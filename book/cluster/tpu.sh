#!/bin/bash
# A Cloud TPU slice has several hosts, and each runs the same program. jax.distributed.initialize() needs no arguments.
set -euo pipefail
name=${1:?name of the TPU} zone=${2:?zone} program=${3:?which program?}
gcloud compute tpus tpu-vm scp "$program" "$name": --zone="$zone" --worker=all
gcloud compute tpus tpu-vm ssh "$name" --zone="$zone" --worker=all --command="python3 -u $(basename "$program")"
