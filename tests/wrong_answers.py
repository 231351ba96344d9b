"""For each exercise, answers that many people give and that its check must refuse.

The key is the exercise's label; each answer is code that takes the place of the stub. At least two each.
"""

WRONG_ANSWERS = {
    "arrays-all-devices": {
        "right values, never moved": "answer = A",
        "right values, rows cut and columns copied": "answer = jax.device_put(A, NamedSharding(mesh, P('x')))",
        "axes exchanged": "answer = jax.device_put(A, NamedSharding(mesh, P('y', 'x')))",
        "right layout, other values": "answer = jax.device_put(8 * A, NamedSharding(mesh, P('x', 'y')))",
    },
    "arrays-who-holds-what": {
        "the whole array everywhere": "def holdings(x): return {s.device.id: np.asarray(x) for s in x.addressable_shards}",
        "pieces in the order of the list, not of the devices": (
            "def holdings(x):\n"
            "    pieces = [np.asarray(s.data) for s in sorted(x.addressable_shards, key=lambda s: str(s.index))]\n"
            "    return dict(enumerate(pieces))"
        ),
        "slices instead of pieces": "def holdings(x): return {s.device.id: s.index for s in x.addressable_shards}",
        "one device missing": "def holdings(x): return {s.device.id: np.asarray(s.data) for s in x.addressable_shards[1:]}",
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
