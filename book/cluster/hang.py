"""A training loop that process 5 leaves too early: each watchdog says where it is; the job ends.

srun --kill-on-bad-exit=1 python hang.py     (six processes or more)
"""

import jax
from join import join

join()

import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from watchdog import Watchdog

mesh = jax.make_mesh((jax.device_count(),), ("d",), axis_types=(AxisType.Auto,))
g = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=NamedSharding(mesh, P("d")))()
watchdog = Watchdog(limit=10)
for step in range(20):
    watchdog.step(f"step {step}")
    if jax.process_index() == 5 and step == 17:
        break
    total = float(g.sum())
else:
    raise SystemExit("all 20 steps are done: start six processes or more, so that 5 can leave it")
