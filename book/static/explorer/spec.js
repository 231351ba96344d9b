// A PartitionSpec that a reader types or pastes, as text: what it says, or why it says nothing.
(function (explorer) {
"use strict";
const { nearest, refusal } = explorer;
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

// The spec of a text for { mesh, shape }, an entry for each dimension; or { error } with what is wrong with it, in words.
function ofText(text, given) {
  const names = given.mesh.map(([name]) => name);
  let spec;
  try {
    spec = parse(text, names);
  } catch (error) {
    if (!(error instanceof Wrong)) throw error;
    return { error: `Not understood: ${error.message}.` };
  }
  const refused = refusal({ ...given, spec });
  if (!refused) return { spec: given.shape.map((_, dim) => spec[dim] ?? []) };
  if (refused.kind !== "unknown") return { error: `JAX refuses this. ${refused.words}` };
  const unknown = spec.flat().find((name) => !names.includes(name)), near = nearest(unknown, names);
  const words = `The mesh has no axis "${unknown}", only ${names.join(" and ")}${near ? `; did you mean "${near}"?` : "."}`;
  return { error: `JAX refuses this. ${words}` };
}

Object.assign(explorer, { parse, ofText });
})(window.explorer);
