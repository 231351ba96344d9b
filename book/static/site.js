// What pages need besides the theme: menus that close, and hints and solutions that print unfolded.
const menus = document.querySelectorAll("details.dropdown:not(.admonition)");
const close = (except) => menus.forEach((menu) => { if (menu !== except) menu.open = false; });
document.addEventListener("click", (event) => close(event.target.closest("details.dropdown")));
document.addEventListener("keydown", (event) => {
  const open = event.key === "Escape" && document.activeElement.closest("details.dropdown[open]:not(.admonition)");
  if (!open) return;
  close();
  open.querySelector("summary").focus();
});

addEventListener("beforeprint", () => {
  document.querySelectorAll("article details:not([open])").forEach((box) => {
    box.open = true;
    box.dataset.printed = "";
  });
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details[data-printed]").forEach((box) => {
    box.open = false;
    delete box.dataset.printed;
  });
});
