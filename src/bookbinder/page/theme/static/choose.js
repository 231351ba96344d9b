// Bars that depend on inputs (shardlab.interactive_bars): a slider or a list for each input, above a picture that has the
// numbers of all combinations as data. Without this script the picture shows one of them; book.css keeps the space for
// the controls until it has run, so that nothing jumps.
{
  const WIDTH = 314; // px: of all pictures

  function make(tag, properties = {}, ...children) {
    const made = Object.assign(document.createElement(tag), properties);
    made.append(...children);
    return made;
  }

  function choose(box) {
    const { inputs, start, rows, words, cases } = JSON.parse(box.dataset.choices);
    const [svg, caption] = ["svg", "figcaption"].map((tag) => box.querySelector(tag));
    const groups = [...svg.querySelectorAll("[data-row]")], at = [...start];
    const bar = make("div", { className: "choices" }), spoken = make("span", { className: "steps-spoken" });
    spoken.setAttribute("role", "status");

    const values = inputs.map(([name, texts, ascends], i) => {
      const value = make("span"); // for eyes
      value.setAttribute("aria-hidden", "true");
      const control = ascends
        ? make("input", { type: "range", min: 0, max: texts.length - 1, step: 1, value: at[i] })
        : make("select", {}, ...texts.map((text, place) => make("option", { textContent: text, selected: place === at[i] })));
      control.oninput = () => {
        at[i] = ascends ? Number(control.value) : control.selectedIndex;
        spoken.textContent = show();
      };
      bar.append(make("label", {}, make("span", { textContent: name }), control, value));
      return () => {
        if (ascends) control.setAttribute("aria-valuetext", value.textContent = texts[at[i]]);
      };
    });

    // A row as its numbers: its total and its sum in words, as shardlab has them.
    function draw(group, [name, unit, scale, kinds, limit], numbers) {
      const over = numbers[0] === "!", [sum, ...parts] = numbers.slice(over).split(" ");
      const each = parts.length ? parts : [sum], amount = (text) => Number(text.replaceAll(",", ""));
      const total = `${sum}${unit}${limit ? ` (${over ? "over" : "limit"} ${limit}${unit})` : ""}`;
      let left = 0;
      group.querySelectorAll("[data-part]").forEach((part, i) => {
        const width = Math.min(amount(each[i]) * scale, WIDTH - left);
        part.setAttribute("x", left);
        part.setAttribute("width", width);
        left += width;
      });
      group.querySelector("[data-total]").textContent = total;
      group.querySelector("[data-beyond]").setAttribute("visibility", amount(sum) * scale > WIDTH + 0.5 ? "visible" : "hidden");
      group.querySelectorAll("[data-value]").forEach((text, i) => { text.textContent = `${kinds[i]} ${parts[i]}`; });
      const terms = parts.map((part, i) => `${kinds[i]} ${part}`).join(" + ");
      return [`${name} ${total}`, `${name}: ${terms && `${terms} = `}${total}`];
    }

    function show() {
      for (const update of values) update();
      const found = cases[at.reduce((number, place, i) => number * inputs[i][1].length + place, 0)];
      const said = groups.map((group, i) => draw(group, rows[i], found[i]));
      const notes = words.map((label, i) => `${label}: ${found[rows.length + i]}`);
      const chosen = inputs.map(([name, texts], i) => `${name} ${texts[at[i]]}`).join(", ");
      const sentence = [...said.map(([, sum]) => sum), ...notes].join("; ");
      svg.querySelector("title").textContent = `${chosen}: ${said.map(([total]) => total).join(", ")}`;
      svg.querySelector("desc").textContent = `${sentence[0].toUpperCase()}${sentence.slice(1)}.`;
      caption.replaceChildren(...[chosen, ...notes].flatMap((line, i) => (i ? [make("br"), line] : [line])));
      return `${chosen}. ${sentence}.`;
    }
    show();
    box.setAttribute("role", "group");
    box.setAttribute("aria-label", `Bars for the chosen ${inputs.map(([name]) => name).join(", ")}`);
    box.prepend(bar);
    box.append(spoken);
  }

  for (const box of document.querySelectorAll("[data-choices]")) {
    try {
      choose(box);
    } catch (error) { // then as without this script
      console.error(error);
    }
    box.dataset.ready = "";
  }
}
