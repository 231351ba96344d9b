// A[I, J] · B[J, K], sharded: which collectives it needs, what everything costs, and the program.
//   case: { mesh: [["x", 8]], sizes: [I, J, K], a: [[], ["x"]], b: [["x"], []], c: [[], []], chip: "v5p", dtype: "bf16" }
// Each mesh axis splits the product along I, J or K, or not at all (""). The four cases say which ways there are, and
// the fastest is taken.
(function (explorer) {
"use strict";
const { meshCode, product, refusal, specText, tuple } = explorer;
const DIMS = { A: "IJ", B: "JK", C: "IK" };

// shardlab.costs.collective_seconds, for one axis of n devices.
function time(kind, sent, n, chip) {
  const ring = chip.torus.length === 2 ? n === 16 : chip.torus.length && n % 4 === 0;
  const hops = explorer.data.rounds[kind] * (ring ? n / 2 : n - 1);
  const ways = ring ? 2 : explorer.linkShare(chip, n);
  return Math.max(sent / ways / chip.link_bytes_per_second, hops * chip.link_seconds);
}

// The case of a mesh axis, from the dimensions of A, B and C that it shards; and how it may split the product.
function choose(a, b, c) {
  if (a === "J" && b === "J") return [3, ["J"]];
  if (a === "I" && b === "K") return [4, ["I", "K"]];
  const ways = ["I", "K", ""].filter((dim) => !dim || [a, b, c].includes(dim));
  return a === "J" || b === "J" ? [2, a && b ? ways : ["J", ...ways]] : [1, ways];
}

function plan({ sizes, chip: name, dtype }, from, axes, ways) {
  const [chip, itemsize] = [explorer.data.chips[name], explorer.data.bytes[dtype][0]];
  const held = { A: { ...from.A }, B: { ...from.B } }; // the dimension that each axis shards
  const names = axes.map(([axis]) => axis);
  const steps = [];
  const local = (of, dim) =>
    sizes["IJK".indexOf(dim)] / product(axes.map(([axis, size]) => (held[of][axis] === dim ? size : 1)));
  const send = (kind, of, dim, axis, to) => {
    const bytes = () => itemsize * local(of, DIMS[of][0]) * local(of, DIMS[of][1]);
    const before = bytes();
    held[of][axis] = to;
    const [array, n] = [Math.max(before, bytes()), Object.fromEntries(axes)[axis]];
    const sent = (explorer.data.rounds[kind] * (n - 1) / n) * array;
    const seconds = time(kind, sent, n, chip);
    steps.push({ kind, of, dim, axis, devices: n, array_bytes: array, sent_bytes: sent, seconds });
  };
  const gather = (of, wanted) => {
    for (const x of names) if (held[of][x] && held[of][x] !== wanted(x)) send("all-gather", of, held[of][x], x, "");
  };
  const slice = (of, wanted) => {
    for (const axis of names.filter((x) => held[of][x] !== wanted(x))) {
      const dim = held[of][axis] = wanted(axis);
      steps.push({ kind: "slice", of, dim, axis, size: local(of, dim) });
    }
  };
  const way = (of) => (x) => (DIMS[of].includes(ways[x]) ? ways[x] : "");
  for (const act of [gather, slice]) for (const of of "AB") act(of, way(of));

  const [m, k, n] = [local("A", "I"), local("A", "J"), local("B", "K")];
  steps.push({ kind: "product" });
  held.C = Object.fromEntries(names.map((x) => [x, way("C")(x)]));
  const wanted = (x) => from.C[x];
  let partial = names.find((x) => ways[x] === "J");
  const add = () => {
    const dim = from.C[partial];
    send(dim ? "reduce-scatter" : "all-reduce", "C", dim, partial, dim);
    partial = "";
  };
  // Sums first, unless another axis still shards their dimension.
  if (partial && !names.some((x) => wanted(partial) && held.C[x] === wanted(partial))) add();
  gather("C", (x) => (x === partial ? held.C[x] : wanted(x)));
  if (partial) add();
  slice("C", wanted);

  const flops = 2 * m * k * n;
  const compute = flops / chip.flops_per_second[dtype];
  const memory = (itemsize * m * (k + n) + itemsize * k * n) / chip.hbm_bytes_per_second;
  const sends = steps.filter((step) => step.seconds);
  const sum = (key) => sends.reduce((all, step) => all + step[key], 0);
  const [communication, work] = [sum("seconds"), Math.max(compute, memory)];
  return {
    ways, steps, m, k, n, flops, compute_seconds: compute, memory_seconds: memory, work_seconds: work,
    sent_bytes: sum("sent_bytes"), communication_seconds: communication, seconds: Math.max(work, communication),
    bound: communication > work ? "communication" : compute >= memory ? "compute" : "memory",
    collectives: sends.map(({ kind, axis }) => [kind, axis]),
  };
}

function matmul(given) {
  const { mesh, sizes: [I, J, K], a, b, c, chip: name, dtype } = given;
  for (const [of, shape, spec] of [["A", [I, J], a], ["B", [J, K], b], ["C", [I, K], c]]) {
    const error = refusal({ mesh, shape, spec });
    if (error) return { error: { ...error, words: `${of}: ${error.words}` } };
  }
  const { torus, flops_per_second: peaks, node_chips: node } = explorer.data.chips[name];
  const devices = product(mesh.map(([, size]) => size));
  const long = mesh.find(([, size]) => size > Math.max(...torus) && torus.length);
  const words = long
    ? `${long[1]} chips do not fit along an axis of ${name}, whose largest slice is ${torus.join(" x ")}`
    : !torus.length && devices > node
    ? `${devices} ${name} are in several nodes of ${node}, between which there is no NVLink`
    : !peaks[dtype] && `${name} has no peak for '${dtype}'; it has ${Object.keys(peaks).join(", ")}`;
  if (words) return { error: { kind: "chip", words } };

  const axes = mesh.filter(([, size]) => size > 1); // an axis of one device shards nothing
  const [sharded, cases] = [{ A: {}, B: {}, C: {} }, {}];
  let ways = [{}];
  for (const [x] of axes) {
    const places = Object.entries({ A: a, B: b, C: c }).map(([of, spec]) =>
      (sharded[of][x] = DIMS[of][spec.findIndex((names) => names.includes(x))] || ""));
    const [number, choices] = choose(...places);
    cases[x] = number;
    // One axis for each dimension of the product.
    ways = ways.flatMap((some) => choices.filter((way) => !way || !Object.values(some).includes(way))
      .map((way) => ({ ...some, [x]: way })));
  }
  const keys = ["seconds", "communication_seconds", "sent_bytes", "work_seconds"];
  const plans = ways.map((some) => plan(given, sharded, axes, some)).sort((p, q) =>
    keys.reduce((found, key) => found || p[key] - q[key], 0) || p.steps.length - q.steps.length);
  return { cases, ...plans[0], plans, code: matmulCode(given, plans[0]) };
}

function matmulCode({ mesh, sizes: [I, J, K], a, b, c, dtype }, { steps }) {
  const varying = { A: new Set(a.flat()), B: new Set(b.flat()) };
  const lines = steps.map(({ kind, of, dim, axis, size }) => {
    if (kind === "product") {
      varying.C = new Set([...varying.A, ...varying.B]);
      return "    c = a @ b";
    }
    varying[of][kind === "all-reduce" ? "delete" : "add"](axis);
    const [v, d] = [of.toLowerCase(), DIMS[of].indexOf(dim)];
    return `    ${v} = lax.${{
      "all-gather": `all_gather(${v}, "${axis}", axis=${d}, tiled=True)`,
      "all-reduce": `psum(${v}, "${axis}")`,
      "reduce-scatter": `psum_scatter(${v}, "${axis}", scatter_dimension=${d}, tiled=True)`,
      slice: `dynamic_slice_in_dim(\n        ${v}, lax.axis_index("${axis}") * ${size}, ${size}, axis=${d}\n    )`,
    }[kind]}`;
  });
  // JAX cannot tell that a gathered array is invariant.
  const unproved = [...varying.C].some((axis) => !c.flat().includes(axis));
  const array = (shape) => `jax.ShapeDtypeStruct(${tuple(shape)}, jnp.${explorer.data.bytes[dtype][1]})`;
  return `import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AxisType, PartitionSpec as P

${meshCode(mesh)}

def multiply(a, b):  # runs on each device, on its shards
${lines.join("\n")}
    return c

product = jax.jit(jax.shard_map(
    multiply, mesh=mesh, in_specs=(${specText(a)}, ${specText(b)}),
    out_specs=${specText(c)}${unproved ? ", check_vma=False" : ""},
))
A = ${array([I, J])}
B = ${array([J, K])}
compiled = product.lower(A, B).compile()  # call it with such arrays`;
}

explorer.matmul = matmul;
})(window.explorer);
