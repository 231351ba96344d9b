// The memory and the time of a training step on each chip: shardlab.cost.step_cost, with a reserve of memory.
//   case: { model: { layers, d_model, ... }, chip, batch, sequence, data, fsdp, tensor, remat, reserve }, with the reserve
//   in per cent; the number of chips follows from the mesh
(function (explorer) {
"use strict";
const { max, min, floor, ceil } = Math;

function fit({ model, chip: name, batch, sequence, data, fsdp, tensor, remat, reserve }) {
  const chip = explorer.data.chips[name];
  const { layers, d_model: d, d_ff: f, heads, kv_heads: kv, head_dim, vocab, gated, tied } = model;
  const wrong = (words) => ({ error: { words } });
  if (heads % kv) return wrong(`${heads} heads cannot share ${kv} kv_heads evenly; use a divisor`);
  const total = data * fsdp * tensor;
  if (heads % tensor || (kv % tensor && tensor % kv)) {
    return wrong(`a tensor axis of ${tensor} cannot split ${heads} heads and ${kv} kv_heads evenly; use a divisor of ` +
      `${heads} that divides ${kv} or is a multiple of it`);
  }

  const [attention, mlp] = [2 * d * head_dim * (heads + kv), (gated ? 3 : 2) * d * f]; // parameters of a layer
  const parameters = layers * (attention + mlp + 2 * d) + (tied ? 1 : 2) * vocab * d + d;
  const [queries, keys, ins] = [heads * head_dim, kv * head_dim, gated ? 2 : 1];
  const kept = { // elements that a layer keeps of a token
    none: 4 * d + 2 * queries + 2 * keys + 2 * ins * f,
    matmuls: queries + 2 * keys + 2 * d + ins * f,
    mlp: ins * f + d,
    block: d,
  };
  const tokens = batch / (data * fsdp); // of a tensor group
  const [gathered, sharded] = [parameters / tensor, parameters / (fsdp * tensor)];
  const memory = { // in bf16, except moments and logits
    parameters: 2 * sharded,
    gradients: 2 * sharded,
    moments: 8 * sharded,
    activations: 2 * tokens * layers * kept[remat] / tensor,
    working: remat === "none" ? 0 : 2 * tokens * kept.none / tensor,
    gathered: fsdp > 1 ? 4 * (attention + mlp) / tensor : 0,
    logits: 4 * tokens * vocab / tensor,
  };
  const held = Object.values(memory).reduce((all, part) => all + part);

  const scores = 4 * sequence * heads * head_dim;
  const forwards = (tokens / tensor) * (2 * (layers * (attention + mlp) + vocab * d) + layers * scores);
  const again = { none: 0, matmuls: scores, mlp: 2 * attention + scores, block: 2 * attention + 2 * mlp + scores };
  const flops = 3 * forwards + (tokens / tensor) * layers * again[remat];
  const traffic = (remat === "block" ? 8 : 6) * gathered + 22 * sharded + 2 * memory.activations;

  // For each axis: how often each kind runs, twice for a sum, and the bytes of all its arrays.
  const pairs = layers * (4 + { none: 0, matmuls: 0, mlp: 1, block: 2 }[remat]) + 2;
  const moves = {
    data: [[2, layers, 2 * sharded]],
    fsdp: [[1, 2 * layers, 4 * gathered], [1, layers, 2 * gathered]],
    tensor: [[2, pairs, pairs * tokens * d * 2]],
  };
  const sizes = { data, fsdp, tensor };
  const many = Object.values(sizes).filter((size) => size > 1).length;
  const first = fsdp > 1 ? "fsdp" : data > 1 ? "data" : "tensor";
  const node = chip.torus.length ? total : chip.node_chips;
  const stride = { tensor: 1, fsdp: tensor, data: tensor * fsdp };
  const [seconds, sent] = [{
    compute: flops / chip.flops_per_second.bf16,
    hbm: traffic / chip.hbm_bytes_per_second,
  }, {}];
  for (const [axis, kinds] of Object.entries(moves)) {
    const inner = min(sizes[axis], max(floor(node / stride[axis]), 1));
    const outer = ceil(sizes[axis] / inner);
    // Torus axes: one for each mesh axis of more than one chip, or a share of one; the first gets those left over.
    const has = chip.torus.length;
    const torus = min(has / max(many, 1), 1) + (axis === first ? max(has - many, 0) : 0);
    const hops = has ? max(torus, 1) * (inner ** (1 / max(torus, 1)) / 2) * (inner > 1) : inner - 1;
    const ways = has ? torus * 2 : 1;
    seconds[axis] = sent[axis] = 0;
    for (const [twice, count, bytes] of kinds) {
      const near = max(twice * (inner - 1) / inner * bytes / ways / chip.link_bytes_per_second,
        count * twice * hops * chip.link_seconds);
      const far = max(twice * (outer - 1) / outer * bytes / inner / chip.network_bytes_per_second,
        count * twice * (outer - 1) * chip.network_seconds);
      seconds[axis] += max(near, far);
      sent[axis] += twice * (sizes[axis] - 1) / sizes[axis] * bytes;
    }
  }
  const step = max(...Object.values(seconds));
  return {
    parameters, memory, total_bytes: held, hbm_bytes: chip.hbm_bytes, flops,
    fits: held <= chip.hbm_bytes * (1 - reserve / 100),
    parts: seconds, sent_bytes: sent, seconds: step,
    serial_seconds: max(seconds.compute, seconds.hbm) + seconds.data + seconds.fsdp + seconds.tensor,
    bound: Object.keys(seconds).find((part) => seconds[part] === step),
    mfu: 3 * forwards / chip.flops_per_second.bf16 / step,
  };
}

explorer.fit = fit;
})(window.explorer);
