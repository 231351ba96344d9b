// Elements, and the shapes and figures of shardlab's pictures, to its measures.
(function (explorer) {
"use strict";
const { times } = explorer;
const { ceil, floor, max, round } = Math;
const g = (number) => Number(number.toPrecision(6)); // as Python's :g

// An element with attributes and children.
function h(tag, attributes, ...children) {
  const svg = /^(svg|g|rect|path|text|title|desc)$/.test(tag);
  const made = document.createElementNS(`http://www.w3.org/${svg ? "2000/svg" : "1999/xhtml"}`, tag);
  for (const [name, value] of Object.entries(attributes)) {
    if ((value ?? false) !== false) made.setAttribute(name, value);
  }
  made.append(...children.flat());
  return made;
}

const text = (x, y, words, size, more = {}) =>
  h("text", { x: g(x), y: g(y), "font-size": size, fill: "currentColor", ...more }, `${words}`);

// About how many px a text of size 12 takes.
const em = (letter) => (" .,:;'|![]()ijlftrI/".includes(letter) ? 0.4 : "mwMWGOQ%+=<>".includes(letter) ? 0.88
  : "@→…↓".includes(letter) ? 1 : 0.64);
const textWidth = (words) => 12 * [...words].reduce((sum, letter) => sum + em(letter), 0);

const rect = (x, y, width, height, fill) =>
  h("rect", { x: g(x), y: g(y), width: g(width), height: g(height), fill, stroke: "currentColor" });

// Diagonal lines over a rectangle.
function hatching(x, y, width, height, stroke, thickness) {
  const d = times(ceil((floor(width + height) - 4) / 9), (i) => `M${4 + 9 * i} 0l-${g(height)} ${g(height)}`).join("");
  return h("svg", { x: g(x), y: g(y), width: g(width), height: g(height) }, h("path", { d, stroke, "stroke-width": g(thickness) }));
}

function figure(shapes, width, height, title, description, ...caption) {
  const [w, tall] = [width + 2, height + 2];
  const basis = max(w, 200);
  const share = Number((100 * w / basis).toPrecision(3));
  const [grow, most] = [`flex:${g(basis)} 1 ${g(basis)}px;min-width:0`, round(1.55 * basis)];
  return h("figure", { style: `margin:0 0 .5rem;${grow};max-width:${most}px` }, h("svg", {
    role: "img", width: g(w), height: g(tall), viewBox: `-1 -1 ${g(w)} ${g(tall)}`, style: `width:${share}%;height:auto`,
    "font-family": "system-ui,sans-serif", "text-anchor": "middle",
  }, h("title", {}, title), h("desc", {}, description), shapes), h("figcaption", {}, ...caption));
}

Object.assign(explorer, { figure, g, h, hatching, rect, text, textWidth });
})(window.explorer);
