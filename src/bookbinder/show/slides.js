"use strict";
// Moves by keys from slide to slide, keeps the number in the address, and makes long slides fit.
const slides = [...document.querySelectorAll(".slide")];
const at = document.getElementById("at");
const now = () => slides.reduce((best, one, n) =>
  Math.abs(one.getBoundingClientRect().top) < Math.abs(slides[best].getBoundingClientRect().top) ? n : best, 0);

function show(number) {
  const n = Math.min(Math.max(number, 0), slides.length - 1);
  slides[n].scrollIntoView({ behavior: "instant" });
  say(n);
}

function say(n) {
  at.textContent = `${n + 1} / ${slides.length}`;
  history.replaceState(null, "", `#${n + 1}`);
}

function fit() {
  for (const slide of slides) {
    const box = slide.firstElementChild;
    box.style.fontSize = box.style.zoom = "";
    const room = slide.clientHeight * 0.9;
    for (let size = 100; size > 60 && box.scrollHeight > room; size -= 5) box.style.fontSize = `${size}%`;
    if (box.scrollHeight > room) box.style.zoom = room / box.scrollHeight; // pictures
  }
}

const FORWARD = ["ArrowRight", "ArrowDown", "PageDown", " ", "Enter"];
const BACK = ["ArrowLeft", "ArrowUp", "PageUp", "Backspace"];
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (FORWARD.includes(event.key)) show(now() + 1);
  else if (BACK.includes(event.key)) show(now() - 1);
  else if (event.key === "Home") show(0);
  else if (event.key === "End") show(slides.length - 1);
  else if (event.key === "f") document.documentElement.requestFullscreen?.();
  else return;
  event.preventDefault();
});
addEventListener("scroll", () => say(now()), { passive: true });
addEventListener("resize", () => { const n = now(); fit(); show(n); });
const asked = () => (Number.parseInt(location.hash.slice(1), 10) || 1) - 1;
addEventListener("hashchange", () => show(asked()));
fit();
show(asked());
