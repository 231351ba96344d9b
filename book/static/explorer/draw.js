// The pictures of shardlab.draw, in its colours and to its measures: layouts on up to 64 devices.
(function (explorer) {
"use strict";
const { count, indexText, times } = explorer;
const PALETTE = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999"];
const [TILE_W, TILE_H, WRAP, GAP, WIDTH] = [26, 22, 12, 10, 316];
const SVG = new Set(["svg", "g", "rect", "path", "text", "title", "desc"]);

// An element with attributes and children: the only way in which this page makes any.
function h(tag, attributes, ...children) {
  const made = SVG.has(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat());
  return made;
}

const g = (number) => Number(number.toPrecision(6)); // as Python's :g
const round1 = (number) => (number % 1 === 0.25 ? number - 0.05 : Number(number.toFixed(1))); // as Python's round

// Black or white, whichever stands out more (WCAG's relative luminance).
function ink(colour) {
  const linear = [1, 3, 5].map((i) => {
    const c = parseInt(colour.slice(i, i + 2), 16) / 255;
    return c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  });
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return 1.05 / (luminance + 0.05) > (luminance + 0.05) / 0.05 ? "#fff" : "#000";
}

function text(x, y, words, { size = 14, fill = "currentColor", anchor = null } = {}) {
  return h("text", { x: g(x), y: g(y), "font-size": size, fill, "text-anchor": anchor }, String(words));
}

function figure(shapes, width, height, title, description, ...caption) {
  const [w, tall] = [g(width + 2), g(height + 2)];
  const svg = h("svg", {
    role: "img", width: w, height: tall, viewBox: `-1 -1 ${w} ${tall}`, "font-family": "system-ui,sans-serif",
    "text-anchor": "middle",
  }, h("title", {}, title), h("desc", {}, description), shapes);
  return h("figure", {}, svg, h("figcaption", {}, ...caption));
}

// At most sixteen sentences, the rest counted; for readers who hear the picture.
function listed(sentences) {
  const more = sentences.length - 16;
  const all = sentences.slice(0, 16).join("; ") + (more > 0 ? `; and ${more} more devices` : "");
  return `${all.slice(0, 1).toUpperCase()}${all.slice(1)}.`;
}

function grid(rows, left, top, tileW, tileH, depth) {
  const shapes = [];
  let [right, down] = [0, 0];
  const bandHeight = Math.min(rows.length, WRAP) * tileH + GAP / 2;
  const stackWidth = Math.min(rows[0].length, WRAP) * tileW + GAP / 2;
  if (depth) { // the two visible sides of a slab
    const [w, tall] = [rows[0].length * tileW, rows.length * tileH];
    const side = `M${g(left)} ${g(top)}l${depth} -${depth}h${g(w)}v${g(tall)}l-${depth} ${depth}` +
      `M${g(left + w)} ${g(top)}l${depth} -${depth}`;
    shapes.push(h("path", { d: side, fill: "none", stroke: "currentColor" }));
  }
  rows.forEach((row, r) => row.forEach(({ device, index }, c) => {
    const x = left + (c % WRAP) * tileW + Math.floor(r / WRAP) * stackWidth;
    const y = top + (r % WRAP) * tileH + Math.floor(c / WRAP) * bandHeight;
    [right, down] = [Math.max(right, x + tileW - left), Math.max(down, y + tileH - top)];
    const fill = PALETTE[device % PALETTE.length];
    const tip = index.length ? [h("title", {}, `device ${device}: ${indexText(index)}`)] : [];
    shapes.push(h("g", {},
      h("rect", { x: g(x), y: g(y), width: g(tileW), height: g(tileH), fill, stroke: "currentColor" }),
      text(x + tileW / 2, y + tileH / 2 + 4.5, device, { size: 13, fill: ink(fill) }), tip));
  }));
  return [shapes, right, down];
}

function tileSize(shape, sheets, slabs, rows, columns) {
  const [down, right] = [1, 1, ...shape].slice(-2);
  const longer = [[1, 230], [2, 150], [4, 110], [8, 70], [sheets, 0]].find(([most]) => sheets <= most)[1];
  const proportion = Math.min(3, Math.max(1 / 3, Math.max(right, 1) / Math.max(down, 1)));
  let [width, height] = proportion >= 1 ? [longer, longer / proportion] : [longer * proportion * 0.8, longer * 0.8];
  [width, height] = [width / Math.ceil(rows / WRAP), height / Math.ceil(columns / WRAP)];
  if (slabs > 1) width = Math.min(width, WIDTH / Math.min(slabs, 4) - GAP - 7);
  return [
    round1(Math.max(TILE_W, width / Math.min(columns, WRAP))), round1(Math.max(TILE_H, height / Math.min(rows, WRAP))),
  ];
}

// The answer of explorer.layout as a figure: a rectangle for each device, each copy by itself.
function drawLayout(answer, name = "") {
  const { shape, devices, copies, type } = answer;
  const places = devices.map(({ tile }) => [0, 0, ...tile].slice(-Math.max(2, tile.length)));
  const most = (i) => Math.max(...places.map((place) => place.at(i))) + 1;
  const [rows, columns, slabs] = [most(-2), most(-1), shape.length > 2 ? most(0) : 1];
  const sheet = new Map();
  devices.forEach((held, i) => sheet.set([held.copy, ...[0, ...places[i]].slice(-3)].join(), held));
  const [tileW, tileH] = tileSize(shape, copies * slabs, slabs, rows, columns);
  const depth = shape.length > 2 ? 7 : 0;

  const abreast = slabs === 1 ? copies : slabs;
  let across = Math.max(1, Math.floor((WIDTH + GAP) / (Math.min(columns, WRAP) * tileW + depth + GAP)));
  across = Math.ceil(abreast / Math.ceil(abreast / across));
  const shapes = [];
  let [width, top] = [0, 0];
  for (let first = 0; first < copies * slabs; first += abreast) {
    for (let start = first; start < first + abreast; start += across) {
      let [left, height] = [0, 0];
      for (let i = start; i < Math.min(start + across, first + abreast); i++) {
        const [copy, slab] = [Math.floor(i / slabs), i % slabs];
        const blocks = times(rows, (r) => times(columns, (c) => sheet.get([copy, slab, r, c].join())));
        const [body, w, tall] = grid(blocks, left, top + depth, tileW, tileH, depth);
        shapes.push(...body);
        const label = depth ? indexText(blocks[0][0].index.slice(0, 1)) : "";
        if (depth && 6 * label.length <= w + 8) {
          shapes.push(text(left + w / 2, top + depth + tall + 13, label, { size: 11 }));
        }
        left += w + depth + GAP;
        height = Math.max(height, tall + depth + (depth ? 16 : 0));
      }
      width = Math.max(width, left - GAP);
      top += height + GAP;
    }
  }
  const copyText = ({ copy }) => (copies > 1 ? ` (copy ${copy + 1})` : "");
  const description = shape.length
    ? listed(devices.map((held) => `device ${held.device} holds ${indexText(held.index)}${copyText(held)}`))
    : `A single number, on each of ${devices.length} devices.`;
  const title = `${name && `${name}: `}${type} on ${count(devices.length, "device")}`;
  return figure(shapes, width, top - GAP, title, description,
    ...(name ? [h("strong", {}, name), " "] : []), h("code", {}, type), h("br"), `${answer.summary}.`);
}

Object.assign(explorer, { h, text, figure, listed, ink, drawLayout, PALETTE });
})(window.explorer);
