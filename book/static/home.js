// One array in several layouts (shardlab.specs): the reader chooses a spec or types one, and the tiles move to their
// devices. Without this script the pictures of the choices stand below each other; book.css hides the later ones until it
// has run.
{
  const calm = matchMedia("(prefers-reduced-motion: reduce)");
  const FLIGHT = 700, BETWEEN = 70, REST = 700; // ms: of a tile, from tile to tile, and after the last one

  function specs(box) {
    const figures = [...box.querySelectorAll("figure")], offered = figures.filter((figure) => !("other" in figure.dataset));
    const given = JSON.parse(box.dataset.given);
    let playing = null, moving = [], shown = 0;

    const bar = document.createElement("div");
    bar.className = "specs-bar";
    const group = document.createElement("div");
    group.setAttribute("role", "radiogroup");
    group.setAttribute("aria-label", "How the matrix is sharded");
    const choices = offered.map((figure, number) => {
      const label = document.createElement("label");
      const radio = Object.assign(document.createElement("input"), { type: "radio", name: "specs", value: number });
      radio.addEventListener("change", () => { stop(); show(number, true); write(figure.dataset.spec); say(); });
      label.append(radio, figure.dataset.spec);
      group.append(label);
      return radio;
    });
    const play = Object.assign(document.createElement("button"), { type: "button" });
    play.append(document.createElement("span"));
    play.addEventListener("click", () => { if (playing) { stop(); say(); } else start(); });
    const spoken = document.createElement("span"); // for ears
    spoken.setAttribute("role", "status");
    spoken.className = "steps-spoken";
    const row = document.createElement("div");
    row.append(group, play, spoken);

    // The spec that a reader types, in the line of code that it belongs to, and what it stores or why it stores nothing.
    const form = document.createElement("form"), code = document.createElement("code"), words = document.createElement("p");
    const field = Object.assign(document.createElement("input"), { type: "text", autocomplete: "off", spellcheck: false });
    field.setAttribute("autocapitalize", "off");
    field.setAttribute("aria-label", "PartitionSpec");
    words.setAttribute("aria-live", "polite");
    const around = ["jax.device_put(A, ", ")"].map((text) => { // what a phone leaves out
      const part = document.createElement("span");
      part.textContent = text;
      return part;
    });
    code.append(around[0], "NamedSharding(mesh, ", field, ")", around[1]);
    form.append(code);
    form.addEventListener("submit", (event) => event.preventDefault());
    field.addEventListener("input", read);
    bar.append(form, row, words);

    function read() {
      if (playing) stop();
      const { spec, error } = window.explorer.ofText(field.value, given);
      const number = error ? -1 : figures.findIndex((figure) => figure.dataset.axes === JSON.stringify(spec));
      if (number >= 0 && number !== shown) show(number, true);
      tell(error);
    }
    function tell(error) {
      const [each, all] = [figures[shown].querySelector("[data-bytes]").dataset.bytes, figures[0].dataset.nbytes];
      const same = Number(figures[shown].dataset.replicas);
      words.textContent = error ?? `Each device stores ${each} of ${all} bytes, and ` +
        `${same > 1 ? `${same} devices store the same` : "no two devices store the same"}.`;
      field.setAttribute("aria-invalid", `${Boolean(error)}`);
      box.toggleAttribute("data-refused", Boolean(error));
    }
    function write(text) {
      field.value = text;
      tell();
    }

    function say() {
      const svg = figures[shown].querySelector("svg");
      spoken.textContent = ["title", "desc"].map((tag) => svg.querySelector(`:scope > ${tag}`).textContent).join(". ");
    }

    // All that has begun to move is where it belongs.
    function settle() {
      for (const one of moving) one.cancel();
      moving = [];
      for (const text of box.querySelectorAll("[data-final]")) {
        text.textContent = text.dataset.final;
        delete text.dataset.final;
      }
    }

    function show(number, move) {
      settle();
      shown = number;
      choices.forEach((radio, i) => { radio.checked = i === number; });
      figures.forEach((figure, i) => { figure.hidden = i !== number; });
      play.hidden = calm.matches;
      play.firstChild.textContent = playing ? "Pause" : "Play";
      play.toggleAttribute("data-playing", Boolean(playing));
      if (move && !calm.matches) fly(figures[number]);
    }

    // Each tile starts as the slice of the array that it is; when it has arrived its bytes are counted.
    function fly(figure) {
      const labels = figure.querySelectorAll("[data-bytes]"), bars = figure.querySelectorAll("[data-bar]");
      const total = figure.querySelector("[data-total]").firstChild, all = total.data;
      let sum = 0;
      total.data = "0";
      moving.push({ cancel: () => { total.data = all; } });
      figure.querySelectorAll("[data-from]").forEach((tile, i) => {
        const [x, y, width] = tile.dataset.from.split(" ").map(Number);
        const scale = width / tile.width.baseVal.value;
        const from = `translate(${x - scale * tile.x.baseVal.value}px, ${y - scale * tile.y.baseVal.value}px) scale(${scale})`;
        const timing = { duration: FLIGHT, delay: 250 + i * BETWEEN, easing: "cubic-bezier(.4, 0, .2, 1)", fill: "backwards" };
        const flight = tile.animate([{ transform: from, opacity: 0 }, { opacity: 0.9, offset: 0.02 }, { opacity: 0.9, offset: 0.9 }, { transform: "none" }], timing);
        const mark = bars[i].animate([{ opacity: 0 }, { opacity: 0, offset: 0.99 }, { opacity: 1 }], timing);
        labels[i].dataset.final ??= labels[i].textContent;
        labels[i].textContent = "0 B";
        flight.onfinish = () => {
          labels[i].textContent = labels[i].dataset.final;
          sum += Number(labels[i].dataset.bytes);
          total.data = sum.toLocaleString("en");
        };
        moving.push(flight, mark);
      });
    }

    function stop() {
      clearTimeout(playing);
      playing = null;
      show(shown, false);
    }
    function start(number = 0) {
      playing = setTimeout(() => {
        if (number + 1 < offered.length) start(number + 1); else stop();
      }, 250 + FLIGHT + BETWEEN * 8 + REST);
      show(number, true);
      write(figures[number].dataset.spec);
    }

    calm.addEventListener("change", stop);
    addEventListener("beforeprint", stop); // paper shows no tile in flight,
    matchMedia("print").addEventListener("change", stop); // nor does a page that is made for paper
    box.prepend(bar);
    box.dataset.ready = "";
    if (!calm.matches) return start();
    show(offered.length - 1, false);
    write(offered.at(-1).dataset.spec);
  }

  for (const box of document.querySelectorAll("[data-specs]")) {
    try {
      specs(box);
    } catch (error) { // then as without this script
      box.querySelectorAll("figure").forEach((figure) => { figure.hidden = "other" in figure.dataset; });
      box.querySelector(".specs-bar")?.remove();
      box.dataset.ready = "";
      console.error(error);
    }
  }
}
