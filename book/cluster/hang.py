"""A training loop that process 5 leaves too early: the watchdogs of all processes say where they
are, and the job ends.

srun --kill-on-bad-exit=1 python hang.py     (six processes or more)
"""

import jax
from join import join

join()

import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from watchdog import Watchdog

mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
g = jax.make_array_from_process_local_data(
    NamedSharding(mesh, P("d")), np.ones(jax.local_device_count(), np.float32)
)
watchdog = Watchdog(limit=10)
for step in range(20):
    watchdog.step(f"step {step}")
    if jax.process_index() == 5 and step == 17:
        break
    total = float(g.sum())
else:
    raise SystemExit(
        "all 20 steps are done: start six processes or more, so that process 5 can leave the loop"
    )
