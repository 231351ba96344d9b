// What serving costs: shardlab.serving, for requests of one kind on every layout of the chips.
//   case: { model, chip, chips, prompt, output, weights, cache, reserve, latency, first }: the longest time for 95 of 100
//   tokens and to the first one in ms, or 0 for any
window.explorer.shared(function (explorer) {
"use strict";
const { axisSeconds, divisors, flopsOf, machine, notAModel, place, sizesOf, splits } = explorer;
const { ceil, floor, max, min } = Math;

// --- Parts: shardlab.inference ---
// Of the routed experts' matrices, the share that some token is sent to.
const touched = ({ experts, experts_per_token: chosen }, tokens) => (experts ? 1 - (1 - chosen / experts) ** tokens : 1);

// What all axes of a replica send: at least, and where nodes and links do not overlap.
function sending({ model, counted, made: { chip }, places: [over, experts, stages], pipeline }, tokens) {
  const { layers, d_model: d, experts_per_token: chosen } = model;
  const pair = (kind, calls, bytes, where) => axisSeconds(kind, calls, calls * bytes, where, true, chip);
  const sums = pair("all-reduce", 2 * layers, tokens * d * 2, over);
  const routed = counted.mixed ? max(...pair("all-to-all", 2 * counted.mixed, tokens * chosen * d * 2, experts)) : 0;
  const handed = pipeline > 1 ? max(...pair("collective-permute", pipeline, tokens * d * 2, stages)) : 0;
  const parts = { tensor: max(...sums), expert: routed, pipeline: handed };
  return { parts, sent: parts.tensor + routed + handed, hidden: min(...sums) };
}
const most = (parts) => Object.keys(parts).reduce((one, other) => (parts[other] > parts[one] ? other : one));

// One token for each sequence of a batch.
function decode(given, on, batch, context) {
  const { model, weights, cache } = given;
  const { layers, heads, head_dim, kv_rank: latent, rope_dim: rope, experts_per_token: chosen } = model;
  const { counted, made: { chip }, tensor, expert, pipeline, rates } = on;
  const { widths } = explorer.data;
  const [bandwidth, peak] = [chip.hbm_bytes_per_second, chip.flops_per_second.bf16];
  const rows = expert * pipeline > 1 ? ceil(batch / (expert * pipeline)) : batch;
  const routed = counted.mixed * (chosen || 0) * counted.each;
  const cached = rows * context * counted.cached * widths[cache] / tensor;
  const wide = latent ? 2 * latent + rope : 2 * head_dim;
  const used = counted.routed * touched(model, rows * expert) / expert;
  const { parts: sums, sent, hidden } = sending(on, rows);
  const parts = {
    parameters: (counted.multiplied - routed + used) * widths[weights] / tensor / bandwidth,
    cache: cached / bandwidth,
    compute: 2 * rows * counted.multiplied / tensor / peak,
    attention: 2 * rows * context * layers * heads * wide / tensor / peak,
    ...sums,
  };
  const stored = (counted.parameters - counted.routed + counted.routed / expert) / (tensor * pipeline);
  const seconds = max(parts.cache, parts.attention) + max(parts.parameters, parts.compute) + sent;
  const expected = max(parts.cache / rates.hbm, parts.attention / rates.products) +
    max(parts.parameters / rates.hbm, parts.compute / rates.products) + (sent + hidden) / rates.links +
    layers * rates.layer_seconds + batch / expert * rates.sequence_seconds;
  const token = expected - layers * (rates.layer_seconds - rates.token_layer_seconds);
  return { // as many requests are served, and as clients wait: at least, and to expect
    bound: most(parts), total_bytes: cached + stored * widths[weights], seconds: [seconds, seconds],
    expected_seconds: [batch / expert < explorer.data.served.many ? token : expected, token],
  };
}

// The prefill of some prompts.
function prefill(given, on, batch) {
  const { model, prompt, weights, cache } = given;
  const { counted, made: { chip }, tensor, expert, rates } = on;
  const { widths } = explorer.data;
  const rows = expert > 1 ? ceil(batch / expert) : batch;
  const [tokens, [forward]] = [prompt * rows, flopsOf(model, counted, prompt, [])];
  const routed = counted.mixed * (model.experts_per_token || 0) * counted.each;
  const flops = tokens * forward - 2 * routed * (tokens - prompt * batch / expert);
  const used = counted.routed * touched(model, prompt * batch) / expert;
  const read = (counted.multiplied - routed + used) * widths[weights] + rows * prompt * counted.cached * widths[cache];
  const [compute, hbm] = [flops / tensor / chip.flops_per_second.bf16, read / tensor / chip.hbm_bytes_per_second];
  const { sent, hidden } = sending(on, tokens);
  return {
    seconds: max(compute, hbm) + sent,
    expected_seconds: max(compute / rates.products, hbm / rates.hbm) + (sent + hidden) / rates.links +
      model.layers * rates.layer_seconds,
  };
}

// --- A server: shardlab.serving ---
// Times of a replica that prefills prompts between its steps: to the first token if requests come independently, and of the
// last of a burst; for each token, for one that is slower than 95 of 100, and requests per second.
function composed([step, own], first, prompt, waits, sequences, output) {
  const others = (sequences - 1) * prompt / output;
  const prompts = prompt / (prompt + output * step / sequences); // the share of the time that they take
  const busy = sequences * prompt / (sequences * prompt + output * own);
  const queue = min(busy / (2 * max(1 - busy, 1e-9)), (sequences - 1) / 2); // prompts that a request finds before its own
  const wait = sequences > 1 ? waits * own : 0;
  const met = first + wait / 2 + waits * queue * prompt;
  return {
    first: met, burst: max(met, sequences * prompt + wait), token: own + others, prompts,
    slow: (sequences - 1) / output > explorer.data.served.slow ? own + first : own,
    rate: sequences / (first + output * (step + others)),
  };
}

// So many sequences on each replica of a layout.
function server(given, on, sequences) {
  const { prompt, output, chips, latency, first: longest } = given;
  const { replicas, pipeline, expert, usable } = on;
  const many = min(sequences, expert * max(floor(explorer.data.prefill / prompt), 1));
  const step = decode(given, on, sequences, prompt + output / 2);
  const [alone, together] = [prefill(given, on, 1), prefill(given, on, many)];
  const way = (name, waits) => composed(step[name], alone[name], together[name] / (many * pipeline), waits, sequences, output);
  const [least, expected] = [way("seconds", 0), way("expected_seconds", 1)];
  const { total_bytes } = decode(given, on, sequences, prompt + output);
  const fits = total_bytes <= usable;
  const slow = (most, seconds) => most > 0 && seconds > most / 1e3;
  const speed = ({ rate }) => rate * replicas * output / chips;
  return {
    requests: sequences * replicas, sequences, bound: step.bound, total_bytes, fits, least, expected,
    speed: speed(expected), most: speed(least), requests_per_second: expected.rate * replicas,
    meets: fits && !slow(latency, expected.slow) && !slow(longest, expected.first),
  };
}

// By which factor the expected times of so many sequences are off, at most, and on how many servers that was tested.
function servedBands({ model, chip }, { made, tensor, pipeline, expert }, sequences) {
  const { bands, many, tested_chips: tested } = explorer.data.served;
  if (pipeline * expert > 1 || tensor > made.near || !tested.includes(chip)) return {};
  const name = `${made.chip.peers ? "mesh" : made.chip.torus.length ? "tpu" : "gpu"}${model.experts ? ", experts" : ""}`;
  return {
    throughput: sequences >= many ? bands[name] : undefined, token: bands[`${name}, token`],
    first: bands[`${name}, ${sequences > 1 ? "loaded" : "first_token"}`],
  };
}

// Every layout of the chips, each with the fewest requests that have nearly the highest throughput: those that fit and are
// fast enough first, then those that fit.
function serve(given) {
  const { model, chip, chips, reserve } = given;
  const made = machine(chip, chips);
  if (made.error) return made;
  if (notAModel(model)) return notAModel(model);
  const { alike, powers, rates } = explorer.data.served;
  const fitted = rates[made.chip.torus.length ? "tpu" : "gpu"];
  const [counted, usable, every] = [sizesOf(model), made.chip.hbm_bytes * (1 - reserve / 100), divisors(chips)];
  const layouts = [];
  for (const pipeline of every.filter((n) => made.slices % n === 0 && n <= model.layers)) {
    for (const expert of every.filter((n) => n === 1 || (model.experts && model.experts % n === 0))) {
      for (const tensor of every.filter((n) => splits(model, n) && chips % (pipeline * expert * n) === 0)) {
        const replicas = chips / (pipeline * expert * tensor);
        const places = place(made, [tensor, expert, pipeline, replicas]);
        const on = { model, counted, made, usable, places, tensor, expert, pipeline, replicas, rates: fitted };
        const points = [];
        for (const sequences of powers) {
          const point = server(given, on, sequences);
          if (!point.fits) break;
          points.push(point);
        }
        const able = points.filter(({ meets }) => meets);
        const fastest = max(...able.map(({ speed }) => speed));
        const best = able.find(({ speed }) => speed > alike * fastest) || server(given, on, 1);
        layouts.push({ tensor, expert, pipeline, replicas, points, best, bands: servedBands(given, on, best.sequences) });
      }
    }
  }
  layouts.sort((p, q) => p.replicas - q.replicas || p.pipeline - q.pipeline || p.expert - q.expert);
  return { layouts: layouts.sort(({ best: p }, { best: q }) => q.meets - p.meets || q.fits - p.fits ||
    (p.fits ? q.speed - p.speed : p.total_bytes - q.total_bytes)), usable };
}

Object.assign(explorer, { serve });
});
