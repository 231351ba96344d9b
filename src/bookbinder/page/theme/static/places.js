// Reports of shardlab.explain: point at a finding, or go there by the tabulator, and the rows of its source line are lit.
for (const finding of document.querySelectorAll("[data-place]")) {
  const report = finding.closest(".output") ?? finding.parentElement.parentElement;
  const rows = [...report.querySelectorAll("tr")].filter((row) => row.lastElementChild.textContent === finding.dataset.place);
  const light = (on) => {
    for (const row of rows) for (const one of [row, row.nextElementSibling]) one?.classList.toggle("lit", on);
  };
  for (const event of ["pointerenter", "focus"]) finding.addEventListener(event, () => light(true));
  for (const event of ["pointerleave", "blur"]) finding.addEventListener(event, () => light(false));
}
