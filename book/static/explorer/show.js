// How the calculators write numbers and meshes, their tables, the bar of a chip's memory, and the program of a mesh.
(function (explorer) {
"use strict";
const { AXES, figure, h, hatching, plain, product, rect, specText, text, textWidth, tuple } = explorer;

const scaled = (n, units) => {
  const i = Math.min(units.length - 1, Math.max(0, Math.floor(Math.log10(n || 1) / 3)));
  return `${Number((n / 1000 ** i).toPrecision(3))} ${units[i]}`;
};
const bytesText = (n) => scaled(n, ["bytes", "kB", "MB", "GB", "TB"]);
const timeText = (n) => scaled(n * 1e9, ["ns", "µs", "ms", "s"]);

function table(name, ...rows) {
  const lines = rows.map((row, r) => h("tr", {}, ...row.map((cell, i) => h(r && i ? "td" : "th", {
    scope: r && i ? null : r ? "row" : "col", class: i > 0 && /^\d/.test(rows[1][i]) && "explorer-number",
  }, cell))));
  return h("div", { class: "explorer-table", role: "region", "aria-label": name, tabindex: 0 }, h("table", {},
    h("thead", {}, lines[0]), h("tbody", {}, ...lines.slice(1))));
}
const folded = (name, open, inside) => h("details", open ? { open } : {}, h("summary", {}, name), inside);
const codeBox = (code) => folded("JAX code", false,
  h("pre", { tabindex: 0, role: "group", "aria-label": "JAX code" }, h("code", {}, code)));
const pictures = (...figures) => h("div", { class: "shardlab explorer-pictures" }, ...figures);

const gigabytes = (n) => `${(n / 1e9).toFixed(2)} GB`;
const tenth = (n) => Math.round(10 * n) / 10;

// The memory of a chip as a bar: a line where it ends, a dashed one where its reserve begins, and a legend. What is
// beyond the memory is hatched. `most` bytes are as long as the bar; a brief one has no legend.
function bar(memory, total, has, reserve, most, brief) {
  const [width, top, height] = [312, 20, 36];
  const scale = width / most;
  const [end, usable] = [has * scale, has * (1 - reserve / 100) * scale];
  let left = 0;
  const labels = [];
  const shapes = Object.values(memory).map((bytes, i) => {
    const [colour, fill] = explorer.data.palette[i];
    const [wide, from] = [bytes * scale, left];
    const rim = { "paint-order": "stroke", stroke: colour, "stroke-width": 5 };
    if (wide > 12) labels.push(text(tenth(from + wide / 2), top + 23, i + 1, 13, { fill, ...rim }));
    left += wide;
    return rect(tenth(from), top, tenth(wide), height, colour);
  });
  shapes.push(rect(0, top, tenth(end), height, "none"));
  if (total > has) {
    shapes.push(hatching(tenth(end), top, tenth(left - end), height, "#000", 2), h("path", {
      d: `M${end.toFixed(1)} ${top + height + 5}H${left.toFixed(1)}`, style: "stroke:var(--bad,#b3261e)", "stroke-width": 5,
    }));
  }
  shapes.push(...labels);
  const room = `${gigabytes(has)} of the chip`;
  shapes.push(text(tenth(end), 11, room, 12, { "text-anchor": end > textWidth(room) ? "end" : "start" }));
  for (const [place, thick, dashes] of [[usable, 2, "4 3"], [end, 4, null]]) {
    shapes.push(h("path", { d: `M${place.toFixed(1)} ${top - 5}v${height + 14}`, stroke: "currentColor", "stroke-width": thick,
      "stroke-dasharray": dashes }));
  }
  const over = total > has ? `; ${gigabytes(total - has)} more than it has, hatched` : "";
  const title = `${gigabytes(total)} on each chip${over}`;
  const marks = "the solid line is the end of the chip's memory" +
    (Number(reserve) ? `, the dashed line the beginning of the ${reserve} % that are reserved` : "");
  const said = Object.entries(memory).map(([kind, bytes]) => `${kind} ${gigabytes(bytes)}`).join("; ");
  const keys = Object.entries(memory).flatMap(([kind, bytes], i) => {
    const [background, color] = explorer.data.palette[i];
    return [i ? " " : "", h("span", { class: "explorer-key" },
      h("b", { style: `color:${color};background:${background}` }, `${i + 1}`), ` ${kind} ${gigabytes(bytes)}`)];
  });
  const legend = brief ? [`${title}.`] : [...keys, h("br", {}), `${title}; ${marks}.`];
  return figure(shapes, width, 66, title, `${said}; ${marks}.`, ...legend);
}

// --- A mesh ---
// How a mesh computes a step, if not in the plainest way.
const howText = ({ microbatches, stages, gathers }) => [
  microbatches > 1 ? `${microbatches} micro-batches` : "", stages > 1 ? `${stages} stages on each chip` : "",
  gathers === 1 ? "gathered once" : "",
].filter((words) => words).join(", ");
const meshText = (mesh, how) => [AXES.filter((axis) => mesh[axis] > 1).map((axis) => `${axis} ${mesh[axis]}`).join(" × ") ||
  "one chip", howText(how)].filter((words) => words).join(", ");
const share = (part) => `${plain(100 * part)} %`;

// The mesh and the specs of shardlab.training, whose arrays hold all layers, with pipeline and context axes if there are;
// of mixtures of experts and of latent attention, which it has not, the mesh and the batch alone.
function planCode(model, mesh, how) {
  const { layers: L, d_model: D, d_ff: F, heads, kv_heads: kv, head_dim: H, vocab: V, gated, tied } = model;
  const order = ["data", "pipeline", "fsdp", "expert", "context", "tensor"].filter((axis) =>
    ["data", "fsdp", "tensor"].includes(axis) || mesh[axis] > 1);
  const fsdp = mesh.context > 1 ? ["fsdp", "context"] : ["fsdp"];
  const stage = mesh.pipeline > 1 ? ["pipeline"] : [];
  const tensor = ["tensor"];
  const keys = kv % mesh.tensor ? [] : tensor; // otherwise several chips share a head
  const up = gated ? [[2], [[]]] : [[], []];
  const weights = [
    ["embed", [V, D], [tensor, fsdp]],
    ...(tied ? [] : [["out", [D, V], [fsdp, tensor]]]),
    ["norm", [D], []],
    ["norms", [L, 2, D], stage.length ? [stage] : []],
    ["q", [L, D, heads * H], [stage, fsdp, tensor]],
    ["kv", [L, 2, D, kv * H], [stage, [], fsdp, keys]],
    ["o", [L, heads * H, D], [stage, tensor, fsdp]],
    ["up", [L, ...up[0], D, F], [stage, ...up[1], fsdp, tensor]],
    ["down", [L, F, D], [stage, tensor, fsdp]],
  ];
  const lines = weights.map(([name, shape, spec]) => {
    const pads = spec.flatMap((axes, i) => { // JAX shards evenly only
      const n = product(axes.map((axis) => mesh[axis]));
      return shape[i] % n ? [`; pad ${shape[i]} to ${Math.ceil(shape[i] / n) * n}`] : [];
    });
    return `    "${name}": ${specText(spec)},  # ${tuple(shape)}${pads.join("")}`;
  });
  const groups = mesh.expert > 1 ? ["data", "fsdp", "expert"] : ["data", "fsdp"];
  const batch = specText([groups, mesh.context > 1 ? ["context"] : []]);
  const done = howText(how);
  return `import jax
from jax.sharding import AxisType, PartitionSpec as P

${explorer.meshCode(order.map((axis) => [axis, mesh[axis]]))}
${model.experts || model.kv_rank ? "" : `specs = {  # of the weights, with all layers in one array
${lines.join("\n")}
}
`}tokens = ${batch}  # (sequences, tokens of each)${done && `, in ${done}`}`;
}

Object.assign(explorer, { bar, bytesText, codeBox, folded, gigabytes, howText, meshText, pictures, planCode, share, table,
  timeText });
})(window.explorer);
