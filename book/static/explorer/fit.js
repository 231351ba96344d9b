// The memory and the time of a dense model's training step on each chip: shardlab.hardware.machine and
// shardlab.costs.step_cost, with the same operations in the same order, so that even ties are ranked as there.
//   case: { model: { layers, d_model, ... }, chip, slices, batch, sequence, data, fsdp, tensor, pipeline, context,
//   microbatches, stages, gathers, remat, reserve }, with the reserve in per cent; the number of chips follows from the mesh
(function (explorer) {
"use strict";
const { AXES, plain, product, times } = explorer;
const { max, min, floor, ceil, log2 } = Math;
const wrong = (words) => ({ error: { words } });

// --- Machines ---
// The machine that so many chips form: { chip, shape, rings, near, slices, chips }, or an error with the nearest ones.
function machine(name, chips, slices = 1) {
  const chip = explorer.data.chips[name];
  const known = Object.keys(chip.slices).map(Number);
  const around = (all) => [max(...all.filter((n) => n < chips / slices)), min(...all.filter((n) => n > chips / slices))]
    .filter(isFinite).map((n) => plain(n * slices)).join(" or "); // chips of all slices together
  const made = (near, many) => {
    const [shape, rings] = chip.slices[near];
    return { chip, shape, rings, near, slices: many, chips };
  };
  if (!chip.torus.length) {
    const host = chip.host_chips || chip.node_chips;
    const fewest = ceil(chips / chip.node_chips);
    slices = 1;
    // The fewest nodes over which they can be spread evenly, on whole hosts.
    let nodes = fewest;
    while (nodes > 1 && nodes <= chips / host && (chips % nodes || chips / nodes % host)) nodes++;
    if (fewest === 1 ? chip.slices[chips] : nodes <= chips / host) return made(chips / nodes, nodes);
    const possible = [...known.filter((n) => n <= host),
      ...[-1, 0, 1].map((n) => host * (floor(chips / host) + n)).filter((n) => n > 0)];
    return wrong(`${chips} ${name} do not fill hosts of ${host}; use ${around(possible)}`);
  }
  if (chips % slices) return wrong(`${chips} chips cannot be spread evenly over ${slices} slices; use a multiple of ${slices}`);
  const each = chips / slices;
  if (chip.slices[each]) return made(each, slices);
  const largest = max(...known);
  const enough = times(998, (n) => n + 2).find((n) => chips % n === 0 && chip.slices[chips / n]);
  const several = slices === 1 && each > largest && enough ? `, or slices=${enough}` : "";
  return wrong(`no slice of ${name} has ${plain(each)} chips, the largest has ${plain(largest)}; use ${around(known)} ` +
    `chips${several}`);
}

// --- Places: over which links each mesh axis sends ---
function combinations(items, count) {
  if (!count) return [[]];
  return items.flatMap((item, i) => combinations(items.slice(i + 1), count - 1).map((rest) => [item, ...rest]));
}
const gcd = (a, b) => (b ? gcd(b, a % b) : a);

// For each mesh axis its parts of axes of the torus: [chips, distance between them, whether they close to a ring].
// Whole axes of the torus first; what is left is dealt out by common factors.
function pieces(shape, rings, sizes) {
  let free = shape.map((_, i) => i);
  const found = sizes.map((size) => {
    for (let count = free.length; count > 0 && size > 1; count--) {
      const some = combinations(free, count).find((those) => product(those.map((i) => shape[i])) === size);
      if (some) {
        free = free.filter((i) => !some.includes(i));
        return some.map((i) => [shape[i], 1, rings[i]]);
      }
    }
    return null;
  });
  const taken = shape.map(() => 1);
  return found.map((whole, axis) => whole || free.flatMap((i) => {
    const part = gcd(sizes[axis], floor(shape[i] / taken[i]));
    if (part === 1) return [];
    const piece = [part, taken[i], rings[i] && part * taken[i] === shape[i]];
    taken[i] *= part;
    sizes[axis] = floor(sizes[axis] / part);
    return [piece];
  }));
}

// Links that a chip sends over at once, hops from end to end, groups on a link.
function along(parts) {
  const each = parts.filter(([n]) => n > 1).map(([n, stride, ring]) => [n, stride, ring ? 2 : 1]);
  if (!each.length) return { ways: 1, hops: 0, crowd: 1 };
  return {
    ways: each.reduce((all, [, stride, way]) => all + way / stride, 0),
    hops: each.reduce((all, [n, stride, way]) => all + stride * (way === 2 ? floor(n / 2) : n - 1), 0),
    crowd: min(...each.map(([, stride]) => stride)),
  };
}

// The share of its links that a chip uses in a group of so many of its node.
const linkShare = ({ peers }, n) => (peers ? min(max((n - 1) / peers, 1 / peers), 1) : 1);

// The place of each mesh axis, the innermost first: chips within a slice or node, slices or nodes, and their links.
function place({ chip, shape, rings, near: all }, sizes) {
  let stride = 1;
  const near = sizes.map((size) => {
    const inside = min(size, max(floor(all / stride), 1));
    stride *= size;
    return inside;
  });
  const links = chip.torus.length ? pieces(shape, rings, [...near]).map(along)
    : near.map((n) => ({ ways: linkShare(chip, n), hops: n - 1, crowd: 1 / linkShare(chip, 2) }));
  return sizes.map((size, i) => ({ near: near[i], far: ceil(size / near[i]), ...links[i] }));
}

function places(made, { data, fsdp, tensor, pipeline, context }) {
  const found = place(made, [tensor, context, fsdp, pipeline, data]);
  const sharded = place(made, [tensor, fsdp * context, pipeline, data])[1]; // the state
  return { tensor: found[0], context: found[1], fsdp: sharded, pipeline: found[3], data: found[4] };
}

// --- Collectives ---
const rounds = (kind) => explorer.data.rounds[kind]; // how often the array goes around; none for sends
const sentBytes = (kind, bytes, n) => (rounds(kind) ? rounds(kind) * (n - 1) / n * bytes : n > 1 ? bytes : 0);

// The time between slices or nodes, by the faster of rings and trees.
function network(kind, bytes, outer, chip, waiting) {
  const ring = rounds(kind) ? rounds(kind) * (outer - 1) : outer > 1 ? 1 : 0;
  const tree = rounds(kind) ? rounds(kind) * ceil(log2(outer)) : ring;
  const [first, second] = [ring, tree].map((steps) => max(sentBytes(kind, bytes, outer) / chip.network_bytes_per_second,
    waiting * steps * chip.network_seconds));
  return min(first, second);
}

// [the time within a slice or node, that between them] of so many collectives of these bytes together.
function axisSeconds(kind, count, bytes, { near, far, ways, hops, crowd }, waits, chip) {
  const link = chip.link_bytes_per_second;
  const within = rounds(kind) ? sentBytes(kind, bytes, near) / (ways * link) : near > 1 ? crowd * bytes / link : 0;
  const late = count * (rounds(kind) ? rounds(kind) * hops : Number(near > 1)) * chip.link_seconds;
  const between = rounds(kind) ? bytes / near : far > 1 ? bytes : 0;
  return [max(within, late), network(kind, between, far, chip, waits ? count : min(count, 1))];
}

// What a collective takes on GPUs besides its bytes.
function latency(kind, { near, far }, fitted) {
  const of = near * far;
  const hops = rounds(kind) ? rounds(kind) * (of - far) : min(near - 1, 1);
  const across = rounds(kind) ? rounds(kind) * (far - 1) : min(far - 1, 1);
  let seconds = hops * fitted.hop_seconds + across * fitted.network_hop_seconds;
  if (kind === "all-reduce") {
    seconds = min(seconds, 2 * ((near - 1) * fitted.hop_seconds + log2(far) * fitted.network_hop_seconds));
  }
  return of > 1 ? fitted.call_seconds + seconds : 0;
}

// --- A step ---
// Parameters, and what a layer keeps of each token.
function sizesOf({ layers, d_model: d, d_ff: f, heads, kv_heads: kv, head_dim, vocab, gated, tied }) {
  const [attention, mlp, embedding] = [2 * d * head_dim * (heads + kv), (gated ? 3 : 2) * d * f, (tied ? 1 : 2) * vocab * d];
  const parameters = layers * (attention + 2 * d) + layers * mlp + embedding + d;
  const [queries, keys, ins] = [heads * head_dim, kv * head_dim, gated ? 2 : 1];
  const width = (counts) => counts[0] * d + counts[1] * queries + counts[2] * keys + counts[3] * ins * f;
  return { attention, mlp, embedding, parameters, width, multiplied: layers * (attention + mlp) + vocab * d };
}

// Whether so many chips can share the heads of a layer.
const splits = ({ heads, kv_heads: kv }, chips) => heads % chips === 0 && (kv % chips === 0 || chips % kv === 0);

// Why nothing can be offloaded.
function unknownHost({ chip, remat }) {
  const { chips } = explorer.data;
  if (!explorer.data.remat[remat].hosts.some(Boolean) || chips[chip].host_bytes_per_second) return null;
  const known = Object.keys(chips).filter((name) => chips[name].host_bytes_per_second);
  return wrong(`the bandwidth between ${chip} and its host is not known, so what offloading takes is not either; it is ` +
    `for ${known.join(", ")}`);
}

// Why there is no such step.
function refused(model, given) {
  const [{ heads, kv_heads: kv, layers }, { tensor, pipeline, stages }] = [model, given];
  if (heads % kv) return wrong(`${heads} heads cannot share ${kv} kv_heads evenly; use a divisor`);
  if (unknownHost(given)) return unknownHost(given);
  if (pipeline * stages > layers) return wrong(`${pipeline * stages} stages are more than the ${layers} layers`);
  return splits(model, tensor) ? null : wrong(`a tensor axis of ${tensor} cannot split ${heads} heads and ${kv} kv_heads ` +
    `evenly; use a divisor of ${heads} that divides ${kv} or is a multiple of it`);
}

// [the memory of a chip, that of its host]: of the first stage of a pipeline, which keeps a micro-batch for each stage.
function memoryOf(model, counted, given) {
  const { batch, data, fsdp, tensor, pipeline, context, microbatches: micro, stages, gathers, remat } = given;
  const { layers, vocab } = model;
  const { attention, mlp, embedding, parameters, width } = counted;
  const tokens = batch / (data * fsdp * context * micro); // of a micro-batch
  const shards = fsdp * context * tensor;
  const held = ((parameters - embedding) / pipeline + embedding / min(pipeline, 2)) / shards;
  const longer = stages > 1 && micro > 1 ? 1 + (pipeline - 1) / (pipeline * stages) : 1; // in an interleaved schedule
  const keeping = min(micro, pipeline) * longer * layers / pipeline; // layers whose activations are kept
  const { recomputes, keeps, hosts } = explorer.data.remat[remat];
  const whole = (gathers === 1 ? 4 * layers / pipeline : 4) * (attention + mlp); // of two layers; or of all, with gradients
  return [{ // in bf16, except moments and logits
    parameters: 2 * held,
    gradients: 2 * held,
    moments: 8 * held,
    activations: 2 * tokens * (keeping * width(keeps) + min(keeping, 2) * width(hosts)) / tensor,
    working: 2 * tokens * (recomputes.length ? width(explorer.data.remat.none.keeps) : 0) / tensor,
    gathered: shards > tensor ? whole / tensor : 0,
    logits: 4 * tokens * vocab / tensor,
  }, 2 * tokens * keeping * width(hosts) / tensor];
}

// The cost of a step, on a machine whose places are known.
function step(model, counted, made, where, given) {
  const { layers: allLayers, d_model: d, d_ff: f, heads, kv_heads: kv, head_dim, vocab } = model;
  const { attention, mlp, parameters, width, multiplied } = counted;
  const { batch, sequence, data, fsdp, tensor, pipeline, context, microbatches: micro, stages, gathers, remat, reserve } = given;
  const { chip } = made;
  const { recomputes, reads, pairs: repeated, keeps, hosts } = explorer.data.remat[remat];
  const [memory, onHost] = memoryOf(model, counted, given);
  const state = memory.parameters + memory.gradients + memory.moments;
  const total = state + memory.activations + memory.working + memory.gathered + memory.logits;
  const tokens = batch / (data * fsdp * context); // of a tensor group, in all micro-batches
  const [layers, peak] = [allLayers / pipeline, chip.flops_per_second.bf16];

  // Compute.
  const scores = sequence * heads * (4 * head_dim);
  const twoThirds = 2 * mlp * (model.gated ? 2 / 3 : 1 / 2); // nothing needs the last product again
  const [output, queries, keysOf] = [2 * d * heads * head_dim, heads * head_dim, kv * head_dim];
  const one = (2 * attention - output) / (queries + 2 * keysOf); // of the projections, for each element of their results
  const parts = { query: one * queries, key: one * keysOf, value: one * keysOf, out: output, mlp: twoThirds, scores };
  const repeat = recomputes.reduce((all, part) => all + parts[part], 0);
  const forwards = tokens / tensor * (2 * multiplied + allLayers * scores) / pipeline;
  const again = tokens / tensor * (allLayers * repeat) / pipeline;
  const flops = 3 * forwards + again;
  const products = 3 * (2 * allLayers * (attention + mlp) * tokens / (tensor * pipeline)) + again -
    (recomputes.includes("scores") ? scores * layers * tokens / tensor : 0);
  const seconds = { compute: products / peak + (flops - products) / peak };

  // HBM.
  const dense = parameters / (tensor * pipeline);
  const update = 2 * (state - memory.gradients) + memory.gradients;
  const forToken = tokens * allLayers / (tensor * pipeline) * 2; // of one element of its width
  const moved = width(hosts) * forToken;
  const bandwidth = chip.hbm_bytes_per_second;
  seconds.hbm = (micro * (reads * 2 + 2) * dense + update + 2 * width(keeps) * forToken + 4 * moved) / bandwidth;
  seconds.host = moved ? 2 * moved / chip.host_bytes_per_second : 0;

  // Communication: for each axis which kind, how often, and the bytes of all its arrays together.
  const held = tokens * d * 2;
  const pairs = layers * (4 + repeated) + 2;
  const keys = 2 * kv * head_dim / tensor;
  const blocks = (3 + recomputes.includes("scores")) * layers * micro;
  const crossings = pipeline > 1 ? 2 * stages : 0;
  const [gather, scatter] = gathers === 2 ? [2 * micro, micro] : [1, 1];
  const permute = "collective-permute";
  const moves = {
    data: [["all-reduce", layers, dense * tensor / (fsdp * context * tensor) * 2]],
    fsdp: [["all-gather", gather * layers, gather * dense * 2], ["reduce-scatter", scatter * layers, scatter * dense * 2]],
    tensor: [["all-reduce", micro * pairs, pairs * held]],
    pipeline: [[permute, crossings * micro, crossings * held / tensor]],
    context: [[permute, blocks * (context - 1), (context - 1) * blocks / micro * tokens * keys * 2]],
  };
  const fitted = explorer.data.fitted[chip.torus.length ? "tpu" : "gpu"];
  const [took, sent] = [{}, {}];
  for (const axis of AXES) {
    let [near, far, late] = [0, 0, 0];
    sent[axis] = 0;
    for (const [kind, count, bytes] of moves[axis]) {
      const waits = !["data", "fsdp"].includes(axis) || !chip.torus.length;
      const [one, other] = axisSeconds(kind, count, bytes, where[axis], waits, chip);
      [near, far] = [near + one, far + other];
      late += count * latency(kind, where[axis], fitted);
      const of = where[axis].near * where[axis].far;
      sent[axis] += of > 1 ? sentBytes(kind, bytes, of) : 0;
    }
    seconds[axis] = max(near, far);
    took[axis] = max(near / fitted.links, far / fitted.network) + late;
  }

  // The time to expect: products at the share of the peak that their sizes reach, and what nothing hides.
  const [, share] = Object.entries(fitted.products).find(([name]) => given.chip.startsWith(name)) || [0, fitted.other];
  const rows = max(tokens / micro, 1e-9);
  const slower = (attention * (1 + fitted.half / min(rows, d, heads * head_dim / tensor)) +
    mlp * (1 + fitted.half / min(rows, d, f / tensor))) / (attention + mlp);
  const work = (products / peak * slower + (flops - products) / peak) / share;
  const hidden = { fsdp: work, data: 2 / 3 * work / micro, context: (flops - products) / peak / share };
  const open = (axis) => max(took[axis] - hidden[axis], 0);
  const host = max(seconds.host / 2 - work / 4, 0) + max(seconds.host / 2 - work * 3 / 4, 0); // one way in each pass
  const exposed = took.tensor + took.pipeline / micro + open("fsdp") + took.fsdp / (layers * scatter) + open("data") +
    took.data / layers + open("context") + host;
  const [bubble, updating] = [(pipeline - 1) / (micro * stages), update / bandwidth];
  const longest = max(...Object.values(seconds));
  const least = longest * (1 + bubble);
  const sum = AXES.reduce((all, axis) => all + seconds[axis], seconds.host);
  const expected = (work + exposed) * (1 + bubble) + updating;
  const mfu = 3 * forwards / peak / least;
  return {
    parameters, memory, total_bytes: total, state_bytes: state, host_bytes: onHost, hbm_bytes: chip.hbm_bytes, flops, bubble, mfu,
    fits: total <= chip.hbm_bytes * (1 - reserve / 100),
    parts: seconds, sent_bytes: sent, seconds: least,
    serial_seconds: (max(seconds.compute, seconds.hbm) + sum) * (1 + bubble),
    bound: Object.keys(seconds).find((part) => seconds[part] === longest),
    expected_seconds: expected, exposed_seconds: exposed, expected_mfu: mfu * least / expected,
    moved_bytes: { ...sent, host: 2 * moved }, work_seconds: work, update_seconds: updating,
    exposed: {
      data: open("data") + took.data / layers, fsdp: open("fsdp") + took.fsdp / (layers * scatter), tensor: took.tensor,
      pipeline: took.pipeline / micro, context: open("context"), host,
    },
  };
}

function fit(given) {
  const made = machine(given.chip, product(AXES.map((axis) => given[axis])), given.slices);
  const error = made.error ? made : refused(given.model, given);
  if (error) return error;
  return step(given.model, sizesOf(given.model), made, places(made, given), given);
}

Object.assign(explorer, { fit, linkShare, machine, places, sizesOf, splits, step, unknownHost });
})(window.explorer);
