// The page around the parts. Each part's form stands in a <template> of the page; its state is what its controls hold,
// and lives in the address: "#layout?mesh=x:2,y:4&shape=8,16&spec=x,-&dtype=float32". Plain scripts that share
// window.explorer, since modules do not load from file://.
(function (explorer) {
"use strict";
const { h, parts, times } = explorer;
const widgets = {};
class Wrong extends Error {} // what an address asks for cannot be; the message says why

const controls = ({ form }) => [...form.elements].filter((control) => control.name);
const get = (widget) => Object.fromEntries(controls(widget).map(({ name, value }) => [name, value]));
const hidden = (control) => control.closest("label").hidden;
const label = (control) => control.closest("label").firstElementChild.textContent;

// Let each cut choose among the axes that there are, and show what is asked for.
function arrange(widget) {
  const form = get(widget);
  for (const select of widget.form.querySelectorAll("[data-cut]")) {
    const orders = [[]];
    for (const order of orders) {
      for (let i = 0; i < form.axes && order.length < select.dataset.cut; i++) {
        const name = form[`name${i}`];
        if (!order.includes(name)) orders.push([...order, name]);
      }
    }
    const [before, at, old] = [select.value, select.selectedIndex, select.length];
    select.replaceChildren(...orders.map((names) => h("option", { value: names.join(".") || "-" },
      names.length > 1 ? `(${names.join(", ")})` : names[0] ?? "no axis")));
    if (select.length === old) select.selectedIndex = at; // its axis may have another name now
    else select.value = before;
    if (!select.value) select.selectedIndex = 0;
  }
  for (const label of widget.form.querySelectorAll("[data-if]")) {
    const [key, value] = label.dataset.if.split(" ");
    label.hidden = isNaN(value) ? form[key] !== value : form[key] <= Number(value);
  }
}

// Some values into their controls; what a control does not take is Wrong.
function put(widget, form) {
  const before = get(widget);
  const set = (values) => {
    for (let pass = 0; pass < 2; pass++) { // cuts when their axes are there
      for (const control of controls(widget)) if (control.name in values) control.value = values[control.name];
      arrange(widget);
    }
  };
  set(form);
  const bad = controls(widget).find((control) => control.name in form && !hidden(control) &&
    (control.value !== form[control.name] || !control.validity.valid));
  const wrong = (bad && `“${label(bad)}” cannot be “${form[bad.name]}”`) || widget.part.wrong?.(get(widget));
  if (wrong) {
    set(before);
    throw new Wrong(wrong);
  }
}

// The address of a part, and back. A key stands for a control, or for several in a row.
function encode(widget) {
  const text = ([key, fields]) => {
    const values = fields.map((name) => widget.form.elements[name]).filter((c) => !hidden(c)).map(({ value }) => value);
    if (key === "mesh") return `mesh=${values.join().replace(/,(\d+)/g, ":$1")}`;
    return fields.length > 1 || values.length ? `${key}=${values.join()}` : [];
  };
  return `#${widget.name}?${Object.entries(widget.part.keys).flatMap(text).join("&")}`;
}

function decode(widget, text) {
  const form = {};
  for (const pair of text.split("&")) {
    const [key, value = ""] = pair.split(/=(.*)/s);
    const fields = widget.part.keys[key];
    if (!fields) throw new Wrong(`“${key}” is not known`);
    const items = value ? value.split(/[,:]/) : [];
    if (items.length > fields.length) throw new Wrong(`“${key}” has too many entries`);
    items.forEach((item, i) => { form[fields[i]] = item; });
    if (key === "mesh") form.axes = String(items.length / 2);
    if (key === "shape") form.dims = String(items.length);
  }
  put(widget, form);
}

// What is wrong with what was typed, in words.
function wrong(widget) {
  const bad = controls(widget).find((control) => !hidden(control) && !control.validity.valid);
  for (const control of controls(widget)) control.setAttribute("aria-invalid", control === bad);
  return bad ? `${label(bad)}: ${bad.validationMessage}` : widget.part.wrong?.(get(widget)) || "";
}

function show(widget, words = "") {
  arrange(widget);
  const typed = wrong(widget);
  const shown = typed ? { words: typed, refused: true, nodes: [] } : widget.part.show(get(widget));
  const open = new Map([...widget.output.querySelectorAll("details")].map((d) => [d.dataset.name, d.open]));
  widget.output.replaceChildren(...shown.nodes);
  for (const d of widget.output.querySelectorAll("details")) d.open = open.get(d.dataset.name) ?? d.open;
  widget.words.classList.toggle("explorer-refused", Boolean(shown.refused));
  widget.words.textContent = words + shown.words;
  return !typed;
}

const forms = () => Object.fromEntries(Object.values(widgets).map((widget) => [widget.name, get(widget)]));

function remember(widget) {
  const address = encode(widget);
  try {
    history[address === location.hash ? "replaceState" : "pushState"]({ explorer: forms() }, "", address);
  } catch { /* some browsers refuse very many; all else works */ }
}

function build(box) {
  const made = box.querySelector("template").content.cloneNode(true);
  const find = (what) => made.querySelector(what);
  const name = box.dataset.explorer;
  const widget = {
    box, name, part: parts[name], form: find("form"), words: find(".explorer-words"), output: find(".explorer-output"),
  };
  decode(widget, box.dataset.start);
  const said = find("[role=status]");
  const copy = (text, done, failed) => {
    const copied = navigator.clipboard?.writeText(text) || Promise.reject();
    copied.then(() => { said.textContent = done; }, () => { said.textContent = failed; });
  };
  const actions = {
    link() {
      remember(widget);
      copy(location.href, "Link copied", "The link is in the address bar");
    },
    code() {
      copy(widget.output.querySelector("pre")?.textContent ?? "", "Code copied", "Select the code to copy it");
    },
    again() {
      decode(widget, box.dataset.start);
      if (show(widget)) remember(widget);
    },
  };
  for (const button of made.querySelectorAll("button")) button.addEventListener("click", actions[button.name]);
  widget.form.addEventListener("submit", (event) => event.preventDefault());
  widget.form.addEventListener("input", () => show(widget));
  widget.form.addEventListener("change", () => show(widget) && remember(widget));
  show(widget); // if this fails, the page stays as it was
  box.replaceChildren(made);
  widgets[name] = widget;
}

// What the address asks for; if that cannot be, it is left aside with a word.
function follow() {
  const [, name, text] = location.hash.match(/^#(\w+)\?(.*)$/s) || [];
  if (!name) return;
  const widget = widgets[name] || Object.values(widgets)[0];
  let words = "";
  try {
    if (!widgets[name]) throw new Wrong(`there is no part “${name}”`);
    decode(widget, decodeURIComponent(text));
  } catch (error) {
    if (!(error instanceof Wrong || error instanceof URIError)) throw error;
    words = `The address is left aside: ${error.message}. `;
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

const data = [...document.querySelectorAll("script.explorer-data")].map((script) => JSON.parse(script.textContent));
explorer.data = Object.assign({}, ...data);
document.querySelectorAll("[data-explorer]").forEach(build);
if (Object.keys(widgets).length) {
  if (history.state?.explorer) restore(history.state.explorer);
  else follow();
  history.replaceState({ explorer: forms() }, "");
  addEventListener("popstate", ({ state }) => (state?.explorer ? restore(state.explorer) : follow()));
}
})(window.explorer);
