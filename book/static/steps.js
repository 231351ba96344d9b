// Pictures made of steps: one frame at a time, by button or arrow key. Without this script all frames stand side by
// side; book.css hides the later ones until it has run, so that nothing jumps.
for (const box of document.querySelectorAll("[data-steps]")) {
  const frames = [...box.children];
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  let shown = 0, timer = null, all = false;

  const bar = document.createElement("div");
  bar.className = "steps-bar";
  const button = (label, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.onclick = action;
    bar.append(made);
    return made;
  };
  const previous = button("◀ Back", () => go(shown - 1));
  const play = button("Play", () => (timer ? stop() : start()));
  const next = button("Next ▶", () => go(shown + 1));
  const overview = button("All", () => { all = !all; stop(); show(); });
  const place = document.createElement("span"); // for eyes
  place.setAttribute("aria-hidden", "true");
  const spoken = document.createElement("span"); // for ears
  spoken.setAttribute("role", "status");
  spoken.className = "steps-spoken";
  bar.append(place, spoken);

  const words = (frame, tag) => frame.querySelector(`svg > ${tag}`).textContent;
  function show(say) {
    frames.forEach((frame, i) => { frame.hidden = !all && i !== shown; });
    // Not disabled, which would take the focus away from who has it there.
    previous.setAttribute("aria-disabled", all || shown === 0);
    next.setAttribute("aria-disabled", all || shown === frames.length - 1);
    play.setAttribute("aria-disabled", all);
    play.hidden = calm.matches; // who wants less motion steps by hand
    play.textContent = timer ? "Pause" : "Play";
    overview.textContent = all ? "One by one" : "All";
    place.textContent = all ? `${frames.length} frames` : `${shown + 1} of ${frames.length}`;
    if (say) spoken.textContent = `${words(frames[shown], "title")}. ${words(frames[shown], "desc")}`;
  }
  function stop() { clearInterval(timer); timer = null; }
  function go(to) {
    stop();
    if (!all) shown = Math.max(0, Math.min(frames.length - 1, to));
    show(true);
  }
  function start() {
    if (all) return;
    if (shown === frames.length - 1) shown = 0;
    timer = setInterval(() => {
      shown += 1;
      if (shown >= frames.length - 1) stop();
      show(true);
    }, 1200);
    show(true);
  }
  box.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: frames.length - 1 }[event.key];
    if (to === undefined || all || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation(); // the theme turns pages with these keys
    go(to);
  });
  calm.addEventListener("change", () => { stop(); show(); });
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `A picture in ${frames.length} steps`);
  box.prepend(bar);
  box.dataset.ready = "";
  show();
}
