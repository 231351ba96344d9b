// Along a path through the book. On one through its core each page has the sections of the path, numbered; what it leaves
// out is folded, and what one has to know of that is said. Another leads through whole chapters. book.js loads this for those who are on a path. Returns the name
// of a page that the path leads through.
globalThis.followPath = ({ path, leave, last }) => {
  const { title, stops, whole } = globalThis.coreStops[path] ?? {};
  if (!title) return leave();
  const element = (tag, className, markup = "") => Object.assign(document.createElement(tag), { className, innerHTML: markup });
  const address = (stop) => `${stop.page}.html?path=${path}${stop.anchor && `#${stop.anchor}`}`;
  const minutes = (some) => { const sum = Math.max(1, Math.round(some.reduce((all, one) => all + one.minutes, 0))); return `${sum} minute${sum === 1 ? "" : "s"}`; };
  const mine = stops.map((stop, n) => ({ ...stop, number: n + 1 }));
  const name = location.pathname.split("/").pop().replace(".html", "") || "index";
  const here = mine.filter((stop) => stop.page === name);
  const heading = document.querySelector("article h1");
  if (!heading) return;

  // One line below the title: which sections are here, and the way out.
  const bar = element("nav", "path-bar");
  bar.setAttribute("aria-label", title);
  const [first, end] = [here[0], here.at(-1)];
  const unit = whole ? "chapter" : "section", list = whole ? "using.html#using-paths" : "evening.html";
  const of = here.length === 1 ? `${unit} ${first.number}` : `${unit}s ${first?.number} to ${end?.number}`;
  const back = mine.find((stop) => stop.page === last) ?? mine[0];
  bar.innerHTML = `<strong>${title}</strong> ` + (here.length ? `<span>${of} of ${mine.length}, ${minutes(here)} on this page</span>`
    : `<span>does not lead through this page</span> <a href="${address(back)}">Back to it</a>`);
  bar.append(" ", element("a", "", `All its ${unit}s`), " ", element("button", "", "Leave it"));
  bar.querySelector("a:last-of-type").href = list;
  bar.querySelector("button").addEventListener("click", () => {
    leave();
    location.assign(location.pathname);
  });
  const facts = document.querySelector(".facts");
  (facts ?? heading).after(bar);
  if (!here.length) return;

  // What is left out is folded; a search within the page and links still find it.
  const leaveOut = (parts, names) => {
    const box = element("div", "left-out"), line = element("p", "skipped", `<span>Not on this path: ${names.join("; ")}</span> `);
    const show = element("button", "", "Show");
    const open = () => { box.hidden = false; line.remove(); };
    box.hidden = true;
    box.setAttribute("hidden", "until-found");
    box.addEventListener("beforematch", open);
    show.addEventListener("click", open);
    line.append(show);
    parts[0].before(line, box);
    box.append(...parts);
  };
  const short = (section) => {
    const title = section.querySelector(":scope > :is(h2, h3, h4)").cloneNode(true);
    title.querySelector(".headerlink")?.remove();
    return title.innerHTML.split(": ")[0];
  };
  const sectionOf = (stop) => document.getElementById(stop.anchor)?.closest("section");
  const on = new Map(here.filter((stop) => stop.anchor).map((stop) => [sectionOf(stop), stop]));
  const leaveOutIn = (parent) => {
    let run = [];
    for (const child of [...parent.children, null]) {
      const left = child?.tagName === "SECTION" && !on.has(child);
      if (left) run.push(child);
      else if (run.length) { leaveOut(run, run.map(short)); run = []; }
      if (child && on.has(child)) leaveOutIn(child);
    }
  };
  const top = heading.parentElement;
  if (first.anchor) { // the opening is not on it
    const opening = [...top.children].slice([...top.children].indexOf(bar) + 1).filter((child) => child.tagName !== "SECTION");
    if (opening.length) leaveOut(opening, ["the opening"]);
  }
  if (!whole) leaveOutIn(top);
  for (const stop of whole ? [] : here) {
    const place = stop.anchor ? sectionOf(stop)?.querySelector(":scope > :is(h2, h3, h4)") : bar;
    if (!place) continue;
    const lines = [element("p", "path-place", `${title}: ${stop.number} of ${mine.length}`)];
    if (stop.bridge) lines.push(element("p", "bridge", stop.bridge));
    place.after(...lines);
  }
  for (const link of document.querySelectorAll("#sections > ul > li > a")) {
    if (!whole && !on.has(document.getElementById(decodeURIComponent(link.hash.slice(1)))?.closest("section"))) link.dataset.off = "";
  }

  // The page before and the page after are those of the path.
  const around = document.querySelector(".around") ?? element("nav", "around");
  around.setAttribute("aria-label", `Next and previous on ${title}`);
  const before = mine[first.number - 2], after = mine[end.number];
  const link = (stop, kind, word) => {
    const to = element("a", kind, `<small>${word} on ${title}</small> ${stop.chapter}`);
    return Object.assign(to, { href: address(stop), rel: kind });
  };
  around.replaceChildren(...(before ? [link(mine.find((stop) => stop.page === before.page), "prev", "Previous")] : []),
    after ? link(after, "next", "Next") : Object.assign(element("a", "next", `<small>The end of ${title}</small> ${whole ? "Other paths" : "What to read now"}`), { href: whole ? list : "evening.html#evening-after" }));

  // Where the address leads, now that pieces are folded.
  const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) {
    target.closest(".left-out[hidden]")?.dispatchEvent(new Event("beforematch"));
    target.scrollIntoView();
  }
  return name;
};
