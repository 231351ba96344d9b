// The pictures of shardlab.draw, to its measures: the shards of an array on up to 64 devices.
(function (explorer) {
"use strict";
const { count, figure, g, h, indexText, over, rect, text, textWidth, times } = explorer;
const [TILE_W, TILE_H, WRAP, GAP, WIDTH] = [26, 22, 12, 10, 314];
const { ceil, floor, max, min, round } = Math;

// A rectangle in the colour of a device, with its number.
function tile(x, y, width, height, number, label, tip) {
  const [fill, ink] = explorer.data.palette[number % 8];
  return h("g", {}, rect(x, y, width, height, fill),
    label === "" ? [] : text(x + width / 2, y + height / 2 + 0.35 * 13, label, 13, { fill: ink }),
    tip ? h("title", {}, tip) : []);
}

const line = (d) => h("path", { d, fill: "none", stroke: "currentColor" });

// The mesh axes of the columns, above a sheet, and of the rows, beside it.
function arrowRight(x, y, length, label) {
  const room = textWidth(label) + 6;
  const words = text(...(length < room ? [x] : [x + length / 2]), y + 4, label, 12,
    { "text-anchor": length < room && "start" });
  if (length < room + 24) return [words];
  const left = (length - room) / 2;
  return [words, line(`M${g(x)} ${g(y)}h${g(left)}M${g(x + left + room)} ${g(y)}H${g(x + length)}m-6 -4l6 4l-6 4`)];
}
const arrowDown = (x, y, length, label) => [text(x - 7, y + length / 2 + 4, label, 12, { "text-anchor": "end" }),
  line(`M${g(x)} ${g(y)}v${g(length)}m-4 -6l4 6l4 -6`)];

// One sheet of tiles, rows and columns continued beside or below where they are too many.
function grid(rows, left, top, w, tall, depth, [bandRows, bandColumns]) {
  const [m, n] = [rows.length, rows[0].length];
  const shapes = [];
  if (depth) { // the two visible sides of a slab
    shapes.push(line(`M${g(left)} ${g(top)}l${depth} -${depth}h${g(n * w)}v${g(m * tall)}l-${depth} ${depth}` +
      `M${g(left + n * w)} ${g(top)}l${depth} -${depth}`));
  }
  let [right, down] = [0, 0];
  rows.forEach((row, r) => row.forEach(({ device, index }, c) => {
    const x = left + (c % bandColumns) * w + floor(r / bandRows) * (bandColumns * w + GAP / 2);
    const y = top + (r % bandRows) * tall + floor(c / bandColumns) * (bandRows * tall + GAP / 2);
    [right, down] = [max(right, x + w - left), max(down, y + tall - top)];
    shapes.push(tile(x, y, w, tall, device, device, index.length && `device ${device}: ${indexText(index)}`));
  }));
  return [shapes, right, down];
}

// Width and height of a tile, and rows and columns before a sheet is continued.
function tileSize(shape, sheets, rows, columns, room, depth) {
  const most = max(1, min(WRAP, floor((room - depth) / TILE_W)));
  const bands = [ceil(rows / ceil(rows / WRAP)), ceil(columns / ceil(columns / most))];
  const [down, right] = [1, 1, ...shape].slice(-2);
  const across = sheets <= 1 ? 1 : sheets <= 4 ? 2 : sheets <= 8 ? 4 : 0;
  const longer = across ? (room + GAP) / across - GAP - depth : 0;
  const proportion = min(3, max(1 / 3, max(right, 1) / max(down, 1)));
  let width = min(longer, 220 * proportion);
  let height = width / proportion;
  [width, height] = [width / ceil(rows / WRAP), height / ceil(columns / most)];
  [width, height] = [max(TILE_W, width / bands[1]), max(TILE_H, height / bands[0])];
  return [floor(10 * width) / 10, floor(10 * height) / 10, bands];
}

// The answer of explorer.layout as a figure: a rectangle for each device, each replica by itself.
function drawLayout({ shape, spec, mesh, devices, replicas, type, summary }, name = "") {
  const places = devices.map(({ position }) => [0, 0, 0, ...position].slice(-3));
  const [slabs, rows, columns] = [0, 1, 2].map((i) => max(...places.map((place) => place[i])) + 1);
  const sheet = new Map(devices.map((held, i) => [`${[held.replica, ...places[i]]}`, held]));
  const depth = shape.length > 2 ? 7 : 0;
  const [down, right] = ["", "", ...spec.map(over)].slice(-2);
  const margin = down ? round(textWidth(down)) + 15 : 0;
  const [tileW, tileH, bands] = tileSize(shape, replicas * slabs, rows, columns, WIDTH - margin, depth);

  const abreast = slabs === 1 ? replicas : slabs;
  let across = max(1, floor((WIDTH - margin + GAP) / (bands[1] * tileW + depth + GAP)));
  across = ceil(abreast / ceil(abreast / across));
  const spare = mesh.filter(([axis, size]) => size > 1 && !spec.flat().includes(axis)).map(([axis]) => axis);
  const heading = [];
  if (slabs > 1) heading.push(`slabs over ${over(spec.slice(0, -2).flat())} →`);
  if (replicas > 1) heading.push(`replicas over ${over(spare)} ${slabs > 1 ? "↓" : "→"}`);
  const shapes = heading.length ? [text(0, 11, heading.join(", "), 12, { "text-anchor": "start" })] : [];
  let [width, top] = heading.length ? [textWidth(heading.join(", ")), 16] : [0, 0];
  let labelled = false;
  for (let first = 0; first < replicas * slabs; first += abreast) {
    for (let start = first; start < first + abreast; start += across) {
      let [left, height] = [margin, 0];
      const above = right && !labelled ? 16 : 0;
      for (let i = start; i < min(start + across, first + abreast); i++) {
        const blocks = times(rows, (r) => times(columns, (c) => sheet.get(`${[floor(i / slabs), i % slabs, r, c]}`)));
        const y = top + above + depth;
        const [body, w, tall] = grid(blocks, left, y, tileW, tileH, depth, bands);
        shapes.push(...body);
        if (!labelled) {
          if (right) shapes.push(...arrowRight(left + depth, y - depth - 8, min(w, bands[1] * tileW), right));
          if (down) shapes.push(...arrowDown(left - 7, y, min(tall, bands[0] * tileH), down));
          labelled = true;
        }
        const label = depth && indexText(blocks[0][0].index.slice(0, 1));
        if (depth && 6 * label.length <= w + 8) shapes.push(text(left + w / 2, y + tall + 13, label, 12));
        left += w + depth + GAP;
        height = max(height, above + tall + depth + (depth && 16));
      }
      width = max(width, left - GAP);
      top += height + GAP;
    }
  }
  // To be heard: sixteen devices, the rest counted.
  const held = devices.slice(0, 16).map(({ device, index, replica }) =>
    `evice ${device} holds ${indexText(index)}${replicas > 1 ? ` (replica ${replica + 1})` : ""}`);
  const more = devices.length > 16 ? `; and ${devices.length - 16} more devices` : "";
  const description = shape.length ? `D${held.join("; d")}${more}.` : `A single number, on each of ${devices.length} devices.`;
  return figure(shapes, width, top - GAP, `${name && `${name}: `}${type} on ${count(devices.length, "device")}`, description,
    name && h("strong", {}, name), name && " ", h("code", {}, type), h("br", {}), `${summary}.`);
}

explorer.drawLayout = drawLayout;
})(window.explorer);
