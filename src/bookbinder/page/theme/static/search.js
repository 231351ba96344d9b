// The search: sections by their headings, by the terms that they define, by the names in them and by what they say.
// book.js loads this file when a reader first searches, and this file the engine, MiniSearch, and search-index.js, which
// search.py has written. The texts of a page's sections, search/NAME.js, follow when some of them are found.
globalThis.bookSearch = ({ load, root, slash }) => {
  const SHOWN = 20; // results
  const MOST = 300; // characters of what is asked that are looked at,
  const WORDS = 24; // and words: more take seconds, and find nothing better
  const LONG = 12; // words that are a message, and not what a reader typed
  const LENGTH = 200; // characters of the sentence that is shown with one
  const FIELDS = { names: 8, heading: 6, openings: 6, api: 2.5, above: 3, text: 1, code: 0.3 }; // and how much a word in them counts
  const LIKE = { // what means the same here, or is one of these, and how much that counts
    gpu: ["device"], tpu: ["device"], chip: ["device"], core: ["device"], accelerator: ["device"], card: ["gpu", "device"],
    node: ["host"], host: ["node"], machine: ["host", "node"], server: ["serve"], multi: ["many", "several", "two"], several: ["many"],
    multiple: ["many", "several", "two"],
    different: ["other", "fewer", "another", "differ"], differ: ["different"], other: ["another", "different"], fewer: ["other"], big: ["large"], bigger: ["larger"],
    load: ["restore"], restore: ["load"], restart: ["resume", "restore", "requeue"], resume: ["restart", "restore"], crash: ["die", "killed"],
    split: ["shard"], distribute: ["shard"], partition: ["shard"], divide: ["shard"], share: ["shard", "tied"], duplicate: ["replicate"],
    seed: ["key", "chain", "random"], rng: ["key", "random"], random: ["key"], speed: ["slow", "fast"], fast: ["speed", "second"], slow: ["speed"],
    faster: ["slower"], efficient: ["bound", "utilisation"], ram: ["host", "memory"], copy: ["move"],
    keep: ["retention"], continue: ["resume", "restart"], order: ["shuffle", "sampler"], result: ["number", "bit"], initial: ["create", "key"],
    generation: ["decode", "serve"], heat: ["stencil"], test: ["assert"], infiniband: ["network"], ethernet: ["network"],
    stuck: ["hang"], deadlock: ["hang"], freese: ["frosen"], weight: ["parameter"], parameter: ["weight"], dataset: ["data"], metric: ["loss"],
    inference: ["serve", "serving", "decode"], generate: ["serve", "decode"], moe: ["expert"], pde: ["stencil"], simulate: ["simulation"],
    idle: ["wait", "bubble"], utilisation: ["mfu", "idle"], debug: ["diagnose"], profile: ["trace"], measure: ["time", "count"],
    estimate: ["predict"], choose: ["which", "decide"], sise: ["byte"], disk: ["file"], corrupt: ["damaged"], fit: ["memory"], train: ["step"],
    // Short forms, and words of other libraries.
    param: ["parameter"], ckpt: ["checkpoint"], grad: ["gradient"], attn: ["attention"], seq: ["sequence"], mem: ["memory"], vram: ["memory"],
    comm: ["communication"], perf: ["speed", "slow"], init: ["create", "initialise"], env: ["environment"], lr: ["learning"], opt: ["optimiser"],
    eval: ["evaluate"], sync: ["barrier"], async: ["asynchronous"], worker: ["process"], dataloader: ["loader"], parallelise: ["shard", "parallel"],
    deploy: ["serve"], finetune: ["lora"], store: ["save"], bench: ["measure"], benchmark: ["measure"],
    mismatch: ["differ", "disagree"], combine: ["together"], pick: ["choose", "which"], neighbor: ["neighbour"], timeout: ["hang", "limit"],
    1: ["one"], 2: ["two"], 4: ["four"], 8: ["eight"], one: ["1"], two: ["2"], four: ["4"], eight: ["8"], oom: ["memory"],
  };
  const AS_MUCH = 0.5;
  const MANY = new Set(["multi", "multiple", "many", "several"]), SLIGHT = 0.4; // rare here, but they tell little of the subject
  const PIECES = 0.2; // the same for the pieces of a word such as "all-reduce", where it is not there as a whole
  const KINDS = { section: 1, entry: 0.4, exercise: 0.4 }; // what teaches comes before what defines or asks,
  const APPENDIX = 0.4; // the parts before the appendices,
  const LISTING = "reference", LISTED = 0.4; // which lists what there is, and explains nothing; its names are found to the letter
  const CLOSING = 0.4; // and both before "Summary" and other headings that many chapters have
  const HEADED = 30; // a section whose heading begins with what was typed,
  const CALLED = 20; // or which defines that,
  const WITHIN = 2; // or which defines one word of that, such as "divisible" in "batch size not divisible",
  const PHRASE = 8; // or more, the rarer those words are among all, such as "many gpus" in "how many gpus do I need",
  const SCATTERED = 0.8; // of that, where its words stand in what was typed, but not side by side,
  const BEGINS = 4; // or the same of one that begins so,
  const PARTLY = 5; // or whose heading begins with some of the words, the more, the rarer these are
  const SHARE = 3; // power of how much of the query a section has, by how rare its words are
  const FEW = 3; // sections that have all words: with fewer, all those follow that have some of them
  const LETTERS = /[\p{L}\p{N}]+(?:[._'’-]+[\p{L}\p{N}]+)*/gu;

  // --- Words. "shard_map", "shardmap" and "shard map" are found by each other, and so are plurals and both spellings of
  // "optimiser"; but the names "out_sharding" and "out_shardings" differ.

  const spelt = (text) => text.replaceAll("z", "s");
  const stem = (word) => spelt(word).replace(/(?<=ss|sh|ch|x)es$|(?<=..[^s])s$/, "");
  const pieces = (word) => word.replace(/(\p{Ll})(\p{Lu})/gu, "$1-$2").toLowerCase().split(/[^\p{L}\p{N}]+/u);
  const whole = (word) => (/[._]/.test(word) ? spelt : stem)(pieces(word).join(""));
  const known = new Map();
  const forms = (word) => { // of jax.lax.psum: the pieces, "laxpsum" and "jaxlaxpsum"
    if (!known.has(word)) {
      const parts = pieces(word);
      const joined = parts.map((_, start) => parts.slice(start).join("")).slice(0, -1);
      known.set(word, [...new Set([...parts.map(stem), ...joined.map(/[._]/.test(word) ? spelt : stem)])]);
    }
    return known.get(word);
  };
  // A word and its kin: "compil~" of compile, compiles, compiling and compilation, "shard" and "shard~" of sharding.
  const rooted = (word) => {
    const same = stem(word.toLowerCase());
    const root = /^\p{L}+$/u.test(word) ? same.replace(/(?<=.{4})(?:ations?|ating|ated?|ions?|ings?|ed|e)$/, "").replace(/([^s])\1$/, "$1") : same;
    return { same, root };
  };
  const roots = (word) => { const { same, root } = rooted(word); return root === same ? [] : [`${root}~`]; };
  const kin = (word) => { const { same, root } = rooted(word); return [root, `${root}~`].filter((one) => one !== same); };
  const tokens = (word) => [...forms(word), ...roots(word)];
  const words = (text) => text.match(LETTERS) ?? [];
  const few = (text) => { // the beginning of what is asked
    const last = [...text.slice(0, MOST).matchAll(LETTERS)][WORDS];
    return text.slice(0, last?.index ?? MOST).trim();
  };
  const told = (text) => { // of a long message, what it says beside the values in brackets
    for (let before = ""; words(text).length > LONG && before !== text;) {
      before = text;
      text = text.replace(/[([{](?=[^()[\]{}]*[=,'\d])[^()[\]{}]*[)\]}]/g, " ");
    }
    return text.trim();
  };
  const origin = (word) => rooted(word).root;
  const plain = (text) => words(text).map(whole).join("");
  const telling = (text) => { // its words without those that say nothing, if there are others
    const kept = words(text).filter((word) => !stop.has(word.toLowerCase()));
    return (kept.length ? kept : words(text)).map(whole);
  };

  let stop; // words that say nothing of the subject, unless nothing else was typed

  // --- The index, as search.py has packed it.

  const BASE = 45, FIRST = 35; // of the digits of a gap: the code of the first, "#"
  const slug = (heading) => heading.toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "");
  const unpackWords = (text) => { // each begins with how many letters it shares with the one before
    let word = "";
    return text.split(" ").map((rest) => (word = word.slice(0, rest.charCodeAt(0) - 48) + rest.slice(1)));
  };
  const unpackBags = (all, lines, count) => { // of each section its words, as often as they stand there
    const bags = Array.from({ length: count }, () => []);
    lines.split("\n").forEach((line, place) => {
      let section = 0, gap = 0;
      for (let i = 0; i < line.length; i++) {
        const digit = line.charCodeAt(i) - FIRST;
        gap = gap * BASE + (digit % BASE);
        if (digit >= BASE) continue;
        section += gap;
        gap = 0;
        bags[section].push(all[place]);
      }
    });
    return bags.map((bag) => bag.join(" "));
  };

  // --- What is found, the best first.

  const prepare = async () => {
    await Promise.all([load("minisearch.js"), load("search-index.js")]);
    const { chapters, sections, ...index } = globalThis.searchIndex;
    stop = new Set(index.stop.split(" "));
    const all = unpackWords(index.words), count = sections.length;
    const [text, api, code] = ["text", "api", "code"].map((field) => unpackBags(all, index[field], count));
    const first = [];
    sections.forEach((section, place) => {
      first[section.page] ??= place;
      const { heading, anchor = slug(heading), above = [], names = [] } = section;
      Object.assign(section, { anchor, above, names, place: place - first[section.page] }); // on its page
    });
    const times = new Map();
    for (const { heading } of sections) times.set(heading, (times.get(heading) ?? 0) + 1);
    const engine = new globalThis.MiniSearch({
      fields: Object.keys(FIELDS),
      tokenize: (text) => words(text).flatMap(tokens),
      processTerm: (term) => term,
      searchOptions: { boost: FIELDS, tokenize: (term) => [term] },
    });
    for (const section of sections) {
      section.chapter = chapters[section.page];
      section.weight = KINDS[section.kind] * (section.chapter.name === LISTING ? LISTED : 1)
        * (section.chapter.appendix && !(section.kind === "section" && section.names.length) ? APPENDIX : 1)
        * (times.get(section.heading) > 3 ? CLOSING : 1);
      const phrases = (names) => (section.kind === "section" ? names : []).flatMap((name) =>
        [plain(name), telling(name).join("")].map((form) => [form, telling(name)]));
      section.headed = phrases(section.heading.split(":")[0].split(/, | and /));
      section.heads = section.headed.map(([form]) => form);
      section.called = (section.kind === "section" ? section.names : []).map(plain);
      section.phrases = phrases(section.names);
    }
    const records = sections.map((section, id) => ({
      id, heading: section.heading, names: [...section.names, ...section.called].join(" "), above: section.above.join(" "),
      openings: (section.openings ?? []).join(" "), text: text[id], code: code[id], api: api[id],
    }));
    await engine.addAllAsync(records, { chunkSize: 40 }); // while the reader types on

    const less = (share) => Object.fromEntries(Object.entries(FIELDS).map(([field, much]) => [field, much * share]));
    const ofPieces = less(PIECES), ofLike = less(AS_MUCH);
    const find = (asked) => {
      const each = telling(asked);
      const typed = each.join(""), full = plain(asked);
      const kept = words(asked).filter((word) => each.includes(whole(word)));
      const runs = (list) => list.flatMap((_, start) => [1, 2, 3, 4, 5].map((count) => list.slice(start, start + count).join("")));
      const parts = new Set([...runs(each), ...runs(words(asked).map(whole))]);
      const rarity = new Map(); // of each word
      const share = (some) => some.reduce((sum, word) => sum + (rarity.get(origin(word)) ?? 0), 0) / allRare;
      let allRare = 0;
      const standing = (id) => { // how much a section counts for what it is, and for what it is called
        const { weight, heads, headed, called, phrases } = sections[id];
        if (full !== typed && [...heads, ...called].includes(full)) return 5 * weight * HEADED; // to the letter
        if (heads.includes(typed)) return weight * HEADED;
        if (called.includes(typed)) return weight * CALLED;
        const covered = Math.max(0, ...phrases.map(([form, own]) => (parts.has(form) ? share(own) / (own.length > 1 ? 1 : 2)
          : own.length > 1 && own.every((word) => rarity.has(origin(word))) ? SCATTERED * share(own) : 0)));
        if (covered) return weight * Math.max(WITHIN, PHRASE * covered);
        if ([...heads, ...called].some((name) => name.startsWith(typed))) return weight * BEGINS;
        return weight * Math.max(1, ...headed.map(([form, own]) => (parts.has(form) ? 1 + PARTLY * share(own) : 1)));
      };
      const asQuery = (word) => {
        const own = pieces(word).map(stem);
        const last = /\.\w/.test(word) ? [{ queries: [whole(word.split(".").at(-1))], boost: ofLike, prefix: false }] : []; // of torch.nn.Linear, Linear
        const apart = own.length > 1 ? [{ combineWith: "AND", queries: own, boost: ofPieces, prefix: false }] : [];
        const like = [...(LIKE[own.join("")] ?? []), ...kin(word)]
          .map((other) => ({ queries: [other], boost: ofLike, prefix: false }));
        return { combineWith: "OR", queries: [whole(word), ...last, ...apart, ...like] };
      };
      const prefix = (term) => term.length > 2 || kept.length === 1; // "of" is no beginning of "often"
      const fuzzy = (term) => (term.length > 7 ? 2 : term.length > 4 ? 1 : false);
      const search = (word, more) => engine.search(asQuery(word), { prefix, ...more });
      // Each word by itself: a rare one counts more, and one that stands nowhere gives way to similar ones.
      const lists = kept.map((word) => [search(word, {}), word]);
      const near = lists.some(([list]) => !list.length);
      const found = new Map();
      for (const [exact, word] of lists) {
        const inPieces = () => engine.search({ combineWith: "OR", queries: pieces(word).map(stem), boost: ofPieces, prefix: false });
        const list = [() => exact, () => search(word, { fuzzy }), inPieces].reduce((found, next) => (found.length ? found : next()), []);
        const rare = list.length && Math.log(1 + count / list.length) * (MANY.has(whole(word)) ? SLIGHT : 1);
        allRare += rare;
        rarity.set(origin(whole(word)), rare);
        for (const { id, score, queryTerms, terms } of list) {
          const one = found.get(id) ?? { id, score: 0, rare: 0, has: 0, terms: [] };
          one.score += score / queryTerms.length; // which MiniSearch has multiplied by how many spellings were there
          one.rare += rare;
          one.has += 1;
          one.terms.push(...terms);
          found.set(id, one);
        }
      }
      for (const one of found.values()) one.score *= (one.rare / allRare) ** SHARE * standing(one.id);
      const ranked = [...found.values()].sort((a, b) => b.score - a.score);
      const withAll = ranked.filter((one) => one.has === kept.length);
      const shown = (list) => list.map((one) => ({ ...sections[one.id], typed, terms: new Set(one.terms) }));
      if (!withAll.length) return { only: ranked.length ? "some of these words" : "", all: ranked.length, found: shown(ranked) };
      // Sections with some of the words come where they are better than all but the best that have all, or where those are few.
      const least = withAll[FEW - 1]?.score ?? 0;
      const list = ranked.filter((one) => one.has === kept.length || one.score > least);
      return { only: near ? "similar words" : "", all: withAll.length, found: shown(list) };
    };

    // Names that share the most pairs of letters with what was typed.
    const names = [...new Set(sections.flatMap((section) => section.names))].filter((name) => words(name).length < 3);
    const pairs = (text) => new Set([...text.slice(1)].map((letter, before) => text[before] + letter));
    const similar = (asked) => {
      const typed = pairs(plain(asked));
      const share = (name) => {
        const own = pairs(plain(name));
        return 2 * [...own].filter((pair) => typed.has(pair)).length / (own.size + typed.size);
      };
      return names.map((name) => [share(name), name]).filter(([much]) => much > 0.35).sort(([a], [b]) => b - a)
        .slice(0, 3).map(([, name]) => name);
    };
    return { find, similar };
  };
  let prepared, loaded = false;
  const ready = () => (prepared ??= prepare());

  // The texts of the pages of results; where one cannot be loaded, its results stand without a sentence.
  const requested = {};
  const texts = (found) => Promise.all([...new Set(found.map(({ chapter }) => chapter.name))].map((name) =>
    (requested[name] ??= load(`search/${name}.js`).catch(() => { delete requested[name]; }))));
  const textOf = ({ chapter, place }) => globalThis.searchTexts?.[chapter.name]?.[place] ?? "";

  // --- How it is shown.

  const make = (tag, more = {}, ...inside) => {
    const { data, ...own } = more;
    const element = Object.assign(document.createElement(tag), own);
    for (const [name, value] of Object.entries(data ?? {})) element.setAttribute(name, value);
    element.append(...inside);
    return element;
  };
  const marked = (text, terms) => {
    const parts = [];
    let end = 0;
    for (const word of text.matchAll(LETTERS)) {
      if (!tokens(word[0]).some((form) => terms.has(form))) continue;
      parts.push(text.slice(end, word.index), make("mark", {}, word[0]));
      end = word.index + word[0].length;
    }
    return [...parts, text.slice(end)];
  };
  const withCode = (text, terms) =>
    text.split("`").flatMap((part, number) => (number % 2 ? [make("code", {}, ...marked(part, terms))] : marked(part, terms)));

  // The sentence that has what was typed, or else most of the words that were found, or else the term that is meant.
  const sentence = (section) => {
    const { typed, terms, called } = section, text = textOf(section);
    const all = text.split(/\n|(?<=[^\n]{25}[.?!]) (?=[\p{Lu}`“])/u); // what is shorter begins the next
    const has = (one) => new Set(words(one).flatMap(forms).filter((form) => terms.has(form))).size;
    const much = all.map((one) => has(one) && has(one) + (plain(one).includes(typed) ? 100 : 0));
    const most = Math.max(...much);
    const meant = most ? [] : called.slice(0, called.indexOf(typed) + 1).reverse(); // a term stands before its other names
    const defining = meant.map((name) => all.find((one) => plain(one).includes(name))).find(Boolean);
    return shortened(defining ?? all[much.indexOf(most)], terms);
  };
  const shortened = (text, terms) => {
    if (text.length <= LENGTH) return text;
    const place = [...text.matchAll(LETTERS)].find((word) => forms(word[0]).some((form) => terms.has(form)))?.index ?? 0;
    const start = place < LENGTH / 2 ? 0 : text.indexOf(" ", place - LENGTH / 3) + 1;
    const piece = text.slice(start, start + LENGTH).replace(/ \S*$/, "");
    const inCode = text.slice(0, start).split("`").length % 2 === 0;
    return `${start ? "… " : ""}${inCode ? "`" : ""}${piece}${start + piece.length < text.length ? " …" : ""}`;
  };
  const result = (section) => {
    const { chapter, kind, terms } = section;
    const above = kind === "exercise" ? ["Exercise"] : section.above.slice(1).map((heading) => heading.split(":")[0]);
    return make("li", chapter.part ? { data: { "data-part": chapter.part } } : {},
      make("a", { href: new URL(`${chapter.name}.html#${section.anchor}`, root).href },
        make("span", { className: "where" }, [chapter.title, ...above].join(" › ")), " ",
        make("strong", {}, ...marked(section.heading, terms)), " ",
        make("span", { className: "says" }, ...withCode(sentence(section), terms))));
  };

  /** A field with its results, in an element of the page or of a dialog. */
  const fill = (box, { changed = () => {} } = {}) => {
    const input = make("input", { type: "search", autocomplete: "off", spellcheck: false, placeholder: "A term, a name, words of an error",
      data: { "aria-label": "Search the book", enterkeyhint: "go", autocapitalize: "none" } });
    const form = make("form", { data: { role: "search" } }, input);
    const status = make("p", { className: "status", data: { role: "status" } });
    const list = make("ol", { data: { "aria-label": "Sections" } });
    let later;
    const say = (...words) => { // when the reader pauses, since each change is read aloud
      clearTimeout(later);
      later = setTimeout(() => status.replaceChildren(...words), 300);
    };
    const ask = (words) => make("button", { type: "button", className: "ask", textContent: words,
      onclick: () => { input.value = words; input.focus(); show(); } });
    const show = async () => {
      const whole = input.value.trim();
      const message = told(whole), asked = few(message);
      changed(few(whole));
      let engine;
      if (!loaded && asked) status.replaceChildren("Loading the index of the book …");
      try {
        engine = await ready();
        loaded = true;
      } catch {
        prepared = undefined; // the next letter tries again
        say("The search could not be loaded. Is the network there?");
        return;
      }
      if (whole !== input.value.trim()) return; // typed on meanwhile
      const { only, all, found } = engine.find(asked);
      await texts(found.slice(0, SHOWN));
      if (whole !== input.value.trim()) return;
      list.dataset.of = whole.slice(0, 2 * MOST);
      list.replaceChildren(...found.slice(0, SHOWN).map(result));
      const count = found.length === 1 ? "1 section" : `${found.length} sections`;
      if (found.length) {
        const shownOf = found.length > SHOWN ? `${count}, of which these are the best ${SHOWN}` : count;
        if (asked !== message) say(`Only the first ${words(asked).length} words were looked at: ${shownOf}.`);
        else if (only) say(`No section has “${asked}”. Found with ${only}: ${shownOf}.`);
        else if (all < found.length) say(`${all === 1 ? "1 section has" : `${all} sections have`} all words; the others have some of them.`);
        else say(`${shownOf}.`);
      } else if (asked) {
        const others = engine.similar(asked).flatMap((name) => [" ", ask(name)]);
        const index = make("a", { href: new URL("genindex.html", root).href, textContent: "index" });
        say(`Nothing found for “${asked}”. `, ...(others.length ? ["Did you mean", ...others, "? "] : []), "The ", index, " lists all terms.");
      } else {
        say("");
      }
    };
    input.addEventListener("input", show);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      await show();
      list.querySelector("a")?.click();
    });
    box.addEventListener("keydown", (event) => {
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const stops = [input, ...list.querySelectorAll("a")];
      const here = stops.indexOf(document.activeElement);
      if (!step || here < 0) return;
      event.preventDefault();
      stops[Math.min(Math.max(here + step, 0), stops.length - 1)].focus();
    });
    box.append(form, status, list);
    ready().catch(() => {});
    return { input, form, show };
  };

  let dialog;
  const inDialog = () => {
    dialog = make("dialog", { className: "search", data: { "aria-label": "Search the book" } });
    const { input, form } = fill(dialog);
    form.append(make("button", { type: "button", className: "close", textContent: "Close", onclick: () => dialog.close() }));
    // A key that does something by itself can be turned off: speech may press it unasked.
    const key = make("input", { type: "checkbox", checked: slash.on() });
    key.addEventListener("change", () => slash.turn(key.checked));
    form.after(make("label", { className: "slash" }, key, " Open with ", make("kbd", {}, "/")));
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog || event.target.closest("li a")) dialog.close();
    });
    dialog.addEventListener("keydown", (event) => { // which would first empty the field
      if (event.key !== "Escape") return;
      event.preventDefault();
      dialog.close();
    });
    dialog.input = input;
    document.body.append(dialog);
  };
  const here = document.querySelector("[data-search-here]");
  if (here) {
    const changed = (asked) => history.replaceState(null, "", asked ? `?q=${encodeURIComponent(asked)}` : location.pathname);
    here.found = fill(here, { changed });
    here.found.input.value = new URLSearchParams(location.search).get("q") ?? "";
    if (here.found.input.value) here.found.show();
  }

  return {
    /** Let the reader type: in the page of the search, or in a dialog above any other. */
    open() {
      if (!here && !dialog) inDialog();
      if (dialog && !dialog.open) dialog.showModal();
      const { input } = here ? here.found : dialog;
      input.focus();
      input.select();
    },
  };
};
