// The memory and the time of a training step on each chip: shardlab.hardware.machine and shardlab.costs.step_cost, with
// the same operations in the same order, so that even ties are ranked as there.
//   case: { model: { layers, d_model, ... }, chip, slices, batch, sequence, data, fsdp, tensor, pipeline, context, expert,
//   microbatches, stages, gathers, remat, reserve, and dtypes }, with the reserve in per cent; the number of chips follows
//   from the mesh. What only some cases have: the sizes of experts and latents, expert, products, lora, parameters and so on.
window.explorer.shared(function (explorer) {
"use strict";
const { AXES, plain, product, times } = explorer;
const { max, min, floor, ceil, log2 } = Math;
const wrong = (words) => ({ error: { words } });

// --- Machines ---
// The machine of so many chips: { chip, shape, rings, near, slices, chips }, or an error.
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

// For each mesh axis its parts of torus axes: [chips, distance between them, whether they close].
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
  if (!each.length) return { ways: 1, hops: 0, routed: 0, crowd: 1 };
  return {
    ways: each.reduce((all, [, stride, way]) => all + way / stride, 0),
    hops: each.reduce((all, [n, stride, way]) => all + stride * (way === 2 ? floor(n / 2) : n - 1), 0),
    routed: max(...each.map(([n, stride, way]) => floor(n * n / 4) / n / way * stride)),
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
    : near.map((n) => ({
      ways: linkShare(chip, n), hops: n - 1, routed: (n - 1) / n / linkShare(chip, n), crowd: 1 / linkShare(chip, 2),
    }));
  return sizes.map((size, i) => ({ near: near[i], far: ceil(size / near[i]), ...links[i] }));
}

// Of each axis; of those together over which the state is sharded; and of the routed experts' state.
function places(made, { data, fsdp, tensor, pipeline, context, expert = 1 }) {
  const found = place(made, [tensor, context, expert, fsdp, pipeline, data]);
  return {
    tensor: found[0], context: found[1], expert: found[2], pipeline: found[4], data: found[5],
    fsdp: place(made, [tensor, fsdp * context * expert, pipeline, data])[1],
    routed: expert > 1 ? place(made, [tensor, expert, context * fsdp, pipeline, data])[2] : place(made,
      [tensor, context * fsdp, pipeline, data])[1],
  };
}

// --- Collectives ---
const [PERMUTE, ROUTE] = ["collective-permute", "all-to-all"];
const rounds = (kind) => explorer.data.rounds[kind]; // how often the array goes around; none where chunks go straight
const sentBytes = (kind, bytes, n) => (kind === PERMUTE ? (n > 1 ? bytes : 0) : (rounds(kind) || 1) * (n - 1) / n * bytes);

// The time between slices or nodes, by the faster of rings and trees.
function network(kind, bytes, outer, chip, waiting) {
  const ring = kind === PERMUTE ? Number(outer > 1) : (rounds(kind) || 1) * (outer - 1);
  const tree = rounds(kind) ? rounds(kind) * ceil(log2(outer)) : ring;
  const [first, second] = [ring, tree].map((steps) => max(sentBytes(kind, bytes, outer) / chip.network_bytes_per_second,
    waiting * steps * chip.network_seconds));
  return min(first, second);
}

// [the time within a slice or node, that between them] of so many collectives of these bytes together. If tokens are sent
// once to each node, experts are how many each has.
function axisSeconds(kind, count, bytes, { near, far, ways, hops, routed, crowd }, waits, chip, experts = 0) {
  const link = chip.link_bytes_per_second;
  const sent = experts ? [bytes, bytes * (far * (1 - (1 - 1 / far) ** experts)) / experts] : [bytes / far, bytes];
  const [within, between, late] = kind === ROUTE ? [routed * sent[0] / link, sent[1], hops]
    : kind === PERMUTE ? [near > 1 ? crowd * bytes / link : 0, far > 1 ? bytes : 0, Number(near > 1)]
    : [sentBytes(kind, bytes, near) / (ways * link), bytes / near, rounds(kind) * hops];
  return [max(within, count * late * chip.link_seconds), network(kind, between, far, chip, waits ? count : min(count, 1))];
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
// Parameters, what a layer keeps of each token, and what a chip gathers of a layer whose experts so many chips share.
function sizesOf({ layers, d_model: d, d_ff: f, heads, kv_heads: kv, head_dim, vocab, gated, tied, experts = 0,
  experts_per_token: chosen = 0, shared_experts: shared = 0, expert_d_ff = 0, dense_layers: plain = 0, kv_rank = 0, q_rank = 0,
  rope_dim: rope = 0 }) {
  const [ways, ins, wide, queries] = [gated ? 3 : 2, gated ? 2 : 1, expert_d_ff || f, heads * (head_dim + rope)];
  const attention = kv_rank ? (q_rank ? q_rank * (d + queries) : d * queries) + d * (kv_rank + rope) +
    heads * head_dim * (2 * kv_rank + d) : 2 * d * head_dim * (heads + kv);
  const [mlp, each, embedding] = [ways * d * f, ways * d * wide, (tied ? 1 : 2) * vocab * d];
  const mixed = experts ? layers - plain : 0; // layers with experts
  const routed = mixed * experts * each;
  const mean = (used, dense) => (experts ? (mixed * used + plain * dense) / layers : dense);
  const [ff, hidden] = [mean((chosen + shared) * each + d * experts, mlp), mean((chosen + shared) * wide, f)];
  const parameters = layers * (attention + 2 * d) + (layers - mixed) * mlp + mixed * (shared * each + d * experts) + routed +
    embedding + d;
  return {
    attention, ff, embedding, parameters, mixed, each, wide, routed, cached: layers * (kv_rank ? kv_rank + rope : 2 * kv * head_dim),
    active: parameters - mixed * (experts - chosen) * each, multiplied: layers * (attention + ff) + vocab * d,
    width: (counts) => counts[0] * d + counts[1] * queries + counts[2] * kv * head_dim + counts[3] * ins * hidden,
    gathered: (by) => attention + (experts ? shared * each + experts * each / by : mlp),
  };
}

// FLOPs of a token: of a forward pass, of what is computed again, and of its scores in a layer.
function flopsOf(model, { attention, ff, mixed, each, multiplied }, sequence, recomputes) {
  const { layers, d_model: d, heads, kv_heads: kv, head_dim, gated, experts, experts_per_token: chosen, rope_dim = 0,
    window = 0, local_layers: local = 0 } = model;
  const attended = (min(sequence, window) * local + sequence * (layers - local)) / layers;
  const scores = attended * heads * (4 * head_dim + 2 * rope_dim);
  const routed = experts ? 2 * chosen * each * mixed / layers : 0;
  const mlp = routed + (2 * ff - routed) * (gated ? 2 / 3 : 1 / 2); // nothing needs the last product again, but a router
  const [out, queries, keys] = [2 * d * heads * head_dim, heads * head_dim, kv * head_dim];
  const one = (2 * attention - out) / (queries + 2 * keys); // of the projections, for each element of their results
  const parts = { query: one * queries, key: one * keys, value: one * keys, out, mlp, scores };
  const repeat = recomputes.reduce((all, part) => all + parts[part], 0);
  return [2 * multiplied + layers * scores, layers * repeat, scores];
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

// Why there is no such model.
function notAModel({ layers, heads, kv_heads: kv, experts = 0, experts_per_token: chosen = 0, dense_layers: plain = 0, window = 0,
  local_layers: local = 0 }) {
  if (heads % kv) return wrong(`${heads} heads cannot share ${kv} kv_heads evenly; use a divisor`);
  if (experts && !(chosen >= 1 && chosen <= experts)) {
    return wrong(`experts_per_token is ${chosen}; use a number from 1 to ${experts}, the experts`);
  }
  if (plain > layers) return wrong(`dense_layers is ${plain}; use a number from 0 to ${layers}, the layers`);
  return local > layers * (window > 0) ? wrong(`local_layers is ${local} with a window of ${window}; use a number from 0 to ${layers}, ` +
    "the layers, and 0 without a window") : null;
}

const isFrozen = (dtype) => ["nf4", "int8"].includes(dtype);

// Why there are no such adapters on a model.
function noAdapters({ d_model: d }, { lora = 0, parameters }) {
  if (lora > d) return wrong(`lora is ${lora}; use the rank of the adapters, a whole number up to ${plain(d)}, or 0 to train all parameters`);
  return isFrozen(parameters) && !lora ? wrong(`parameters in ${parameters} cannot be trained; add adapters on them, such as lora=16`) : null;
}

// Why a chip cannot multiply in this dtype.
function noPeak(name, dtype = "bf16") {
  const peaks = explorer.data.chips[name].flops_per_second;
  return peaks[dtype] ? null : wrong(`${name} has no peak for '${dtype}'; it has ${Object.keys(peaks).join(", ")}`);
}

// Why there is no such step.
function refused(model, given) {
  const [{ heads, kv_heads: kv, layers, experts }, { tensor, pipeline, stages, expert = 1 }] = [model, given];
  const error = notAModel(model) || unknownHost(given) || noAdapters(model, given);
  if (error) return error;
  if (pipeline * stages > layers) return wrong(`${pipeline * stages} stages are more than the ${layers} layers`);
  if (expert > 1 && (!experts || experts % expert)) {
    return wrong(`an expert axis of ${expert} cannot share ${experts ? `${experts} experts` : "a model without experts"}; use a ` +
      "divisor of them");
  }
  return splits(model, tensor) ? noPeak(given.chip, given.products) : wrong(`a tensor axis of ${tensor} cannot split ${heads} ` +
    `heads and ${kv} kv_heads evenly; use a divisor of ${heads} that divides ${kv} or is a multiple of it`);
}

// Bytes of an element: of parameters, of their gradients, of each of two moments, of master weights.
const DTYPES = { parameters: "bf16", gradients: "bf16", moments: "f32", master: "none" };
const widths = (given) => Object.entries(DTYPES).map(([name, dtype]) => explorer.data.widths[given[name] ?? dtype] ?? 0);

// Parameters of adapters: of routed experts, others, a token; bytes of a frozen one.
function adaptersOf({ layers, d_model: d, d_ff: f, heads, kv_heads: kv, head_dim, gated, experts, experts_per_token: chosen,
  shared_experts: shared = 0, kv_rank: latent, q_rank = 0, rope_dim: rope }, { embedding, parameters, mixed, wide: hidden }, given) {
  const [rank, [wide], frozen, values] = [given.lora || 0, widths(given), isFrozen(given.parameters), heads * head_dim];
  const sides = latent ? d + heads * (head_dim + rope) + 2 * q_rank + d + 2 * latent + rope + 3 * values + d
    : 2 * (d + values) + 2 * (d + kv * head_dim);
  const mlp = given.adapted === "attention" ? 0 : rank * (gated ? 3 : 2);
  const one = mlp * (d + hidden); // expert
  const dense = layers * rank * sides + (layers - mixed) * mlp * (d + f) + mixed * shared * one;
  const [routed, used] = mixed ? [mixed * experts * one, dense + mixed * chosen * one] : [0, dense];
  return { rank, dense, routed, used, frozen, mean: frozen ? (wide * (parameters - embedding) + 2 * embedding) / parameters : wide };
}

// [the memory of a chip, that of its host, that of a frozen model], in the first stage, which keeps a micro-batch for each.
function memoryOf(model, counted, given) {
  const { batch, data, fsdp, tensor, pipeline, context, expert = 1, microbatches: micro, stages, gathers, remat } = given;
  const { layers, vocab } = model;
  const { embedding, parameters, width } = counted;
  const [wide, gradient, moment, master] = widths(given);
  const tokens = batch / (data * fsdp * expert * context * micro); // of a micro-batch
  const shards = fsdp * context * expert * tensor;
  const embedded = embedding / min(pipeline, 2);
  const { rank, dense, routed, frozen } = adaptersOf(model, counted, given);
  const held = (rank ? (dense + routed) / pipeline : (parameters - embedding) / pipeline + embedded) / shards; // of what is trained
  const base = rank ? (wide * (parameters - embedding) / pipeline + (frozen ? 2 : wide) * embedded) / shards : 0;
  const longer = stages > 1 && micro > 1 ? 1 + (pipeline - 1) / (pipeline * stages) : 1; // in an interleaved schedule
  const keeping = min(micro, pipeline) * longer * layers / pipeline; // layers whose activations are kept
  const { recomputes, keeps, hosts } = explorer.data.remat[remat];
  const narrow = given.products === "fp8" && remat === "none" && !explorer.data.chips[given.chip].torus.length;
  const kept = narrow ? [3, 2.5, 2, model.gated ? 1.25 : 1.5] : keeps;
  const once = min(wide, 2); // wider parameters are cast before they are gathered
  const gathered = counted.gathered(expert);
  const whole = gathers === 1 ? (once * gathered + gradient * (rank ? (dense + routed / expert) / layers : gathered)) * layers / pipeline : 2 * once * gathered;
  return [{ // activations in bf16, logits in f32
    parameters: base + (rank ? gradient : wide) * held, // adapters are as wide as gradients
    gradients: gradient * held,
    moments: 2 * moment * held,
    ...(master ? { "master weights": master * held } : {}),
    activations: 2 * tokens * (keeping * width(kept) + min(keeping, 2) * width(hosts)) / tensor,
    working: 2 * tokens * (recomputes.length ? width(explorer.data.remat.none.keeps) : 0) / tensor +
      (frozen ? 2 * model.d_model * (counted.mixed < layers ? model.d_ff : counted.wide) / tensor : 0),
    gathered: shards > tensor * expert ? whole / tensor : 0,
    logits: 4 * tokens * vocab / tensor,
  }, 2 * tokens * keeping * width(hosts) / tensor, base];
}

// The cost of a step, on a machine whose places are known.
function step(model, counted, made, where, given) {
  const { layers: allLayers, d_model: d, heads, kv_heads: kv, head_dim, vocab, experts, experts_per_token: chosen } = model;
  const { attention, ff, mixed, parameters, routed, width } = counted;
  const { batch, sequence, data, fsdp, tensor, pipeline, context, expert = 1, microbatches: micro, stages, gathers, remat,
    reserve } = given;
  const { chip } = made;
  const { recomputes, reads, pairs: repeated, keeps, hosts } = explorer.data.remat[remat];
  const [memory, onHost, base] = memoryOf(model, counted, given);
  const { rank, frozen, mean, ...adapters } = adaptersOf(model, counted, given);
  const [onMany, onDense] = [adapters.routed / expert, adapters.dense].map((n) => n / (tensor * pipeline));
  const [wide, gradient] = widths(given);
  const state = memory.parameters + memory.gradients + memory.moments + (memory["master weights"] || 0);
  const total = state + memory.activations + memory.working + memory.gathered + memory.logits;
  const tokens = batch / (data * fsdp * expert * context); // of a tensor group, in all micro-batches
  const [layers, peak, fast] = [allLayers / pipeline, chip.flops_per_second.bf16, chip.flops_per_second[given.products || "bf16"]];

  // Compute.
  const [forward, repeat, scores] = flopsOf(model, counted, sequence, recomputes);
  const [forwards, again] = [tokens / tensor * forward / pipeline, tokens / tensor * repeat / pipeline];
  const adapting = 6 * adapters.used * tokens / (tensor * pipeline);
  // A frozen matrix has no gradient, which takes a third of its FLOPs.
  const useful = rank ? 3 * forwards - 2 * counted.multiplied * tokens / (tensor * pipeline) + adapting : 3 * forwards;
  const flops = useful + again;
  const products = (rank ? 2 : 3) * (2 * allLayers * (attention + ff) * tokens / (tensor * pipeline)) + adapting + again -
    (recomputes.includes("scores") ? scores * layers * tokens / tensor : 0);
  const seconds = { compute: products / fast + (flops - products) / peak };

  // HBM.
  const [many, dense] = [routed / expert, parameters - routed].map((n) => n / (tensor * pipeline)); // of experts, and others
  const trained = rank ? onMany + onDense : many + dense;
  const stored = allLayers * (attention + ff) - mixed * (chosen || 0) * counted.each + routed / expert;
  const restored = frozen ? micro * reads * 4 * stored / (tensor * pipeline) : 0; // in 16 bits, each pass
  const update = 2 * (state - memory.gradients - base) + memory.gradients + restored;
  const forToken = tokens * allLayers / (tensor * pipeline) * 2; // of one element of its width
  const moved = width(hosts) * forToken;
  const bandwidth = chip.hbm_bytes_per_second;
  seconds.hbm = (micro * (reads * mean * (many + dense) + gradient * trained) + update + 2 * width(keeps) * forToken + 4 * moved) / bandwidth;
  seconds.host = moved ? 2 * moved / chip.host_bytes_per_second : 0;

  // Communication: for each axis where, which kind, how often, and how many bytes.
  const held = tokens * d * 2;
  const pairs = layers * (4 + repeated) + 2;
  const keys = model.kv_rank ? model.kv_rank + model.rope_dim : 2 * kv * head_dim / tensor;
  const blocks = (3 + recomputes.includes("scores")) * layers * micro;
  const crossings = pipeline > 1 ? 2 * stages : 0;
  const [gather, scatter] = gathers === 2 ? [2 * micro, micro] : [1, 1];
  const sent = (chosen || 0) * mixed / pipeline * (4 + 2 * recomputes.includes("mlp")); // arrays to the experts and back
  const sharded = (at, n, on) => [[at, "all-gather", gather * layers, gather * (n * min(mean, 2) + on * gradient)],
    [at, "reduce-scatter", scatter * layers, scatter * (rank ? on : n) * gradient]];
  const moves = {
    data: [["data", "all-reduce", layers, (rank ? onDense + onMany * expert : dense + many * expert) * tensor / (fsdp * context * expert * tensor) * gradient]],
    fsdp: [...sharded("fsdp", dense, onDense), ...(experts ? sharded("routed", many, onMany) : [])],
    tensor: [["tensor", "all-reduce", micro * pairs, pairs * held]],
    pipeline: [["pipeline", PERMUTE, crossings * micro, crossings * held / tensor]],
    context: [["context", PERMUTE, blocks * (context - 1), (context - 1) * blocks / micro * tokens * keys * 2]],
    expert: [["expert", ROUTE, sent * micro / max(chosen || 0, 1), sent * held / tensor]],
  };
  const fitted = explorer.data.fitted[chip.torus.length ? "tpu" : "gpu"];
  const [took, bytesOf] = [{}, {}];
  for (const axis of AXES) {
    let [near, far, late] = [0, 0, 0];
    bytesOf[axis] = 0;
    const waits = !["data", "fsdp"].includes(axis) || !chip.torus.length;
    for (const [at, kind, count, bytes] of moves[axis]) {
      const [one, other] = axisSeconds(kind, count, bytes, where[at], waits, chip, given.dispatch === "node" ? chosen : 0);
      [near, far] = [near + one, far + other];
      late += count * latency(kind, where[at], fitted);
      const of = where[at].near * where[at].far;
      bytesOf[axis] += of > 1 ? sentBytes(kind, bytes, of) : 0;
    }
    seconds[axis] = max(near, far);
    const network = axis === "expert" && given.dispatch === "node" ? fitted.dispatched : fitted.network;
    took[axis] = max(near / fitted.links, far / network) + late;
  }

  // The time to expect: products at their share of the peak, and what nothing hides.
  const [, share] = Object.entries(fitted.products).find(([name]) => given.chip.startsWith(name)) || [0, fitted.other];
  const rows = max(tokens / micro, 1e-9);
  const precision = (given.products || "bf16") === "bf16" ? "bf16" : "narrow";
  const [half, grouped] = [fitted.half[precision], fitted.grouped[precision]];
  const mlps = experts ? (1 + grouped.half / (counted.wide / tensor) + half / (rows * chosen * expert / experts)) / grouped.share
    : 1 + half / min(rows, d, model.d_ff / tensor);
  const slower = (attention * (1 + half / min(rows, d, heads * head_dim / tensor)) + ff * mlps) / (attention + ff);
  const overlap = given.overlap || [];
  const left = overlap.includes("expert") && expert > 1 ? share * fitted.while_sending : share;
  const output = (rank ? 4 : 6) * vocab * d * tokens / (tensor * pipeline);
  const attending = (flops - products - output) * ((1 + fitted.half.bf16 / head_dim) / (1 + fitted.half.bf16 / 128));
  const work = (products / fast * slower + (attending + output) / peak) / left;
  const hidden = { fsdp: work, data: 2 / 3 * work / micro, context: attending / peak / left };
  const open = (axis) => max(took[axis] - hidden[axis], 0);
  const host = max(seconds.host / 2 - work / 4, 0) + max(seconds.host / 2 - work * 3 / 4, 0); // one way in each pass
  const alone = { // of each axis, what has nothing to hide behind
    data: open("data") + took.data / layers, fsdp: open("fsdp") + took.fsdp / (layers * scatter), tensor: took.tensor,
    pipeline: took.pipeline / micro, context: open("context"), expert: took.expert, host,
  };
  if (overlap.includes("tensor")) alone.tensor = max(took.tensor - products / fast * slower / left, took.tensor / tensor);
  if (overlap.includes("expert")) alone.expert = max(took.expert - work, took.expert / micro);
  const exposed = AXES.reduce((all, axis) => all + alone[axis], 0) + host;
  const [bubble, updating] = [(pipeline - 1) / (micro * stages), update / bandwidth];
  const longest = max(...Object.values(seconds));
  const lower = longest * (1 + bubble);
  const sum = AXES.reduce((all, axis) => all + seconds[axis], seconds.host);
  const expected = (work + exposed) * (1 + bubble) + updating;
  const mfu = useful / fast / lower;
  return {
    parameters, memory, total_bytes: total, state_bytes: state, host_bytes: onHost, hbm_bytes: chip.hbm_bytes, flops, bubble, mfu,
    fits: total <= chip.hbm_bytes * (1 - reserve / 100),
    parts: seconds, sent_bytes: bytesOf, seconds: lower,
    serial_seconds: (max(seconds.compute, seconds.hbm) + sum) * (1 + bubble),
    bound: Object.keys(seconds).find((part) => seconds[part] === longest),
    expected_seconds: expected, exposed_seconds: exposed, expected_mfu: mfu * lower / expected,
    moved_bytes: { ...bytesOf, host: 2 * moved }, work_seconds: work, update_seconds: updating, exposed: alone,
  };
}

function fit(given) {
  const made = machine(given.chip, product(AXES.map((axis) => given[axis] ?? 1)), given.slices);
  const error = made.error ? made : refused(given.model, given);
  if (error) return error;
  return step(given.model, sizesOf(given.model), made, places(made, given), given);
}

Object.assign(explorer, {
  axisSeconds, fit, flopsOf, isFrozen, linkShare, machine, noAdapters, noPeak, notAModel, place, places, sizesOf, splits, step, unknownHost,
});
});
