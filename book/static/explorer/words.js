// Numbers, and what Python writes: what all calculators share.
(function words(explorer) {
"use strict";
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
const divisors = (n) => {
  const low = times(Math.floor(Math.sqrt(n)), (i) => i + 1).filter((d) => n % d === 0);
  return [...new Set([...low, ...low.map((d) => n / d).reverse()])];
};
const AXES = ["data", "fsdp", "tensor", "pipeline", "context", "expert"]; // of a training step's mesh
const plain = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 1 });
const count = (n, noun) => `${plain(n)} ${noun}${n === 1 ? "" : "s"}`;

// As Python writes them.
const tuple = (items) => `(${items.join(", ")}${items.length === 1 ? "," : ""})`;
const quoted = (name) => `"${name}"`;
const entry = (axes) => (axes.length === 0 ? "None" : axes.length === 1 ? quoted(axes[0]) : tuple(axes.map(quoted)));
const specText = (spec) => `P(${spec.map(entry).join(", ")})`;
const indexText = (index) => `[${index.map(([start, stop]) => `${start}:${stop}`).join(", ")}]`;
const over = (axes) => (axes.length === 0 ? "" : axes.length === 1 ? axes[0] : `(${axes.join(",")})`);

const meshCode = (mesh) => `mesh = jax.make_mesh(
    ${tuple(mesh.map(([, size]) => size))}, ${tuple(mesh.map(([name]) => quoted(name)))},
    axis_types=(AxisType.Auto,) * ${mesh.length},
)`;

// Scripts that compute, and know nothing of the page: a Worker runs them too.
const pure = [words];
const shared = (part) => {
  part(explorer);
  pure.push(part);
};

Object.assign(explorer, { pure, shared, AXES, count, divisors, indexText, meshCode, over, plain, product, specText, times, tuple });
})((window.explorer = window.explorer || {}));
