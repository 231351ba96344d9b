"""For each exercise, answers that many people give and that its check must refuse.

The key is the exercise's label; each answer is code that takes the place of the stub. At least two each.
"""

# What the exercise "The cheapest way below a budget" counts, and the order in which it tries.
_ONCE, _EACH_TIME = "12 * M / n + 12 * M", "20 * M / n + 4 * M / L"
_IN_ORDER = "((way, 2 ** k) for way in held for k in range(7))"

WRONG_ANSWERS = {
    "explorer-whole-rows": {
        "two shards": 'answer = jax.device_put(A, NamedSharding(mesh, P("x")))',
        "columns": 'answer = jax.device_put(A, NamedSharding(mesh, P(None, "y")))',
        "every row once": 'answer = jax.device_put(A, NamedSharding(mesh, P(("x", "y"))))',
        "replicated": "answer = jax.device_put(A, NamedSharding(mesh, P()))",
    },
    "explorer-silent-product": {
        "B replicated": "def product_specs(): return P('x', 'y'), P(), P('x', 'y')",
        "nothing sent, but B replicated": "def product_specs(): return P(('x', 'y')), P(), P(('x', 'y'))",
        "sharded along the contracting dimension": "def product_specs(): return P(None, 'x'), P('x', None), P()",
        "one axis on both surviving dimensions": "def product_specs(): return P('x'), P(None, 'x'), P('x')",
        "a replicated result": "def product_specs(): return P('x'), P(None, 'y'), P()",
    },
    "explorer-fewest-chips": {
        "the state fits, the activations do not": "answer = 10, {'fsdp': 10}, 8",
        "twice as many": "answer = 32, {'fsdp': 32}, 2",
        "one batch": "answer = 16, {'fsdp': 16}, 1",
        "with tensor parallelism": "answer = 16, {'fsdp': 8, 'tensor': 2}, 8",
    },
    "arrays-all-devices": {
        "right values, never moved": "answer = A",
        "right values, rows sharded and columns replicated": "answer = jax.device_put(A, NamedSharding(mesh, P('y')))",
        "the layout of the text": "answer = A_sharded",
        "right layout, other values": "answer = jax.device_put(8 * A, NamedSharding(mesh, P('y', 'x')))",
    },
    "arrays-who-holds-what": {
        "the full array on every device": (
            "def holdings(x): return 8, x.sharding.spec, {d.id: np.asarray(x) for d in x.devices()}"
        ),
        "a position in the list taken for a device": (
            "def holdings(x):\n"
            "    shards = enumerate(x.addressable_shards)\n"
            "    return len(x.devices()), x.sharding.spec, {i: np.asarray(s.data) for i, s in shards}"
        ),
        "slices instead of values": (
            "def holdings(x): return 8, x.sharding.spec, {s.device.id: s.index for s in x.addressable_shards}"
        ),
        "one replica only": (
            "def holdings(x):\n"
            "    first = [s for s in x.addressable_shards if s.replica_id == 0]\n"
            "    return len(x.devices()), x.sharding.spec, {s.device.id: np.asarray(s.data) for s in first}"
        ),
        "different shards counted instead of devices": (
            "def holdings(x):\n"
            "    stored = {s.device.id: np.asarray(s.data) for s in x.addressable_shards}\n"
            "    return len({str(s.index) for s in x.addressable_shards}), x.sharding.spec, stored"
        ),
    },
    "arrays-four-specs": {
        "None taken for one replica": (
            "answer = {'P(\"x\", None)': ((2, 16), 1), 'P(None, \"y\")': ((4, 4), 1), "
            "'P(None, None)': ((4, 16), 1), 'P(None, \"x\")': ((4, 8), 1)}"
        ),
        "dimensions exchanged": (
            "answer = {'P(\"x\", None)': ((4, 8), 4), 'P(None, \"y\")': ((1, 16), 2), "
            "'P(None, None)': ((4, 16), 8), 'P(None, \"x\")': ((2, 16), 4)}"
        ),
        "different shards counted instead of replicas": (
            "answer = {'P(\"x\", None)': ((2, 16), 2), 'P(None, \"y\")': ((4, 4), 4), "
            "'P(None, None)': ((4, 16), 1), 'P(None, \"x\")': ((4, 8), 2)}"
        ),
    },
    "arrays-budget": {
        "small enough, but no second replica": "spec = P(('x', 'y'))",
        "two replicas or more, but too large": "spec = P('x')",
        "rows split": "spec = P(None, 'y')",
    },
    "arrays-match": {
        "the tuple in the other order": "spec = P(None, ('x', 'y'))",
        "rows instead of columns": "spec = P(('y', 'x'))",
        "two dimensions": "spec = P('x', 'y')",
    },
    "auto-two-operations": {
        "no collective for the product": ("answer = {'U + V': ((('x',), ('y',)), {}), 'U.T @ V': (((), ('y',)), {})}"),
        "the product as a gather": (
            "answer = {'U + V': ((('x',), ('y',)), {}), 'U.T @ V': (((), ('y',)), {'all-gather': 1})}"
        ),
        "the sum taken for replicated": (
            "answer = {'U + V': (((), ()), {}), 'U.T @ V': (((), ('y',)), {'all-reduce': 1})}"
        ),
        "the product taken for sharded over x": (
            "answer = {'U + V': ((('x',), ('y',)), {}), 'U.T @ V': ((('x',), ('y',)), {'all-reduce': 1})}"
        ),
    },
    "auto-layer": {
        "computed before": (
            "known = layer(X, W, b)\n"
            "def parallel_layer(X, W, b): return jax.lax.with_sharding_constraint(known, P('d', None))"
        ),
        "right value, nothing sharded": "parallel_layer = layer",
        "right value, replicated": (
            "def parallel_layer(X, W, b): return layer(*jax.device_put((X, W, b), NamedSharding(line, P())))"
        ),
        "right layout, gathered first": (
            "def parallel_layer(X, W, b):\n"
            "    X = jax.lax.with_sharding_constraint(X * 1, P('d'))\n"
            "    out = jax.lax.with_sharding_constraint(layer(X, W, b), P())\n"
            "    return jax.lax.with_sharding_constraint(out, P('d'))"
        ),
        "computed on every device, then sharded": (
            "def parallel_layer(X, W, b): return jax.device_put(layer(X, W, b), NamedSharding(line, P('d')))"
        ),
        "off by the number of devices": (
            "def parallel_layer(X, W, b): return 8 * layer(jax.device_put(X, NamedSharding(line, P('d'))), W, b)"
        ),
    },
    "auto-cheap-product": {
        "rows over y and columns over x: too large": "specs = P('y', None), P(None, 'x')",
        "rows over both axes, B replicated: too large": "specs = P(('x', 'y'), None), P()",
        "both sharded along the contracting dimension": "specs = P(None, 'y'), P('y', None)",
        "one axis for rows and columns": "specs = P('y', None), P(None, 'y')",
        "nothing sharded": "specs = P(), P()",
    },
    "auto-expensive-line": {
        "computed before": "known = slow(x, W1, W2)\ndef fast(x, W1, W2): return known",
        "the same program again": "fast = slow",
        "without the activation function": "fast = two_layers",
        "rows sharded instead of columns": (
            "def fast(x, W1, W2):\n    return jax.lax.with_sharding_constraint(jax.nn.relu(x @ W1), P('y', None)) @ W2"
        ),
    },
    "checkpoints-four-devices": {
        "no target: the saved layout": "def load_on_four(manager): return restore(manager, 3)",
        "columns sharded instead of rows": (
            "def load_on_four(manager):\n"
            "    columns = NamedSharding(four, P(None, 'd'))\n"
            "    leaf = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=columns)\n"
            "    return restore(manager, 3, jax.tree.map(leaf, shapes['params']))"
        ),
        "rows sharded, on all eight": "def load_on_four(manager): return restore(manager, 3, rows_layout['params'])",
        "four replicas": (
            "def load_on_four(manager):\n"
            "    replicated = NamedSharding(four, P())\n"
            "    leaf = lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=replicated)\n"
            "    return restore(manager, 3, jax.tree.map(leaf, shapes['params']))"
        ),
        "right layout, nothing restored": (
            "def load_on_four(manager):\n"
            "    params = init(jax.random.key(0))['params']\n"
            "    return jax.device_put(params, NamedSharding(four, P('d')))"
        ),
    },
    "checkpoints-resume": {
        "starts again, with the right step": (
            "def resume(manager, target, until):\n"
            "    state = run(create(target), until - manager.latest_step())\n"
            "    return {**state, 'step': jax.device_put(np.int32(until), state['step'].sharding)}"
        ),
        "the first batches again": (
            "def resume(manager, target, until):\n"
            "    state = restore(manager, manager.latest_step(), target)\n"
            "    for step in range(until - manager.latest_step()):\n"
            "        state = train(state, load_batch(step, mesh))\n"
            "    return state"
        ),
        "Adam starts again": (
            "def resume(manager, target, until):\n"
            "    state = restore(manager, manager.latest_step(), target)\n"
            "    state['adam'] = create(target)['adam']\n"
            "    return run(state, until)"
        ),
        "one batch left out": (
            "def resume(manager, target, until):\n"
            "    state = restore(manager, manager.latest_step(), target)\n"
            "    state['step'] = state['step'] + 1\n"
            "    return run(state, until)"
        ),
        "one step too far": (
            "def resume(manager, target, until):\n"
            "    return run(restore(manager, manager.latest_step(), target), until + 1)"
        ),
        "restored, not resumed": (
            "def resume(manager, target, until): return restore(manager, manager.latest_step(), target)"
        ),
        "the checkpoint never opened": "def resume(manager, target, until): return run(create(target), until)",
        "the oldest checkpoint": (
            "def resume(manager, target, until): return run(restore(manager, manager.all_steps()[0], target), until)"
        ),
        "always until 8": (
            "def resume(manager, target, until): return run(restore(manager, manager.latest_step(), target), 8)"
        ),
        "another layout": (
            "def resume(manager, target, until):\n"
            "    state = run(restore(manager, manager.latest_step(), target), until)\n"
            "    return jax.device_put(state, NamedSharding(mesh, P()))"
        ),
    },
    "resume-repeats": {
        "the loader's own position, which skips": (
            "def prefetch_with_state(loader, size):\n"
            "    queue = collections.deque()\n"
            "    for batch in loader:\n"
            "        queue.append(batch)\n"
            "        if len(queue) == size:\n"
            "            yield queue.popleft(), loader.get_state()\n"
            "    for batch in queue: yield batch, loader.get_state()"
        ),
        "the position before the batch, which repeats": (
            "def prefetch_with_state(loader, size):\n"
            "    queue, state = collections.deque(), loader.get_state()\n"
            "    for batch in loader:\n"
            "        queue.append((batch, state))\n"
            "        state = loader.get_state()\n"
            "        if len(queue) == size:\n"
            "            yield queue.popleft()\n"
            "    yield from queue"
        ),
        "the size subtracted, wrong at the end": (
            "def prefetch_with_state(loader, size):\n"
            "    queue = collections.deque()\n"
            "    behind = lambda: {'next_index': loader.get_state()['next_index'] - size + 1}\n"
            "    for batch in loader:\n"
            "        queue.append(batch)\n"
            "        if len(queue) == size:\n"
            "            yield queue.popleft(), behind()\n"
            "    for batch in queue: yield batch, behind()"
        ),
        "the last batches lost": (
            "def prefetch_with_state(loader, size):\n"
            "    queue = collections.deque()\n"
            "    for batch in loader:\n"
            "        queue.append((batch, loader.get_state()))\n"
            "        if len(queue) == size:\n"
            "            yield queue.popleft()"
        ),
        "right positions, but nothing is read ahead": (
            "def prefetch_with_state(loader, size):\n    for batch in loader: yield batch, loader.get_state()"
        ),
    },
    "resume-other-layout": {
        "not transposed": (
            "def load_mlp(load):\n"
            "    leaf = lambda shape: jax.ShapeDtypeStruct(\n"
            "        shape, 'float32', sharding=NamedSharding(mesh, P('model', 'data')))\n"
            "    loaded = load({'fc1': {'weight': leaf((64, 32))}, 'fc2': {'weight': leaf((32, 64))}})\n"
            "    return {'up': loaded['fc1']['weight'], 'down': loaded['fc2']['weight']}"
        ),
        "reshaped instead of transposed": (
            "def load_mlp(load):\n"
            "    leaf = lambda shape: jax.ShapeDtypeStruct(\n"
            "        shape, 'float32', sharding=NamedSharding(mesh, P('model', 'data')))\n"
            "    loaded = load({'fc1': {'weight': leaf((64, 32))}, 'fc2': {'weight': leaf((32, 64))}})\n"
            "    up = loaded['fc1']['weight'].reshape(32, 64)\n"
            "    down = loaded['fc2']['weight'].reshape(64, 32)\n"
            "    put = jax.device_put\n"
            "    return {'up': put(up, P('data', 'model')), 'down': put(down, P('model', 'data'))}"
        ),
        "our specs for their arrays": (
            "def load_mlp(load):\n"
            "    leaf = lambda shape, *spec: jax.ShapeDtypeStruct(\n"
            "        shape, 'float32', sharding=NamedSharding(mesh, P(*spec)))\n"
            "    loaded = load({'fc1': {'weight': leaf((64, 32), 'data', 'model')},\n"
            "                   'fc2': {'weight': leaf((32, 64), 'model', 'data')}})\n"
            "    return {'up': loaded['fc1']['weight'].T, 'down': loaded['fc2']['weight'].T}"
        ),
    },
    "checkpoints-last-good": {
        "the oldest": (
            "def last_good(manager, target):\n"
            "    step = min(manager.all_steps())\n"
            "    return step, restore(manager, step, target)"
        ),
        "the newest step with an older state": (
            "def last_good(manager, target):\n"
            "    for step in sorted(manager.all_steps(), reverse=True):\n"
            "        try: return manager.latest_step(), restore(manager, step, target)\n"
            "        except Exception: pass"
        ),
        "the target ignored": (
            "def last_good(manager, target):\n"
            "    for step in sorted(manager.all_steps(), reverse=True):\n"
            "        try: return step, restore(manager, step)\n"
            "        except Exception: pass"
        ),
        "only the newest and the one before": (
            "def last_good(manager, target):\n"
            "    for step in sorted(manager.all_steps(), reverse=True)[:2]:\n"
            "        try: return step, restore(manager, step, target)\n"
            "        except Exception: pass"
        ),
        "only the newest": (
            "def last_good(manager, target):\n"
            "    try: return manager.latest_step(), restore(manager, manager.latest_step(), target)\n"
            "    except Exception: pass"
        ),
        "oldest first": (
            "def last_good(manager, target):\n"
            "    for step in manager.all_steps():\n"
            "        try: return step, restore(manager, step, target)\n"
            "        except Exception: pass"
        ),
    },
    "clusters-sixteen": {
        "GPUs of all nodes": (
            "answer = {'--nodes': 16, '--ntasks-per-node': 8, '--cpus-per-task': 9, '--gres=gpu': 128, "
            "'processes': 128, 'SLURM_LOCALID': 5}"
        ),
        "one process a node": (
            "answer = {'--nodes': 16, '--ntasks-per-node': 1, '--cpus-per-task': 72, '--gres=gpu': 8, "
            "'processes': 16, 'SLURM_LOCALID': 0}"
        ),
        "the node's number": (
            "answer = {'--nodes': 16, '--ntasks-per-node': 8, '--cpus-per-task': 9, '--gres=gpu': 8, "
            "'processes': 128, 'SLURM_LOCALID': 9}"
        ),
        "counted from one": (
            "answer = {'--nodes': 16, '--ntasks-per-node': 8, '--cpus-per-task': 9, '--gres=gpu': 8, "
            "'processes': 128, 'SLURM_LOCALID': 6}"
        ),
    },
    "clusters-cross": {
        "as for two nodes": "answer = crossing(2, 4)",
        "what a device sends": "answer = {'flat': 2 * 31 / 32, 'hierarchical': 2 * 31 / 32, 'all_to_all': 31 / 32}",
        "every ring with all of the data": "answer = {'flat': 2 * 31 / 32, 'hierarchical': 12, 'all_to_all': 6}",
    },
    "clusters-gather": {
        "flat": "def gather(x_shard): return lax.all_gather(x_shard, ('node', 'gpu'), axis=0, tiled=True)",
        "within first, across then": (
            "def gather(x_shard):\n"
            "    rows = lax.all_gather(x_shard, 'gpu', axis=0, tiled=True)\n"
            "    return lax.all_gather(rows, 'node', axis=0, tiled=True)"
        ),
        "in the wrong order": (
            "def gather(x_shard):\n"
            "    pair = lax.all_gather(x_shard, 'node', axis=0, tiled=True)\n"
            "    return lax.all_gather(pair, 'gpu', axis=0, tiled=True)"
        ),
        "the node's rows only": (
            "def gather(x_shard): return jnp.tile(lax.all_gather(x_shard, 'gpu', axis=0, tiled=True), (2, 1))"
        ),
        "all rows quoted, none sent": "def gather(x_shard): return x",
        "the node's rows across one by one": (
            "def gather(x_shard):\n"
            "    rows = lax.all_gather(x_shard, 'gpu', axis=0, tiled=True)\n"
            "    other = lax.map(lambda row: lax.ppermute(row, 'node', [(0, 1), (1, 0)]), rows)\n"
            "    first = lax.axis_index('node') == 0\n"
            "    return jnp.concatenate([jnp.where(first, rows, other), jnp.where(first, other, rows)])"
        ),
    },
    "collectives-prices": {
        "an all-gather priced by its shard": (
            "answer = {'ppermute': MiB, 'all_gather': 7 * MiB // 8, 'psum_scatter': 7 * MiB, "
            "'psum': 14 * MiB, 'all_to_all': 7 * MiB // 8}"
        ),
        "an all-to-all as expensive as an all-gather": (
            "answer = {'ppermute': MiB, 'all_gather': 7 * MiB, 'psum_scatter': 7 * MiB, "
            "'psum': 14 * MiB, 'all_to_all': 7 * MiB}"
        ),
        "an all-reduce without its second half": (
            "answer = {'ppermute': MiB, 'all_gather': 7 * MiB, 'psum_scatter': 7 * MiB, "
            "'psum': 7 * MiB, 'all_to_all': 7 * MiB // 8}"
        ),
        "eight instead of seven": (
            "answer = {'ppermute': MiB, 'all_gather': 8 * MiB, 'psum_scatter': 8 * MiB, "
            "'psum': 16 * MiB, 'all_to_all': MiB}"
        ),
    },
    "collectives-memory-limit": {
        "an all-gather for every job": "choice = dict.fromkeys(limits, 'all-gather')",
        "an all-reduce wherever there are sums": (
            "choice = {'columns': 'all-to-all', 'rows of the sum': 'all-reduce', 'whole sum': 'all-reduce', "
            "'whole array': 'all-gather', 'neighbour': 'collective permute'}"
        ),
        "the columns gathered first": (
            "choice = {'columns': 'all-gather', 'rows of the sum': 'reduce-scatter', 'whole sum': 'all-reduce', "
            "'whole array': 'all-gather', 'neighbour': 'collective permute'}"
        ),
        "partial sums exchanged, then added": (
            "choice = {'columns': 'all-to-all', 'rows of the sum': 'all-to-all', 'whole sum': 'all-reduce', "
            "'whole array': 'all-gather', 'neighbour': 'collective permute'}"
        ),
        "a collective that does not do the job": (
            "choice = {'columns': 'collective permute', 'rows of the sum': 'reduce-scatter', "
            "'whole sum': 'reduce-scatter', 'whole array': 'all-to-all', 'neighbour': 'all-to-all'}"
        ),
    },
    "collectives-moving-average": {
        "each shard alone": (
            "def smooth(signal):\n"
            "    def f(p):\n"
            "        known = jnp.concatenate([jnp.zeros_like(p[:3]), p])\n"
            "        return sum(known[i : i + len(p)] for i in range(4)) / 4\n"
            "    return over(eight, f)(signal)"
        ),
        "a closed ring": (
            "def smooth(signal):\n"
            "    def f(p):\n"
            "        known = jnp.concatenate([lax.ppermute(p[-3:], 'd', ring_pairs(8)), p])\n"
            "        return sum(known[i : i + len(p)] for i in range(4)) / 4\n"
            "    return over(eight, f)(signal)"
        ),
        "the complete shard sent": (
            "def smooth(signal):\n"
            "    def f(p):\n"
            "        before = lax.ppermute(p, 'd', [(i, i + 1) for i in range(7)])\n"
            "        known = jnp.concatenate([before, p])[-len(p) - 3 :]\n"
            "        return sum(known[i : i + len(p)] for i in range(4)) / 4\n"
            "    return over(eight, f)(signal)"
        ),
        "right value, on every device": (
            "def smooth(signal):\n"
            "    known = jnp.pad(jax.device_put(signal, NamedSharding(eight, P())), (3, 0))\n"
            "    return sum(known[i : i + 800] for i in range(4)) / 4"
        ),
    },
    "collectives-transpose": {
        "computed before": (
            "known = jnp.asarray(matrix).T\n"
            "def transpose(a): return jax.lax.with_sharding_constraint(known, eight_rows)"
        ),
        "shards transposed, none moved": "def transpose(a): return over(eight, lambda r: r.T.reshape(4, 64))(a)",
        "right value, columns sharded": (
            "def transpose(a): return over(eight, lambda r: r.T, out_specs=P(None, 'd'))(a)"
        ),
        "gathered first": (
            "def transpose(a):\n"
            "    def f(rows):\n"
            "        whole = lax.all_gather(rows, 'd', tiled=True).T\n"
            "        return lax.dynamic_slice_in_dim(whole, 4 * lax.axis_index('d'), 4)\n"
            "    return over(eight, f)(a)"
        ),
        "exchanged, but not transposed": (
            "def transpose(a):\n"
            "    f = lambda r: lax.all_to_all(r, 'd', split_axis=1, concat_axis=0, tiled=True)\n"
            "    return over(eight, f)(a)"
        ),
    },
    "collectives-matmul": {
        "a reduce-scatter of the whole product": (
            "def product(h, v):\n"
            "    f = lambda h, v: lax.psum_scatter(h @ v, 'd', tiled=True)\n"
            "    return over(ring, f, (P(None, 'd'), P('d')), P('d'))(h, v)"
        ),
        "the sum ends one device too early": (
            "def product(h, v):\n"
            "    def program(h, v):\n"
            "        i, rows = lax.axis_index('d'), 64 // n\n"
            "        part = lambda k: lax.dynamic_slice_in_dim(h, (k % n) * rows, rows) @ v\n"
            "        total = part(i)\n"
            "        for s in range(1, n):\n"
            "            total = lax.ppermute(total, 'd', ring_pairs(n)) + part(i - s)\n"
            "        return total\n"
            "    return over(ring, program, (P(None, 'd'), P('d')), P('d'))(h, v)"
        ),
        "the full product on every device, then messages": (
            "def product(h, v):\n"
            "    return over(ring, lambda x: scatter_by_hand(x.reshape(n, 16, 48)), P(None), P('d'))(h @ v)"
        ),
        "all partial products at once, in another shape": (
            "def product(h, v):\n"
            "    def program(h, v):\n"
            "        i, parts = lax.axis_index('d'), (h @ v).reshape(n, 16, 48)\n"
            "        total = parts[(i - 1) % n]\n"
            "        for s in range(1, n):\n"
            "            total = lax.ppermute(total, 'd', ring_pairs(n)) + parts[(i - 1 - s) % n]\n"
            "        return total\n"
            "    return over(ring, program, (P(None, 'd'), P('d')), P('d'))(h, v)"
        ),
        "never added up": (
            "def product(h, v):\n"
            "    def program(h, v):\n"
            "        mine = lax.dynamic_slice_in_dim(h, lax.axis_index('d') * 16, 16)\n"
            "        return n * (mine @ v)\n"
            "    return over(ring, program, (P(None, 'd'), P('d')), P('d'))(h, v)"
        ),
    },
    "explicit-layer": {
        "right value, one device": (
            "def typed_layer(X, W1, W2):\n"
            "    hidden = np.maximum(X @ np.asarray(W1), 0)\n"
            "    return jax.device_put(np.asarray(jax.nn.softmax(hidden @ np.asarray(W2))), P())"
        ),
        "examples not sharded": (
            "def typed_layer(X, W1, W2):\n"
            "    hidden = jax.nn.relu(X @ W1)\n"
            "    scores = jnp.matmul(hidden, W2, out_sharding=P())\n"
            "    return reshard(jax.nn.softmax(scores), P('x', None))"
        ),
        "hidden units gathered": (
            "def typed_layer(X, W1, W2):\n"
            "    x = reshard(X, P('x', None))\n"
            "    hidden = reshard(jax.nn.relu(x @ W1), P('x', None))\n"
            "    return jax.nn.softmax(hidden @ reshard(W2, P()))"
        ),
        "result replicated": (
            "def typed_layer(X, W1, W2):\n"
            "    hidden = jax.nn.relu(reshard(X, P('x', None)) @ W1)\n"
            "    return jax.nn.softmax(jnp.matmul(hidden, W2, out_sharding=P()))"
        ),
        "no relu": (
            "def typed_layer(X, W1, W2):\n"
            "    hidden = reshard(X, P('x', None)) @ W1\n"
            "    return jax.nn.softmax(jnp.matmul(hidden, W2, out_sharding=P('x', None)))"
        ),
    },
    "explicit-types": {
        "sizes of shards": (
            "answer = {'U @ V': 'float32[4@x,8@y]', '(U @ V).sum(1)': 'float32[4@x]', "
            "'U @ V + Z': 'ShardingTypeError', 'V.T @ U.T': 'float32[8@y,4@x]', 'Z.T @ U': 'ShardingTypeError', "
            "'V.sum(0) + Z': 'ShardingTypeError'}"
        ),
        "the fifth read as a plain sum": (
            "answer = {'U @ V': 'float32[8@x,32@y]', '(U @ V).sum(1)': 'float32[8@x]', "
            "'U @ V + Z': 'ShardingTypeError', 'V.T @ U.T': 'float32[32@y,8@x]', 'Z.T @ U': 'float32[32@x,16]', "
            "'V.sum(0) + Z': 'ShardingTypeError'}"
        ),
        "a sum taken to follow its first operand": (
            "answer = {'U @ V': 'float32[8@x,32@y]', '(U @ V).sum(1)': 'float32[8@x]', "
            "'U @ V + Z': 'float32[8@x,32@y]', 'V.T @ U.T': 'float32[32@y,8@x]', 'Z.T @ U': 'ShardingTypeError', "
            "'V.sum(0) + Z': 'ShardingTypeError'}"
        ),
        "the answers of the check taken for the types": "answer = dict.fromkeys(expressions, True)",
    },
    "explicit-rows": {
        "looked up before": (
            "known = np.asarray(table)[np.asarray(ids)]\ndef look_up(table, ids): return reshard(known, P())"
        ),
        "the whole table gathered": "def look_up(table, ids): return reshard(table, P())[ids]",
        "right rows, sharded": "def look_up(table, ids): return table.at[ids].get(out_sharding=P('d'))",
        "added up once more for every device": (
            "def look_up(table, ids): return 8 * table.at[ids].get(out_sharding=P())"
        ),
    },
    "explicit-accumulate": {
        "each product reduced by itself": (
            "def sum_of_products(left, right):\n"
            "    return sum(jnp.matmul(A, B, out_sharding=P()) for A, B in zip(left, right))"
        ),
        "operands gathered": (
            "def sum_of_products(left, right):\n"
            "    return sum(reshard(A, P()) @ reshard(B, P()) for A, B in zip(left, right))"
        ),
        "only the last product": (
            "def sum_of_products(left, right):\n    return jnp.matmul(left[-1], right[-1], out_sharding=P())"
        ),
        "rows of the result sharded": (
            "def sum_of_products(left, right):\n"
            "    U = P(None, None, unreduced={'d'})\n"
            "    a, b, c = (jnp.matmul(A, B, out_sharding=U) for A, B in zip(left, right))\n"
            "    return reshard(a + b + c, P('d', None))"
        ),
    },
    "manual-layer": {
        "right for one device, not for the shards": (
            "def layer_by_hand(X, W, b):\n"
            "    scores = X @ W + b\n"
            "    return jax.device_put(jax.nn.softmax((scores - scores.mean(0)) / scores.std(0)), P('d', None))"
        ),
        "statistics of all examples": (
            "def layer_by_hand(X, W, b):\n"
            "    def f(x, W, b):\n"
            "        s = x @ W + b\n"
            "        mean = lax.pmean(s.mean(0), 'd')\n"
            "        return jax.nn.softmax((s - mean) / jnp.sqrt(lax.pmean(((s - mean) ** 2).mean(0), 'd')))\n"
            "    return jax.shard_map(f, in_specs=(P('d'), P(), P()), out_specs=P('d'))(X, W, b)"
        ),
        "replicated": (
            "def layer_by_hand(X, W, b):\n"
            "    def f(x, W, b):\n"
            "        s = (x @ W + b).reshape(8, 16, 2)\n"
            "        s = (s - s.mean(1, keepdims=True)) / s.std(1, keepdims=True)\n"
            "        return jax.nn.softmax(s.reshape(128, 2))\n"
            "    return jax.shard_map(f, in_specs=P(), out_specs=P())(X, W, b)"
        ),
        "replicated, then sharded": (
            "def layer_by_hand(X, W, b):\n"
            "    def f(x, W, b):\n"
            "        s = (x @ W + b).reshape(8, 16, 2)\n"
            "        s = (s - s.mean(1, keepdims=True)) / s.std(1, keepdims=True)\n"
            "        return jax.nn.softmax(s.reshape(128, 2))\n"
            "    out = jax.shard_map(f, in_specs=P(), out_specs=P())(X, W, b)\n"
            "    return lax.with_sharding_constraint(out, P('d'))"
        ),
        "not normalised": (
            "def layer_by_hand(X, W, b):\n"
            "    return jax.shard_map(layer, in_specs=(P('d'), P(), P()), out_specs=P('d'))(X, W, b)"
        ),
    },
    "manual-clip": {
        "each piece by its own norm": (
            "def clip(g):\n"
            "    def f(p): return p / jnp.maximum(1, jnp.sqrt((p ** 2).sum()))\n"
            "    return jax.shard_map(f, mesh=line, in_specs=P('d'), out_specs=P('d'))(g)"
        ),
        "the norms added instead of the squares": (
            "def clip(g):\n"
            "    def f(p): return p / jnp.maximum(1, lax.psum(jnp.sqrt((p ** 2).sum()), 'd'))\n"
            "    return jax.shard_map(f, mesh=line, in_specs=P('d'), out_specs=P('d'))(g)"
        ),
        "divided always": (
            "def clip(g):\n"
            "    def f(p): return p / jnp.sqrt(lax.psum((p ** 2).sum(), 'd'))\n"
            "    return jax.shard_map(f, mesh=line, in_specs=P('d'), out_specs=P('d'))(g)"
        ),
        "the gradient gathered": (
            "def clip(g):\n"
            "    def f(p):\n"
            "        whole = lax.all_gather(p, 'd', tiled=True)\n"
            "        return p / jnp.maximum(1, jnp.sqrt((whole ** 2).sum()))\n"
            "    return jax.shard_map(f, mesh=line, in_specs=P('d'), out_specs=P('d'))(g)"
        ),
        "right value, everywhere": "def clip(g): return jax.device_put(np.asarray(g) / max(1, norm), line.devices[0])",
    },
    "manual-diagnose": {
        "the program of the colleague": (
            "diagnosis = {'W': 8, 'shift': 'mixed'}\n"
            "def repaired(W, shift, x): return jax.shard_map(suspect, **specs)(W, shift, x)"
        ),
        "both divided by eight": (
            "diagnosis = {'W': 8, 'shift': 'mixed'}\n"
            "def repaired(W, shift, x):\n"
            "    return jax.tree.map(lambda g: g / 8, jax.shard_map(suspect, **specs)(W, shift, x))"
        ),
        "psum for pmean": (
            "diagnosis = {'W': 8, 'shift': 'mixed'}\n"
            "def repaired(W, shift, x):\n"
            "    def f(*args):\n"
            "        g = jax.grad(local_loss, argnums=(0, 1))(*args)\n"
            "        return jax.tree.map(lambda g: lax.psum(g, 'd'), g)\n"
            "    return jax.shard_map(f, **specs)(W, shift, x)"
        ),
        "the shift's gradient not divided": (
            "diagnosis = {'W': 8, 'shift': 'mixed'}\n"
            "def repaired(W, shift, x):\n"
            "    def f(W, shift, x):\n"
            "        W, s = jax.grad(local_loss, argnums=(0, 1))(W, shift, x)\n"
            "        return W / 8, s\n"
            "    return jax.shard_map(f, **specs)(W, shift, x)"
        ),
        "the check switched off": (
            "diagnosis = {'W': 8, 'shift': 'mixed'}\n"
            "def repaired(W, shift, x): return jax.shard_map(suspect, **specs, check_vma=False)(W, shift, x)"
        ),
        "a right repair, both said to be eight times too large": (
            "diagnosis = {'W': 8, 'shift': 8}\n"
            "def repaired(W, shift, x):\n"
            "    loss = jax.shard_map(lambda *a: lax.pmean(local_loss(*a), 'd'), in_specs=specs['in_specs'], "
            "out_specs=P())\n"
            "    return jax.grad(loss, argnums=(0, 1))(W, shift, x)"
        ),
    },
    "manual-noise": {
        "the same noise twice": (
            "def noise(key):\n"
            "    def f(key): return jax.random.normal(key, (4, 16))\n"
            "    return jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P('x'))(key)"
        ),
        "one array of noise": (
            "def noise(key): return jax.lax.with_sharding_constraint(jax.random.normal(key, (8, 16)), P('x', None))"
        ),
        "copies that differ, unchecked": (
            "def noise(key):\n"
            "    place = lambda: lax.axis_index('x') + 2 * lax.axis_index('y')\n"
            "    def f(key): return jax.random.normal(jax.random.fold_in(key, place()), (4, 16))\n"
            "    return jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P('x'), check_vma=False)(key)"
        ),
        "different along y, unchecked": (
            "def noise(key):\n"
            "    place = lambda: 4 * lax.axis_index('x') + lax.axis_index('y')\n"
            "    def f(key): return jax.random.normal(jax.random.fold_in(key, place()), (4, 16))\n"
            "    return jax.shard_map(f, mesh=mesh, in_specs=P(), out_specs=P('x'), check_vma=False)(key)"
        ),
    },
    "manual-scatter": {
        "all of it to all": (
            "def project(h, V):\n"
            "    def f(h, V): return lax.psum(h @ V, 'd')\n"
            "    whole = jax.shard_map(f, mesh=line, in_specs=(P(None, 'd'), P('d')), out_specs=P())(h, V)\n"
            "    return jax.lax.with_sharding_constraint(whole, NamedSharding(line, P(None, 'd')))"
        ),
        "rows scattered instead of columns": (
            "def project(h, V):\n"
            "    def f(h, V): return lax.psum_scatter(h @ V, 'd', tiled=True)\n"
            "    return jax.shard_map(f, mesh=line, in_specs=(P(None, 'd'), P('d')), out_specs=P('d'))(h, V)"
        ),
        "left to the compiler": (
            "def project(h, V):\n    return jax.lax.with_sharding_constraint(h @ V, NamedSharding(line, P(None, 'd')))"
        ),
        "partial sums, never added": (
            "def project(h, V):\n"
            "    def f(h, V): return (h @ V)[:, :5]\n"
            "    return jax.shard_map(f, mesh=line, in_specs=(P(None, 'd'), P('d')), out_specs=P(None, 'd'))(h, V)"
        ),
    },
    "training-data-parallel": {
        "computed before": (
            "known = jax.jit(step)(start, *small_batch)\n"
            "def grid_step(*_): return lax.with_sharding_constraint(known, NamedSharding(grid, P()))"
        ),
        "one device": "grid_step = step",
        "everything replicated": (
            "def grid_step(params, x, y):\n"
            "    return step(*lax.with_sharding_constraint((params, x, y), NamedSharding(grid, P())))"
        ),
        "the batch along data alone": (
            "def grid_step(params, x, y):\n"
            "    x, y = lax.with_sharding_constraint((x, y), NamedSharding(grid, P('data')))\n"
            "    return lax.with_sharding_constraint(step(params, x, y), NamedSharding(grid, P()))"
        ),
        "gradients added instead of averaged": (
            "def grid_step(params, x, y):\n"
            "    x, y = lax.with_sharding_constraint((x, y), NamedSharding(grid, P(('data', 'model'))))\n"
            "    value, grads = jax.value_and_grad(loss)(params, x, y)\n"
            "    new = descend(params, jax.tree.map(lambda g: 8 * g, grads)), value\n"
            "    return lax.with_sharding_constraint(new, NamedSharding(grid, P()))"
        ),
    },
    "training-budget": {
        "data parallel": (
            "def small_step(state, x, y):\n"
            "    x, y = lax.with_sharding_constraint((x, y), shardings(grid, P(('data', 'model'))))\n"
            "    return lax.with_sharding_constraint(adam_step(state, x, y), shardings(grid, P()))"
        ),
        "sharded along one axis of the grid": (
            "def small_step(state, x, y):\n"
            "    specs = jax.tree.map(lambda p: shard_longest(p, 'model', 4), state)\n"
            "    new = adam_step(lax.with_sharding_constraint(state, shardings(grid, specs)), x, y)\n"
            "    return lax.with_sharding_constraint(new, shardings(grid, (specs, P())))"
        ),
        "parameters sharded, moments replicated": (
            "def small_step(state, x, y):\n"
            "    specs = jax.tree.map(lambda p: shard_longest(p, ('data', 'model')), state[0])\n"
            "    target = shardings(grid, ((specs, jax.tree.map(lambda p: P(), state[1])), P()))\n"
            "    x, y = lax.with_sharding_constraint((x, y), shardings(grid, P(('data', 'model'))))\n"
            "    return lax.with_sharding_constraint(adam_step(state, x, y), target)"
        ),
        "ZeRO stage 1": (
            "def small_step(state, x, y):\n"
            "    target = shardings(data_mesh, (zero_specs, P()))\n"
            "    x, y = lax.with_sharding_constraint((x, y), shardings(data_mesh, P('data')))\n"
            "    return lax.with_sharding_constraint(adam_step(state, x, y), target)"
        ),
    },
    "training-last-layer": {
        "all layers": (
            "def tune(params, x, y):\n"
            "    params = lax.with_sharding_constraint(params, shardings(data_mesh, P()))\n"
            "    x, y = lax.with_sharding_constraint((x, y), shardings(data_mesh, P('data')))\n"
            "    return step(params, x, y)"
        ),
        "all gradients, most of them times zero": (
            "def tune(params, x, y):\n"
            "    params = lax.with_sharding_constraint(params, shardings(data_mesh, P()))\n"
            "    x, y = lax.with_sharding_constraint((x, y), shardings(data_mesh, P('data')))\n"
            "    value, grads = jax.value_and_grad(loss)(params, x, y)\n"
            "    zero = jax.tree.map(lambda g: 0 * g, grads[:-1])\n"
            "    return descend(params, [*zero, grads[-1]]), value"
        ),
        "on every device the whole batch": (
            "def tune(params, x, y):\n"
            "    replicated = shardings(data_mesh, P())\n"
            "    return tune_on_one(*lax.with_sharding_constraint((params, x, y), replicated))"
        ),
    },
    "training-twice": {
        "as many as eight times the work": "answer = 2**19",
        "one power less": "answer = 2**17",
        "latency forgotten": "answer = 4096",
    },
    "flax-rules": {
        "tensor parallel: 6 MiB, 52 MB": "my_rules = (('batch', 'data'), ('hidden', 'model'))",
        "data parallel: 24 MiB": "my_rules = (('batch', ('data', 'model')),)",
        "good for 16 examples only": "my_rules = (('embed', 'data'), ('hidden', 'model'))",
        "two dimensions: 55 MB": "my_rules = (('batch', 'data'), ('embed', 'data'), ('hidden', 'model'))",
        "four devices do the same work": "my_rules = (('batch', 'data'), ('hidden', ('data', 'model')))",
        "mesh axes for logical ones": "my_rules = (('data', 'data'), ('model', 'model'))",
    },
    "flax-embedding": {
        "a quarter only": "my_rules = (('batch', 'data'), ('vocab', 'model'))",
        "no rules": "my_rules = ()",
        "only the elements sharded": "my_rules = (('batch', 'data'), ('embed', 'model'))",
        "both dimensions by one axis": "my_rules = (('batch', 'data'), ('vocab', 'data'), ('embed', 'data'))",
        "the examples not sharded": "my_rules = (('vocab', ('data', 'model')),)",
    },
    "flax-gated": {
        "nothing sharded": "my_names = {'G': (None, None), 'U': (None, None), 'D': (None, None)}",
        "the gate forgotten": "my_names = {'G': (None, None), 'U': (None, 'model'), 'D': ('model', None)}",
        "rows and columns exchanged": "my_names = {'G': ('model', None), 'U': ('model', None), 'D': (None, 'model')}",
        "the gate by rows": "my_names = {'G': ('model', None), 'U': (None, 'model'), 'D': ('model', None)}",
        "along the axis of the examples": "my_names = {'G': (None, 'data'), 'U': (None, 'data'), 'D': ('data', None)}",
    },
    "flax_nnx-whole": {
        "not sharded": "def create(key):\n    return Foreign(nnx.Rngs(params=key))",
        "rows and columns exchanged": (
            "def create(key):\n"
            "    module = Foreign(nnx.Rngs(params=key))\n"
            "    constrain = jax.lax.with_sharding_constraint\n"
            "    module.up[...] = constrain(module.up[...], P('model', None))\n"
            "    module.down[...] = constrain(module.down[...], P(None, 'model'))\n"
            "    return module"
        ),
        "one matrix only": (
            "def create(key):\n"
            "    module = Foreign(nnx.Rngs(params=key))\n"
            "    module.up[...] = jax.lax.with_sharding_constraint(module.up[...], P(None, 'model'))\n"
            "    return module"
        ),
        "another key": (
            "def create(key):\n"
            "    module = Foreign(nnx.Rngs(1))\n"
            "    constrain = jax.lax.with_sharding_constraint\n"
            "    module.up[...] = constrain(module.up[...], P(None, 'model'))\n"
            "    module.down[...] = constrain(module.down[...], P('model', None))\n"
            "    return module"
        ),
    },
    "flax_nnx-mask": {
        "one mask for all": (
            "def drop(key, x_shard):\n    return nnx.Dropout(0.5)(x_shard, rngs=nnx.Rngs(dropout=key))"
        ),
        "differs along model": (
            "def drop(key, x_shard):\n"
            "    key = jax.random.fold_in(key, jax.lax.axis_index('model'))\n"
            "    return nnx.Dropout(0.5)(x_shard, rngs=nnx.Rngs(dropout=key))"
        ),
        "differs on all devices": (
            "def drop(key, x_shard):\n"
            "    key = jax.random.fold_in(key, jax.lax.axis_index(('data', 'model')))\n"
            "    return nnx.Dropout(0.5)(x_shard, rngs=nnx.Rngs(dropout=key))"
        ),
        "ignores the key": (
            "def drop(key, x_shard):\n"
            "    key = jax.random.fold_in(jax.random.key(0), jax.lax.axis_index('data'))\n"
            "    return nnx.Dropout(0.5)(x_shard, rngs=nnx.Rngs(dropout=key))"
        ),
    },
    "flax_nnx-mistyped": {
        "all large ones": (
            "def find_unsharded(model, least):\n"
            "    arrays = flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Param)))\n"
            "    return {'.'.join(map(str, path)) for path, array in arrays.items() if array.size >= least}"
        ),
        "what is replicated": (
            "def find_unsharded(model, least):\n"
            "    arrays = flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Param)))\n"
            "    return {\n"
            "        '.'.join(map(str, path)) for path, array in arrays.items()\n"
            "        if array.size >= least and array.sharding.is_fully_replicated\n"
            "    }"
        ),
        "small ones too": (
            "def find_unsharded(model, least):\n"
            "    arrays = flatten_dict(nnx.to_pure_dict(nnx.state(model, nnx.Param)))\n"
            "    return {\n"
            "        '.'.join(map(str, path)) for path, array in arrays.items()\n"
            "        if array.addressable_shards[0].data.size > array.size / 8\n"
            "    }"
        ),
    },
    "processes-who-prints": {
        "all print": "answer = [[2, 2.0 * i, 8, 20.0] for i in (1, 2, 3, 4)]",
        "only process 0 computes": "answer = [[2, 2.0, 8, 2.0], [2, 4.0, 8], [2, 6.0, 8], [2, 8.0, 8]]",
        "local arrays taken for one": "answer = [[8, 20.0, 8, 20.0], [8, 20.0, 8], [8, 20.0, 8], [8, 20.0, 8]]",
        "the global array taken for local": "answer = [[2, 2.0, 2, 2.0], [2, 4.0, 2], [2, 6.0, 2], [2, 8.0, 2]]",
    },
    "processes-odd": {
        "programs only": (
            "def odd_ones(f, *args):\n"
            "    mark = np.uint32(zlib.crc32(jax.jit(f).lower(*args).as_text().encode()))\n"
            "    marks = process_allgather(mark).tolist()\n"
            "    usual = max(marks, key=marks.count)\n"
            "    return [i for i, mark in enumerate(marks) if mark != usual]"
        ),
        "numbers only": (
            "def odd_ones(f, *args):\n"
            "    mark = np.uint32(zlib.crc32(repr(args[1:]).encode()))\n"
            "    marks = process_allgather(mark).tolist()\n"
            "    usual = max(marks, key=marks.count)\n"
            "    return [i for i, mark in enumerate(marks) if mark != usual]"
        ),
        "process 0 is always right": (
            "def odd_ones(f, *args):\n"
            "    text = jax.jit(f).lower(*args).as_text() + repr(args[1:])\n"
            "    marks = process_allgather(np.uint32(zlib.crc32(text.encode()))).tolist()\n"
            "    return [i for i, mark in enumerate(marks) if mark != marks[0]]"
        ),
        "the name of the function": (
            "def odd_ones(f, *args):\n"
            "    text = f.__name__ + repr(args[1:])\n"
            "    marks = process_allgather(np.uint32(zlib.crc32(text.encode()))).tolist()\n"
            "    usual = max(marks, key=marks.count)\n"
            "    return [i for i, mark in enumerate(marks) if mark != usual]"
        ),
        "results": (
            "def odd_ones(f, *args):\n"
            "    marks = process_allgather(np.float32(jax.jit(f)(*args))).tolist()\n"
            "    usual = max(marks, key=marks.count)\n"
            "    return [i for i, mark in enumerate(marks) if mark != usual]"
        ),
    },
    "processes-deadlock": {
        "where it waits first": "answer = {'hang': [3], 'in line': 5, 'condition': 4}",
        "the others hang": "answer = {'hang': [0, 1, 2], 'in line': 6, 'condition': 4}",
        "the line that hangs taken for the condition": "answer = {'hang': [3], 'in line': 6, 'condition': 6}",
        "printing in one is the fault": "answer = {'hang': [0], 'in line': 3, 'condition': 2}",
    },
    "writing-one-to-a-device": {
        "replicated": "answer = jax.device_put(jnp.arange(8), NamedSharding(mesh, P()))",
        "never moved": "answer = jnp.arange(8)",
    },
    "global_arrays-what-process-1-holds": {
        "the second half in every layout": "answer = dict.fromkeys(names, [(8, 16)])",
        "axis b taken for the processes": (
            "answer = {'P(\"a\")': [(8, 16)], 'P(\"b\")': [(8, 16)], "
            '\'P(("a", "b"))\': [(8, 16)], \'P(("b", "a"))\': [(4, 8), (12, 16)]}'
        ),
        "the order in a tuple ignored": (
            "answer = {'P(\"a\")': [(8, 16)], 'P(\"b\")': [(0, 16)], "
            '\'P(("a", "b"))\': [(8, 16)], \'P(("b", "a"))\': [(8, 16)]}'
        ),
        "what process 0 holds": (
            "answer = {'P(\"a\")': [(0, 8)], 'P(\"b\")': [(0, 16)], "
            '\'P(("a", "b"))\': [(0, 8)], \'P(("b", "a"))\': [(0, 4), (8, 12)]}'
        ),
    },
    "from_old_jax-positions": {
        "transposing forgotten": "specs = dict(blocks=P('r', 'c'), turned=P('r', 'c'), halves=P('r'), bias=P('c'))",
        "the replicated dimension sharded": (
            "specs = dict(blocks=P('r', 'c'), turned=P('c', 'r'), halves=P(None, 'c'), bias=P('c'))"
        ),
        "the vector sharded over the replicated axis": (
            "specs = dict(blocks=P('r', 'c'), turned=P('c', 'r'), halves=P('r'), bias=P('r'))"
        ),
        "one axis for both": ("specs = dict(blocks=P(('r', 'c')), turned=P(('c', 'r')), halves=P('r'), bias=P('c'))"),
    },
    "from_old_jax-silent": {
        "the new text of the spec": "def has_sharded_rows(array): return str(array.sharding.spec) == \"P('d',)\"",
        "equal specs": "def has_sharded_rows(array): return array.sharding.spec == P('d')",
        "equal shardings": "def has_sharded_rows(array): return array.sharding == NamedSharding(line, P('d'))",
        "sharded at all": "def has_sharded_rows(array): return not array.is_fully_replicated",
        "the axis in any entry": "def has_sharded_rows(array): return 'd' in str(tuple(array.sharding.spec))",
    },
    "from_old_jax-step": {
        "sgd unchanged under shard_map": (
            "specs = dict(in_specs=(P(), P('d'), P('d')), out_specs=P())\n"
            "new_step = jax.shard_map(sgd, mesh=line, **specs)"
        ),
        "each device's own gradient, not averaged": (
            "def own(w, X, Y): return w - 0.1 * jax.grad(batch_loss)(w, X, Y)\n"
            "specs = dict(in_specs=(P(), P('d'), P('d')), out_specs=P(), check_vma=False)\n"
            "new_step = jax.shard_map(own, mesh=line, **specs)"
        ),
        "a sum instead of a mean": (
            "def summed(w, X, Y):\n"
            "    return w - 0.1 * jax.grad(lambda w: lax.psum(batch_loss(w, X, Y), 'd'))(w)\n"
            "specs = dict(in_specs=(P(), P('d'), P('d')), out_specs=P())\n"
            "new_step = jax.shard_map(summed, mesh=line, **specs)"
        ),
        "still pmap": "def new_step(w, X, Y): return pmapped(w, X.reshape(8, 8, 4), Y.reshape(8, 8))",
        "the old weights, which are zeros, dropped": (
            "def new_step(w, X, Y): return -0.1 * jax.grad(batch_loss)(jnp.zeros_like(w), X, Y)"
        ),
    },
    "global_arrays-never-whole": {
        "made completely, and sliced by the callback": (
            "def table(n, sharding):\n"
            "    i = np.arange(n, dtype='float32')\n"
            "    complete = 3 * i[:, None] + i\n"
            "    return jax.make_array_from_callback((n, n), sharding, lambda index: complete[index])"
        ),
        "made completely, and placed": (
            "def table(n, sharding):\n"
            "    i = np.arange(n, dtype='float32')\n"
            "    return jax.device_put(3 * i[:, None] + i, sharding)"
        ),
        "made completely for each index": (
            "def table(n, sharding):\n"
            "    i = np.arange(n, dtype='float32')\n"
            "    return jax.make_array_from_callback((n, n), sharding, lambda index: (3 * i[:, None] + i)[index])"
        ),
        "each shard counts from zero": (
            "def table(n, sharding):\n"
            "    rows, columns = sharding.shard_shape((n, n))\n"
            "    shard = 3 * np.arange(rows, dtype='float32')[:, None] + np.arange(columns, dtype='float32')\n"
            "    return jax.make_array_from_callback((n, n), sharding, lambda index: shard)"
        ),
        "the rows of the process, in any layout": (
            "def table(n, sharding):\n"
            "    def block(index):\n"
            "        i = np.arange(*index[0].indices(n), dtype='float32')\n"
            "        return 3 * i[:, None] + np.arange(sharding.shard_shape((n, n))[1], dtype='float32')\n"
            "    return jax.make_array_from_callback((n, n), sharding, block)"
        ),
    },
    "global_arrays-only-three-rows": {
        "two candidates from each device": (
            "def longest_rows(a):\n"
            "    def find(shard):\n"
            "        norms, places = lax.top_k(jnp.linalg.norm(shard, axis=1), 2)\n"
            "        candidates = lax.all_gather(norms, 'x', tiled=True)\n"
            "        _, winners = lax.top_k(candidates, 3)\n"
            "        mine = winners // 2 == lax.axis_index('x')\n"
            "        found = jnp.where(mine[:, None], shard[places[winners % 2]], 0)\n"
            "        return lax.psum(found, 'x')\n"
            "    return jax.shard_map(find, mesh=line, in_specs=P('x'), out_specs=P())(a)"
        ),
        "everything gathered": (
            "def longest_rows(a):\n"
            "    complete = lax.with_sharding_constraint(a, replicated)\n"
            "    return complete[lax.top_k(jnp.linalg.norm(complete, axis=1), 3)[1]]"
        ),
        "all norms gathered": (
            "def longest_rows(a):\n"
            "    _, best = lax.top_k(jnp.linalg.norm(a, axis=1), 3)\n"
            "    return lax.with_sharding_constraint(a[best], replicated)"
        ),
        "each device sends its three rows to all": (
            "def longest_rows(a):\n"
            "    def find(shard):\n"
            "        _, places = lax.top_k(jnp.linalg.norm(shard, axis=1), 3)\n"
            "        candidates = lax.all_gather(shard[places], 'x', tiled=True)\n"
            "        best = candidates[lax.top_k(jnp.linalg.norm(candidates, axis=1), 3)[1]]\n"
            "        return lax.pmax(best, 'x')\n"
            "    return jax.shard_map(find, mesh=line, in_specs=P('x'), out_specs=P())(a)"
        ),
        "the smallest first": (
            "def longest_rows(a):\n"
            "    _, best = lax.top_k(jnp.linalg.norm(a, axis=1), 3)\n"
            "    return lax.with_sharding_constraint(a[best[::-1]], replicated)"
        ),
        "the best row of each device, and of these three": (
            "def longest_rows(a):\n"
            "    def find(shard):\n"
            "        norms, places = lax.top_k(jnp.linalg.norm(shard, axis=1), 1)\n"
            "        candidates = lax.all_gather(norms, 'x', tiled=True)\n"
            "        _, winners = lax.top_k(candidates, 3)\n"
            "        mine = winners == lax.axis_index('x')\n"
            "        return lax.psum(jnp.where(mine[:, None], shard[places], 0), 'x')\n"
            "    return jax.shard_map(find, mesh=line, in_specs=P('x'), out_specs=P())(a)"
        ),
    },
    "costs-smallest-batch": {
        "one direction of the ring": (
            "answer = {'v5p, one axis': 5100, 'v5p, three axes': 1700, 'v6e, two axes': 5100, 'H100, nodes': 2474}"
        ),
        "axes left out": (
            "answer = {'v5p, one axis': 2550, 'v5p, three axes': 2550, 'v6e, two axes': 5100, 'H100, nodes': 2474}"
        ),
        "one network card for the node": (
            "answer = {'v5p, one axis': 2550, 'v5p, three axes': 850, 'v6e, two axes': 2550, 'H100, nodes': 19_790}"
        ),
        "NVLink between the nodes": (
            "answer = {'v5p, one axis': 2550, 'v5p, three axes': 850, 'v6e, two axes': 2550, 'H100, nodes': 2199}"
        ),
        "the memory's bandwidth": (
            "answer = {'v5p, one axis': 166, 'v5p, three axes': 166, 'v6e, two axes': 574, 'H100, nodes': 295}"
        ),
    },
    "costs-which-sends-less": {
        "FSDP left out of the mixture": (
            "answer = 6 * llama.parameters * 255 / 256 / ((4 * llama.layers + 2) * 3.5 * llama.d_model / 32)"
        ),
        "the backward pass left out of tensor parallelism": (
            "saved = 6 * llama.parameters * (255 / 256 - 31 / 256)\n"
            "answer = saved / ((2 * llama.layers + 2) * 3.5 * llama.d_model / 32)"
        ),
        "a gather without its scatter": (
            "saved = 6 * llama.parameters * (255 / 256 - 31 / 256)\n"
            "answer = saved / ((4 * llama.layers + 2) * 1.75 * llama.d_model / 32)"
        ),
        "the batch not sharded over FSDP": (
            "saved = 6 * llama.parameters * (255 / 256 - 31 / 256)\n"
            "answer = saved / ((4 * llama.layers + 2) * 3.5 * llama.d_model)"
        ),
        "tokens of a chip": (
            "saved = 6 * llama.parameters * (255 / 256 - 31 / 256)\n"
            "answer = saved / ((4 * llama.layers + 2) * 3.5 * llama.d_model / 32) / 256"
        ),
    },
    "costs-decode": {
        "two bytes for a parameter": "answer = {'batch': 574, 'context': 739}",
        "one operation for a parameter": "answer = {'batch': 574, 'context': 1478}",
        "keys without values": "answer = {'batch': 287, 'context': 2957}",
        "all heads in the cache": "answer = {'batch': 287, 'context': 185}",
        "eight chips instead of one": "answer = {'batch': 2295, 'context': 185}",
    },
    "costs-latency": {
        "one direction, or half of the hops": "answer = 24",
        "the hops of a line": "answer = 8",
        "a power of two": "answer = 16",
        "the formula's number, which is no multiple of four": "answer = 10.55",
    },
    "costs-state": {
        "all in float32": "answer = {'bytes': 20, 'H100': 24, 'v5p': 16, 'H100 twice': 40}",
        "no master weights": "answer = {'bytes': 12, 'H100': 16, 'v5p': 12, 'H100 twice': 24}",
        "no whole nodes": "answer = {'bytes': 16, 'H100': 15, 'v5p': 12, 'H100 twice': 29}",
        "twice is the same state": "answer = {'bytes': 16, 'H100': 16, 'v5p': 12, 'H100 twice': 16}",
        "H100's memory for both": "answer = {'bytes': 16, 'H100': 16, 'v5p': 16, 'H100 twice': 32}",
    },
    "pods-fewest": {
        "weights without moments": "answer = 32",
        "not a power of two": "answer = 51",
        "gradients as well": "answer = 128",
    },
    "pods-twice": {
        "two micro-batches, as before": "answer = 2",
        "four sequences at a time": "answer = 4",
        "one sequence at a time": "answer = 16",
    },
    "pods-mesh": {
        "activations sent to spare weights": "answer = (64, 4)",
        "the slowest": "answer = max(shapes, key=lambda shape: seconds(*shape))",
        "does not follow the torus": "answer = (128, 2)",
        "exchanged": "answer = min(shapes, key=lambda shape: seconds(*shape))[::-1]",
    },
    "pods-all-to-all": {
        "as it was": "def embedding_spec(): return P('model', 'data')",
        "the width, still": "def embedding_spec(): return P(None, 'data')",
        "a replica on every chip": "def embedding_spec(): return P()",
        "sharded over an axis of one": "def embedding_spec(): return P('model')",
    },
    "pods-flops": {
        "six for each parameter and token": "answer = 6 * parameters('70B') * 128 * 4096 / 512",
        "the whole layer twice": ("answer = costs.training_flops(LLAMA['70B'], 128 * 4096, 4096) * 4 / 3 / 512"),
        "nothing twice": "answer = costs.training_flops(LLAMA['70B'], 128 * 4096, 4096) / 512",
        "the loop's body once": "answer = large.flops_once",
        "of all chips": (
            "answer = costs.training_flops(LLAMA['70B'], 128 * 4096, 4096, remat='block')"
            " - 2 * 128 * 4096 * 80 * 28_672 * 8192"
        ),
    },
    "diagnose-norm": {
        "as it was": "local_norm = norm",
        "flattened by hand": "def local_norm(a): return jnp.sqrt(jnp.dot(a.ravel(), a.ravel()))",
        "without the root": "def local_norm(a): return (a * a).sum()",
    },
    "diagnose-device": {
        "right counts, replicated": ("def bad_devices(a): return lax.with_sharding_constraint(by_hand(a), on())"),
        "whether, not how many": (
            "def bad_devices(a): return jax.shard_map(lambda s: jnp.isnan(s).any(keepdims=True).ravel().astype(int),"
            " mesh=line, in_specs=P('d'), out_specs=P('d'))(a)"
        ),
    },
    "diagnose-pick": {
        "as it was": "pick_alone = pick",
        "the best score": "def pick_alone(scores, labels): return scores.max(1)",
    },
    "diagnose-two-batches": {
        "as it was": "together = both",
        "the first batch only": "def together(a, b): return both(a, a)",
        "the sum of two losses": (
            "def together(a, b): return sum(jnp.mean(jnp.sort(x, axis=1)[:, :4] ** 2) for x in (a, b))"
        ),
    },
    "diagnose-twice": {
        "as it was": "gradient = doubled",
        "JAX's sum only": "gradient = per_device(lambda w, x: jax.grad(mean_loss)(w, x))",
        "the mean of what is summed already": (
            "gradient = per_device(lambda w, x: lax.pmean(jax.grad(mean_loss)(w, x), 'd'))"
        ),
    },
    "diagnose-attention-specs": {
        "axes exchanged": "specs = P('model', 'data'), P('data', None, 'model')",
        "replicated": "specs = P(), P()",
        "other heads": "specs = P('data', 'model'), P('data', None, 'model')",
    },
    "transformer-bytes": {
        "without the loss": (
            "def bytes_sent(config, devices):\n"
            "    shapes = jax.eval_shape(lambda key: init(key, config), jax.random.key(0))\n"
            "    return 2 * (devices - 1) * sum(leaf.size for leaf in jax.tree.leaves(shapes)) * 4 // devices"
        ),
        "the array once": (
            "def bytes_sent(config, devices):\n"
            "    shapes = jax.eval_shape(lambda key: init(key, config), jax.random.key(0))\n"
            "    return 4 * (1 + sum(leaf.size for leaf in jax.tree.leaves(shapes)))"
        ),
        "eight devices": (
            "def bytes_sent(config, devices):\n"
            "    shapes = jax.eval_shape(lambda key: init(key, config), jax.random.key(0))\n"
            "    return 7 * (1 + sum(leaf.size for leaf in jax.tree.leaves(shapes)))"
        ),
    },
    "transformer-padded": {
        "means of means": (
            "@map_over_data\ndef masked_gradient(parameters, batch): return mean_of_means(parameters, batch)"
        ),
        "a sum, not a mean": (
            "@map_over_data\n"
            "def masked_gradient(parameters, batch):\n"
            "    value, gradients = jax.value_and_grad(loss)(parameters, batch)\n"
            "    return lax.psum(value, 'data'), gradients"
        ),
        "summed twice": (
            "@map_over_data\n"
            "def masked_gradient(parameters, batch):\n"
            "    counted = lax.psum(batch['weights'].sum(), 'data')\n"
            "    batch = batch | {'weights': batch['weights'] / counted}\n"
            "    return lax.psum(jax.value_and_grad(loss)(parameters, batch), 'data')"
        ),
        "replicated, not sharded": "masked_gradient = masked_on_one",
    },
    "zero-fewer-bytes": {
        "nothing rematerialised": "def remat(layer): return layer",
        "gathered again": "remat = jax.checkpoint",
        "products kept": (
            "keep_products = jax.checkpoint_policies.dots_saveable\n"
            "def remat(layer): return jax.checkpoint(layer, policy=keep_products)"
        ),
    },
    "zero-first-stage": {
        "gradients forgotten": "answer = (0, 1, 1, 3, 1)",
        "stage 2 taken for stage 3": "answer = (0, 1, 2, 2, 2)",
        "always FSDP": "answer = (3, 3, 3, 3, 3)",
    },
    "tensor-bytes": {
        "the forward pass alone": (
            "def bytes_sent(layers, tokens, model, devices, itemsize):\n"
            "    return (2 * layers + 1) * 2 * (devices - 1) * itemsize * tokens * model // devices"
        ),
        "the layers alone": (
            "def bytes_sent(layers, tokens, model, devices, itemsize):\n"
            "    return 4 * layers * 2 * (devices - 1) * itemsize * tokens * model // devices"
        ),
        "arrays instead of what a ring sends": (
            "def bytes_sent(layers, tokens, model, devices, itemsize):\n"
            "    return (4 * layers + 2) * itemsize * tokens * model"
        ),
        "always four bytes": (
            "def bytes_sent(layers, tokens, model, devices, itemsize):\n"
            "    return (4 * layers + 2) * 2 * (devices - 1) * 4 * tokens * model // devices"
        ),
    },
    "tensor-operators": {
        "as in the port": "def operators(): return (lambda x: x), add_up",
        "those of varying types": "def operators(): return vary, add_up",
        "f is missing": (
            "def operators():\n"
            "    g = jax.custom_vjp(lambda x: add_up(x))\n"
            "    g.defvjp(lambda x: (add_up(x), None), lambda _, c: (c,))\n"
            "    return (lambda x: x), g"
        ),
        "g is psum": "def operators(): return megatron_f, add_up",
        "a mean in g's backward pass, f is missing": (
            "def operators():\n"
            "    g = jax.custom_vjp(lambda x: add_up(x))\n"
            "    g.defvjp(lambda x: (add_up(x), None), lambda _, c: (lax.pmean(c, 'model'),))\n"
            "    return (lambda x: x), g"
        ),
        "two all-reduces more": (
            "def operators():\n"
            "    g = jax.custom_vjp(lambda x: add_up(x))\n"
            "    g.defvjp(lambda x: (add_up(x), None), lambda _, c: (add_up(c) / 8,))\n"
            "    return megatron_f, g"
        ),
    },
    "tensor-greedy": {
        "a position among the device's own columns": (
            "def pick(x, unembed): return lax.pmax((x @ unembed).argmax(-1), 'model')"
        ),
        "the last of equal ones": (
            "def pick(x, unembed):\n"
            "    logits = x @ unembed\n"
            "    place = logits.argmax(-1) + lax.axis_index('model') * logits.shape[-1]\n"
            "    winner = logits.max(-1) == lax.pmax(logits.max(-1), 'model')\n"
            "    return lax.pmax(jnp.where(winner, place, -1), 'model')"
        ),
        "equal ones added up": (
            "def pick(x, unembed):\n"
            "    logits = x @ unembed\n"
            "    place = logits.argmax(-1) + lax.axis_index('model') * logits.shape[-1]\n"
            "    winner = logits.max(-1) == lax.pmax(logits.max(-1), 'model')\n"
            "    return lax.psum(jnp.where(winner, place, 0), 'model')"
        ),
        "logits gathered": (
            "def pick(x, unembed):\n"
            "    logits = lax.all_gather(x @ unembed, 'model', axis=2, tiled=True)\n"
            "    return lax.pmax(logits.argmax(-1), 'model')"
        ),
    },
    "context-grouped": {
        "repeated before it is sent": "def thrifty(q, k, v, at): return wasteful(q, k, v, at)",
        "the wrong heads share": (
            "def thrifty(q, k, v, at):\n"
            "    def tiled(a): return jnp.tile(a, (1, 1, 4, 1))\n"
            "    def few(state, q, k, v, mask): return absorb(state, q, tiled(k), tiled(v), mask)\n"
            "    return ring_attention(q, k, v, at, absorb=few)"
        ),
        "each device's own keys": "def thrifty(q, k, v, at): return attention(q, k, v, at)",
        "gathered": (
            "def thrifty(q, k, v, at):\n"
            "    k, v = (lax.all_gather(a, 'context', axis=1, tiled=True) for a in (k, v))\n"
            "    key_at = lax.all_gather(at, 'context', tiled=True)\n"
            "    return finish(absorb(empty(q), q, repeat(k), repeat(v), causal(at, key_at)))"
        ),
    },
    "context-packed": {
        "in order": "def order_packed(lengths): return np.arange(sum(lengths))",
        "zig-zag over the whole row": (
            "def order_packed(lengths):\n"
            "    blocks = np.split(np.arange(sum(lengths)), 16)\n"
            "    return np.concatenate([np.concatenate([blocks[i], blocks[15 - i]]) for i in range(8)])"
        ),
        "every eighth token": (
            "def order_packed(lengths):\n    return np.concatenate([np.arange(i, sum(lengths), 8) for i in range(8)])"
        ),
        "document by document": (
            "def order_packed(lengths):\n"
            "    orders, start = [], 0\n"
            "    for length in lengths:\n"
            "        blocks = np.split(np.arange(start, start + length), 16)\n"
            "        orders += [np.concatenate([blocks[i], blocks[15 - i]]) for i in range(8)]\n"
            "        start += length\n"
            "    return np.concatenate(orders)"
        ),
        "a token twice": (
            "def order_packed(lengths):\n    order = np.arange(sum(lengths))\n    order[0] = order[1]\n    return order"
        ),
    },
    "pipeline-balance": {
        "equal, and the last stage takes the rest": (
            "def split(layers, n, head): return [layers // n] * (n - 1) + [layers - layers // n * (n - 1)]"
        ),
        "equal, and the first stages take the rest": (
            "def split(layers, n, head): return [layers // n + (s < layers % n) for s in range(n)]"
        ),
        "a layer less on the last stage": (
            "def split(layers, n, head):\n"
            "    counts = [layers // n + (s < layers % n) for s in range(n)]\n"
            "    return [counts[0] + 1, *counts[1:-1], counts[-1] - 1]"
        ),
        "layers are missing": "def split(layers, n, head): return [int((layers + head) // n)] * (n - 1) + [1]",
        "not whole layers": (
            "def split(layers, n, head):\n    each = (layers + head) / n\n    return [each] * (n - 1) + [each - head]"
        ),
    },
    "pipeline-fewest": {
        "20 % is below 20 %": (
            "def fewest(n, sequences, each, limit):\n"
            "    for M in range(1, sequences + 1):\n"
            "        if sequences % M == 0 and M >= 4 * (n - 1) and n * sequences // M * each <= limit:\n"
            "            return M"
        ),
        "no thought of memory": (
            "def fewest(n, sequences, each, limit):\n"
            "    return next(M for M in range(4 * n - 3, sequences + 1) if sequences % M == 0)"
        ),
        "no thought of the bubble": (
            "def fewest(n, sequences, each, limit):\n"
            "    for M in range(1, sequences + 1):\n"
            "        if sequences % M == 0 and n * sequences / M * each <= limit:\n"
            "            return M"
        ),
        "not equal ones": (
            "def fewest(n, sequences, each, limit):\n"
            "    return next(M for M in range(4 * n - 3, sequences + 1) if n * sequences / M * each <= limit)"
        ),
        "the memory of GPipe": (
            "def fewest(n, sequences, each, limit):\n"
            "    for M in range(4 * n - 3, sequences + 1):\n"
            "        if sequences % M == 0 and sequences * each <= limit:\n"
            "            return M\n"
            "    return sequences"
        ),
    },
    "pipeline-lockstep": {
        "1F1B": "in_turn = one_f_one_b",
        "GPipe": "in_turn = gpipe",
        "a backward pass too early": (
            "def in_turn(n, M):\n"
            "    both = [(s, m) for s in range(n) for m in range(M)]\n"
            "    forward = {(2 * (m + s), s): ('F', m) for s, m in both}\n"
            "    return forward | {(2 * (m + n - 1 - s) + 1, s): ('B', m) for s, m in both}"
        ),
        "all forward passes first": (
            "def in_turn(n, M):\n"
            "    both = [(s, m) for s in range(n) for m in range(M)]\n"
            "    forward = {(2 * (m + s), s): ('F', m) for s, m in both}\n"
            "    return forward | {(2 * (M + m + 2 * n - 2 - s) + 1, s): ('B', m) for s, m in both}"
        ),
        "a micro-batch is missing": (
            "def in_turn(n, M):\n"
            "    both = [(s, m) for s in range(n) for m in range(M - 1)]\n"
            "    forward = {(2 * (m + s), s): ('F', m) for s, m in both}\n"
            "    return forward | {(2 * (m + 2 * n - 2 - s) + 1, s): ('B', m) for s, m in both}"
        ),
    },
    "together-smallest": {
        "the memory of the state alone": "answer = 16, (1, 16, 1)",
        "tensor parallelism within nodes": "answer = 32, (1, 4, 8)",
        "the next larger": "answer = 64, (2, 32, 1)",
    },
    "together-micro-batches": {
        "in order": "def split_batch(tokens, count): return tokens.reshape(count, -1, tokens.shape[-1])",
        "one micro-batch, repeated": "def split_batch(tokens, count): return jnp.stack([tokens[::count]] * count)",
        "of another shape": "def split_batch(tokens, count): return tokens.reshape(-1, count, tokens.shape[-1])",
        "not sharded": (
            "def split_batch(tokens, count):\n"
            "    tokens = lax.with_sharding_constraint(tokens, NamedSharding(two_axes, P()))\n"
            "    return tokens.reshape(-1, count, tokens.shape[-1]).swapaxes(0, 1)"
        ),
    },
    "together-weights": {
        "the mean of means": "def mean_loss(sums, counts): return lax.pmean((sums / counts).mean(), 'data')",
        "the mean of the devices' means": (
            "def mean_loss(sums, counts): return lax.pmean(sums.sum() / counts.sum(), 'data')"
        ),
        "all micro-batches gathered": (
            "def mean_loss(sums, counts):\n"
            "    total, count = lax.psum(jnp.stack([sums, counts]), 'data').reshape(2, -1).sum(1)\n"
            "    return total / count"
        ),
    },
    "experts-bytes": {
        "the forward pass only": (
            "def exchanged(layers, experts, tokens, model, top, factor, devices, itemsize):\n"
            "    return 2 * layers * (devices - 1) / devices * factor * top * tokens * model * itemsize"
        ),
        "times the experts": (
            "def exchanged(layers, experts, tokens, model, top, factor, devices, itemsize):\n"
            "    slots = experts * factor * top * tokens\n"
            "    return 4 * layers * (devices - 1) / devices * slots * model * itemsize"
        ),
        "without a capacity factor": (
            "def exchanged(layers, experts, tokens, model, top, factor, devices, itemsize):\n"
            "    return 4 * layers * (devices - 1) / devices * top * tokens * model * itemsize"
        ),
    },
    "experts-collapsed": {
        "no balance": "def update(bias, load): return bias",
        "the wrong sign": "def update(bias, load): return bias + 0.01 * np.sign(load - load.mean())",
        "too large a step": "def update(bias, load): return bias + 0.2 * np.sign(load.mean() - load)",
        "no memory": "def update(bias, load): return 0.01 * (load.mean() - load)",
    },
    "experts-once": {
        "sent twice": "def thrifty(x, target, gates, layer): return wasteful(x, target, gates, layer)",
        "without gates": (
            "def thrifty(x, target, gates, layer):\n"
            "    exchange = partial(lax.all_to_all, axis_name='expert', tiled=True)\n"
            "    target = target[:, None]\n"
            "    slots = assign_slots(target)\n"
            "    there = exchange(dispatch(x, target, slots, len(x)), split_axis=0, concat_axis=1)\n"
            "    y = mlp(there, layer).sum(0)\n"
            "    back = exchange(y[None], split_axis=1, concat_axis=0)\n"
            "    return combine(back, target, slots, gates.mean(1, keepdims=True))"
        ),
        "both results return": (
            "def thrifty(x, target, gates, layer):\n"
            "    exchange = partial(lax.all_to_all, axis_name='expert', tiled=True)\n"
            "    target = target[:, None]\n"
            "    slots = assign_slots(target)\n"
            "    there = exchange(dispatch(x, target, slots, len(x)), split_axis=0, concat_axis=1)\n"
            "    done = exchange(mlp(there, layer), split_axis=1, concat_axis=0).reshape(8, 2, len(x), D)\n"
            "    return sum(combine(done[:, e], target, slots, gates[:, e:e + 1]) for e in range(2))"
        ),
    },
    "overlap-memory-limit": {
        "each matrix when its turn comes": (
            "def half_ahead(layers, x):\n"
            "    def trip(x, i):\n"
            "        hidden = jax.nn.gelu(norm(x) @ gather_one(layers, i, 0).T)\n"
            "        return x + hidden @ gather_one(layers, i, 1), None\n"
            "    return lax.scan(trip, x, jnp.arange(len(layers)))[0]"
        ),
        "a whole layer ahead": "def half_ahead(layers, x): return run_ahead(run, gather, layers, x)[0]",
        "both matrices ahead, one by one": (
            "def half_ahead(layers, x):\n"
            "    def both(i): return gather_one(layers, i, 0), gather_one(layers, i, 1)\n"
            "    def trip(carry, i):\n"
            "        x, w = carry\n"
            "        coming = both(i + 1)\n"
            "        return (run(x, w), coming), None\n"
            "    return lax.scan(trip, (x, both(0)), jnp.arange(len(layers)))[0][0]"
        ),
        "the second matrix of the next layer": (
            "def half_ahead(layers, x):\n"
            "    def trip(carry, i):\n"
            "        x, up = carry\n"
            "        down = gather_one(layers, i + 1, 1)\n"
            "        hidden = jax.nn.gelu(norm(x) @ up.T)\n"
            "        coming = gather_one(layers, i + 1, 0)\n"
            "        return (x + hidden @ down, coming), None\n"
            "    first = x, gather_one(layers, 0, 0)\n"
            "    return lax.scan(trip, first, jnp.arange(len(layers)))[0][0]"
        ),
    },
    "overlap-split": {
        "in one": "def in_parts(hidden, down): return in_one(hidden, down)",
        "split along the contracting dimension": (
            "def in_parts(hidden, down):\n"
            "    left, right = jnp.split(hidden, 2, axis=1)\n"
            "    top, bottom = jnp.split(down, 2)\n"
            "    return in_one(left, top) + in_one(right, bottom)"
        ),
        "the parts in the wrong order": (
            "def in_parts(hidden, down):\n"
            "    parts = [in_one(rows, down) for rows in jnp.split(hidden, 2)]\n"
            "    return jnp.concatenate(parts[::-1])"
        ),
        "one product, two all-reduces": (
            "def in_parts(hidden, down):\n"
            "    return jnp.concatenate([lax.psum(rows, 'data') for rows in jnp.split(hidden @ down, 2)])"
        ),
    },
    "your_model-greedy-rule": {
        "the rule for all biases first": (
            "rules = [(r'bias$', P('model')), (r'(query|key|value)/bias$', P('model', None))]"
        ),
        "norms forgotten": "rules = [(r'(query|key|value)/bias$', P('model', None)), (r'up/bias$', P('model'))]",
        "within a head, not along the heads": (
            "rules = [(r'(query|key|value)/bias$', P(None, 'model')), (r'up/bias$', P('model')), (r'bias$', P())]"
        ),
        "all biases of attention": (
            "rules = [(r'attention/.*bias$', P('model')), (r'up/bias$', P('model')), (r'bias$', P())]"
        ),
        "kernels too": (
            "rules = [(r'(query|key|value)', P('model', None)), (r'up/bias$', P('model')), (r'bias$', P())]"
        ),
    },
    "your_model-fused": {
        "queries for all": (
            "def read_fused(fused, part, index):\n"
            "    columns, heads, _ = index\n"
            "    rows = fused[slice(heads.start * H, heads.stop * H), columns]\n"
            "    return rows.reshape(-1, H, rows.shape[1]).transpose(2, 0, 1)"
        ),
        "read whole, then sliced": (
            "def read_fused(fused, part, index):\n"
            "    full = fused[:, :].reshape(3, N, H, D)[('query', 'key', 'value').index(part)]\n"
            "    return full.transpose(2, 0, 1)[index]"
        ),
        "heads interleaved, as some checkpoints have them": (
            "def read_fused(fused, part, index):\n"
            "    columns, heads, _ = index\n"
            "    begin = 3 * heads.start + ('query', 'key', 'value').index(part)\n"
            "    rows = fused[slice(begin * H, begin * H + (heads.stop - heads.start) * H), columns]\n"
            "    return rows.reshape(-1, H, rows.shape[1]).transpose(2, 0, 1)"
        ),
    },
    "your_model-unsharded-base": {
        "the colleague's": (
            "def merge_down(kernel, a, b):\n"
            "    full = [jax.lax.with_sharding_constraint(x, P()) for x in (kernel, a, b)]\n"
            "    return full[0] + full[1] @ full[2]"
        ),
        "another layout": (
            "def merge_down(kernel, a, b):\n    return jax.lax.with_sharding_constraint(kernel + a @ b, P('model'))"
        ),
        "the factors exchanged": (
            "def merge_down(kernel, a, b):\n"
            "    return jax.lax.with_sharding_constraint(kernel + (b.T @ a.T).T * 2, P('model', 'data'))"
        ),
    },
    "optimizers-history": {
        "the parameter's spec for all": "def fit_history(shape, of, spec): return spec if len(shape) > 1 else P()",
        "replicated": "def fit_history(shape, of, spec): return spec if shape == of else P()",
        "sharded over the history": (
            "def fit_history(shape, of, spec):\n"
            "    return spec if shape == of else P('data') if shape[1:] == of else P()"
        ),
    },
    "optimizers-clip": {
        "the local norm": (
            "def clip_shards(g):\n"
            "    norm = jnp.sqrt((g['W'] ** 2).sum() + (g['b'] ** 2).sum())\n"
            "    return jax.tree.map(lambda a: a / jnp.maximum(1, norm), g)\n"
            "def clip_tree(g):\n"
            "    specs = dict(in_specs=(in_specs,), out_specs=in_specs, check_vma=False)\n"
            "    return jax.shard_map(clip_shards, **specs)(g)"
        ),
        "the replicated gradient counted eight times": (
            "def clip_shards(g):\n"
            "    squares = lax.psum((g['W'] ** 2).sum() + (g['b'] ** 2).sum(), 'data')\n"
            "    return jax.tree.map(lambda a: a / jnp.maximum(1, jnp.sqrt(squares)), g)\n"
            "def clip_tree(g):\n"
            "    specs = dict(in_specs=(in_specs,), out_specs=in_specs)\n"
            "    return jax.shard_map(clip_shards, **specs)(g)"
        ),
        "always divided": (
            "def clip_shards(g):\n"
            "    squares = lax.psum((g['W'] ** 2).sum(), 'data') + (g['b'] ** 2).sum()\n"
            "    return jax.tree.map(lambda a: a / jnp.sqrt(squares), g)\n"
            "def clip_tree(g):\n"
            "    specs = dict(in_specs=(in_specs,), out_specs=in_specs)\n"
            "    return jax.shard_map(clip_shards, **specs)(g)"
        ),
    },
    "optimizers-momentum": {
        "whatever can be sharded": "def choose(p): return P(), P('data')",
        "all arrays of two dimensions": "def choose(p): return P(), P('data') if p.ndim > 1 else P()",
        "parameters sharded too": (
            "def choose(p):\n    spec = P('data') if p.size >= 1000 else P()\n    return spec, spec"
        ),
        "nothing sharded": "def choose(p): return P(), P()",
    },
    "memory-least-recomputation": {
        "the widest only": "answer = ('wide',)",
        "the least memory": "answer = ()",
        "one where two fit": "answer = ('narrow',)",
        "all of them": "answer = ('wide', 'narrow', 'square')",
    },
    "memory-not-donated": {
        "the same": "def repaired(state, x): return careless(state, x)",
        "all in bfloat16": (
            "def repaired(state, x):\n    return jax.tree.map(lambda a: a.astype('bfloat16'), careless(state, x))"
        ),
        "the old average": "def repaired(state, x): return careless(state, x) | {'average': state['average']}",
        "the average as float32 from the start": (
            "def repaired(state, x):\n    return careless(state | {'average': state['average'].astype('float32')}, x)"
        ),
    },
    "budget-cheapest": {
        name: (
            "def cheapest(M, n, L, A, budget):\n"
            f"    held = {{'once': {once}, 'each time': {each_time}}}\n"
            f"    tried = {tried}\n"
            "    fit = ((way, K) for way, K in tried if held[way] + A / K <= budget)\n"
            "    return next(fit, None)"
        )
        for name, once, each_time, tried in (
            ("the fewest micro-batches", _ONCE, _EACH_TIME, "((w, 2**k) for k in range(7) for w in [*held][::-1])"),
            ("never once", _ONCE, _EACH_TIME, "(('each time', 2 ** k) for k in range(7))"),
            ("one set of gradients", "12 * M / n + 8 * M", "16 * M / n + 4 * M / L", _IN_ORDER),
            ("moments in full", "24 * M", _EACH_TIME, _IN_ORDER),
            ("all parameters gathered each time", _ONCE, "20 * M / n + 4 * M", _IN_ORDER),
            ("always two micro-batches", _ONCE, _EACH_TIME, "(('once', 2), ('each time', 2))"),
        )
    },
    "budget-all-gradients": {
        "the same": "def frugal(W, xs): return hoarding(W, xs)",
        "all at once": "def frugal(W, xs): return jax.vmap(one_gradient, (None, 0))(W, xs).mean(0)",
        "one large batch": "def frugal(W, xs): return one_gradient(W, xs.reshape(-1, 256))",
        "the sum": (
            "def frugal(W, xs):\n"
            "    return lax.scan(lambda t, x: (t + one_gradient(W, x), None), jnp.zeros_like(W), xs)[0]"
        ),
    },
    "your_centre-five": {
        "a line too many": "answer = [6, 7, 10, 11, 12, 16]",
        "not the option that sbatch skips": "answer = [6, 7, 12, 13, 16]",
        "one process a node": "answer = [5, 7, 11, 12, 16]",
        "every line": "answer = range(1, len(lines) + 1)",
    },
    "your_centre-launch": {
        "the right sum means that all is well": (
            "answer = {'A': ('alone', 1), 'B': ('well', 8), 'C': ('CPUs', 0), 'D': ('well', 8)}"
        ),
        "eight GPUs add up in A": (
            "answer = {'A': ('alone', 8), 'B': ('idle', 8), 'C': ('CPUs', 0), 'D': ('well', 8)}"
        ),
        "all visible GPUs are used": (
            "answer = {'A': ('alone', 1), 'B': ('idle', 32), 'C': ('CPUs', 0), 'D': ('well', 8)}"
        ),
        "devices are GPUs": ("answer = {'A': ('alone', 1), 'B': ('idle', 8), 'C': ('CPUs', 8), 'D': ('well', 8)}"),
    },
    "survive-batch": {
        "for eight only": "answer = {'batch': 504, 'of eight': 63, 'of five': 101}",
        "the product": "answer = {'batch': 1680, 'of eight': 210, 'of five': 336}",
        "the same for each device": "answer = {'batch': 840, 'of eight': 105, 'of five': 105}",
    },
    "survive-interval": {
        "without the factor of two": (
            "T = np.sqrt(90 * day / 4)\nanswer = {'interval': T, 'share': share_lost(T, 90, day / 4), 'steps': T / 10}"
        ),
        "as rarely as the small job": (
            "T = np.sqrt(180 * day)\nanswer = {'interval': T, 'share': share_lost(T, 90, day / 4), 'steps': T / 10}"
        ),
        "all steps of an interval": (
            "T = np.sqrt(180 * day / 4)\nanswer = {'interval': T, 'share': share_lost(T, 90, day / 4), 'steps': T / 5}"
        ),
    },
    "survive-hosts": {
        "the next process": "def holder(i): return (i + 1) % 8",
        "the other process of the host": "def holder(i): return i ^ 1",
        "one process for all": "def holder(i): return 0 if i > 1 else 2",
    },
    "watch-limit": {
        "ten usual steps": "answer = {'first': 300, 'limit': 20}",
        "as long as the first": "answer = {'first': 300, 'limit': 300}",
        "no room for the compilation": "answer = {'first': 100, 'limit': 90}",
        "the longest step": "answer = {'first': 300, 'limit': 40}",
    },
    "watch-stacks": {
        "one of those that wait": "answer = {'process': 0, 'step': 4, 'line': 21}",
        "the line at which it waits": "answer = {'process': 2, 'step': 3, 'line': 14}",
        "the call instead of the condition": "answer = {'process': 2, 'step': 3, 'line': 23}",
        "the step of the others": "answer = {'process': 2, 'step': 4, 'line': 22}",
    },
    "watch-late": {
        "the longest wait": (
            "def stragglers(recorded):\n"
            "    waits = [[b - a for name, a, b in trace if name == 'all-reduce'] for trace in recorded.values()]\n"
            "    return np.argmax(waits, axis=0).tolist()"
        ),
        "the longest computation": (
            "def stragglers(recorded):\n"
            "    works = [[b - a for name, a, b in trace if name == 'compute'] for trace in recorded.values()]\n"
            "    return np.argmax(works, axis=0).tolist()"
        ),
        "clocks taken as they are": (
            "def stragglers(recorded):\n"
            "    starts = [[a for name, a, _ in trace if name == 'all-reduce'] for trace in recorded.values()]\n"
            "    return np.argmax(starts, axis=0).tolist()"
        ),
    },
    "serving-never": {
        "attention does no FLOPs": (
            "def longest_context(m, chip, itemsize):\n"
            "    read = token_bytes(m, itemsize) / chip.hbm_bytes_per_second\n"
            "    return round(2 * m.matmul_parameters / chip.peak() / read)"
        ),
        "one FLOP for a parameter": (
            "def longest_context(m, chip, itemsize):\n"
            "    read = token_bytes(m, itemsize) / chip.hbm_bytes_per_second\n"
            "    attend = 4 * m.layers * m.heads * m.head_dim / chip.peak()\n"
            "    return round(m.matmul_parameters / chip.peak() / (read - attend))"
        ),
        "where caches weigh as much as parameters": (
            "def longest_context(m, chip, itemsize):\n"
            "    return round(m.matmul_parameters * itemsize / token_bytes(m, itemsize))"
        ),
    },
    "serving-combine": {
        "minus infinity minus minus infinity": (
            "def combine(mixed, total, top):\n"
            "    shrink = jnp.exp(top - lax.pmax(top, MODEL))\n"
            "    total = lax.psum(shrink * total, MODEL)\n"
            "    return lax.psum(shrink[:, None] * mixed, MODEL) / total[:, None]"
        ),
        "devices with different maxima added": (
            "def combine(mixed, total, top):\n"
            "    total = lax.psum(total, MODEL)\n"
            "    return lax.psum(mixed, MODEL) / jnp.where(total > 0, total, 1)[:, None]"
        ),
        "the mean of the devices' results": (
            "def combine(mixed, total, top):\n"
            "    return lax.pmean(mixed / jnp.where(total > 0, total, 1)[:, None], MODEL)"
        ),
        "everything gathered": (
            "def combine(mixed, total, top):\n"
            "    spread = lambda a: jnp.zeros((8, *a.shape)).at[lax.axis_index(MODEL)].set(a)\n"
            "    own = jnp.where(jnp.isfinite(top), top, -1e9)\n"
            "    mixed, total, own = (lax.psum(spread(a), MODEL) for a in (mixed, total, own))\n"
            "    shrink = jnp.exp(own - own.max(0))\n"
            "    total = (shrink * total).sum(0)\n"
            "    mixed = (shrink[..., None] * mixed).sum(0)\n"
            "    return mixed / jnp.where(total > 0, total, 1)[:, None]"
        ),
    },
    "serving-latent": {
        "positions over all devices": "answer = put(latents, P(None, None, MODEL))",
        "by sequence alone": "answer = put(latents, P(None, 'kv'))",
        "vectors in parts": "answer = put(latents, P(None, 'kv', None, 'group'))",
    },
    "serving-steps": {
        "no slot ever waits": "def count_steps(wanted, slots): return -(-sum(wanted) // slots)",
        "static batching": (
            "def count_steps(wanted, slots):\n"
            "    return sum(max(wanted[i : i + slots]) for i in range(0, len(wanted), slots))"
        ),
        "slots in turn": "def count_steps(wanted, slots): return max(sum(wanted[i::slots]) for i in range(slots))",
    },
    "equinox-transposed": {
        "the colleague's": (
            "mlp_rules = [(r'0/weight$', P(None, 'model')), (r'1/weight$', P('model', None)), (r'bias$', P())]"
        ),
        "replicated": "mlp_rules = [(r'', P())]",
        "biases without a rule": ("mlp_rules = [(r'0/weight$', P('model', None)), (r'1/weight$', P(None, 'model'))]"),
        "rows of both": "mlp_rules = [(r'weight$', P('model', None)), (r'bias$', P())]",
    },
    "equinox-trainable": {
        "all biases": (
            "def trainable(model):\n"
            "    return jax.tree_util.tree_map_with_path(\n"
            "        lambda path, leaf: jax.tree_util.keystr(path).endswith('.bias'), model\n"
            "    )"
        ),
        "whatever is an array": "def trainable(model): return jax.tree.map(eqx.is_array, model)",
        "the first layer only": (
            "def trainable(model):\n"
            "    nothing = jax.tree.map(lambda leaf: False, model)\n"
            "    names = 'query_proj', 'key_proj', 'value_proj'\n"
            "    biases = lambda tree: [getattr(tree.layers[0].attention, name).bias for name in names]\n"
            "    return eqx.tree_at(biases, nothing, replace_fn=lambda leaf: True)"
        ),
    },
}
