// The three parts: what the address calls their controls, what is asked of the formulas, and how the answer is shown.
(function (explorer) {
"use strict";
const { count, drawLayout, figure, h, indexText, ink, PALETTE, product, specText, text, times } = explorer;
const parts = {};

// --- Reading ---
const meshKeys = (most) => times(most, (i) => [`name${i}`, `size${i}`]).flat();
const mesh = (form) => times(Number(form.axes), (i) => [form[`name${i}`], Number(form[`size${i}`])]);
const cut = (form, name) => (form[name] === "-" ? [] : form[name].split("."));
function wrongMesh(form) {
  const [names, sizes] = [mesh(form).map(([name]) => name), mesh(form).map(([, size]) => size)];
  const twice = names.find((name, i) => names.indexOf(name) < i);
  if (twice) return `Two axes are called ${twice}; give each a name of its own.`;
  return product(sizes) > 64 && `This mesh has ${product(sizes)} devices; the explorer draws up to 64.`;
}

// --- Showing ---
const plain = (n) => n.toLocaleString("en-US", { maximumFractionDigits: 1 });
const scaled = (n, units) => {
  const [size, unit] = units.find(([least]) => n >= least) || units.at(-1);
  return `${Number((n / size).toPrecision(3)).toLocaleString("en-US")} ${unit}`;
};
const bytesText = (n) => scaled(n, [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "bytes"]]);
const secondsText = (n) => (n ? scaled(n, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]]) : "0");

function table(caption, head, rows, numbers = 0) {
  const cells = (row, tag) => row.map((cell, i) => h(i ? tag : "th", {
    scope: tag === "th" ? "col" : i ? null : "row", class: i >= row.length - numbers ? "explorer-number" : null,
  }, ...[cell].flat()));
  return h("div", { class: "explorer-table", role: "region", "aria-label": caption, tabindex: 0 }, h("table", {},
    h("caption", {}, caption), h("thead", {}, h("tr", {}, ...cells(head, "th"))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...cells(row, "td"))))));
}
const folded = (name, open, inside) => h("details", { open, "data-name": name }, h("summary", {}, name), inside);
const codeBox = (code) => folded("JAX code", true,
  h("pre", { tabindex: 0, role: "region", "aria-label": "JAX code" }, h("code", {}, code)));
const pictures = (...figures) => h("div", { class: "shardlab explorer-pictures" }, ...figures);
const refused = ({ words, jax }, ...nodes) => ({
  refused: true, nodes,
  words: jax ? `JAX refuses this. ${words} In its words: “… ${jax} …”` : `${words}.`,
});

