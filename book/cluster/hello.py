"""What each process of a job sees: python hello.py, under srun, mpirun or alone."""

import os
import socket

import jax

counts = "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PROCESSES"
if max(int(os.environ.get(name, 1)) for name in counts) > 1:
    jax.distributed.initialize()  # the launcher tells it everything

import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

everything = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
mine = np.full(jax.local_device_count(), float(jax.process_index()), np.float32)
array = jax.make_array_from_process_local_data(NamedSharding(everything, P("d")), mine)
print(
    f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}:",
    f"{jax.local_device_count()} of {jax.device_count()} devices,",
    f"may see GPUs {os.environ.get('CUDA_VISIBLE_DEVICES', 'all')},",
    f"takes {jax.config.read('jax_cuda_visible_devices')}, sum {float(array.sum()):g}",
    flush=True,
)
