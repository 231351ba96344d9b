// The explorer's three calculators: what the address calls their controls, which meshes they offer, how they show answers.
(function (explorer) {
"use strict";
const { AXES: ALL, bar, bytesText, codeBox, divisors, drawLayout, folded, h, indexText, meshText, pictures, plain, product,
  share, specText, table, timeText, times } = explorer;

// --- Reading ---
const meshKeys = (most) => times(most, (i) => [`name${i}`, `size${i}`]).flat();
const meshOf = (form) => times(Number(form.axes), (i) => [form[`name${i}`], Number(form[`size${i}`])]);
const numbers = (form, names) => names.map((name) => Number(form[name]));
const axesOf = (form, names) => names.map((name) => (form[name] === "-" ? [] : form[name].split(".")));

// --- Meshes of so many devices ---
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
  // Let each dimension choose among the axes that there are.
  axes(form) {
    for (const select of form.querySelectorAll("[data-axes]")) {
      const orders = [[]];
      for (const order of orders) {
        for (let i = 0; i < form.elements.axes.value && order.length < select.dataset.axes; i++) {
          const { value } = form.elements[`name${i}`];
          if (!order.includes(value)) orders.push([...order, value]);
        }
      }
      const { value, selectedIndex, length } = select;
      select.replaceChildren(...orders.map((names) => h("option", { value: names.join(".") || "-" },
        names.length > 1 ? `(${names.join(", ")})` : names[0] ?? "no axis")));
      if (length === orders.length) select.selectedIndex = selectedIndex; // its axis may have another name now
      else select.value = value;
      if (!select.value) select.selectedIndex = 0;
    }
  },
  offer(form, sizes, offered) {
    const [select, now] = [form.querySelector("[data-meshes]"), sizes.map((name) => form.elements[name].value)];
    const option = ({ sizes: mesh, words }) => h("option", { value: mesh.join("x") }, words);
    const others = offered.some(({ sizes: mesh }) => `${mesh}` === `${now}`) ? [] : [{ sizes: now, words: now.join(" × ") }];
    select.replaceChildren(...[...others, ...offered].map(option));
    select.value = now.join("x");
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
const pick = (form, names) => Object.fromEntries(names.map((name) => [name, Number(form[name])]));
const HOW = ["microbatches", "stages", "gathers"];
const STEP_AXES = ALL.filter((axis) => axis !== "expert");

const fit = {
  keys: Object.fromEntries(["model", ...SIZES, "gated", "tied", "chip", "chips", "slices", "batch", "sequence", ...STEP_AXES,
    ...HOW, "remat", "reserve"].map((name) => [name, [name]])),
  total: "chips",
  sizes: () => STEP_AXES,
  given(form) {
    const own = { ...pick(form, SIZES), gated: form.gated === "yes", tied: form.tied === "yes" };
    return { model: explorer.data.models[form.model] || own, chip: form.chip, remat: form.remat,
      ...pick(form, ["chips", "slices", "batch", "sequence", "reserve", ...HOW, ...STEP_AXES]) };
  },
  solve(form) {
    return explorer.fit(this.given(form));
  },
  wrong(form) {
    const { chip, chips, slices } = this.given(form);
    return Number.isInteger(chips) && chips > 0 && chips <= explorer.data.most.chips &&
      explorer.machine(chip, chips, slices).error?.words;
  },
  meshes: ({ chips }) => [{ sizes: STEP_AXES.map((axis) => (axis === "fsdp" ? chips : 1)) }], // of so many chips
  show(form) {
    const [answer, asked] = [this.solve(form), this.given(form)];
    const has = explorer.data.chips[form.chip].hbm_bytes;
    const usable = has * (1 - form.reserve / 100);
    const asks = ["model", ...(asked.model === explorer.data.models[form.model] ? [] : [...SIZES, "gated", "tied"]), "chip",
      "chips", ...(explorer.data.chips[form.chip].torus.length ? ["slices"] : []), "batch", "sequence", "remat", "reserve"];
    const ranked = h("p", {}, h("a", { href: `planner.html#planner?${asks.map((name) => `${name}=${form[name]}`).join("&")}` },
      "All meshes for this model and machine"), ", ranked by the planner.");
    if (answer.error) return refused(answer.error, ranked);
    const { memory, total_bytes: total, fits, expected_seconds: expected, exposed_seconds: exposed, bubble } = answer;
    const used = ([part]) => asked[part] !== 1 && (part !== "host" || answer.moved_bytes.host);
    const rows = Object.entries(answer.parts).filter(used).map(([part, seconds]) =>
      [part, bytesText(answer.moved_bytes[part] || 0), timeText(seconds), part in answer.exposed ? timeText(answer.exposed[part]) : ""]);
    const there = answer.host_bytes ? ` The host needs ${bytesText(answer.host_bytes)} of memory for each of its chips.` : "";
    const waits = bubble ? ` The pipeline waits ${share(bubble)} of the time that it works.` : "";
    return {
      refused: !fits,
      name: `${form.model}, ${meshText(asked, asked)}, ${form.chip}, ${plain(asked.batch)} tokens`,
      words: `${fits ? "This fits" : "This does not fit"}: a chip must hold ${bytesText(total)} of ${bytesText(has)}, ` +
        `${fits ? `with ${form.reserve} % reserved` : `${bytesText(total - usable)} more than a reserve of ${form.reserve} % leaves`}. ` +
        `Expect ${timeText(expected)} for a step, and at least ${timeText(answer.seconds)}: its longest part is ${answer.bound}.` +
        `${waits}${there}`,
      said: ["all on a chip", "expected"],
      extent: Math.max(total, has),
      draw: (most = Math.max(total, has), brief = false) => pictures(bar(memory, total, has, form.reserve, most, brief)),
      numbers: {
        chips: [asked.chips, plain],
        ...Object.fromEntries(Object.entries(memory).map(([kind, bytes]) => [kind, [bytes, bytesText]])),
        "all on a chip": [total, bytesText], expected: [expected, timeText], "at least": [answer.seconds, timeText],
        "without overlap": [answer.serial_seconds, timeText], "communication not hidden": [exposed, timeText],
        "longest part": [answer.bound, String], MFU: [answer.expected_mfu, share],
      },
      nodes: [
        ranked,
        folded("Time of a step, by part", false,
          table("Time of a step", ["part", "sent by a chip", "time", "not hidden"], ...rows,
            ["without overlap", "", timeText(answer.serial_seconds), timeText(exposed)])),
        codeBox(explorer.planCode(asked.model, asked, asked)),
        h("p", {}, `The model has ${plain(answer.parameters)} parameters. The MFU to expect is ${share(answer.expected_mfu)}.`),
      ],
    };
  },
};

explorer.parts = { layout, matmul, fit };
})(window.explorer);