// --- Which device holds what ---
parts.layout = {
  keys: {
    mesh: meshKeys(3), shape: ["dim0", "dim1", "dim2"], spec: ["cut0", "cut1", "cut2"], dtype: ["dtype"],
  },
  wrong: wrongMesh,
  show(form) {
    const dims = times(Number(form.dims), (i) => i);
    const [shape, spec] = [dims.map((i) => Number(form[`dim${i}`])), dims.map((i) => cut(form, `cut${i}`))];
    const answer = explorer.layout({ mesh: mesh(form), shape, spec, dtype: form.dtype });
    if (answer.error) return refused(answer.error, codeBox(answer.code));
    const { devices, copies } = answer;
    const held = devices.map(({ device, index, copy }) => [
      `device ${device}`, h("code", {}, indexText(index)), `${copy + 1} of ${copies}`, plain(answer.bytes_per_device),
    ]);
    const name = "What each device holds";
    return {
      words: `${specText(spec)}: ${answer.summary}. The array has ${count(answer.nbytes, "byte")}; all devices ` +
        `together hold ${plain(answer.total_bytes)}.`,
      nodes: [
        pictures(drawLayout(answer)),
        folded(name, devices.length <= 8, table(name, ["device", "slice", "copy", "bytes"], held, 1)),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A product of matrices ---
const CASES = {
  1: "J is not cut",
  2: "both are cut along J",
  3: "one is cut along J, the other is not",
  4: "it would cut both dimensions of the result",
};
parts.matmul = {
  keys: {
    mesh: meshKeys(2), sizes: ["I", "J", "K"], a: ["a0", "a1"], b: ["b0", "b1"], c: ["c0", "c1"], chip: ["chip"],
    dtype: ["dtype"],
  },
  wrong: wrongMesh,
  show(form) {
    const { chip, dtype } = form;
    const [a, b, c] = ["a", "b", "c"].map((of) => [cut(form, `${of}0`), cut(form, `${of}1`)]);
    const [I, J, K] = ["I", "J", "K"].map((dim) => Number(form[dim]));
    const answer = explorer.matmul({ mesh: mesh(form), sizes: [I, J, K], a, b, c, chip, dtype });
    if (answer.error) return refused(answer.error);
    const drawn = [["A", [I, J], a], ["B", [J, K], b], ["C", [I, K], c]].map(([name, shape, spec]) =>
      drawLayout(explorer.layout({ mesh: mesh(form), shape, spec, dtype: explorer.data.bytes[dtype][1] }), name));
    const sent = ({ collectives }) => collectives.map(([kind, axis]) => `${kind} along ${axis}`).join(", ") || "nothing";
    const why = Object.entries(answer.cases).map(([axis, number]) => `Along ${axis}, case ${number}: ${CASES[number]}. `);
    const rows = answer.steps.map((step) => {
      const { kind, of, dim, axis } = step;
      if (kind === "product") {
        return [`product (${answer.m}, ${answer.k}) · (${answer.k}, ${answer.n})`, "–", secondsText(answer.work_seconds)];
      }
      const what = `${kind === "slice" ? "own part" : kind} of ${of}${dim && `, ${dim}`}, along ${axis}`;
      return step.seconds === undefined ? [what, "0", "0"] : [what, plain(step.sent_bytes), secondsText(step.seconds)];
    });
    const others = answer.plans.slice(1).map((plan) => [
      sent(plan), plain(plan.sent_bytes), secondsText(plan.message_seconds), secondsText(plan.work_seconds),
    ]);
    return {
      words: `${why.join("")}What is sent: ${sent(answer)}. That is ${plain(answer.sent_bytes)} bytes from each device, in ` +
        `${secondsText(answer.message_seconds)}; the product takes ${secondsText(answer.work_seconds)}. Bound by ` +
        `${answer.bound}: ${secondsText(answer.seconds)}, if messages run beside the work.`,
      nodes: [
        pictures(...drawn),
        table("Steps", ["step", "bytes a device sends", "time"], rows, 2),
        ...(others.length ? [folded("Slower ways", false, table("Slower ways",
          ["what is sent", "bytes a device sends", "messages", "product"], others, 3))] : []),
        codeBox(answer.code),
      ],
    };
  },
};

// --- A training step ---
const OWN = "own";
const SIZES = ["layers", "d_model", "d_ff", "heads", "kv_heads", "head_dim", "vocab"];
const FIT = [...SIZES, "model", "gated", "tied", "chip", "chips", "batch", "sequence", "data", "fsdp", "tensor", "remat"];
const PARTS = { compute: "compute", hbm: "memory traffic", data: "data", fsdp: "fsdp", tensor: "tensor" };

// The memory of a chip as one bar, with the chip's own as a frame.
function bar({ memory, total_bytes: total, hbm_bytes: has }) {
  const [width, tall] = [300, 34];
  const px = (bytes) => Number((bytes / Math.max(total, has) * width).toFixed(1));
  let left = 0;
  const shapes = Object.entries(memory).map(([kind, bytes], i) => {
    const [x, w, fill] = [left, px(bytes), PALETTE[i]];
    left = Number((left + w).toFixed(1));
    return h("g", {}, h("rect", { x, y: 16, width: w, height: tall, fill, stroke: "currentColor" }),
      ...(w > 14 ? [text(x + w / 2, 38, i + 1, { size: 13, fill: ink(fill) })] : []),
      h("title", {}, `${kind}: ${bytesText(bytes)}`));
  });
  const end = px(has);
  shapes.push(h("path", { d: `M${end} 10v46`, stroke: "currentColor", "stroke-width": 3 }),
    text(Math.min(end, width), 8, `memory of the chip: ${bytesText(has)}`, { size: 12, anchor: "end" }));
  const parts = Object.entries(memory).map(([kind, bytes]) => `${kind} ${bytesText(bytes)}`);
  return figure(shapes, width, 56, `${bytesText(total)} of ${bytesText(has)} on each chip`, `${parts.join("; ")}.`,
    `${bytesText(total)} on each chip`);
}

parts.fit = {
  keys: Object.fromEntries(FIT.map((name) => [name, [name]])),
  show(form) {
    const model = form.model === OWN ? { gated: form.gated === "yes", tied: form.tied === "yes" }
      : explorer.data.models[form.model];
    if (form.model === OWN) for (const size of SIZES) model[size] = Number(form[size]);
    const given = { model, chip: form.chip, remat: form.remat };
    for (const key of ["chips", "batch", "sequence", "data", "fsdp", "tensor"]) given[key] = Number(form[key]);
    const answer = explorer.fit(given);
    if (answer.error) return refused(answer.error);
    const memory = Object.entries(answer.memory).map(([kind, bytes], i) => [`${i + 1} ${kind}`, bytesText(bytes)]);
    const times = Object.entries(answer.parts).map(([part, seconds]) => [
      PARTS[part], answer.sent_bytes[part] === undefined ? "–" : bytesText(answer.sent_bytes[part]), secondsText(seconds),
    ]);
    return {
      refused: !answer.fits,
      words: `${plain(answer.parameters / 1e6)} million parameters. Each chip holds ${bytesText(answer.total_bytes)} of its ` +
        `${bytesText(answer.hbm_bytes)}: this ${answer.fits ? "fits" : "does not fit"}. A step takes ` +
        `${secondsText(answer.seconds)}, bound by ${PARTS[answer.bound]}, if all else hides behind that, and ` +
        `${secondsText(answer.serial_seconds)} if nothing does; at best it uses ${plain(100 * answer.mfu)} % of the peak.`,
      nodes: [
        pictures(bar(answer)),
        table("Memory of each chip", ["kind", "bytes"], [...memory, ["all", bytesText(answer.total_bytes)]], 1),
        table("Time of a step", ["part", "sent by a chip", "time"], times, 2),
      ],
    };
  },
};

Object.assign(explorer, { parts });
})(window.explorer);
