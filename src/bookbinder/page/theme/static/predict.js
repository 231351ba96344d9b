// A prediction opens the answer: when the reader has picked a choice or typed one. Without this script the answer
// unfolds by itself.
{
  const answers = [];
  for (const box of document.querySelectorAll("[data-answer]")) {
    const answer = document.getElementById(box.dataset.answer), verdict = box.querySelector(".verdict");
    answers.push(answer);
    box.addEventListener("change", ({ target }) => {
      if (target.type === "radio") {
        const right = target.hasAttribute("data-right");
        for (const label of box.querySelectorAll("label")) {
          const chosen = label.contains(target);
          label.classList.toggle("right", label.querySelector("[data-right]") !== null); // also when another was picked
          label.classList.toggle("wrong", chosen && !right);
          const reason = label.nextElementSibling;
          if (reason.matches(".reason")) reason.hidden = !chosen || right;  // the right one's stands with the answer
        }
        verdict.textContent = right ? "Right. The output below shows it." : "No. The output below shows the answer.";
      } else if (target.value.trim()) {
        verdict.textContent = `You predicted “${target.value.trim()}”. The output below shows the answer.`;
      } else return;
      answer.open = true;
      // What is said to stand below is on the screen.
      if (answer.getBoundingClientRect().bottom > innerHeight) box.scrollIntoView({ block: "start" });
    });
    const title = answer.querySelector("summary"), show = title.textContent;
    answer.addEventListener("toggle", () => { title.textContent = answer.open ? show.replace("Show", "Hide") : show; });
  }

  // Who reads a chapter again may have all answers open, on every page.
  const button = document.querySelector(".facts .answers");
  const kept = () => { try { return localStorage.getItem("answers") === "open"; } catch { return false; } };
  let open = kept();
  const show = () => {
    if (button) button.textContent = open ? "Hide the answers" : "Show all answers";
    for (const answer of answers) answer.open = open;
  };
  button?.addEventListener("click", () => {
    open = !open;
    try { if (open) localStorage.setItem("answers", "open"); else localStorage.removeItem("answers"); } catch {}
    show();
  });
  if (open) show();
}
