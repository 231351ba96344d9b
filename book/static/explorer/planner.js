// The page of the planner: controls, answer, tables, plots.
(function (explorer) {
"use strict";
const { bar, bytesText, codeBox, figure, folded, fromConfig, g, gigabytes, h, isFrozen, meshText, pictures, plain, planCode, rect,
  share, sizesOf, table, text, timeText } = explorer;
const ALL = ("layers d_model d_ff heads kv_heads head_dim vocab experts experts_per_token shared_experts expert_d_ff dense_layers " +
  "kv_rank q_rank rope_dim window local_layers").split(" "); // the sizes of a model
const STATE = { parameters: "bf16", gradients: "bf16", moments: "f32", master: "none" };
const KEYS = [...("use model chip chips slices batch sequence remat tokens products overlap dispatch lora adapted parameters gradients moments master prompt " +
  "output latency first weights cache reserve choice gated tied").split(" "), ...ALL];
const isTpu = (chip) => explorer.data.chips[chip].torus.length > 0;
const digits = (n, many = 3) => plain(Number(n.toPrecision(many)));
const signed = (n) => (n >= 1e12 ? `${digits(n / 1e12)} trillion` : n >= 1e9 ? `${digits(n / 1e9)} billion` : `${digits(n / 1e6)} million`);
const count = (n) => (n < 10 ? digits(n) : plain(Math.round(n)));

// --- Reading ---
function given(form) {
  const number = (names) => names.map((name) => [name, Number(form[name])]);
  const own = { ...Object.fromEntries(number(ALL)), gated: form.gated === "yes", tied: form.tied === "yes" };
  const chosen = (names) => names.map((name) => [name, form[name]]);
  return {
    model: explorer.data.models[form.model] || own, chip: form.chip,
    ...(explorer.data.models[form.model] ? { name: form.model } : {}),
    ...Object.fromEntries(number(["chips", "reserve"])),
    ...Object.fromEntries(form.use === "serve" ? [...number(["prompt", "output", "latency", "first"]), ...chosen(["weights", "cache"])]
      : [...number(["batch", "sequence", "lora"]), ...chosen(["remat", "products", "dispatch", "adapted", ...Object.keys(STATE)]),
      ["overlap", (form.overlap || "").split(",").filter((axis) => axis)]]),
    slices: isTpu(form.chip) && form.use !== "serve" ? Number(form.slices) : 1,
  };
}

// The command that answers the same.
function command(form) {
  const sizes = ALL.filter((name) => Number(form[name])).map((name) => `${name}=${form[name]}`);
  const plainOwn = form.gated === "yes" && form.tied === "no";
  const model = explorer.data.models[form.model] ? form.model : plainOwn ? sizes.join() : "config.json";
  const option = (name, value, usual) => (value === usual ? "" : ` --${name} ${value}`);
  const reserve = option("reserve", form.reserve, "10").replace(/\d+$/, (n) => n / 100);
  const words = `shardlab plan ${model} ${form.chip}`;
  if (form.use === "serve") {
    return `${words} ${form.chips} --serve --prompt ${form.prompt} --output ${form.output}` +
      `${option("latency", form.latency, "")}${option("first-token", form.first, "")}${option("weights", form.weights, "bf16")}` +
      `${option("cache", form.cache, "bf16")}${reserve}`;
  }
  return `${words} ${form.chips} --batch-tokens ${form.batch} --sequence ${form.sequence}` +
    `${isTpu(form.chip) ? option("slices", form.slices, "1") : ""}${option("remat", form.remat, "")}` +
    `${option("products", form.products, "bf16")}${option("overlap", form.overlap.replace(",", " "), "")}${option("dispatch", form.dispatch, "expert")}${option("lora", form.lora, "0")}` +
    `${Number(form.lora) ? option("adapted", form.adapted, "all") : ""}` +
    `${Object.entries(STATE).map(([name, usual]) => option(name, form[name], usual)).join("")}${reserve}`;
}

// --- Where it is computed ---
// A question is the name of a function and its arguments. A Worker computes them, so that the page answers meanwhile; where
// a browser allows none, such as by a policy, the page computes them itself.
const answers = new Map(); // the last few
const pending = new Map(); // how each question that the Worker has is told that it is answered
let worker = null, works = typeof Worker === "function";
const keyOf = (question) => JSON.stringify(question);
function keep(key, answer) {
  if (answers.size > 64) answers.clear();
  answers.set(key, answer);
}
function answerTo(question) {
  const [name, ...given] = question;
  const key = keyOf(question);
  if (!answers.has(key)) keep(key, explorer[name](...given));
  return answers.get(key);
}
function hire() {
  const source = `const explorer = {};${explorer.pure.map((part) => `(${part})(explorer);`).join("")}
addEventListener("message", ({ data: [key, data] }) => {
  if (data) explorer.data = data;
  else { const [name, ...given] = JSON.parse(key); postMessage([key, explorer[name](...given)]); }
});`;
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  worker = new Worker(address);
  worker.addEventListener("message", ({ data: [key, answer] }) => {
    keep(key, answer);
    pending.get(key)?.done();
    pending.delete(key);
  });
  worker.addEventListener("error", () => { // the page computes what it has not
    works = false;
    for (const { done } of pending.values()) done();
    pending.clear();
  });
  worker.postMessage(["", explorer.data]);
}
// A promise of the answer to a question; nothing if it is known, or the page has to compute it. A question that is `first`
// does not wait for those that were asked before.
function prepared(question, first) {
  const key = keyOf(question);
  if (!works || answers.has(key)) return null;
  if (pending.has(key)) return pending.get(key).promise;
  try {
    if (first && pending.size) {
      worker.terminate();
      worker = null;
      pending.clear();
    }
    if (!worker) hire();
  } catch {
    works = false;
    return null;
  }
  let done;
  const promise = new Promise((resolve) => { done = resolve; });
  pending.set(key, { promise, done });
  worker.postMessage([key]);
  return promise;
}

// --- What no run tests ---
// The lines of shardlab.plan about its first mesh.
function beyond(choice, { model, chip, sequence, products = "bf16" }) {
  const [kind, tested] = isTpu(chip) ? ["TPUs", explorer.data.tested.tpu] : ["GPUs", explorer.data.tested.gpu];
  const most = (n) => ` (at most ${plain(n)})`;
  const axes = explorer.data.order.filter((axis) => choice.mesh[axis] > Math.max(tested.axes[axis], 1));
  const missing = axes.map((axis) => `${axis} over ${plain(choice.mesh[axis])}${tested.axes[axis] > 1 ? most(tested.axes[axis]) : ""}`);
  if (sequence > tested.sequence) missing.push(`sequences of ${plain(sequence)} tokens${most(tested.sequence)}`);
  if (!tested.products.includes(products)) missing.push(`${products} products`);
  if (!tested.chips.includes(chip)) missing.push(`the ${chip}`);
  return missing.length ? [`No published run on ${kind} tests ${missing.join("; ")}.`] : [];
}

function bandOf({ mesh }, { model, chip, sequence, products = "bf16", lora = 0, parameters }) {
  const { bands, fitted, most, order } = explorer.data;
  const family = isTpu(chip) ? "tpu" : "gpu";
  const axes = order.filter((axis) => mesh[axis] > 1);
  const untested = !Object.keys(fitted[family].products).some((name) => chip.startsWith(name));
  const has = {
    quantised: lora > 0 && isFrozen(parameters), "adapted mixture": lora > 0 && model.experts > 0, adapters: lora > 0 && !untested, "narrow mixture": model.experts > 0 && products !== "bf16", mixture: model.experts > 0, long: !lora && (axes.includes("context") || sequence >= most.long),
    narrow: !lora && products !== "bf16", chip: untested,
    pipeline: axes.includes("pipeline") && axes.length > 2, dense: true,
  };
  const kind = Object.keys(has).find((name) => has[name]);
  return { kind, ...bands[family][kind] };
}

// --- Showing ---
const marks = (lines) => (lines.length ? [h("p", { class: "planner-beyond" }, h("strong", {}, "Extrapolated. "), lines.join(" "))] : []);
function tiles(numbers) {
  return h("dl", { class: "planner-tiles" }, ...Object.entries(numbers).map(([name, [value, more, bad]]) => h("div",
    bad ? { class: "planner-bad" } : {}, h("dt", {}, name), h("dd", {}, value, more ? h("small", {}, more) : []))));
}
const commandBox = (words) => [h("p", { class: "planner-command" }, "The same in a terminal:"),
  h("pre", { tabindex: 0, role: "group", "aria-label": "Command" }, h("code", {}, words))];
const answered = (...nodes) => h("div", { class: "planner-answer" }, ...nodes);
const fitMark = (fits) => h("span", { class: fits ? "planner-fits" : "planner-bad" }, fits ? "✓ fits" : "✗ too much");
const range = (n, spread, write) => `${write(n / spread)} to ${write(n * spread)}`;

// A line through points [x, y, whether it fits], over x that doubles, the range of y in grey.
function plot(name, of, points, spread, write, wide) {
  const [width, height, left, low] = [300, 150, 46, 118];
  const [xs, ys] = [points.map(([x]) => Math.log2(x)), points.map(([, y]) => y)];
  const most = Math.max(...ys) * (spread || 1) * 1.05;
  const x = (n) => left + (Math.log2(n) - xs[0]) / (xs[xs.length - 1] - xs[0] || 1) * (width - left - 14);
  const y = (n) => low - n / most * (low - 8);
  const path = (all) => all.map(([n, value], i) => `${i ? "L" : "M"}${g(x(n))} ${g(y(value))}`).join("");
  const area = path(points.map(([n, value]) => [n, value * spread])) +
    path(points.map(([n, value]) => [n, value / spread]).reverse()).replace("M", "L") + "Z";
  const shapes = [h("path", { d: `M${left} 8V${low}H${width}`, fill: "none", stroke: "currentColor" })];
  if (spread > 1) shapes.push(h("path", { d: area, fill: "currentColor", "fill-opacity": 0.14 }));
  shapes.push(h("path", { d: path(points), fill: "none", style: "stroke:var(--device-0,#0072b2)", "stroke-width": 2 }));
  const say = ([n, value, fits]) => `${wide(n)}: ${write(value)}${fits ? "" : ", does not fit"}`;
  points.forEach((point) => {
    const [n, value, fits, now] = point;
    const dot = rect(x(n) - 4, y(value) - 4, 8, 8, fits ? "var(--device-0,#0072b2)" : "none");
    dot.append(h("title", {}, say(point)));
    shapes.push(dot);
    if (now) shapes.push(h("path", { d: `M${g(x(n))} ${low}V${g(y(value) + 5)}`, stroke: "currentColor", "stroke-dasharray": "3 3" }));
  });
  points.forEach(([n], i) => {
    if (i % 2 === (points.length - 1) % 2) shapes.push(text(x(n), low + 14, wide(n), 11));
  });
  for (const part of [0, 0.5, 1]) {
    shapes.push(text(left - 4, y(part * most / 1.05) + 4, write(part * most / 1.05), 11, { "text-anchor": "end" }));
  }
  shapes.push(text((left + width) / 2, height - 2, of, 11));
  return figure(shapes, width, height, `${name} against ${of}`, points.map(say).join("; "), h("strong", {}, name));
}
const seconds = (n) => (n ? timeText(n) : "0");
const short = (n) => (n >= 2 ** 20 ? `${digits(n / 2 ** 20)}M` : n >= 1024 ? `${digits(n / 1024)}k` : `${n}`);
const atoms = (n) => (n >= 1000 ? `${digits(n / 1000)}k` : digits(n));

// --- Training ---
const named = ({ mesh }) => explorer.data.order.filter((axis) => mesh[axis] > 1).map((axis) => `${axis}-${mesh[axis]}`).join(".") ||
  "data-1";

// Tokens per second and chip, and days for so many tokens.
const rates = (asked, seconds, tokens) => ({ speed: asked.batch / seconds / asked.chips, days: tokens / (asked.batch / seconds) / 86400 });

// Both lines, once in sight, a batch after the other; on paper at once.
let turn = 0, watching, onPaper;
function against(box, asked, spread) {
  const mine = ++turn;
  const questions = [-3, -2, -1, 0, 1, 2, 3].map((n) => asked.batch * 2 ** n)
    .filter((batch) => batch % asked.sequence === 0 && batch <= 1e9)
    .map((batch) => ["plan", { ...asked, batch }, batch === asked.batch]);
  const draw = () => {
    if (!box.isConnected) return;
    const best = questions.map((question) => [question[1].batch, answerTo(question).choices?.[0]]).filter(([, one]) => one);
    const points = (of) => best.map(([n, one]) => [n, of(n, one.expected_seconds), one.fits, n === asked.batch]);
    if (best.length < 2) return;
    box.replaceChildren(
      plot("Tokens per second on each chip", "tokens in a batch", points((n, seconds) => n / seconds / asked.chips), spread, atoms, short),
      plot("Time of a step", "tokens in a batch", points((n, seconds) => seconds), spread, seconds, short));
  };
  const prepare = async () => {
    for (const question of questions) {
      await (prepared(question) ?? new Promise((resolve) => { (window.requestIdleCallback ?? setTimeout)(resolve); }));
      if (mine !== turn) return;
      answerTo(question);
    }
    draw();
  };
  watching?.disconnect();
  watching = new IntersectionObserver((marks) => {
    if (!marks.at(-1).isIntersecting) return;
    watching.disconnect();
    prepare();
  }, { rootMargin: "200px" });
  watching.observe(box);
  if (onPaper) removeEventListener("beforeprint", onPaper);
  onPaper = draw;
  addEventListener("beforeprint", onPaper);
}

function train(form) {
  const asked = given(form);
  const { choices, error, fitting, remedies, uneven } = answerTo(["plan", asked, true]);
  if (error) return { refused: true, words: `${error.words}.`, nodes: commandBox(command(form)) };
  const { model, chip, batch } = asked;
  const of = explorer.data.chips[chip];
  const usable = of.hbm_bytes * (1 - asked.reserve / 100);
  const at = form.choice ? choices.findIndex((choice) => named(choice) === form.choice) : 0;
  const shown = choices[Math.max(at, 0)];
  const [step, { parameters, active }] = [shown.expected_seconds, sizesOf(model)];
  const [tokens, twenty] = [form.tokens * 1e9, 20 * active];
  const { speed, days } = rates(asked, step, tokens);
  const [lines, { factor: spread, words: says }] = [beyond(shown, asked), bandOf(shown, asked)];
  const band = (n, write) => (spread ? `${lines.length ? "untested: " : ""}${range(n, spread, write)}` : "no range is known");
  const helps = remedies.map(([what, best]) => `${what}: ${gigabytes(best.total_bytes)}, ${timeText(best.expected_seconds)} on ` +
    meshText(best.mesh, best));
  const none = helps.length ? `What would fit: ${helps.join("; ")}.` : "Neither up to sixteen times the chips nor more rematerialisation fits.";
  const words = `${at < 0 ? `“${form.choice}” is no mesh of this plan; here is the first. ` : ""}` + (fitting
    ? `${at > 0 ? "Mesh" : "Best mesh"}: ${meshText(shown.mesh, shown)}. Expect ${timeText(step)} for a step` +
      `${shown.fits ? "" : ", but it does not fit"}.` : `No mesh fits. ${none}`);
  const order = [...new Set([...choices.slice(0, 10).keys(), Math.max(at, 0)])];
  const rows = order.map((i) => {
    const choice = choices[i];
    const button = h("button", { type: "button", "data-choose": named(choice), "aria-pressed": `${choice === shown}` },
      `${i + 1}. ${meshText(choice.mesh, choice)}`);
    return [fitMark(choice.fits), [button, h("small", {}, explorer.why(choice, choices[0], usable))], timeText(choice.expected_seconds),
      count(rates(asked, choice.expected_seconds, 0).speed), share(choice.expected_mfu),
      `${(choice.total_bytes / 1e9).toFixed(1)} GB`, timeText(choice.seconds),
      share(choice.exposed_seconds / choice.expected_seconds), choice.bound];
  });
  const used = ([part]) => shown.mesh[part] !== 1 && (part !== "host" || shown.moved_bytes.host);
  const parts = Object.entries(shown.parts).filter(used).map(([part, seconds]) =>
    [part, bytesText(shown.moved_bytes[part] || 0), timeText(seconds), part in shown.exposed ? timeText(shown.exposed[part]) : ""]);
  const plots = h("div", { class: "shardlab explorer-pictures planner-plots" });
  against(plots, asked, spread);
  const most = Math.max(shown.total_bytes, of.hbm_bytes);
  return {
    refused: !shown.fits, words,
    answer: { choice: shown, speed, days, twenty, lines, mfu: shown.expected_mfu },
    nodes: [
      answered(tiles({
        Step: [timeText(step), band(step, timeText)],
        "Tokens/s per chip": [count(speed), band(speed, count)],
        MFU: [share(shown.expected_mfu), `${asked.products === "bf16" ? "of the bf16 peak" : `of the ${asked.products} peak`}`],
        Memory: [`${(shown.total_bytes / 1e9).toFixed(1)} of ${digits(of.hbm_bytes / 1e9)} GB`,
          shown.fits ? `✓ fits, ${asked.reserve} % reserved` : `✗ ${gigabytes(shown.total_bytes - usable)} too much`, !shown.fits],
        [`Days for ${signed(tokens)} tokens`]: [count(days), band(days, count)],
        [`Days for ${signed(twenty)}`]: [count(rates(asked, step, twenty).days), `20 for each ${model.experts ? "active " : ""}parameter`],
      }), h("p", { class: "planner-range" }, says), ...marks(lines),
      ...commandBox(command(form))),
      h("h2", {}, "Meshes, ranked"),
      h("p", {}, `Of ${choices.length} meshes that share the sequences evenly, ${fitting} fit` +
        `${uneven ? `; ${uneven} more cannot share them` : ""}. Choose one to see it.`),
      h("div", { class: "planner-table" }, table("Meshes, ranked", ["fits", "mesh", "expected", "tokens/s per chip", "MFU", "memory",
        "at least", "exposed", "bound by"], ...rows)),
      h("h2", {}, "Speed and latency against the batch"),
      h("p", {}, `The best mesh for each batch. An empty mark does not fit${spread ? "; the grey band is the range" : ""}.`),
      plots,
      h("h2", {}, "The chosen mesh"),
      pictures(bar(shown.memory, shown.total_bytes, of.hbm_bytes, asked.reserve, most)),
      folded("Time of a step, by part", false, table("Time of a step", ["part", "sent by a chip", "time", "not hidden"], ...parts,
        ["without overlap", "", timeText(shown.serial_seconds), timeText(shown.exposed_seconds)])),
      codeBox(planCode(model, shown.mesh, shown)),
      h("p", {}, `The model has ${plain(parameters)} parameters${active < parameters ? `, of which a token uses ${plain(active)}` : ""}.` +
        `${shown.host_bytes ? ` The host needs ${bytesText(shown.host_bytes)} of memory for each of its chips.` : ""}` +
        `${shown.bubble ? ` The pipeline waits ${share(shown.bubble)} of the time that it works.` : ""}`),
    ],
  };
}

// --- Serving ---
const AXES = ["pipeline", "expert", "tensor"];
const namedLayout = (layout) => AXES.map((axis) => `${axis}-${layout[axis]}`).join(".");
function layoutText(layout) {
  const one = AXES.filter((axis) => layout[axis] > 1).map((axis) => `${axis} ${layout[axis]}`).join(" × ") || "one chip";
  return layout.replicas > 1 ? `${plain(layout.replicas)} replicas of ${one}` : one;
}
function serve(form) {
  const asked = given(form);
  const { layouts, error, usable } = answerTo(["serve", asked]);
  if (error) return { refused: true, words: `${error.words}.`, nodes: commandBox(command(form)) };
  const has = explorer.data.chips[asked.chip].hbm_bytes;
  const at = form.choice ? layouts.findIndex((one) => namedLayout(one) === form.choice) : 0;
  const layout = layouts[Math.max(at, 0)];
  const { best, points, bands } = layout;
  const band = (of, n, write) => (of ? range(n, of.factor, write) : "no range is known");
  const firstText = ({ sequences, expected: { first, burst } }) => timeText(first) + (sequences > 1 ? ` to ${timeText(burst)}` : "");
  const firstBand = ({ first, burst }, of) => (of ? `${timeText(first / of.factor)} to ${timeText(burst * of.factor)}` : band());
  const said = (of) => (of ? of.words : "no range is known; fewer than eight published servers test it");
  const why = best.fits ? "no number of requests is as fast as asked for"
    : `one sequence needs ${gigabytes(best.total_bytes)}, and ${gigabytes(usable)} are there`;
  const words = `${at < 0 ? `“${form.choice}” is no layout of these chips; here is the first. ` : ""}` +
    (best.meets ? `${at > 0 ? "Layout" : "Best layout"}: ${layoutText(layout)}, ${plain(best.requests)} requests at a time. ` +
      `Expect ${timeText(best.expected.token)} for a token.` : `${layoutText(layout)}: this does not work, as ${why}.`);
  const rows = layouts.slice(0, Math.max(10, at + 1)).map((each, i) => {
    const button = h("button", { type: "button", "data-choose": namedLayout(each), "aria-pressed": `${each === layout}` },
      `${i + 1}. ${layoutText(each)}`);
    return [fitMark(each.best.fits), [button, h("small", {}, each.best.meets ? `${plain(each.best.requests)} requests`
      : each.best.fits ? "slower than asked for" : "not even one sequence")],
      count(each.best.speed), timeText(each.best.expected.token), firstText(each.best),
      `${(each.best.total_bytes / 1e9).toFixed(1)} GB`, each.best.bound];
  });
  const dots = (of) => points.map((point) => [point.requests, of(point), point.meets, point.requests === best.requests]);
  const untested = !Object.values(bands).some((of) => of);
  return {
    refused: !best.meets, words, answer: { layout },
    nodes: [
      answered(tiles({
        "Time per token": [timeText(best.expected.token), band(bands.token, best.expected.token, timeText)],
        "Tokens/s per chip": [count(best.speed), band(bands.throughput, best.speed, count)],
        "First token": [firstText(best), firstBand(best.expected, bands.first)],
        Memory: [`${(best.total_bytes / 1e9).toFixed(1)} of ${digits(has / 1e9)} GB`,
          best.fits ? `✓ fits, ${asked.reserve} % reserved` : `✗ ${gigabytes(best.total_bytes - usable)} too much`, !best.fits],
        "All chips": [`${count(best.requests_per_second)} requests/s`, `${plain(best.requests)} at a time`],
        "At least": [`${timeText(best.least.token)} a token`, `at most ${count(best.most)} tokens/s per chip`],
      }), h("p", { class: "planner-range" }, `Time for each token: ${said(bands.token)}. Throughput: ${said(bands.throughput)}. ` +
        `Time to the first token${best.sequences > 1 ? ", from requests that come independently to the last of a burst" : ""}: ` +
        `${said(bands.first)}.`),
      ...marks(untested ? ["Fewer than eight published servers are like this one."] : []),
      ...commandBox(command(form))),
      h("h2", {}, "Layouts, ranked"),
      h("p", {}, `${plain(layouts.length)} layouts fill these chips, each with the fewest requests that have nearly the highest throughput. Prompts take ` +
        `${share(best.expected.prompts)} of the time of the one shown.`),
      h("div", { class: "planner-table" }, table("Layouts, ranked", ["fits", "layout", "tokens/s per chip", "per token", "first token", "memory",
        "bound by"], ...rows)),
      h("h2", {}, "Speed and latency against the requests"),
      h("p", {}, `An empty mark is slower than asked for${bands.throughput ? "; the grey band is the range" : ""}.`),
      h("div", { class: "shardlab explorer-pictures planner-plots" }, ...(points.length > 1 ? [
        plot("Tokens per second on each chip", "requests at a time", dots(({ speed }) => speed), bands.throughput?.factor, atoms, plain),
        plot("Time per token", "requests at a time", dots(({ expected }) => expected.token), bands.token?.factor, seconds, plain)] : [])),
    ],
  };
}

const planner = {
  keys: Object.fromEntries(KEYS.map((name) => [name, [name]])),
  each: true, // of an address, what is right is kept
  sizes: () => [],
  prepare: (form) => prepared(form.use === "serve" ? ["serve", given(form)] : ["plan", given(form), true], true),
  show: (form) => (form.use === "serve" ? serve(form) : train(form)),
  // Another question begins with its own first mesh.
  begin({ form }, change) {
    const says = form.querySelector("[data-config]");
    const take = (words) => {
      const sizes = words.trim() ? fromConfig(words) : null;
      says.textContent = sizes?.error ? `${sizes.error.words}.` : sizes ? `Read: ${signed(sizesOf(sizes).parameters)} parameters.` : "";
      if (!sizes || sizes.error) return;
      const yes = (value) => (value ? "yes" : "no");
      change({ ...Object.fromEntries(ALL.map((name) => [name, `${sizes[name]}`])), gated: yes(sizes.gated),
        tied: yes(sizes.tied), model: "own", choice: "" });
    };
    form.querySelector("textarea").addEventListener("change", ({ target }) => take(target.value));
    form.querySelector("[type=file]").addEventListener("change", ({ target }) => target.files[0]?.text().then(take));
    form.addEventListener("input", () => { form.elements.choice.value = ""; }, true);
  },
};

Object.assign(explorer, { bandOf, beyond, command, given, parts: { planner }, rates });
})(window.explorer);
