// The three calculators: what the address calls their controls, and how their answers are shown.
(function (explorer) {
"use strict";
const { drawLayout, figure, h, indexText, plain, product, specText, text, tile, times } = explorer;

// --- Reading ---
const meshKeys = (most) => times(most, (i) => [`name${i}`, `size${i}`]).flat();
const meshOf = (form) => times(Number(form.axes), (i) => [form[`name${i}`], Number(form[`size${i}`])]);
const numbers = (form, names) => names.map((name) => Number(form[name]));
const axesOf = (form, names) => names.map((name) => (form[name] === "-" ? [] : form[name].split(".")));
function wrong(form) {
  const mesh = meshOf(form);
  const devices = product(mesh.map(([, size]) => size));
  if (Object.keys(Object.fromEntries(mesh)).length < mesh.length) return "two axes have the same name";
  return devices > 64 && `this mesh has ${devices} devices; use up to 64`;
}

// --- Showing ---
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
const codeBox = (code) => folded("JAX code", true,
  h("pre", { tabindex: 0, role: "group", "aria-label": "JAX code" }, h("code", {}, code)));
const pictures = (...figures) => h("div", { class: "shardlab explorer-pictures" }, ...figures);
const refused = ({ words, jax }, ...nodes) => ({
  refused: true, nodes, words: jax ? `JAX refuses this. ${words} In its words: “… ${jax} …”` : `${words}.`,
});

// --- Which device holds which shard ---
const [DIM, AXES] = [["dim0", "dim1", "dim2"], ["axes0", "axes1", "axes2"]];
const layout = {
  keys: { mesh: meshKeys(3), shape: DIM, spec: AXES, dtype: ["dtype"] },
  wrong,
  show(form) {
    const [shape, spec] = [numbers(form, DIM.slice(0, form.dims)), axesOf(form, AXES.slice(0, form.dims))];
    const answer = explorer.layout({ mesh: meshOf(form), shape, spec, dtype: form.dtype });
    if (answer.error) return refused(answer.error, codeBox(answer.code));
    const { devices, replicas, bytes_per_device: each } = answer;
    const held = devices.map(({ device, index, replica }) =>
      [`device ${device}`, indexText(index), `${replica + 1} of ${replicas}`, plain(each)]);
    const name = "What each device holds";
    return {
      words: `${specText(spec)}: ${answer.summary}. All devices together hold ${plain(answer.total_bytes)} bytes; the ` +
        `array has ${plain(answer.nbytes)}.`,
      nodes: [
        pictures(drawLayout(answer)),
        folded(name, devices.length <= 8, table(name, ["device", "slice", "replica", "bytes"], ...held)),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A matrix product ---
const CASES = [
  "", "J is not sharded", "J is sharded in one operand", "J is sharded in both operands", "it would shard both I and K",
];
const matmul = {
  keys: {
    mesh: meshKeys(2), sizes: ["I", "J", "K"], a: ["a0", "a1"], b: ["b0", "b1"], c: ["c0", "c1"], chip: ["chip"],
    dtype: ["dtype"],
  },
  wrong,
  show(form) {
    const { chip, dtype } = form;
    const [mesh, sizes] = [meshOf(form), numbers(form, this.keys.sizes)];
    const [a, b, c] = ["a", "b", "c"].map((of) => axesOf(form, this.keys[of]));
    const answer = explorer.matmul({ mesh, sizes, a, b, c, chip, dtype });
    if (answer.error) return refused(answer.error);
    const drawn = [["A", a, 0, 1], ["B", b, 1, 2], ["C", c, 0, 2]].map(([name, spec, i, j]) => drawLayout(
      explorer.layout({ mesh, shape: [sizes[i], sizes[j]], spec, dtype: explorer.data.bytes[dtype][1] }), name));
    const of = ({ kind, of, dim, axis }) => `${kind} of ${of}${dim && `'s ${dim}`} over ${axis}`;
    const sent = ({ steps }) => steps.filter((step) => step.seconds).map(of).join(", ") || "nothing";
    const why = Object.entries(answer.cases).map(([axis, number]) => `Mesh axis ${axis} is case ${number}: ${CASES[number]}. `);
    const steps = answer.steps.map((step) => (step.kind === "product"
      ? [`product (${answer.m}, ${answer.k}) · (${answer.k}, ${answer.n})`, "0", timeText(answer.work_seconds)]
      : [of(step), plain(step.sent_bytes || 0), timeText(step.seconds || 0)]));
    const others = answer.plans.slice(1).map((plan) => [
      sent(plan), plain(plan.sent_bytes), timeText(plan.communication_seconds), timeText(plan.work_seconds),
    ]);
    const other = "Slower alternatives";
    return {
      words: `${why.join("")}What is sent: ${sent(answer)}; ${plain(answer.sent_bytes)} bytes from each device, in ` +
        `${timeText(answer.communication_seconds)}. The product takes ${timeText(answer.work_seconds)}. With overlap, ` +
        `it takes ${timeText(answer.seconds)} in all and is ${answer.bound}-bound.`,
      nodes: [
        pictures(...drawn),
        table("Steps", ["step", "bytes a device sends", "time"], ...steps),
        ...(others.length ? [folded(other, false, table(other, ["what is sent", "bytes", "communication", "product"], ...others))] : []),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A training step ---
const SIZES = ["layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab"];
const STEP = ["chips", "batch", "sequence", "data", "fsdp", "tensor", "reserve"];
const pick = (form, names) => Object.fromEntries(names.map((name) => [name, Number(form[name])]));

// The memory of a chip as a bar, with a line where it ends and a dashed one where its reserve begins.
function bar(memory, total, has, reserve) {
  const scale = 300 / Math.max(total, has);
  let left = 0;
  const shapes = Object.entries(memory).map(([kind, bytes], i) => {
    const width = bytes * scale;
    left += width;
    return tile(left - width, 16, width, 34, i, width > 12 ? i + 1 : "", `${kind}: ${bytesText(bytes)}`);
  });
  const words = `${bytesText(total)} on each chip; the solid line marks its ${bytesText(has)}, the dashed line the reserve`;
  const line = (bytes, width, dashes) => shapes.push(h("path", {
    d: `M${(bytes * scale).toFixed(1)} 10v46`, stroke: "currentColor", "stroke-width": width, "stroke-dasharray": dashes,
  }));
  const kinds = Object.entries(memory).map(([kind, bytes]) => `${kind} ${bytesText(bytes)}`);
  line(has * (1 - reserve / 100), 2, "4 3");
  line(has, 3);
  return figure(shapes, 300, 56, words, `${kinds.join("; ")}.`, words);
}

const fit = {
  keys: Object.fromEntries(["model", ...SIZES, "gated", "tied", "chip", ...STEP.slice(0, -1), "remat", "reserve"]
    .map((name) => [name, [name]])),
  show(form) {
    const own = { ...pick(form, SIZES), gated: form.gated === "yes", tied: form.tied === "yes" };
    const model = explorer.data.models[form.model] || own;
    const answer = explorer.fit({ model, chip: form.chip, remat: form.remat, ...pick(form, STEP) });
    if (answer.error) return refused(answer.error);
    const { memory, total_bytes: total, hbm_bytes: has, fits } = answer;
    const kinds = Object.entries(memory).map(([kind, bytes], i) => [`${i + 1} ${kind}`, bytesText(bytes)]);
    const times = Object.entries(answer.parts).map(([part, seconds]) =>
      [part, bytesText(answer.sent_bytes[part] || 0), timeText(seconds)]);
    return {
      refused: !fits,
      words: `${plain(answer.parameters)} parameters. A chip must hold ${bytesText(total)} and has ${bytesText(has)}, of ` +
        `which ${form.reserve} % are reserved: this ${fits ? "fits" : "does not fit"}. A step takes ` +
        `${timeText(answer.seconds)} if everything hides behind its longest part, ${answer.bound}, and ` +
        `${timeText(answer.serial_seconds)} without overlap. Its MFU is at most ${plain(100 * answer.mfu)} %.`,
      nodes: [
        pictures(bar(memory, total, has, form.reserve)),
        table("Memory of a chip", ["part", "on each chip"], ...kinds, ["total", bytesText(total)]),
        table("Time of a step", ["part", "sent by a chip", "time"], ...times),
      ],
    };
  },
};

explorer.parts = { layout, matmul, fit };
})(window.explorer);
