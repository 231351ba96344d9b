// What serving costs: shardlab.inference.decode_cost and prefill_cost, over the chips that share a model.
//   case: { model, chip, chips, context, weights, cache, reserve, latency } with the latency in ms, or 0 for any
(function (explorer) {
"use strict";
const { divisors, flopsOf, machine, network, notAModel, sizesOf } = explorer;
const { ceil, max, min } = Math;

// The matrices of which a step reads every element: of the routed experts, those that some token is sent to.
function touched({ experts, experts_per_token: chosen }, { mixed, each, multiplied, routed }, tokens) {
  return experts ? multiplied - mixed * chosen * each + routed * (1 - (1 - chosen / experts) ** tokens) : multiplied;
}

// The two all-reduces of activations in each layer.
function sums({ layers, d_model: d }, chip, tokens, tensor, torusAxes) {
  const bytes = tokens * d * 2;
  const near = chip.torus.length ? tensor : min(tensor, chip.node_chips);
  const sent = 2 * (near - 1) / near * bytes;
  const axes = max(torusAxes, 1);
  const within = chip.torus.length
    ? max(sent / (2 * torusAxes) / chip.link_bytes_per_second, (near > 1 ? 2 * axes * near ** (1 / axes) / 2 : 0) * chip.link_seconds)
    : max(sent / chip.link_bytes_per_second, 2 * (near - 1) * chip.link_seconds);
  return 2 * layers * max(within, network("all-reduce", bytes / near, ceil(tensor / near), chip, 1));
}

const most = (parts) => Object.keys(parts).reduce((one, other) => (parts[other] > parts[one] ? other : one));

// One token for each sequence of a batch.
function decode(given, { counted, chip, tensor, torusAxes }, batch) {
  const { model, context, weights, cache } = given;
  const { layers, heads, head_dim, kv_rank: latent, rope_dim: rope } = model;
  const { widths, served } = explorer.data;
  const [bandwidth, peak] = [chip.hbm_bytes_per_second, chip.flops_per_second.bf16];
  const cached = batch * context * counted.cached * widths[cache] / tensor;
  const wide = latent ? 2 * latent + rope : 2 * head_dim;
  const parts = {
    parameters: touched(model, counted, batch) * widths[weights] / tensor / bandwidth,
    cache: cached / bandwidth,
    compute: 2 * batch * counted.multiplied / tensor / peak,
    attention: 2 * batch * context * layers * heads * wide / tensor / peak,
    tensor: sums(model, chip, batch, tensor, torusAxes),
  };
  const besides = layers * served.layer_seconds + batch * served.sequence_seconds;
  return {
    batch, parts, bound: most(parts), total_bytes: cached + counted.parameters * widths[weights] / tensor,
    seconds: max(parts.cache, parts.attention) + max(parts.parameters, parts.compute) + parts.tensor,
    expected_seconds: max(parts.cache, parts.attention / served.products) +
      max(parts.parameters, parts.compute / served.products) + parts.tensor / served.links + besides,
  };
}

// The prefill of one prompt: the time to the first token.
function prefill(given, { counted, chip, tensor, torusAxes }) {
  const { model, context: prompt, weights, cache } = given;
  const { widths, served } = explorer.data;
  const [forward] = flopsOf(model, counted, prompt, []);
  const compute = prompt * forward / tensor / chip.flops_per_second.bf16;
  const read = touched(model, counted, prompt) * widths[weights] + prompt * counted.cached * widths[cache];
  const hbm = read / tensor / chip.hbm_bytes_per_second;
  const sent = sums(model, chip, prompt, tensor, torusAxes);
  return {
    bound: most({ compute, hbm, tensor: sent }), seconds: max(compute, hbm) + sent,
    expected_seconds: max(compute / served.products, hbm) + sent / served.links + model.layers * served.layer_seconds,
  };
}

// Each number of chips that can share the model, with the batch that yields most tokens: those that fit first, and the most
// tokens per second and chip first. GPUs have times to expect; for TPUs there are lower bounds only.
function serve(given) {
  const { model, chip: name, chips, reserve, latency } = given;
  const whole = machine(name, chips);
  if (whole.error) return whole;
  if (notAModel(model)) return notAModel(model);
  const [counted, usable] = [sizesOf(model), whole.chip.hbm_bytes * (1 - reserve / 100)];
  const time = (cost) => (whole.chip.torus.length ? cost.seconds : cost.expected_seconds);
  const able = divisors(chips).map((tensor) => [tensor, machine(name, tensor)]).filter(([tensor, made]) =>
    model.heads % tensor === 0 && !made.error);
  const layouts = able.map(([tensor, { chip, shape }]) => {
    const on = { counted, chip, tensor, torusAxes: max(shape.filter((size) => size > 1).length, 1) };
    const costs = explorer.data.most.microbatches.map((batch) => decode(given, on, batch));
    const points = costs.map((cost) => ({ ...cost, takes: time(cost), speed: cost.batch / time(cost) / tensor,
      fits: cost.total_bytes <= usable, late: latency > 0 && time(cost) * 1e3 > latency }));
    const first = prefill(given, on);
    const able = points.filter(({ fits, late }) => fits && !late);
    const best = able.length ? able.reduce((one, other) => (other.speed > one.speed ? other : one)) : points[0];
    return { tensor, replicas: chips / tensor, points, best, first: { ...first, takes: time(first) }, able: able.length > 0 };
  });
  return { layouts: layouts.sort((p, q) => q.able - p.able || (p.able ? q.best.speed - p.best.speed
    : q.best.fits - p.best.fits || p.best.total_bytes - q.best.total_bytes)), usable };
}

Object.assign(explorer, { decode, prefill, serve });
})(window.explorer);
