// The page around the calculators. The controls of each are its state, which the address keeps, such as
// "#layout?mesh=x:2,y:4&shape=8,16". Scripts share window.explorer: modules fail on file://.
(function (explorer) {
"use strict";
const { h, parts } = explorer;
const widgets = {};
class Wrong extends Error {} // of an address: says why

const controls = ({ form }) => [...form.elements].filter(({ name }) => name);
const get = (widget) => Object.fromEntries(controls(widget).map(({ name, value }) => [name, value]));
const hidden = (control) => control.closest("label").hidden;
const label = (control) => control.closest("label").firstElementChild.textContent;
const takes = ({ title, options }) => title || [...options].map(({ value }) => value).join(", ");

// Let each dimension choose among the axes that there are, and show the controls that are needed.
function arrange({ form: { elements }, form }) {
  for (const select of form.querySelectorAll("[data-axes]")) {
    const orders = [[]];
    for (const order of orders) {
      for (let i = 0; i < elements.axes.value && order.length < select.dataset.axes; i++) {
        const { value } = elements[`name${i}`];
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
  for (const shown of form.querySelectorAll("[data-if]")) {
    const [key, value] = shown.dataset.if.split(" ");
    shown.hidden = isNaN(value) ? elements[key].value !== value : elements[key].value <= Number(value);
  }
}

// Put values into their controls; a value that a control does not take is Wrong.
function put(widget, values) {
  const before = get(widget);
  const set = (to) => {
    for (let pass = 0; pass < 2; pass++) { // the axes of dimensions last
      for (const control of controls(widget)) control.value = to[control.name] ?? control.value;
      arrange(widget);
    }
  };
  set(values);
  const bad = controls(widget).find((control) => control.name in values && !hidden(control) &&
    (control.value !== values[control.name] || !control.validity.valid));
  const wrong = bad ? `“${label(bad)}” cannot be “${values[bad.name]}”, only ${takes(bad)}`
    : widget.part.wrong?.(get(widget));
  if (wrong) {
    set(before);
    throw new Wrong(wrong);
  }
}

// The address of a calculator, and back. A key stands for one control, or for several in order.
function encode(widget) {
  const text = Object.entries(widget.part.keys).flatMap(([key, fields]) => {
    const values = fields.map((name) => widget.form.elements[name]).filter((control) => !hidden(control));
    const list = values.map(({ value }) => value).join();
    return fields.length > 1 || list ? `${key}=${key === "mesh" ? list.replace(/,(\d+)/g, ":$1") : list}` : [];
  });
  return `#${widget.name}?${text.join("&")}`;
}

function decode(widget, text) {
  const values = {};
  for (const pair of text.split("&")) {
    const [key, value = ""] = pair.split(/=(.*)/s);
    const fields = widget.part.keys[key];
    if (!fields) throw new Wrong(`“${key}” is not known`);
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

function show(widget, words = "") {
  arrange(widget);
  const bad = controls(widget).find((control) => !hidden(control) && !control.validity.valid);
  const wrong = bad ? `${label(bad)}: ${bad.title}` : widget.part.wrong?.(get(widget));
  const shown = wrong ? { words: `${wrong}.`, refused: true, nodes: [] } : widget.part.show(get(widget));
  const folds = () => widget.output.querySelectorAll("details");
  const open = [...folds()].map((fold) => fold.open);
  widget.output.replaceChildren(...shown.nodes);
  if (folds().length === open.length) folds().forEach((fold, i) => { fold.open = open[i]; });
  widget.words.classList.toggle("explorer-refused", !!shown.refused);
  widget.words.textContent = words + shown.words;
  return !wrong;
}

const forms = () => Object.fromEntries(Object.entries(widgets).map(([name, widget]) => [name, get(widget)]));

function remember(widget) {
  const address = encode(widget);
  try {
    history[address === location.hash ? "replaceState" : "pushState"]({ explorer: forms() }, "", address);
  } catch { /* some browsers refuse very many */ }
}

function build(box) {
  const made = box.querySelector("template").content.cloneNode(true);
  const [form, words, output, said] = ["form", ".explorer-words", ".explorer-output", "[role=status]"].map((what) =>
    made.querySelector(what));
  const name = box.dataset.explorer;
  const widget = { box, name, part: parts[name], form, words, output };
  decode(widget, box.dataset.start);
  const copy = (text, done, failed) => (navigator.clipboard?.writeText(text) ?? Promise.reject()).then(
    () => { said.textContent = done; }, () => { said.textContent = failed; });
  const actions = {
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
  for (const button of made.querySelectorAll("button")) button.addEventListener("click", actions[button.name]);
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", () => show(widget));
  form.addEventListener("change", () => show(widget) && remember(widget));
  show(widget); // if this fails, the page stays as it was
  box.replaceChildren(made);
  widgets[name] = widget;
}

// Show what the address asks for.
function follow() {
  const [, name, text] = location.hash.match(/^#(\w+)\?(.*)$/s) || [];
  if (!name) return;
  const widget = widgets[name] || Object.values(widgets)[0];
  let words = "";
  try {
    if (!widgets[name]) throw new Wrong(`there is no calculator “${name}”`);
    decode(widget, decodeURIComponent(text));
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
      put(widget, saved[widget.name]);
    } catch { /* saved by an older page */ }
    show(widget);
  }
}

explorer.data = JSON.parse(document.querySelector("script.explorer-data").textContent);
document.querySelectorAll("[data-explorer]").forEach(build);
if (history.state?.explorer) restore(history.state.explorer);
else follow();
history.replaceState({ explorer: forms() }, "");
addEventListener("popstate", ({ state }) => (state?.explorer ? restore(state.explorer) : follow()));
})(window.explorer);
