// A PartitionSpec that a reader types or pastes, as text: what it says, or why it says nothing, and the picture of it.
(function (explorer) {
"use strict";
const { drawLayout, h, layout, nearest } = explorer;
const EXAMPLES = ['P("x", "y")', 'P("y", "x")', 'P(None, "x")', 'P(("x", "y"), None)'];
const TOKEN = /\s*(?:"([^"]*)"|'([^']*)'|([\p{L}_][\p{L}\p{N}_.]*)|([()[\],]))/uy;
class Wrong extends Error {} // of a spec: says why

const like = 'write it like P("x", None)';

// Each word as { name }, each text in quotes as { axis }, and each bracket or comma as { mark }.
function tokens(text) {
  const found = [];
  TOKEN.lastIndex = 0;
  for (let at = 0; text.slice(at).trim(); at = TOKEN.lastIndex) {
    const [, double, single, name, mark] = TOKEN.exec(text) ?? [];
    const axis = double ?? single;
    if (axis === undefined && !name && !mark) {
      const rest = text.slice(at).trim();
      if (/^["']/.test(rest)) throw new Wrong(`the quotation mark in ${rest} is not closed`);
      if (/^=/.test(rest)) throw new Wrong(`${found.at(-1)?.name ?? "a keyword"}= is not drawn here; give the dimensions alone`);
      throw new Wrong(`“${rest.match(/^\S[^\s,()]*/u)[0]}” is no entry; an entry is None, an axis or a tuple of axes`);
    }
    found.push(axis !== undefined ? { axis } : name ? { name } : { mark });
  }
  return found;
}

// The axes of each dimension, such as [["x"], []] for P("x", None); throws Wrong, which says what is not understood.
function parse(text, axes) {
  const list = tokens(text.replace(/[“”„]/g, '"').replace(/[‘’]/g, "'")); // as phones write quotation marks
  if (!list.length) throw new Wrong(`type a PartitionSpec; ${like}`);
  const is = (mark) => list[0]?.mark === mark;
  const shown = ({ axis, name, mark }) => (axis !== undefined ? `"${axis}"` : name ?? mark);
  // Up to the closing bracket, with a comma between any two; `one` takes an entry.
  function entries(open, one) {
    const close = open === "[" ? "]" : ")", all = [];
    while (!is(close)) {
      if (!list.length) throw new Wrong(`a closing ${close} is missing`);
      const before = shown(list[0]);
      all.push(one());
      if (!list.length) throw new Wrong(`a closing ${close} is missing`);
      if (is(",")) list.shift();
      else if (!is(close)) throw new Wrong(`between ${before} and ${shown(list[0])} a comma is missing`);
    }
    list.shift();
    return all;
  }
  function axis() {
    const { axis: named, name, mark } = list.shift();
    if (named !== undefined) return named;
    if (mark) throw new Wrong(`${mark} stands where an axis belongs, such as "${axes[0]}"`);
    throw new Wrong(name === "None" ? "None cannot be in a tuple of axes" : `${name} needs quotation marks: "${name}"`);
  }
  function entry() {
    const [{ name, mark }] = list;
    if (name === "None") return list.shift() && [];
    if (/(^|\.)UNCONSTRAINED$/.test(name)) throw new Wrong(`${name} is for sharding constraints: an array is sharded or not`);
    if (mark === "(" || mark === "[") return list.shift() && entries(mark, axis);
    return [axis()];
  }
  const first = list.shift();
  if (!first.name && first.mark !== "(") throw new Wrong(`a spec begins with P( and ends with ); ${like}`);
  if (!/(^|\.)(P|PartitionSpec)$/.test(first.name ?? "")) {
    throw new Wrong(first.name ? `“${first.name}” is not PartitionSpec; ${like}` : `P is missing before the bracket; ${like}`);
  }
  if (!is("(")) throw new Wrong(`after ${first.name} a bracket is missing; ${like}`);
  list.shift();
  const spec = entries("(", entry);
  if (list.length) throw new Wrong(`what follows the last bracket is too much: ${list.map(shown).join("")}`);
  return spec;
}

// The answer of explorer.layout for a text; or { error } with what is wrong with it, in words.
function ofText(text, given) {
  const names = given.mesh.map(([name]) => name);
  try {
    const answer = layout({ ...given, spec: parse(text, names) });
    if (answer.error?.kind !== "unknown") return answer;
    const unknown = parse(text, names).flat().find((name) => !names.includes(name)), near = nearest(unknown, names);
    const words = `The mesh has no axis "${unknown}", only ${names.join(" and ")}${near ? `; did you mean "${near}"?` : "."}`;
    return { ...answer, error: { ...answer.error, words } };
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return { error: { words: `Not understood: ${error.message}.` } };
  }
}

function build(box) {
  const given = JSON.parse(box.dataset.given);
  const input = h("input", { type: "text", value: box.dataset.start, autocomplete: "off", autocapitalize: "off", spellcheck: "false" });
  const label = h("label", {}, h("span", {}, "PartitionSpec"), input);
  const words = h("p", { class: "explorer-words", "aria-live": "polite" });
  const picture = h("div", { class: "shardlab explorer-pictures" });
  function show() {
    const answer = ofText(input.value, given), { error } = answer;
    words.classList.toggle("explorer-refused", !!error);
    picture.classList.toggle("spec-old", !!error);
    input.setAttribute("aria-invalid", `${!!error}`);
    if (!error) picture.replaceChildren(drawLayout(answer));
    words.textContent = !error ? `Each device stores ${answer.bytes_per_device} of ${answer.nbytes} bytes, and ` +
      `${answer.replicas > 1 ? `${answer.replicas} devices store the same` : "no two devices store the same"}.`
      : error.jax ? `JAX refuses this. ${error.words}` : error.words;
  }
  const examples = EXAMPLES.map((text) => {
    const button = h("button", { type: "button" }, text);
    button.addEventListener("click", () => {
      input.value = text;
      show();
    });
    return button;
  });
  const form = h("form", { "aria-label": "Your own spec" }, label, h("div", { class: "spec-examples" }, ...examples));
  form.addEventListener("submit", (event) => event.preventDefault());
  input.addEventListener("input", show);
  show(); // if this fails, the page stays as it was
  box.replaceChildren(h("div", { class: "spec-both" }, form, h("div", { class: "spec-says" }, words), picture));
}

explorer.data ??= Object.assign({}, ...[...document.querySelectorAll("script.explorer-data")].map((script) =>
  JSON.parse(script.textContent)));
Object.assign(explorer, { parse, ofText });
for (const box of document.querySelectorAll("[data-spec-typed]")) {
  try {
    build(box);
  } catch (error) { // then as without this script
    console.error(error);
  }
  box.dataset.ready = "";
}
})(window.explorer);
