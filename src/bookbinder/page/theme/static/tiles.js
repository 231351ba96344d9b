// Pictures of arrays and meshes (shardlab.draw): point at a device, tap it or go there by arrow key, and all its tiles in
// the row are marked, and a line below says what it holds. Without this script each tile has a tip.
{
  function devices(row) {
    const tiles = [...row.querySelectorAll("[data-device]")];
    const line = Object.assign(document.createElement("p"), { className: "tile-says" });
    line.setAttribute("aria-hidden", "true"); // the tile's name says it
    let pointed = null, focused = null;

    function show() {
      const tile = pointed ?? focused;
      for (const one of tiles) {
        if (tile) one.dataset.mark = one.dataset.device === tile.dataset.device ? "on" : "off"; else delete one.dataset.mark;
      }
      line.textContent = tile?.dataset.says ?? "";
      if (tile) row.append(line); else line.remove();
    }
    const tileOf = (event) => event.target.closest("[data-device]");
    row.addEventListener("pointerover", (event) => {
      if (event.pointerType !== "touch") { pointed = tileOf(event); show(); }
    });
    row.addEventListener("pointerleave", () => { pointed = null; show(); });
    row.addEventListener("click", (event) => tileOf(event)?.focus({ preventScroll: true })); // a tap
    row.addEventListener("focusin", (event) => { focused = tileOf(event); show(); });
    row.addEventListener("focusout", () => { focused = null; show(); });

    // One stop for the tabulator in each drawing; from there the arrow keys lead to the neighbours.
    for (const svg of new Set(tiles.map((tile) => tile.ownerSVGElement))) {
      const own = tiles.filter((tile) => tile.ownerSVGElement === svg);
      svg.setAttribute("role", "group");
      for (const tile of own) {
        tile.querySelector("title")?.remove(); // or the browser would say it too
        tile.setAttribute("role", "img");
        tile.setAttribute("aria-label", tile.dataset.says);
        tile.setAttribute("tabindex", tile === own[0] ? 0 : -1);
      }
      // Not on the drawing itself, which some browsers would make a stop of its own.
      svg.parentElement.addEventListener("focusin", (event) => {
        for (const tile of own) tile.setAttribute("tabindex", tile === tileOf(event) ? 0 : -1);
      });
      svg.parentElement.addEventListener("keydown", (event) => {
        if (event.altKey || event.ctrlKey || event.metaKey) return;
        const to = event.key === "Home" ? own[0] : event.key === "End" ? own.at(-1) : neighbour(own, tileOf(event), event.key);
        if (event.key === "Escape") event.target.blur();
        if (!to) return;
        event.preventDefault();
        event.stopPropagation(); // these keys may turn the pages of the book
        to.focus();
      });
    }
  }

  // The nearest tile in the direction of an arrow key: the same one if there is none, null for other keys.
  function neighbour(tiles, from, key) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    if (!way || !from) return null;
    const middle = (tile) => { const { x, y, width, height } = tile.getBoundingClientRect(); return [x + width / 2, y + height / 2]; };
    const [x, y] = middle(from);
    let best = from, least = Infinity;
    for (const tile of tiles) {
      const [dx, dy] = [middle(tile)[0] - x, middle(tile)[1] - y];
      const ahead = dx * way[0] + dy * way[1], aside = Math.abs(dx * way[1] + dy * way[0]);
      if (ahead > 1 && ahead + 3 * aside < least) [best, least] = [tile, ahead + 3 * aside];
    }
    return best;
  }

  const all = [...document.querySelectorAll("[data-device]")].filter((tile) => !tile.closest("[data-explorer]"));
  for (const row of new Set(all.map((tile) => tile.closest(".shardlab")))) devices(row);
}
