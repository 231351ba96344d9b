// Which device stores which shard: `shardlab.describe`, with JAX's own errors. Case in, answer out.
//   case: { mesh: [["x", 2], ["y", 4]], shape: [8, 16], spec: [["x"], ["y"]], dtype: "float32" }
(function (explorer) {
"use strict";
const { count, meshCode, over, plain, product, specText, times, tuple } = explorer;
const shardsOver = (sizes, axes) => product(axes.map((axis) => sizes[axis]));

// What JAX refuses, in the order in which it looks; `jax` is from its own message.
function refusal({ mesh, shape, spec }) {
  const sizes = Object.fromEntries(mesh);
  const named = spec.flat();
  const twice = [...new Set(named.filter((axis, i) => named.indexOf(axis) < i))].sort();
  if (twice.length) {
    return {
      kind: "duplicate", jax: `has duplicate entries for ${twice.map((axis) => `\`${axis}\``).join(", ")}`,
      words: `${specText(spec)} names ${twice.join(" and ")} twice; a mesh axis can shard one dimension, once.`,
    };
  }
  const unknown = named.find((axis) => !(axis in sizes));
  if (unknown) return { kind: "unknown", jax: `Resource axis: ${unknown} of `, words: `The mesh has no ${unknown}.` };
  const [entries, rank] = [spec.length, shape.length];
  if (entries > rank) {
    const jax = `is only valid for values of rank at least ${entries}, but was applied to a value of rank ${rank}`;
    return { kind: "rank", jax, words: "The spec has more entries than the array has dimensions." };
  }
  const dim = spec.findIndex((axes, i) => shape[i] % shardsOver(sizes, axes));
  if (dim < 0) return null;
  const [size, n] = [shape[dim], shardsOver(sizes, spec[dim])];
  return {
    kind: "uneven",
    jax: `array axis ${dim} is partitioned ${n} times, but the dimension size is ${size}`,
    words: `Dimension ${dim} has size ${size}, and ${over(spec[dim])} has ${n} devices, which leaves ` +
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
  const shardShape = shape.map((size, dim) => size / shardsOver(sizes, spec[dim]));
  const devices = times(product(mesh.map(([, size]) => size)), (device) => {
    let rest = device;
    const place = {};
    for (const [name, size] of [...mesh].reverse()) {
      place[name] = rest % size;
      rest = Math.floor(rest / size);
    }
    // The first axis of a tuple is the major one.
    const at = (axes) => axes.reduce((n, axis) => n * sizes[axis] + place[axis], 0);
    const position = spec.map(at);
    const index = position.map((n, dim) => [n * shardShape[dim], (n + 1) * shardShape[dim]]);
    return { device, index, position, replica: at(spare) };
  });
  const [itemsize, short] = explorer.data.dtypes[dtype];
  const replicas = shardsOver(sizes, spare);
  const each = product(shardShape) * itemsize;
  const type = `${short}[${shape.map((n, dim) => (spec[dim].length ? `${n}@${over(spec[dim])}` : n)).join(", ")}]`;
  return {
    devices, replicas, type, shape, spec, mesh, code,
    shard_shape: shardShape,
    bytes_per_device: each,
    total_bytes: each * devices.length,
    nbytes: product(shape) * itemsize,
    summary: `local shape ${tuple(shardShape)}, ${count(devices.length / replicas, "shard")}` +
      `${replicas > 1 ? ` × ${plain(replicas)} replicas` : ""} on ${count(devices.length, "device")}, ` +
      `${count(each, "byte")}${devices.length > 1 ? " each" : ""}`,
  };
}

const layoutCode = ({ mesh, shape, spec, dtype }) => `import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

${meshCode(mesh)}
sharding = NamedSharding(mesh, ${specText(spec)})
x = jax.device_put(jnp.zeros(${tuple(shape)}, jnp.${dtype}), sharding)`;

Object.assign(explorer, { layout, refusal });
})(window.explorer);
