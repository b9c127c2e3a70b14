"use strict";
// A click on a head sorts the table by that column: by data-key where a cell has one, or else by its words.
document.documentElement.classList.add("js");
for (const button of document.querySelectorAll("th button")) {
  button.addEventListener("click", () => {
    const head = button.parentNode, body = head.closest("table").tBodies[0];
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const key = (row) => row.cells[head.cellIndex].dataset.key ?? row.cells[head.cellIndex].textContent;
    const compare = "numeric" in head.dataset ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
    const rows = [...body.rows].map((row) => [key(row), row]);
    // Missing values stay at the end, whichever way the rest goes.
    rows.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  });
}
