// The page around the calculators and the planner. The controls of each are its state, which the address keeps, such as
// "#layout?mesh=x:2,y:4&shape=8,16"; behind a "~" stands the state that is pinned. Scripts share window.explorer: modules fail on file://.
(function (explorer) {
"use strict";
const { compare, h, nearest, parts, product } = explorer;
const widgets = {};
class Wrong extends Error {} // of an address: says why

const controls = ({ form }) => [...form.elements].filter(({ name }) => name);
const get = (widget) => Object.fromEntries(controls(widget).map(({ name, value }) => [name, value]));
const hidden = (control) => !!control.closest("[hidden]");
const follows = (control) => "follows" in control.dataset; // the number of devices, from the mesh
const label = (control) => control.closest("label").firstElementChild.textContent;
function takes({ title, options }, value) {
  if (title) return title;
  const known = [...options].map((option) => option.value);
  return known.join(", ") + meant(value, known);
}
// What a control takes, and of numbers the nearest to what was asked for.
function wants(control, value) {
  const { min, max, step, type } = control;
  const n = step === "any" || isNaN(value) ? Number(value) : Math.round(value);
  const near = Math.min(Math.max(n, min), max || Infinity);
  return takes(control, value) + (type === "number" && value && !isNaN(near) ? `; the nearest is ${near}` : "");
}
const meant = (name, known) => (nearest(name, known) ? `; did you mean “${nearest(name, known)}”?` : "");

// What is wrong with what stands in the controls, in words.
function problem(widget) {
  const bad = controls(widget).filter((control) => !hidden(control) &&
    (!control.validity.valid || control.selectedIndex === -1));
  const say = (control) => `${label(control)}: ${takes(control, control.value)}`;
  const first = bad.find((control) => !follows(control));
  return first ? say(first) : widget.part.wrong?.(get(widget)) || (bad.length ? say(bad[0]) : "");
}

// Take a mesh that is offered, and what else belongs to it.
function take({ part, form, form: { elements } }, { sizes, also = {} }) {
  part.sizes(get({ form })).forEach((name, i) => { elements[name].value = sizes[i]; });
  for (const [name, value] of Object.entries(also)) elements[name].value = value;
}

// The number of devices follows from the mesh; if it is what was changed, the mesh is the first that is offered for it.
function settle(widget, changed) {
  const { part, form, form: { elements } } = widget;
  const total = elements[part.total];
  if (!total) return;
  if (changed === part.total) {
    const [best] = total.validity.valid ? part.meshes(get({ form })) : [];
    if (!best) return;
    take(widget, best);
  }
  total.value = product(part.sizes(get({ form })).map((name) => Number(elements[name].value)));
}

// Show the controls that are needed, with what they offer now.
function arrange(widget) {
  const { form: { elements }, form, part } = widget;
  part.axes?.(form);
  for (const shown of form.querySelectorAll("[data-if]")) {
    const [key, ...values] = shown.dataset.if.split(" ");
    const { value } = elements[key];
    shown.hidden = isNaN(values[0]) ? !values.includes(value) : value <= Number(values[0]);
  }
  // A slider stands at the nearest power of two, and goes no further than there may be devices.
  const sizes = part.sizes(get(widget));
  const room = (elements[part.total]?.max ?? 1) / product(sizes.map((name) => Number(elements[name].value)));
  for (const slider of form.querySelectorAll("[data-of]")) {
    const { value } = elements[slider.dataset.of];
    const most = sizes.includes(slider.dataset.of) ? Math.floor(Math.log2(room * value)) : Infinity;
    slider.max = Math.min(slider.dataset.reach ??= slider.max, Math.max(0, most || 0));
    slider.value = Math.round(Math.log2(value));
    slider.setAttribute("aria-valuetext", value);
  }
  part.offer?.(form, sizes, problem(widget) ? [] : part.meshes(get(widget)));
}

// What the event of a control has changed: its name, after a slider has set its number and a choice its mesh.
function changed(widget, { target }) {
  const { of, meshes } = target.dataset;
  if (of) widget.form.elements[of].value = 2 ** target.value;
  if (meshes !== undefined) take(widget, { sizes: target.value.split("x") });
  return of || target.name;
}

function set(widget, to) {
  for (let pass = 0; pass < 2; pass++) { // the axes of dimensions last
    for (const control of controls(widget)) control.value = to[control.name] ?? control.value;
    arrange(widget);
  }
}

// Put values into their controls; a value that a control does not take is Wrong.
function put(widget, values) {
  const [before, { part }] = [get(widget), widget];
  set(widget, values);
  const asked = part.total in values && !part.sizes(get(widget)).some((name) => name in values);
  settle(widget, asked && part.total);
  arrange(widget);
  const bad = controls(widget).find((control) => control.name in values && !hidden(control) && (asked || !follows(control)) &&
    (control.value !== values[control.name] || !control.validity.valid));
  const wrong = bad ? `“${label(bad)}” cannot be “${values[bad.name]}”, only ${wants(bad, values[bad.name])}` : problem(widget);
  if (wrong) {
    set(widget, before);
    throw new Wrong(wrong);
  }
}

// The address of a calculator, and back. A key stands for one control, or for several in order.
function encode(widget) {
  const text = Object.entries(widget.part.keys).flatMap(([key, fields]) => {
    const values = fields.map((name) => widget.form.elements[name]).filter((control) => !hidden(control) && !follows(control));
    const list = values.map(({ value }) => value).join();
    return fields.length > 1 || list ? `${key}=${key === "mesh" ? list.replace(/,(\d+)/g, ":$1") : list}` : [];
  });
  return text.join("&");
}

// What is shown, to be pinned, with its address as "~".
const shownNow = (widget) => ({ ...get(widget), "~": encode(widget) });
const address = (widget) => `#${widget.name}?${encode(widget)}${widget.pinned ? `~${widget.pinned["~"]}` : ""}`;

// What a table has under a name that somebody typed: not "constructor", which every object has.
const own = (table, name) => (Object.hasOwn(table, name) ? table[name] : undefined);

function read(widget, text) {
  const values = {};
  for (const pair of text.split("&")) {
    const [key, value = ""] = pair.split(/=(.*)/s);
    const fields = own(widget.part.keys, key);
    if (!fields) throw new Wrong(`“${key}” is not known${meant(key, Object.keys(widget.part.keys))}`);
    const items = value ? value.split(/[,:]/) : [];
    if (items.length > fields.length) throw new Wrong(`“${key}” has too many entries`);
    if (key === "mesh" && items.length % 2) items.push("");
    if (key === "mesh") values.axes = `${items.length / 2}`;
    fields.forEach((name, i) => {
      if (i in items || widget.form.elements[name].dataset.axes) values[name] = items[i] ?? "-";
    });
    if (key === "shape") values.dims = `${items.length}`;
  }
  put(widget, values);
}

// Of a part that keeps what it can: each entry by itself. Returns what is wrong with the others.
function each(widget, text) {
  return text.split("&").filter((pair) => pair).flatMap((pair) => {
    try {
      read(widget, pair);
    } catch (error) {
      if (error instanceof Wrong) return [error.message];
      throw error;
    }
    return [];
  });
}

// The state that is shown, and perhaps one that is pinned.
function decode(widget, text) {
  const [before, [now, other]] = [get(widget), text.split("~")];
  let pinned = null;
  try {
    if (other !== undefined) {
      read(widget, other);
      pinned = shownNow(widget);
      if (!widget.part.show(pinned).numbers) throw new Wrong("what it pins is not possible");
    }
    read(widget, now);
  } catch (error) {
    set(widget, before);
    throw error;
  }
  widget.pinned = pinned;
}

function show(widget, words = "") {
  arrange(widget);
  const { part, pinned, output, buttons } = widget;
  const wrong = problem(widget);
  const turn = widget.turn = (widget.turn ?? 0) + 1;
  const later = wrong ? null : part.prepare?.(get(widget));
  if (later) { // what takes a while; the last answer stands until then
    widget.box.setAttribute("aria-busy", "true");
    later.then(() => { if (turn === widget.turn) show(widget, words); });
    return true;
  }
  widget.box.removeAttribute("aria-busy");
  const shown = wrong ? { words: `${wrong}.`, refused: true, nodes: [] } : part.show(get(widget));
  const compared = pinned && shown.numbers && compare(part.show(pinned), shown);
  const folds = () => output.querySelectorAll("details");
  const open = [...folds()].map((fold) => fold.open);
  output.replaceChildren(...(compared?.nodes ?? [shown.draw?.() ?? []].flat()), ...shown.nodes);
  if (folds().length === open.length) folds().forEach((fold, i) => { fold.open = open[i]; });
  widget.words.classList.toggle("explorer-refused", !!shown.refused);
  widget.words.textContent = words + (compared?.words ?? "") + shown.words;
  if (buttons.pin) {
    buttons.pin.textContent = pinned ? "Unpin" : "Pin to compare";
    buttons.pin.disabled = !pinned && !shown.numbers;
  }
  if (buttons.code) buttons.code.hidden = !output.querySelector("pre");
  widget.place?.(); // for the first time
  return !wrong;
}

const forms = () => Object.fromEntries(Object.entries(widgets).map(([name, widget]) =>
  [name, { now: get(widget), pinned: widget.pinned }]));

function remember(widget) {
  const now = address(widget);
  try {
    history[now === location.hash ? "replaceState" : "pushState"]({ explorer: forms() }, "", now);
  } catch { /* some browsers refuse very many */ }
}

function build(box) {
  const made = box.querySelector("template").content.cloneNode(true);
  const [form, words, output, said] = ["form", ".explorer-words", ".explorer-output", "[role=status]"].map((what) =>
    made.querySelector(what));
  const name = box.dataset.explorer;
  const buttons = Object.fromEntries([...made.querySelectorAll("button")].map((button) => [button.name, button]));
  const part = parts[name];
  const widget = { box, name, part, form, words, output, buttons, pinned: null };
  decode(widget, box.dataset.start);
  const copy = (text, done, failed) => (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(
    () => { said.textContent = done; }, () => { said.textContent = failed; });
  const actions = {
    pin() {
      widget.pinned = widget.pinned ? null : shownNow(widget);
      show(widget);
      remember(widget);
    },
    link() {
      remember(widget);
      copy(location.href, "Link copied", "The link is in the address bar");
    },
    code: () => copy(output.querySelector("pre")?.textContent ?? "", "Code copied", "Select the code to copy it"),
    again() {
      decode(widget, box.dataset.start);
      show(widget);
      remember(widget);
    },
  };
  for (const button of Object.values(buttons)) button.addEventListener("click", actions[button.name]);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    settle(widget, changed(widget, event));
    show(widget);
  });
  form.addEventListener("change", () => show(widget) && remember(widget));
  output.addEventListener("click", ({ target }) => { // a mesh in the ranking
    const { choose } = target.dataset;
    if (choose === undefined) return;
    take(widget, { sizes: [], also: { choice: choose } });
    if (show(widget)) remember(widget);
    output.querySelector(`[data-choose="${choose}"]`)?.focus();
  });
  part.begin?.(widget, (values) => { // what else changes it, such as a file
    put(widget, values);
    if (show(widget)) remember(widget);
  });
  widget.place = () => { // until then, and if this fails, the page stays as it was
    box.replaceChildren(made);
    widget.place = null;
  };
  show(widget);
  widgets[name] = widget;
}

// Show what the address asks for.
function follow() {
  const [, name, text] = location.hash.match(/^#([^?]+)\?(.*)$/s) || [];
  if (!name) return;
  const widget = own(widgets, name) || Object.values(widgets)[0];
  let words = "";
  try {
    if (!own(widgets, name)) throw new Wrong(`there is no calculator “${name}” on this page${meant(name, Object.keys(widgets))}`);
    if (widget.part.each) {
      decode(widget, widget.box.dataset.start);
      const wrong = each(widget, decodeURIComponent(text));
      if (wrong.length) words = `Not as the address asks: ${wrong.join("; ")}. The rest of it is shown. `;
    } else {
      decode(widget, decodeURIComponent(text));
    }
  } catch (error) {
    if (!(error instanceof Wrong || error instanceof URIError)) throw error;
    words = `The address is ignored: ${error.message}. `;
  }
  show(widget, words);
  widget.box.scrollIntoView();
}

function restore(saved) {
  for (const widget of Object.values(widgets)) {
    try {
      const { now, pinned } = own(saved, widget.name);
      put(widget, now);
      widget.pinned = pinned;
    } catch { /* saved by an older page */ }
    show(widget);
  }
}

explorer.data = Object.assign({}, ...[...document.querySelectorAll("script.explorer-data")].map((script) =>
  JSON.parse(script.textContent)));
document.addEventListener("DOMContentLoaded", () => { // when the scripts that only some calculators need have run too
  document.querySelectorAll("[data-explorer]").forEach(build);
  addEventListener("popstate", ({ state }) => (state?.explorer ? restore(state.explorer) : follow()));
  if (history.state?.explorer) restore(history.state.explorer);
  else follow();
  history.replaceState({ explorer: forms() }, "");
});
})(window.explorer);
