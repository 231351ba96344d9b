// The three calculators: what the address calls their controls, which meshes they offer, and how they show answers.
(function (explorer) {
"use strict";
const { drawLayout, figure, h, hatching, indexText, plain, product, rect, specText, text, textWidth, times } = explorer;

// --- Reading ---
const meshKeys = (most) => times(most, (i) => [`name${i}`, `size${i}`]).flat();
const meshOf = (form) => times(Number(form.axes), (i) => [form[`name${i}`], Number(form[`size${i}`])]);
const numbers = (form, names) => names.map((name) => Number(form[name]));
const axesOf = (form, names) => names.map((name) => (form[name] === "-" ? [] : form[name].split(".")));

// --- Meshes of so many devices ---
function divisors(n) {
  const found = times(Math.floor(Math.sqrt(n)), (i) => i + 1).filter((d) => n % d === 0);
  return [...new Set([...found, ...found.map((d) => n / d).reverse()])];
}
// 4 devices along two axes: [1, 4], [2, 2] and [4, 1].
const factored = (n, axes) => (axes === 1 ? [[n]]
  : divisors(n).flatMap((d) => factored(n / d, axes - 1).map((rest) => [d, ...rest])));

// Of layouts and products, whose devices follow from the sizes of the mesh axes.
const devices = {
  total: "devices",
  sizes: (form) => times(Number(form.axes), (i) => `size${i}`),
  wrong(form) {
    const mesh = meshOf(form);
    const devices = product(mesh.map(([, size]) => size));
    if (Object.keys(Object.fromEntries(mesh)).length < mesh.length) return "two axes have the same name";
    return devices > 64 && `this mesh has ${devices} devices; use up to 64`;
  },
  // The most even one first.
  meshes(form) {
    const all = factored(Number(form.devices), Number(form.axes)).sort((p, q) => Math.max(...p) - Math.max(...q));
    return all.map((sizes) => {
      const changed = { ...form, ...Object.fromEntries(sizes.map((size, i) => [`size${i}`, `${size}`])) };
      return { sizes, words: sizes.join(" × ") + this.remark(this.solve(changed)) };
    });
  },
};

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
const codeBox = (code) => folded("JAX code", false,
  h("pre", { tabindex: 0, role: "group", "aria-label": "JAX code" }, h("code", {}, code)));
const pictures = (...figures) => h("div", { class: "shardlab explorer-pictures" }, ...figures);
const refused = ({ words, jax }, ...nodes) => ({
  refused: true, nodes, words: jax ? `JAX refuses this. ${words} In its words: “… ${jax} …”` : `${words}.`,
});

// --- Which device holds which shard ---
const [DIM, AXES] = [["dim0", "dim1", "dim2"], ["axes0", "axes1", "axes2"]];
const layout = {
  keys: { mesh: meshKeys(3), shape: DIM, spec: AXES, dtype: ["dtype"], devices: ["devices"] },
  ...devices,
  solve: (form) => explorer.layout({ mesh: meshOf(form), shape: numbers(form, DIM.slice(0, form.dims)),
    spec: axesOf(form, AXES.slice(0, form.dims)), dtype: form.dtype }),
  remark: ({ error }) => (error ? ": JAX refuses this" : ""),
  show(form) {
    const [answer, spec] = [this.solve(form), axesOf(form, AXES.slice(0, form.dims))];
    if (answer.error) return refused(answer.error, codeBox(answer.code));
    const { devices, replicas, bytes_per_device: each } = answer;
    const held = devices.map(({ device, index, replica }) =>
      [`device ${device}`, indexText(index), `${replica + 1} of ${replicas}`, plain(each)]);
    const name = "What each device holds";
    const bytes = (n) => `${plain(n)} bytes`;
    return {
      answer,
      name: specText(spec),
      words: `${specText(spec)}: ${answer.summary}. All devices together hold ${plain(answer.total_bytes)} bytes; the ` +
        `array has ${plain(answer.nbytes)}.`,
      draw: () => pictures(drawLayout(answer)),
      numbers: {
        "bytes on a device": [each, bytes], "bytes on all devices": [answer.total_bytes, bytes],
        shards: [devices.length / replicas, plain], "replicas of each": [replicas, plain],
      },
      said: ["bytes on a device", "devices that hold another shard"],
      // Who would have to receive something, if the array were moved.
      others({ answer: before }) {
        if (`${before.shape}` !== `${answer.shape}` || before.devices.length !== devices.length) return null;
        const moved = devices.filter(({ index }, i) => `${index}` !== `${before.devices[i].index}`).length;
        return ["devices that hold another shard", "", "", moved ? `${moved} of ${devices.length}` : "same"];
      },
      nodes: [
        folded(name, devices.length <= 8, table(name, ["device", "slice", "replica", "bytes"], ...held)),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A product ---
const CASES = {
  1: "its contracting dimension J is not sharded", 2: "one operand is sharded along J", 3: "both operands are sharded along J",
  4: "the axis would shard both I and K",
};
const matmul = {
  keys: {
    mesh: meshKeys(2), sizes: ["I", "J", "K"], a: ["a0", "a1"], b: ["b0", "b1"], c: ["c0", "c1"],
    chip: ["chip"], dtype: ["dtype"], devices: ["devices"],
  },
  ...devices,
  solve(form) {
    const [a, b, c] = ["a", "b", "c"].map((of) => axesOf(form, this.keys[of]));
    return { a, b, c, ...explorer.matmul({ mesh: meshOf(form), sizes: numbers(form, this.keys.sizes), a, b, c,
      chip: form.chip, dtype: form.dtype }) };
  },
  remark: ({ error, seconds }) => (error ? ": not possible" : `: ${timeText(seconds)}`),
  show(form) {
    const [mesh, sizes, answer] = [meshOf(form), numbers(form, this.keys.sizes), this.solve(form)];
    if (answer.error) return refused(answer.error);
    const drawn = () => [["A", answer.a, 0, 1], ["B", answer.b, 1, 2], ["C", answer.c, 0, 2]].map(([name, spec, i, j]) =>
      drawLayout(explorer.layout({ mesh, shape: [sizes[i], sizes[j]], spec, dtype: explorer.data.bytes[form.dtype][1] }), name));
    const of = ({ kind, of, dim, axis }) => `${kind} of ${of}${dim && `'s ${dim}`} over ${axis}`;
    const sent = ({ steps }) => steps.filter((step) => step.seconds).map(of).join(", ") || "nothing";
    const why = Object.entries(answer.cases).map(([axis, number]) => ` Mesh axis ${axis} is case ${number}: ${CASES[number]}.`);
    const steps = answer.steps.map((step) => (step.kind === "product"
      ? [`product (${answer.m}, ${answer.k}) · (${answer.k}, ${answer.n})`, "0", timeText(answer.work_seconds)]
      : [of(step), plain(step.sent_bytes || 0), timeText(step.seconds || 0)]));
    const others = answer.plans.slice(1).map((plan) => [
      sent(plan), plain(plan.sent_bytes), timeText(plan.communication_seconds), timeText(plan.work_seconds),
    ]);
    const other = "Slower alternatives";
    return {
      name: `${form.chip}, ${mesh.map(([axis, size]) => `${axis} ${size}`).join(" × ")}: ${answer.bound}-bound`,
      words: `What is sent: ${sent(answer)}; ${plain(answer.sent_bytes)} bytes from each device, in ` +
        `${timeText(answer.communication_seconds)}. The product takes ${timeText(answer.work_seconds)}. With overlap, ` +
        `it takes ${timeText(answer.seconds)} in all and is ${answer.bound}-bound.${why.join("")}`,
      said: ["sent by a device", "with overlap"],
      tall: true, // its pictures
      draw: () => pictures(...drawn()),
      numbers: {
        "sent by a device": [answer.sent_bytes, bytesText], communication: [answer.communication_seconds, timeText],
        product: [answer.work_seconds, timeText], "with overlap": [answer.seconds, timeText],
      },
      nodes: [
        table("Steps", ["step", "bytes a device sends", "time"], ...steps),
        ...(others.length ? [folded(other, false, table(other, ["what is sent", "bytes", "communication", "product"], ...others))] : []),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A training step ---
const SIZES = ["layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab"];
const MESH = ["data", "fsdp", "tensor"];
const pick = (form, names) => Object.fromEntries(names.map((name) => [name, Number(form[name])]));
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

const fit = {
  keys: Object.fromEntries(["model", ...SIZES, "gated", "tied", "chip", "chips", "batch", "sequence", ...MESH, "remat", "reserve"]
    .map((name) => [name, [name]])),
  total: "chips",
  sizes: () => MESH,
  solve(form, mesh = pick(form, MESH)) {
    const own = { ...pick(form, SIZES), gated: form.gated === "yes", tied: form.tied === "yes" };
    const model = explorer.data.models[form.model] || own;
    return explorer.fit({ model, chip: form.chip, remat: form.remat, ...pick(form, ["batch", "sequence", "reserve"]), ...mesh });
  },
  // As shardlab.plan orders them; if it can be, those that share the sequences of a batch evenly.
  meshes(form) {
    const { chips, batch, sequence } = pick(form, ["chips", "batch", "sequence"]);
    const all = factored(chips, 3).reverse().map((sizes) => ({
      sizes, ...this.solve(form, Object.fromEntries(MESH.map((axis, i) => [axis, sizes[i]]))),
    })).filter(({ error }) => !error);
    const even = batch % sequence ? [] : all.filter(({ sizes }) => batch / sequence % (sizes[0] * sizes[1]) === 0);
    const key = (mesh) => [!mesh.fits, mesh.fits ? mesh.seconds : mesh.total_bytes, mesh.serial_seconds];
    const sorted = (even.length ? even : all).map((mesh) => [key(mesh), mesh]).sort(([p], [q]) =>
      p[0] - q[0] || p[1] - q[1] || p[2] - q[2]);
    return sorted.map(([, { sizes, fits, total_bytes: bytes }]) => ({
      sizes, fits, words: `${sizes.join(" × ")}: ${bytesText(bytes)}, ${fits ? "fits" : "does not fit"}`,
    }));
  },
  show(form, meshes = []) {
    const answer = this.solve(form);
    if (answer.error) return refused(answer.error);
    const { memory, total_bytes: total, hbm_bytes: has, fits } = answer;
    const usable = has * (1 - form.reserve / 100);
    const times = Object.entries(answer.parts).map(([part, seconds]) =>
      [part, bytesText(answer.sent_bytes[part] || 0), timeText(seconds)]);
    const fitting = meshes.filter((mesh) => mesh.fits).length;
    return {
      refused: !fits,
      name: `${form.model}, ${MESH.map((axis) => `${axis} ${form[axis]}`).join(" × ")}, ${form.chip}, ${plain(Number(form.batch))} tokens`,
      words: `A chip must hold ${bytesText(total)} and has ${bytesText(has)}, of which ${form.reserve} % are reserved: this ` +
        `${fits ? "fits" : `does not fit: ${bytesText(total - usable)} more than the reserve leaves`}. A step takes ` +
        `${timeText(answer.seconds)} if everything hides behind its longest part, ${answer.bound}, and ` +
        `${timeText(answer.serial_seconds)} without overlap. Its MFU is at most ${plain(100 * answer.mfu)} %. ` +
        `Of ${meshes.length} meshes of ${plain(Number(form.chips))} chips, ${fitting} fit.`,
      said: ["all on a chip", "a step"],
      extent: Math.max(total, has),
      draw: (most = Math.max(total, has), brief = false) => pictures(bar(memory, total, has, form.reserve, most, brief)),
      numbers: {
        chips: [Number(form.chips), plain],
        ...Object.fromEntries(Object.entries(memory).map(([kind, bytes]) => [kind, [bytes, bytesText]])),
        "all on a chip": [total, bytesText], "a step": [answer.seconds, timeText],
        "without overlap": [answer.serial_seconds, timeText], "longest part": [answer.bound, String],
        MFU: [answer.mfu, (share) => `${plain(100 * share)} %`],
      },
      nodes: [
        table("Time of a step", ["part", "sent by a chip", "time"], ...times),
        h("p", {}, `The model has ${plain(answer.parameters)} parameters.`),
      ],
    };
  },
};

Object.assign(explorer, { table, parts: { layout, matmul, fit } });
})(window.explorer);
