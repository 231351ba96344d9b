// What pages do besides being read: light and dark, the search, copying code, what one has read, and paper.
// Everything else works without a script.
{
  const root = document.documentElement;
  const keep = { get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
    set: (name, value) => { try { if (value) localStorage.setItem(name, value); else localStorage.removeItem(name); } catch {} } };

  // Light and dark: the system's choice, until the reader has one; chosen back to the system's, it is forgotten.
  const prefersDark = matchMedia("(prefers-color-scheme: dark)");
  document.querySelector(".mode")?.addEventListener("click", () => {
    const now = root.dataset.theme ?? (prefersDark.matches ? "dark" : "light");
    root.dataset.theme = now === "dark" ? "light" : "dark";
    keep.set("mode", root.dataset.theme);
  });

  // The search is loaded when it is first used: by its link, with "/" or Ctrl+K, or on its own page.
  const own = new URL(document.currentScript.src);
  const load = (file) => new Promise((done, failed) => {
    const src = new URL(file + own.search, own).href; // of the same version
    document.head.append(Object.assign(document.createElement("script"), { src, onload: done, onerror: failed }));
  });
  const slash = { on: () => keep.get("slash") !== "off", turn: (on) => keep.set("slash", on ? "" : "off") };
  let search;
  const searching = () => (search ??= load("search.js").then(() => globalThis.bookSearch({ load, root: new URL("../", own), slash })));
  const find = async (event) => {
    event.preventDefault();
    (await searching()).open();
  };
  document.querySelector("[data-search]")?.addEventListener("click", (event) => {
    if (!event.ctrlKey && !event.metaKey && !event.shiftKey) find(event); // with these it opens elsewhere
  });
  addEventListener("keydown", (event) => {
    const typing = event.target.closest?.("input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]");
    const control = event.ctrlKey || event.metaKey;
    if (control && !event.altKey && event.key.toLowerCase() === "k") find(event);
    else if (event.key === "/" && slash.on() && !control && !event.altKey && !typing) find(event);
  });
  if (document.querySelector("[data-search-here]")) searching();

  // A cell's last assertions stand apart, and belong behind so many of its lines.
  const sourceOf = (cell) => {
    const lines = (of) => cell.querySelector(of)?.textContent.replace(/\n$/, "").split("\n") ?? [];
    const checks = cell.querySelector("details.checked"), source = lines("pre:not(.checked pre, .cell_output pre)");
    if (checks) source.splice(Number(checks.dataset.before), 0, ...lines(".checked pre"));
    const example = source[0].startsWith(">>> ");  // of which the code is copied, without prompts and results
    return (example ? source.filter((line) => /^(>>>|\.\.\.)( |$)/.test(line)).map((line) => line.slice(4)) : source).join("\n");
  };

  // A button on each piece of code. Functions that readers take have one of the page, with all that they need: "0,1 4" of
  // the page's statements, where a space stands for an empty line.
  const statements = JSON.parse(document.querySelector("[data-statements]")?.dataset.statements ?? "[]");
  const needs = (numbers) => numbers.split(" ").map((group) => group.split(",").map((number) => statements[number]).join("\n")).join("\n\n");
  for (const code of document.querySelectorAll("article .cell, article section > [class*=highlight-]")) {
    const box = code.querySelector(".highlight:not(.cell_output .highlight)");
    const whole = code.querySelector("button.whole");
    const button = whole ?? Object.assign(document.createElement("button"), { type: "button", className: "copy", textContent: "Copy" });
    if (whole) whole.hidden = false; else button.setAttribute("aria-label", "Copy this code");
    const label = button.textContent;
    button.addEventListener("click", async () => {
      const source = whole ? sourceOf(code).replace(/^%%processes.*\n/, "") : sourceOf(code);
      await navigator.clipboard.writeText([needs(button.dataset.needs ?? ""), source].filter(Boolean).join("\n\n\n"));
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = label; }, 2000);
    });
    box?.append(button);
  }

  // What has moved to another page: its old address leads on.
  const leadOn = () => {
    const place = document.getElementById(location.hash.slice(1));
    if (place?.matches(".moved")) location.replace(place.querySelector("a").href);
  };
  addEventListener("hashchange", leadOn);
  leadOn();

  // Whoever is on a path through the core of the book is led along its sections, until they leave it.
  const path = new URLSearchParams(location.search).get("path") ?? keep.get("path");
  if (path) {
    const leave = () => { keep.set("path", ""); keep.set("path-at", ""); };
    keep.set("path", path);
    Promise.all([load("core.js"), load("core-stops.js")]).then(() => {
      const page = globalThis.followPath({ path, leave, last: keep.get("path-at") });
      if (page) keep.set("path-at", page);
    }, () => {});
  }

  // What scrolls sideways in its box can be reached by the keyboard; so can code that is far from the screen and not
  // yet laid out, until it comes near and its width is known.
  const reach = ({ target }) => {
    const far = target.firstElementChild?.checkVisibility?.({ contentVisibilityAuto: true }) === false;
    if (far || target.scrollWidth > target.clientWidth) target.tabIndex = 0; else target.removeAttribute("tabindex");
  };
  const boxes = new ResizeObserver((seen) => seen.forEach(reach));
  addEventListener("contentvisibilityautostatechange", reach);
  for (const box of document.querySelectorAll("article :is(pre, .table, div.math, .cell_output > *, :is(.cell_output, .key-figure):has(> .plot))")) boxes.observe(box);

  // The glossary shows the entries whose terms have what is typed; an entry has one term or several, and what they mean.
  document.querySelector(".letters input")?.addEventListener("input", ({ target }) => {
    const typed = target.value.trim().toLowerCase();
    let terms = [];
    for (const item of document.querySelectorAll("dl.glossary > *")) {
      if (item.tagName === "DT") terms.push(item);
      else {
        const hidden = !terms.some((term) => term.textContent.toLowerCase().includes(typed));
        for (const part of [...terms, item]) part.hidden = hidden;
        terms = [];
      }
    }
  });

  // A long table shows its first rows, all, or those that have what is typed.
  for (const box of document.querySelectorAll("article .rows")) {
    const [input, button] = box.children, table = box.nextElementSibling;
    button.addEventListener("click", () => { table.dataset.all = ""; button.hidden = true; });
    input.addEventListener("input", () => {
      const typed = input.value.trim().toLowerCase();
      table.toggleAttribute("data-all", Boolean(typed) || button.hidden);
      for (const row of table.tBodies[0].rows) row.hidden = !row.textContent.toLowerCase().includes(typed);
    });
  }

  // Chapters that were read to their end have a tick in the list, in this browser only.
  const read = new Set((keep.get("read") ?? "").split(" ").filter(Boolean));
  const name = (address) => new URL(address, location.href).pathname.split("/").pop().replace(".html", "") || "index";
  const mark = () => {
    for (const link of document.querySelectorAll("#chapters li a")) {
      if (read.has(name(link.href))) link.dataset.read = "";
    }
  };
  mark();
  const end = document.querySelector(".end");
  if (end) {
    new IntersectionObserver((seen) => {
      if (!seen.some((one) => one.isIntersecting) || scrollY === 0) return;
      read.add(name(location.href));
      keep.set("read", [...read].join(" "));
      mark();
    }).observe(end);
  }

  // Lists that cover the page on narrow screens close when something in them is chosen.
  for (const list of document.querySelectorAll("nav[popover]")) {
    list.addEventListener("click", (event) => { if (event.target.closest("a")) list.hidePopover(); });
  }

  // The lists show where one is: from the start beside the page, and on narrow screens when they open.
  const follow = (list) => {
    const here = list?.querySelector("[aria-current]");
    if (!here || !list.clientHeight) return;
    const { top, bottom } = here.getBoundingClientRect(), box = list.getBoundingClientRect();
    if (top < box.top || bottom > box.bottom) list.scrollTop += (top + bottom) / 2 - (box.top + box.bottom) / 2;
  };
  for (const list of document.querySelectorAll("nav[popover]")) {
    follow(list);
    list.addEventListener("toggle", () => follow(list));
  }

  // Which section one is in, which the form for mistakes is told.
  const links = new Map([...document.querySelectorAll("#sections > ul > li > a")].map((a) => [decodeURIComponent(a.hash.slice(1)), a]));
  if (links.size) {
    const sections = [...links.keys()].map((id) => document.getElementById(id)).filter(Boolean);
    const report = document.querySelector("#sections .report"), form = report?.href;
    const show = () => {
      const here = sections.findLast((section) => section.getBoundingClientRect().top < innerHeight / 3);
      for (const [id, link] of links) {
        if (id === here?.id) link.setAttribute("aria-current", "true"); else link.removeAttribute("aria-current");
      }
      follow(document.getElementById("sections"));
      if (report) report.href = form + (here ? encodeURIComponent(`"${links.get(here.id).textContent}"`) : "");
    };
    addEventListener("scroll", () => requestAnimationFrame(show), { passive: true });
    show();
  }

  // Paper shows what the page folds.
  addEventListener("beforeprint", () => {
    root.dataset.shown = root.dataset.theme ?? "";
    root.dataset.theme = "light"; // paper is light
    for (const box of document.querySelectorAll("article details:not([open])")) {
      box.open = true;
      box.dataset.printed = "";
    }
  });
  addEventListener("afterprint", () => {
    if (root.dataset.shown) root.dataset.theme = root.dataset.shown; else delete root.dataset.theme;
    for (const box of document.querySelectorAll("details[data-printed]")) {
      box.open = false;
      delete box.dataset.printed;
    }
  });
}
