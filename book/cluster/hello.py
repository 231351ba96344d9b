"""What each process of a job sees: python hello.py, under srun, mpirun, ssh.sh or alone."""

import os
import socket

import jax
from join import join

join()

import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
local = np.full(jax.local_device_count(), float(jax.process_index()), np.float32)
array = jax.make_array_from_process_local_data(NamedSharding(mesh, P("d")), local)
device = jax.local_devices()[0]
driver, hides = (
    ("rocm", ("ROCR", "HIP"))
    if "rocm" in device.client.platform_version.lower()
    else ("cuda", ("CUDA",))
)
visible = [
    f"{name}_VISIBLE_DEVICES={os.environ.get(f'{name}_VISIBLE_DEVICES', 'not set')}"
    for name in hides
]
uses = jax.config.read(f"jax_{driver}_visible_devices")
line = (
    f"process {jax.process_index()} of {jax.process_count()} on {socket.gethostname()}: "
    f"{jax.local_device_count()} of {jax.device_count()} devices "
    f"(platform {device.platform}, kind {device.device_kind}), "
    f"{', '.join(visible)}, JAX uses {uses}, sum {float(array.sum()):g}"
)
# one write with its newline, so that lines of several processes do not mix
print(line + "\n", end="", flush=True)
