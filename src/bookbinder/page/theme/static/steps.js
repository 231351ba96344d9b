// Pictures made of frames (shardlab.draw): one at a time, by button, slider or arrow key, in a row or on a ring. What was
// sent moves, and the lines of code that sent it are lit. Without this script all frames stand side by side; book.css
// hides the later ones until it has run, so that nothing jumps. A film (shardlab.film) is images in place of blocks.
{
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const STEP = 1200, FILM = 600, FLIGHT = 700; // ms: from frame to frame while it plays, in a film, and of a block
  const WIDTH = 314, HEAD = 10; // px of a ring, as of all pictures, and the radius of a device's number
  const lit = globalThis.Highlight && new Highlight();
  if (lit) CSS.highlights.set("lit", lit);

  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  // --- The ring ---------------------------------------------------------------------------------------------------

  // A slot with what it holds: nothing, data of one device, or a sum in stripes of its devices' colours.
  function slot(flow, number, [x, y, w, h], { bold = false, attribute = "" } = {}) {
    const [name, owners] = flow.blocks[number], box = `x="${x}" y="${y}" width="${w}" height="${h}"`;
    if (!name) return `<rect ${attribute} ${box} fill="none" stroke="currentColor" stroke-dasharray="2 3" opacity=".6"/>`;
    const [, fill, ink] = flow.devices[owners[0]], sum = owners.length > 1;
    const size = Math.min(0.6 * h + 2, 12, (w - (sum ? 8 : 3)) / (0.62 * name.length)), stripe = owners.length < 7 ? 7 : 5;
    const stripes = owners.map((owner, i) => {
      let path = "";
      for (let at = i * stripe; at < w + h + stripe; at += stripe * owners.length) path += `M${at + 3} -1l${-h - 2} ${h + 2}`;
      return `<path d="${path}" stroke="${flow.devices[owner][1]}" stroke-width="${stripe / 1.41 + 0.3}"/>`;
    });
    const rim = sum ? 'fill="#000" stroke="#fff" stroke-width="3.5" paint-order="stroke"' : `fill="${ink}"`;
    return `<g ${attribute}><rect ${box} fill="${sum ? "#fff" : fill}"/>${sum ? `<svg ${box}>${stripes.join("")}</svg>` : ""}`
      + `<rect ${box} fill="none" stroke="currentColor"${bold ? ' stroke-width="3"' : ""}/>`
      + (size < 7 ? "" : `<text x="${x + w / 2}" y="${y + h / 2 + 0.36 * size}" font-size="${size}" ${rim}>${name}</text>`) + "</g>";
  }

  // A frame with its devices on a ring, drawn into an svg: each has its number above its slots, an arrow is a link.
  function drawRing(svg, flow, number) {
    const frame = flow.frames[number], before = flow.frames[number - 1], n = flow.devices.length;
    const many = Math.max(...flow.frames.map((one) => one.slots[0].length)), columns = many > 4 ? 2 : 1;
    const notes = frame.notes ?? [], lines = Math.max(0, ...notes.map((of) => of.length)); // below the slots
    const w = many > 4 ? 27 : 46, h = many > 4 ? 15 : 19, held = columns * (w + 2) - 2, below = 2 * HEAD + 3 + Math.ceil(many / columns) * (h + 2);
    const wide = lines ? Math.max(held, 64) : held, high = below + 13 * lines;
    const across = (WIDTH - wide) / 2, turn = (i) => 2 * Math.PI * i / n;
    // As low as it can be while neighbours leave room for an arrow.
    let down = Math.max(across * 0.6, (high + 44) / 2);
    for (let i = 0; i < n; i++) {
      const dx = Math.abs(Math.sin(turn(i + 1)) - Math.sin(turn(i))) * across, dy = Math.abs(Math.cos(turn(i + 1)) - Math.cos(turn(i)));
      if (dx < wide + 34 && dy > 0.1) down = Math.max(down, (high + 42) / dy);
    }
    const middles = flow.devices.map((_, i) => [WIDTH / 2 + across * Math.sin(turn(i)), high / 2 + down * (1 - Math.cos(turn(i)))]);
    const tall = Math.max(...middles.map(([, y]) => y)) + high / 2;
    const parts = [], sent = new Map();
    for (const [device, place, target] of frame.sends) {
      const link = `${device} ${target}`;
      sent.set(link, [...(sent.get(link) ?? []), before.slots[device][place]]);
    }
    for (const [link, blocks] of sent) {
      const [from, to] = link.split(" ").map(Number), [x0, y0] = middles[from], [x1, y1] = middles[to];
      const length = Math.hypot(x1 - x0, y1 - y0), [ux, uy] = [(x1 - x0) / length, (y1 - y0) / length];
      const edge = Math.min((wide / 2 + 4) / Math.abs(ux || 1e-9), (high / 2 + 4) / Math.abs(uy || 1e-9));
      const aside = sent.has(`${to} ${from}`) ? 8 : 0; // both ways: each has an arrow of its own
      const at = (distance) => [x0 + ux * distance - uy * aside, y0 + uy * distance + ux * aside];
      const [ax, ay] = at(edge), [bx, by] = at(length - edge), [cx, cy] = at(length < 2 * edge + 90 ? length / 2 : edge + 30);
      const tip = [[-1, 0.7], [-1, -0.7]].map(([back, side]) => `L${bx} ${by}m${6 * (ux * back - uy * side)} ${6 * (uy * back + ux * side)}`);
      parts.push(`<g data-sent=""><path d="M${ax} ${ay}${tip.join("")}L${bx} ${by}" fill="none" stroke="currentColor"/>`
        + (blocks.length === 1 && length > 2 * edge + 20 ? slot(flow, blocks[0], [cx - 11, cy - 6.5, 22, 13]) : "") + "</g>");
    }
    flow.devices.forEach(([id, fill, ink], i) => {
      const [x, y] = [middles[i][0] - held / 2, middles[i][1] - high / 2];
      parts.push(`<circle cx="${middles[i][0]}" cy="${y + HEAD}" r="${HEAD}" fill="${fill}" stroke="currentColor"/>`
        + `<text x="${middles[i][0]}" y="${y + HEAD + 4.5}" font-size="12.5" fill="${ink}">${id}</text>`);
      frame.slots[i].forEach((block, place) => {
        const box = [x + place % columns * (w + 2), y + 2 * HEAD + 4 + Math.floor(place / columns) * (h + 2), w, h];
        const bold = before && before.slots[i][place] !== block;
        parts.push(slot(flow, block, box, { bold, attribute: 'data-slot=""' }));
      });
      (notes[i] ?? []).forEach((line, row) => {
        parts.push(`<text x="${middles[i][0]}" y="${y + below + 10 + 13 * row}" font-size="11" fill="currentColor">${line}</text>`);
      });
    });
    svg.setAttribute("viewBox", `-2 -2 ${WIDTH + 4} ${tall + 4}`);
    svg.innerHTML = `<title></title><desc></desc>${parts.join("")}`;
  }

  // What a frame that only this script draws shows, in words.
  function describe(flow, number) {
    const frame = flow.frames[number], before = flow.frames[number - 1], id = (i) => flow.devices[i][0];
    const name = (block) => flow.blocks[block][0] || "nothing";
    const sends = frame.sends.map(([i, place, to]) => `Device ${id(i)} sent ${name(before.slots[i][place])} to device ${id(to)}.`);
    const holds = frame.slots.map((held, i) => `Device ${id(i)} holds ${held.map(name).join(", ")}.`);
    return [`${frame.title}, ${flow.devices.length} devices`, [...sends, ...holds].join(" ")];
  }

  // --- Motion -----------------------------------------------------------------------------------------------------

  // What was sent travels from its slot to where it arrived, which until then shows what it held before.
  function fly(svg, flow, number) {
    const now = flow.frames[number], before = flow.frames[number - 1], cells = [...svg.querySelectorAll("[data-slot]")];
    const many = now.slots[0].length;
    if (before.slots[0].length !== many) return () => {};
    const cell = (device, place) => cells[device * many + place];
    const box = (device, place) => {
      const found = cell(device, place), drawn = found.querySelector("rect") ?? found;
      return ["x", "y", "width", "height"].map((side) => Number(drawn.getAttribute(side)));
    };
    const layer = document.createElementNS(svg.namespaceURI, "g");
    layer.dataset.flight = "";
    layer.innerHTML = now.sends.map(([, , device, place]) => slot(flow, before.slots[device][place], box(device, place))).join("")
      + now.sends.map(([device, place]) => slot(flow, before.slots[device][place], box(device, place), { bold: true })).join("");
    svg.append(layer);
    const moving = now.sends.flatMap(([device, place, to, slotThere], i) => {
      const [x0, y0] = box(device, place), [x1, y1] = box(to, slotThere), timing = { duration: FLIGHT, easing: "ease-in-out" };
      return [
        layer.children[now.sends.length + i].animate([{ transform: "none" }, { transform: `translate(${x1 - x0}px, ${y1 - y0}px)` }], { ...timing, fill: "forwards" }),
        cell(to, slotThere).animate([{ opacity: 0 }, { opacity: 0 }], timing),
      ];
    });
    const end = () => {
      for (const one of moving) one.cancel();
      layer.remove();
    };
    Promise.all(moving.map((one) => one.finished)).then(end, () => {});
    return end;
  }

  // --- The code ---------------------------------------------------------------------------------------------------

  // A line of code, in this cell or the nearest one above it that has the same line at the same place.
  function lineOf(box, [number, words]) {
    const sources = [...document.querySelectorAll(".cell_input pre")].reverse();
    for (const pre of sources) {
      const lines = pre.textContent.split("\n"), line = lines[number - 1];
      if (line?.trim() !== words || box.compareDocumentPosition(pre) & Node.DOCUMENT_POSITION_FOLLOWING) continue;
      const start = lines.slice(0, number - 1).join("\n").length + (number > 1) + line.indexOf(words);
      const range = new Range(), walk = document.createTreeWalker(pre, NodeFilter.SHOW_TEXT);
      for (let at = 0, node = walk.nextNode(); node; at += node.length, node = walk.nextNode()) {
        if (at <= start && start < at + node.length) range.setStart(node, start - at);
        if (start + words.length <= at + node.length) {
          range.setEnd(node, start + words.length - at);
          return range;
        }
      }
    }
    return null;
  }

  // --- A picture in steps -----------------------------------------------------------------------------------------

  function steps(box) {
    const drawn = [...box.querySelectorAll(":scope > figure")];
    const film = !box.dataset.flow, still = (frame) => ({ title: frame.querySelector("svg > title").textContent, sends: [], lines: [] });
    const flows = film ? [{ frames: drawn.map(still) }] : JSON.parse(box.dataset.flow), bytes = Number(box.dataset.bytes); // several flows: the reader chooses
    const choice = flows.length > 1;
    const rest = Number(box.dataset.start ?? 0); // where it stands until it is played
    let flow = flows[0], shown = rest, timer = null, all = false, onRing = choice, land = () => {}, ranges = [];

    const live = make("figure", { className: "steps-ring" }, document.createElementNS("http://www.w3.org/2000/svg", "svg"), make("figcaption"));
    const ring = live.firstChild;
    for (const [name, value] of Object.entries({ role: "img", "font-family": "system-ui,sans-serif", "text-anchor": "middle" })) {
      ring.setAttribute(name, value);
    }

    const bar = make("div", { className: "steps-bar" });
    const button = (label, action) => {
      const made = make("button", { type: "button", textContent: label });
      made.onclick = () => { made.focus(); action(); }; // not every browser focuses what is clicked
      bar.append(made);
      return made;
    };
    const previous = button("Back", () => go(shown - 1));
    const play = button("Play", () => (timer ? pause() : start()));
    const next = button("Next", () => go(shown + 1));
    const view = button("Ring", () => { all = false; onRing = !onRing; pause(); });
    const overview = button("All", () => { stop(); all = !all; show(); });
    view.hidden = choice || film;
    overview.hidden = choice;
    const slider = make("input", { type: "range", min: 0, step: 1, value: 0 });
    slider.setAttribute("aria-label", "Step");
    slider.oninput = () => go(Number(slider.value));
    const place = make("span"); // for eyes
    place.setAttribute("aria-hidden", "true");
    const spoken = make("span", { className: "steps-spoken" }); // for ears
    spoken.setAttribute("role", "status");
    bar.append(make("div", { className: "steps-slider" }, slider, place), spoken);

    // The number of devices and the bytes of the array, and what each device has sent of it.
    const size = make("select"), amount = make("input", { type: "number", min: 1, step: 1, value: bytes });
    const counter = box.querySelector("[data-counter]"), gauge = make("progress");
    if (choice) {
      const sorted = flows.toSorted((a, b) => a.devices.length - b.devices.length);
      size.append(...sorted.map((one) => make("option", { textContent: one.devices.length, selected: one === flow })));
      size.onchange = () => { flow = sorted[size.selectedIndex]; go(0); };
      amount.oninput = () => { show(); spoken.textContent = counter.textContent; };
      bar.prepend(make("div", { className: "steps-choices" }, make("label", {}, "Devices ", size), make("label", {}, "Array, bytes ", amount)));
      gauge.setAttribute("aria-label", "Bytes that each device has sent, of all that it sends");
      counter.before(gauge);
    }
    function count() {
      const n = flow.devices.length, array = Number(amount.value), number = (value) => value.toLocaleString("en", { maximumFractionDigits: 1 });
      if (!amount.validity.valid || !array) { counter.textContent = "An array has a whole number of bytes, at least 1."; return; }
      const sent = (last) => flow.frames.slice(0, last + 1).flatMap((frame) => frame.sends).filter(([device]) => device === 0).length;
      const now = sent(shown), total = sent(flow.frames.length - 1), block = array / flow.frames[0].slots[0].length;
      counter.textContent = `Each device has sent ${now} of ${total} blocks of ${number(block)} bytes: ${number(now * block)} bytes. `
        + `In all it sends ${number(total * block)} bytes; 2 × (${n} - 1) / ${n} × ${number(array)} is ${number(2 * (n - 1) / n * array)}.`;
      gauge.max = total;
      gauge.value = now;
    }

    const words = () => (choice ? describe(flow, shown) : ["title", "desc"].map((tag) => drawn[shown].querySelector(`svg > ${tag}`).textContent));
    function light(lines) {
      for (const range of ranges) lit?.delete(range);
      ranges = lit ? lines.map((line) => lineOf(box, line)).filter(Boolean) : [];
      for (const range of ranges) lit.add(range);
    }
    function show(move = false) {
      const last = flow.frames.length - 1;
      land();
      land = () => {};
      drawn.forEach((frame, i) => { frame.hidden = onRing && !all ? true : !all && i !== shown; });
      live.hidden = !onRing || all;
      if (!live.hidden) {
        drawRing(ring, flow, shown);
        ["title", "desc"].forEach((tag, i) => { ring.querySelector(tag).textContent = words()[i]; });
        live.lastChild.textContent = flow.frames[shown].title;
      }
      light(all ? [] : flow.frames[shown].lines);
      if (move && !film && !calm.matches) land = fly(live.hidden ? drawn[shown].querySelector("svg") : ring, flow, shown);
      // Not disabled, which would take the focus away from who has it there.
      previous.setAttribute("aria-disabled", all || shown === 0);
      next.setAttribute("aria-disabled", all || shown === last);
      play.setAttribute("aria-disabled", all);
      play.hidden = calm.matches; // who wants less motion steps by hand
      play.textContent = timer ? "Pause" : "Play";
      view.textContent = onRing ? "Row" : "Ring";
      view.setAttribute("aria-label", onRing ? "Devices in a row" : "Devices on a ring");
      overview.textContent = all ? "One by one" : "All";
      slider.max = last;
      slider.value = shown;
      slider.disabled = all;
      slider.setAttribute("aria-valuetext", flow.frames[shown].title);
      place.textContent = all ? `${last + 1} frames` : `${shown + 1} of ${last + 1}`;
      if (choice) count();
    }
    function say() { spoken.textContent = words().join(". ") + (choice ? ` ${counter.textContent}` : ""); }
    function stop() { clearInterval(timer); timer = null; }
    function pause(move) { stop(); show(move); say(); }
    function go(to) {
      const from = shown;
      if (all) return;
      shown = Math.max(0, Math.min(flow.frames.length - 1, to));
      pause(shown === from + 1);
    }
    function start() {
      if (all) return;
      if (shown === rest || shown === flow.frames.length - 1) shown = 0;
      timer = setInterval(() => {
        shown += 1;
        // While it plays it is silent: frames come faster than they can be read out.
        if (shown >= flow.frames.length - 1) pause(true); else show(true);
      }, film ? FILM : STEP);
      show();
    }
    box.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: flow.frames.length - 1 }[event.key];
      if (to === undefined || event.altKey || event.ctrlKey || event.metaKey || event.target.matches("input, select")) return;
      event.preventDefault();
      event.stopPropagation(); // these keys may turn the pages of the book
      go(to);
    });
    calm.addEventListener("change", () => { stop(); show(); });
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", choice ? "A picture for several numbers of devices" : `A picture of ${drawn.length} frames`);
    box.prepend(bar);
    box.append(live);
    box.dataset.ready = "";
    show();
  }

  for (const box of document.querySelectorAll("[data-steps]")) {
    try {
      steps(box);
    } catch (error) { // then as without this script
      box.querySelectorAll("figure").forEach((frame) => { frame.hidden = false; });
      box.querySelectorAll(".steps-bar, .steps-ring").forEach((made) => made.remove());
      box.dataset.ready = "";
      console.error(error);
    }
  }
}
