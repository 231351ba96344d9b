// A[I, J] · B[J, K] in pieces: which collectives it takes, what they and the product cost, and the program.
//   case: { mesh: [["x", 8]], sizes: [I, J, K], a: [[], ["x"]], b: [["x"], []], c: [[], []], chip, dtype }
// Along each mesh axis the product is cut along I, J or K, or not at all (""). The four cases of the book say which of
// these come into question; of the plans that are left the fastest is taken, as `shardlab.cost` counts.
(function (explorer) {
"use strict";
const { meshCode, product, refusal, specText, tuple } = explorer;
const TWICE = { "all-gather": 1, "reduce-scatter": 1, "all-reduce": 2 };
const DIMS = { A: "IJ", B: "JK", C: "IK" };

// shardlab.cost.collective_bytes and collective_seconds, for one axis of n devices.
function collective(kind, bytes, n, chip) {
  const sent = (TWICE[kind] * (n - 1) / n) * bytes;
  const ring = chip.torus.length === 2 ? n === 16 : n % 4 === 0;
  const ways = chip.torus.length && ring ? 2 : 1;
  const hops = TWICE[kind] * (chip.torus.length && ring ? Math.floor(n / 2) : n - 1);
  return [sent, Math.max(sent / ways / chip.link_bytes_per_second, hops * chip.link_seconds)];
}

// Where the operands are cut by an axis decides the case, and how the product may be cut along it.
function cases(a, b, c) {
  if (a === "J" && b === "J") return ["2", ["J"]];
  if (a === "I" && b === "K") return ["4", ["I", "K"]];
  const ways = ["I", "K"].filter((dim) => [a, b, c].includes(dim));
  if (a === "J" || b === "J") return ["3", [...(a && b ? [] : ["J"]), ...ways, ""]];
  return ["1", [...ways, ""]];
}

function plan(given, cut, axes, ways) {
  const [sizes, n] = [Object.fromEntries("IJK".split("").map((d, i) => [d, given.sizes[i]])), Object.fromEntries(axes)];
  const chip = explorer.data.chips[given.chip];
  const itemsize = explorer.data.bytes[given.dtype][0];
  const steps = [];
  const held = { A: { ...cut.A }, B: { ...cut.B } }; // the dimension that each axis cuts
  const local = (of, dim) =>
    sizes[dim] / product(axes.filter(([axis]) => held[of][axis] === dim).map(([, size]) => size));
  const bytes = (of) => itemsize * local(of, DIMS[of][0]) * local(of, DIMS[of][1]);
  const send = (kind, of, dim, axis, array) => {
    const [sent, seconds] = collective(kind, array, n[axis], chip);
    steps.push({ kind, of, dim, axis, devices: n[axis], array_bytes: array, sent_bytes: sent, seconds });
  };
  const gather = (of, axis) => {
    const dim = held[of][axis];
    held[of][axis] = "";
    send("all-gather", of, dim, axis, bytes(of));
  };
  const slice = (of, dim, axis) => {
    held[of][axis] = dim;
    steps.push({ kind: "slice", of, dim, axis, size: local(of, dim) });
  };
  const names = axes.map(([axis]) => axis);
  const wanted = (of, axis) => (DIMS[of].includes(ways[axis]) ? ways[axis] : "");
  for (const of of "AB") for (const x of names) if (held[of][x] && held[of][x] !== wanted(of, x)) gather(of, x);
  for (const of of "AB") for (const x of names) if (held[of][x] !== wanted(of, x)) slice(of, wanted(of, x), x);

  const [m, k, p] = [local("A", "I"), local("A", "J"), local("B", "K")];
  steps.push({ kind: "product" });
  held.C = Object.fromEntries(names.map((x) => [x, wanted("C", x)]));
  const partial = names.filter((x) => ways[x] === "J");
  const reduce = (free) => {
    const x = partial[0];
    if (!x || (free && names.some((y) => cut.C[x] && held.C[y] === cut.C[x]))) return;
    send(cut.C[x] ? "reduce-scatter" : "all-reduce", "C", cut.C[x], x, bytes("C"));
    held.C[x] = cut.C[partial.pop()];
  };
  reduce(true); // where its dimension is cut already, that is gathered first
  for (const x of names) if (held.C[x] && held.C[x] !== cut.C[x]) gather("C", x);
  reduce(false);
  for (const x of names) if (held.C[x] !== cut.C[x]) slice("C", cut.C[x], x);

  const flops = 2 * m * k * p;
  const compute = flops / chip.flops_per_second[given.dtype];
  const memory = (itemsize * m * (k + p) + itemsize * k * p) / chip.hbm_bytes_per_second;
  const sends = steps.filter((step) => step.sent_bytes !== undefined);
  const sum = (key) => sends.reduce((all, step) => all + step[key], 0);
  const [sent, messages] = [sum("sent_bytes"), sum("seconds")];
  const work = Math.max(compute, memory);
  return {
    ways, steps, m, k, n: p, flops, sent_bytes: sent, compute_seconds: compute, memory_seconds: memory,
    message_seconds: messages, work_seconds: work, seconds: Math.max(work, messages),
    bound: messages > work ? "messages" : compute >= memory ? "compute" : "memory",
    collectives: sends.map(({ kind, axis }) => [kind, axis]),
  };
}

function matmul(given) {
  const [I, J, K] = given.sizes;
  for (const [name, shape, spec] of [["A", [I, J], given.a], ["B", [J, K], given.b], ["C", [I, K], given.c]]) {
    const error = refusal({ mesh: given.mesh, shape, spec });
    if (error) return { error: { ...error, array: name, words: `${name}: ${error.words}` } };
  }
  const chip = explorer.data.chips[given.chip];
  const longest = Math.max(...chip.torus);
  const long = given.mesh.find(([, size]) => chip.torus.length && size > longest);
  const peaks = Object.keys(chip.flops_per_second);
  if (long || !peaks.includes(given.dtype)) {
    return {
      error: {
        kind: "chip",
        words: long
          ? `${long[1]} chips do not fit along an axis of ${given.chip}, whose largest slice is ${chip.torus.join(" x ")}`
          : `${given.chip} has no peak for '${given.dtype}'; it has ${peaks.join(", ")}`,
      },
    };
  }
  const axes = given.mesh.filter(([, size]) => size > 1); // along an axis of one, nothing is cut
  const where = (spec, dims, axis) => dims[spec.findIndex((cut) => cut.includes(axis))] || "";
  const [cut, found] = [{ A: {}, B: {}, C: {} }, {}];
  let ways = [{}];
  for (const [x] of axes) {
    for (const of of "ABC") cut[of][x] = where(given[of.toLowerCase()], DIMS[of], x);
    const [number, choices] = cases(cut.A[x], cut.B[x], cut.C[x]);
    found[x] = number;
    ways = ways.flatMap((some) => choices.map((way) => ({ ...some, [x]: way })));
  }
  // One axis for each dimension of the product.
  ways = ways.filter((some) => new Set(Object.values(some).filter(Boolean)).size ===
    Object.values(some).filter(Boolean).length);
  const keys = ["seconds", "message_seconds", "sent_bytes", "work_seconds"];
  const better = (p, q) => keys.reduce((found, key) => found || p[key] - q[key], 0) || p.steps.length - q.steps.length;
  const plans = ways.map((some) => plan(given, cut, axes, some)).sort(better);
  return { cases: found, ...plans[0], plans, code: matmulCode(given, plans[0]) };
}

function matmulCode({ mesh, sizes: [I, J, K], a, b, c, dtype }, { steps }) {
  const type = `jnp.${explorer.data.bytes[dtype][1]}`;
  const varying = { A: new Set(a.flat()), B: new Set(b.flat()) };
  const lines = steps.map(({ kind, of, dim, axis, size }) => {
    if (kind === "product") {
      varying.C = new Set([...varying.A, ...varying.B]);
      return "c = a @ b";
    }
    if (kind === "all-reduce") varying[of].delete(axis);
    else varying[of].add(axis);
    const [v, d] = [of.toLowerCase(), DIMS[of].indexOf(dim)];
    return `${v} = lax.${{
      "all-gather": `all_gather(${v}, "${axis}", axis=${d}, tiled=True)`,
      "all-reduce": `psum(${v}, "${axis}")`,
      "reduce-scatter": `psum_scatter(${v}, "${axis}", scatter_dimension=${d}, tiled=True)`,
      slice: `dynamic_slice_in_dim(\n        ${v}, lax.axis_index("${axis}") * ${size}, ${size}, axis=${d}\n    )`,
    }[kind]}`;
  });
  // JAX cannot tell that what was gathered is the same everywhere.
  const unproved = [...varying.C].some((axis) => !c.flat().includes(axis));
  return [
    "import jax", "import jax.numpy as jnp", "from jax import lax",
    "from jax.sharding import AxisType, PartitionSpec as P", "", meshCode(mesh), "",
    "def multiply(a, b):  # the program of each device", ...lines.map((line) => `    ${line}`), "    return c", "",
    "product = jax.jit(jax.shard_map(", "    multiply, mesh=mesh,",
    `    in_specs=(${specText(a)}, ${specText(b)}), out_specs=${specText(c)},`,
    ...(unproved ? ["    check_vma=False,"] : []), "))",
    `A = jax.ShapeDtypeStruct(${tuple([I, J])}, ${type})`,
    `B = jax.ShapeDtypeStruct(${tuple([J, K])}, ${type})`,
    "compiled = product.lower(A, B).compile()  # arrays of these shapes run it",
  ].join("\n");
}

Object.assign(explorer, { matmul });
})(window.explorer);
