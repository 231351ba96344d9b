"""For each exercise, answers that many people give and that its check must refuse.

The key is the exercise's label; each answer is code that takes the place of the stub. At least two each.
"""

WRONG_ANSWERS = {
    "arrays-all-devices": {
        "right values, never moved": "answer = A",
        "right values, rows cut and columns copied": "answer = jax.device_put(A, NamedSharding(mesh, P('y')))",
        "the layout of the text": "answer = A_sharded",
        "right layout, other values": "answer = jax.device_put(8 * A, NamedSharding(mesh, P('y', 'x')))",
    },
    "arrays-who-holds-what": {
        "the whole array everywhere": (
            "def holdings(x): return 8, x.sharding.spec, {d.id: np.asarray(x) for d in x.devices()}"
        ),
        "a place in the list taken for a device": (
            "def holdings(x):\n"
            "    shards = enumerate(x.addressable_shards)\n"
            "    return len(x.devices()), x.sharding.spec, {i: np.asarray(s.data) for i, s in shards}"
        ),
        "slices instead of values": (
            "def holdings(x): return 8, x.sharding.spec, {s.device.id: s.index for s in x.addressable_shards}"
        ),
        "one copy only": (
            "def holdings(x):\n"
            "    first = [s for s in x.addressable_shards if s.replica_id == 0]\n"
            "    return len(x.devices()), x.sharding.spec, {s.device.id: np.asarray(s.data) for s in first}"
        ),
        "pieces counted instead of devices": (
            "def holdings(x):\n"
            "    pieces = {s.device.id: np.asarray(s.data) for s in x.addressable_shards}\n"
            "    return len({str(s.index) for s in x.addressable_shards}), x.sharding.spec, pieces"
        ),
    },
    "arrays-four-specs": {
        "None taken for one copy": (
            "answer = {'P(\"x\", None)': ((2, 16), 1), 'P(None, \"y\")': ((4, 4), 1), "
            "'P(None, None)': ((4, 16), 1), 'P(None, \"x\")': ((4, 8), 1)}"
        ),
        "dimensions exchanged": (
            "answer = {'P(\"x\", None)': ((4, 8), 4), 'P(None, \"y\")': ((1, 16), 2), "
            "'P(None, None)': ((4, 16), 8), 'P(None, \"x\")': ((2, 16), 4)}"
        ),
    },
    "arrays-budget": {
        "small enough, but only one copy": "spec = P(('x', 'y'))",
        "two copies or more, but too large": "spec = P('x')",
        "rows torn apart": "spec = P(None, 'y')",
    },
    "arrays-match": {
        "the tuple in the other order": "spec = P(None, ('x', 'y'))",
        "rows instead of columns": "spec = P(('y', 'x'))",
        "two dimensions": "spec = P('x', 'y')",
    },
    "writing-one-to-a-device": {
        "replicated": "answer = jax.device_put(jnp.arange(8), NamedSharding(mesh, P()))",
        "never moved": "answer = jnp.arange(8)",
    },
}
