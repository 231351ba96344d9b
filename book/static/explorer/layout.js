// Which device holds what: `shardlab.layout.describe`, with JAX's own verdicts. Case in, answer out.
//   case: { mesh: [["x", 2], ["y", 4]], shape: [8, 16], spec: [["x"], ["y"]], dtype: "float32" }
(function (explorer) {
"use strict";
const product = (numbers) => numbers.reduce((a, b) => a * b, 1);
const times = (n, make) => Array.from({ length: n }, (_, i) => make(i));
const plain = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 1 });
const count = (n, noun, plural = `${noun}s`) => `${plain(n)} ${n === 1 ? noun : plural}`;

// As Python writes them.
const tuple = (items) => `(${items.join(", ")}${items.length === 1 ? "," : ""})`;
const quoted = (name) => `"${name}"`;
const entry = (cut) => (cut.length === 0 ? "None" : cut.length === 1 ? quoted(cut[0]) : tuple(cut.map(quoted)));
const specText = (spec) => `P(${spec.map(entry).join(", ")})`;
const indexText = (index) => `[${index.map(([start, stop]) => `${start}:${stop}`).join(", ")}]`;
const along = (cut) => (cut.length === 1 ? cut[0] : `(${cut.join(",")})`);

const parts = (sizes, cut) => product(cut.map((axis) => sizes[axis]));

// What JAX refuses, in the order in which it looks; `jax` is from its own message.
function refusal({ mesh, shape, spec }) {
  const sizes = Object.fromEntries(mesh);
  const named = spec.flat();
  const twice = [...new Set(named.filter((axis, i) => named.indexOf(axis) < i))].sort();
  if (twice.length) {
    return {
      kind: "duplicate", jax: `has duplicate entries for ${twice.map((axis) => `\`${axis}\``).join(", ")}`,
      words: `${specText(spec)} names ${twice.join(" and ")} twice; an axis can cut one dimension, once.`,
    };
  }
  const unknown = named.find((axis) => !(axis in sizes));
  if (unknown) return { kind: "unknown", jax: `Resource axis: ${unknown} of `, words: `The mesh has no ${unknown}.` };
  const [entries, rank] = [spec.length, shape.length];
  if (entries > rank) {
    const jax = `is only valid for values of rank at least ${entries}, but was applied to a value of rank ${rank}`;
    return { kind: "rank", jax, words: "The spec is longer than the shape." };
  }
  const dim = spec.findIndex((cut, i) => shape[i] % parts(sizes, cut));
  if (dim < 0) return null;
  const [size, n] = [shape[dim], parts(sizes, spec[dim])];
  return {
    kind: "uneven",
    jax: `array axis ${dim} is partitioned ${n} times, but the dimension size is ${size}`,
    words: `Dimension ${dim} has size ${size}, and ${along(spec[dim])} cuts it into ${n} pieces, which leaves ` +
      `${size % n} over. Use a multiple of ${n}, such as ${Math.ceil(size / n) * n}.`,
  };
}

function layout(given) {
  const { mesh, shape, dtype } = given;
  const code = layoutCode(given);
  const error = refusal(given);
  if (error) return { error, code };
  const sizes = Object.fromEntries(mesh);
  const spec = shape.map((_, dim) => given.spec[dim] || []);
  const spare = mesh.map(([name]) => name).filter((name) => !spec.flat().includes(name));
  const pieces = spec.map((cut) => parts(sizes, cut));
  const shardShape = shape.map((size, dim) => size / pieces[dim]);
  const devices = times(product(mesh.map(([, size]) => size)), (device) => {
    let rest = device;
    const place = {};
    for (const [name, size] of [...mesh].reverse()) {
      place[name] = rest % size;
      rest = Math.floor(rest / size);
    }
    // The first axis of a tuple is the major one.
    const position = (cut) => cut.reduce((at, axis) => at * sizes[axis] + place[axis], 0);
    const tile = spec.map(position);
    const index = tile.map((at, dim) => [at * shardShape[dim], (at + 1) * shardShape[dim]]);
    return { device, index, tile, copy: position(spare) };
  });
  const [itemsize, short] = explorer.data.dtypes[dtype];
  const copies = parts(sizes, spare);
  const tiles = devices.length / copies;
  const each = product(shardShape) * itemsize;
  const type = `${short}[${shape.map((n, dim) => (spec[dim].length ? `${n}@${along(spec[dim])}` : n)).join(", ")}]`;
  return {
    devices, copies, tiles, type, shape, code,
    shard_shape: shardShape,
    bytes_per_device: each,
    total_bytes: each * devices.length,
    nbytes: product(shape) * itemsize,
    summary: `${count(tiles, "tile")} of ${tuple(shardShape)} × ${count(copies, "copy", "copies")} on ` +
      `${count(devices.length, "device")}, ${count(each, "byte")}${devices.length > 1 ? " each" : ""}`,
  };
}

const meshCode = (mesh) => `mesh = jax.make_mesh(
    ${tuple(mesh.map(([, size]) => size))}, ${tuple(mesh.map(([name]) => quoted(name)))},
    axis_types=(AxisType.Auto,) * ${mesh.length},
)`;

const layoutCode = ({ mesh, shape, spec, dtype }) => `import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

${meshCode(mesh)}
sharding = NamedSharding(mesh, ${specText(spec)})
x = jax.device_put(jnp.zeros(${tuple(shape)}, jnp.${dtype}), sharding)`;

Object.assign(explorer, { layout, refusal, meshCode, specText, indexText, tuple, count, plain, product, times });
})((window.explorer = window.explorer || {}));
