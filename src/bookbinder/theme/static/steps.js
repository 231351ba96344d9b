// Pictures made of frames: one at a time, by button or arrow key. Without this script all frames stand side by side;
// book.css hides the later ones until it has run, so that nothing jumps.
const calm = matchMedia("(prefers-reduced-motion: reduce)");

function steps(box) {
  const frames = [...box.children];
  let shown = 0, timer = null, all = false;

  const bar = document.createElement("div");
  bar.className = "steps-bar";
  const button = (label, action) => {
    const made = document.createElement("button");
    made.type = "button";
    made.textContent = label;
    made.onclick = () => { made.focus(); action(); }; // not every browser focuses what is clicked
    bar.append(made);
    return made;
  };
  const previous = button("Back", () => go(shown - 1));
  const play = button("Play", () => (timer ? pause() : start()));
  const next = button("Next", () => go(shown + 1));
  const overview = button("All", () => { stop(); all = !all; show(); });
  const place = document.createElement("span"); // for eyes
  place.setAttribute("aria-hidden", "true");
  const spoken = document.createElement("span"); // for ears
  spoken.setAttribute("role", "status");
  spoken.className = "steps-spoken";
  bar.append(place, spoken);

  const words = (tag) => frames[shown].querySelector(`svg > ${tag}`).textContent;
  function show() {
    frames.forEach((frame, i) => { frame.hidden = !all && i !== shown; });
    // Not disabled, which would take the focus away from who has it there.
    previous.setAttribute("aria-disabled", all || shown === 0);
    next.setAttribute("aria-disabled", all || shown === frames.length - 1);
    play.setAttribute("aria-disabled", all);
    play.hidden = calm.matches; // who wants less motion steps by hand
    play.textContent = timer ? "Pause" : "Play";
    overview.textContent = all ? "One by one" : "All";
    place.textContent = all ? `${frames.length} frames` : `${shown + 1} of ${frames.length}`;
  }
  function say() { spoken.textContent = `${words("title")}. ${words("desc")}`; }
  function stop() { clearInterval(timer); timer = null; }
  function pause() { stop(); show(); say(); }
  function go(to) {
    if (all) return;
    shown = Math.max(0, Math.min(frames.length - 1, to));
    pause();
  }
  function start() {
    if (all) return;
    if (shown === frames.length - 1) shown = 0;
    timer = setInterval(() => {
      shown += 1;
      // While it plays it is silent: frames come faster than they can be read out.
      if (shown >= frames.length - 1) pause(); else show();
    }, 1200);
    show();
  }
  box.addEventListener("keydown", (event) => {
    const to = { ArrowLeft: shown - 1, ArrowRight: shown + 1, Home: 0, End: frames.length - 1 }[event.key];
    if (to === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation(); // these keys may turn the pages of the book
    go(to);
  });
  calm.addEventListener("change", () => { stop(); show(); });
  box.setAttribute("role", "group");
  box.setAttribute("aria-label", `A picture of ${frames.length} frames`);
  box.prepend(bar);
  box.dataset.ready = "";
  show();
}

for (const box of document.querySelectorAll("[data-steps]")) {
  try {
    steps(box);
  } catch (error) { // then as without this script
    box.querySelectorAll("figure").forEach((frame) => { frame.hidden = false; });
    box.querySelector(".steps-bar")?.remove();
    box.dataset.ready = "";
    console.error(error);
  }
}
