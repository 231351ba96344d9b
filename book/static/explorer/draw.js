// The pictures of shardlab.draw, to its measures: layouts on up to 64 devices.
(function (explorer) {
"use strict";
const { count, indexText, times } = explorer;
const [TILE_W, TILE_H, WRAP, GAP, WIDTH] = [26, 22, 12, 10, 316];
const { ceil, floor, max, min } = Math;
const g = (number) => Number(number.toPrecision(6)); // as Python's :g
const round1 = (number) => (number % 1 === 0.25 ? number - 0.05 : Number(number.toFixed(1))); // as Python's round

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

// A rectangle in the colour of a device, with its number.
function tile(x, y, width, height, number, label, tip) {
  const [fill, ink] = explorer.data.palette[number % 8];
  return h("g", {}, h("rect", { x: g(x), y: g(y), width: g(width), height: g(height), fill, stroke: "currentColor" }),
    label === "" ? [] : text(x + width / 2, y + height / 2 + 4.5, label, 13, { fill: ink }),
    tip ? h("title", {}, tip) : []);
}

function figure(shapes, width, height, title, description, ...caption) {
  const [w, tall] = [g(width + 2), g(height + 2)];
  return h("figure", {}, h("svg", {
    role: "img", width: w, height: tall, viewBox: `-1 -1 ${w} ${tall}`, "font-family": "system-ui,sans-serif",
    "text-anchor": "middle",
  }, h("title", {}, title), h("desc", {}, description), shapes), h("figcaption", {}, ...caption));
}

// One sheet of tiles, rows and columns continued below or beside after WRAP of them.
function grid(rows, left, top, w, tall, depth) {
  const [m, n] = [rows.length, rows[0].length];
  const shapes = [];
  if (depth) { // the two visible sides of a slab
    const side = `l${depth} -${depth}h${g(n * w)}v${g(m * tall)}l-${depth} ${depth}M${g(left + n * w)} ${g(top)}` +
      `l${depth} -${depth}`;
    shapes.push(h("path", { d: `M${g(left)} ${g(top)}${side}`, fill: "none", stroke: "currentColor" }));
  }
  let [right, down] = [0, 0];
  rows.forEach((row, r) => row.forEach(({ device, index }, c) => {
    const x = (c % WRAP) * w + floor(r / WRAP) * (min(n, WRAP) * w + GAP / 2);
    const y = (r % WRAP) * tall + floor(c / WRAP) * (min(m, WRAP) * tall + GAP / 2);
    [right, down] = [max(right, x + w), max(down, y + tall)];
    const tip = index.length && `device ${device}: ${indexText(index)}`;
    shapes.push(tile(left + x, top + y, w, tall, device, device, tip));
  }));
  return [shapes, right, down];
}

function tileSize(shape, sheets, slabs, rows, columns) {
  const [down, right] = [1, 1, ...shape].slice(-2);
  const longer = sheets <= 1 ? 230 : sheets <= 2 ? 150 : sheets <= 4 ? 110 : sheets <= 8 ? 70 : 0;
  const proportion = min(3, max(1 / 3, right / down));
  let [width, height] = proportion >= 1 ? [longer, longer / proportion] : [longer * proportion * 0.8, longer * 0.8];
  [width, height] = [width / ceil(rows / WRAP), height / ceil(columns / WRAP)];
  if (slabs > 1) width = min(width, WIDTH / min(slabs, 4) - GAP - 7);
  return [round1(max(TILE_W, width / min(columns, WRAP))), round1(max(TILE_H, height / min(rows, WRAP)))];
}

// The answer of explorer.layout as a figure: a rectangle for each device, each copy by itself.
function drawLayout({ shape, devices, copies, type, summary }, name = "") {
  const places = devices.map(({ tile }) => [0, 0, 0, ...tile].slice(-3));
  const [slabs, rows, columns] = [0, 1, 2].map((i) => max(...places.map((place) => place[i])) + 1);
  const sheet = new Map(devices.map((held, i) => [`${[held.copy, ...places[i]]}`, held]));
  const [tileW, tileH] = tileSize(shape, copies * slabs, slabs, rows, columns);
  const depth = shape.length > 2 ? 7 : 0;

  const abreast = slabs === 1 ? copies : slabs;
  let across = max(1, floor((WIDTH + GAP) / (min(columns, WRAP) * tileW + depth + GAP)));
  across = ceil(abreast / ceil(abreast / across));
  const shapes = [];
  let [width, top] = [0, 0];
  for (let first = 0; first < copies * slabs; first += abreast) {
    for (let start = first; start < first + abreast; start += across) {
      let [left, height] = [0, 0];
      for (let i = start; i < min(start + across, first + abreast); i++) {
        const blocks = times(rows, (r) => times(columns, (c) => sheet.get(`${[floor(i / slabs), i % slabs, r, c]}`)));
        const [body, w, tall] = grid(blocks, left, top + depth, tileW, tileH, depth);
        shapes.push(...body);
        const label = depth && indexText(blocks[0][0].index.slice(0, 1));
        if (depth && 6 * label.length <= w + 8) shapes.push(text(left + w / 2, top + depth + tall + 13, label, 11));
        left += w + depth + GAP;
        height = max(height, tall + depth + (depth && 16));
      }
      width = max(width, left - GAP);
      top += height + GAP;
    }
  }
  // To be heard: sixteen devices, the rest counted.
  const held = devices.slice(0, 16).map(({ device, index, copy }) =>
    `evice ${device} holds ${indexText(index)}${copies > 1 ? ` (copy ${copy + 1})` : ""}`);
  const more = devices.length > 16 ? `; and ${devices.length - 16} more devices` : "";
  const description = shape.length ? `D${held.join("; d")}${more}.` : `A single number, on each of ${devices.length} devices.`;
  return figure(shapes, width, top - GAP, `${name && `${name}: `}${type} on ${count(devices.length, "device")}`, description,
    name && h("strong", {}, name), name && " ", h("code", {}, type), h("br", {}), `${summary}.`);
}

Object.assign(explorer, { h, text, tile, figure, drawLayout });
})(window.explorer);
