// Two states of a calculator beside each other: their pictures, their numbers, and by how much these differ.
(function (explorer) {
"use strict";
const { h, table } = explorer;

// From one number to another, or from one word to another.
function difference(before, after, format) {
  if (before === after) return "same";
  if (typeof after === "string") return "changed";
  const by = before ? ` (×\u00a0${Number((after / before).toPrecision(3))})` : "";
  return `${after > before ? "+" : "−"}${format(Math.abs(after - before))}${by}`;
}

// Takes the answers of a part's show(): `numbers` are { name: [value, how to write it] }, and `said` names those for words.
explorer.compare = (before, after) => {
  const most = Math.max(before.extent || 0, after.extent || 0);
  const rows = Object.entries(after.numbers).map(([name, [value, format]]) => {
    const [old] = before.numbers[name];
    return [name, format(old), format(value), difference(old, value, format)];
  });
  const other = after.others?.(before);
  if (other) rows.push(other);
  const said = rows.filter(([name]) => after.said.includes(name)).map(([name, , , by]) => `${name}: ${by}`);
  const side = (title, shown) => h("div", {}, h("p", { class: "explorer-side" }, h("strong", {}, title), ` ${shown.name}`),
    shown.draw(most, shown === before));
  const pictures = h("div", { class: "explorer-pair" }, side("Pinned", before), side("Now", after));
  const numbers = table("Pinned and now", ["quantity", "pinned", "now", "difference"], ...rows);
  return {
    words: `Compared with the pinned state: ${said.join("; ")}. `,
    nodes: after.tall ? [numbers, pictures] : [pictures, numbers],
  };
};
})(window.explorer);
