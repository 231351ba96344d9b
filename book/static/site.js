// What pages need besides the theme: menus and sidebars that close, paper that shows everything, words that were searched.
{
  const menus = document.querySelectorAll("details.dropdown:not(.admonition)");
  const close = (except) => menus.forEach((menu) => { if (menu !== except) menu.open = false; });
  document.addEventListener("click", (event) => close(event.target.closest("details.dropdown")));
  document.addEventListener("keydown", (event) => {
    const open = event.key === "Escape" && document.activeElement.closest("details.dropdown[open]:not(.admonition)");
    if (!open) return;
    close();
    open.querySelector("summary").focus();
  });

  // On narrow screens the theme shows the sidebars as dialogs.
  for (const side of ["primary", "secondary"]) {
    const dialog = document.getElementById(`pst-${side}-sidebar-modal`);
    const toggle = document.querySelector(`.${side}-toggle`);
    dialog?.addEventListener("click", (event) => { if (event.target.closest("a[href]")) dialog.close(); });
    dialog?.addEventListener("close", () => toggle?.focus({ preventScroll: true }));
  }

  const root = document.documentElement;
  addEventListener("beforeprint", () => {
    root.dataset.shown = root.dataset.theme; // paper is light
    root.dataset.theme = "light";
    document.querySelectorAll("article details:not([open])").forEach((box) => {
      box.open = true;
      box.dataset.printed = "";
    });
  });
  addEventListener("afterprint", () => {
    root.dataset.theme = root.dataset.shown;
    document.querySelectorAll("details[data-printed]").forEach((box) => {
      box.open = false;
      delete box.dataset.printed;
    });
  });

  // The page of results leaves the words that were searched, for the page to which it leads.
  let searched = null;
  try { searched = localStorage.getItem("sphinx_highlight_terms"); } catch {}
  if (searched || new URLSearchParams(location.search).has("highlight")) {
    const here = document.currentScript?.src ?? document.querySelector('script[src*="/site.js"]').src;
    for (const name of ["doctools.js", "sphinx_highlight.js"]) {
      const script = document.createElement("script");
      script.src = new URL(name, here);
      script.async = false; // one after the other
      document.head.append(script);
    }
  }
}
