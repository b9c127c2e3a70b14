"use strict";
(() => {
  const all = (root, what) => [...root.querySelectorAll(what)];
  const tip = document.getElementById("tip");
  const texts = new Map();
  let shown = null;
  document.documentElement.classList.add("js");

  // Without script the browser shows these titles itself; with it, they would show twice.
  for (const mark of all(document, ".mark")) {
    const title = mark.querySelector("title");
    texts.set(mark, title.textContent.split("\n"));
    title.remove();
  }

  const middle = (mark) => {
    const box = mark.getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
  };
  const visible = (root) => all(root, ".series:not(.off) .mark");

  function hide() {
    if (shown) shown.classList.remove("on");
    shown = null;
    tip.hidden = true;
  }

  function show(mark) {
    if (mark === shown) return;
    hide();
    if (!mark) return;
    shown = mark;
    mark.classList.add("on");
    tip.replaceChildren(...texts.get(mark).map((line) => {
      const row = document.createElement("div");
      row.textContent = line;
      return row;
    }));
    tip.style.color = getComputedStyle(mark).color;
    tip.hidden = false;
    const [x, y] = middle(mark);
    const left = Math.min(Math.max(x - tip.offsetWidth / 2, 8), document.documentElement.clientWidth - tip.offsetWidth - 8);
    const above = y - tip.offsetHeight - 12;
    tip.style.transform = `translate(${left}px, ${above > 4 ? above : y + 14}px)`;
  }

  function nearest(marks, x, y, reach) {
    let best = null;
    for (const mark of marks) {
      const [a, b] = middle(mark);
      const distance = Math.hypot(a - x, b - y);
      if (distance < reach) [best, reach] = [mark, distance];
    }
    return best;
  }

  // Left and right walk along a series; up and down go to the neighbouring series at about the same x.
  function step(chart, key) {
    const marks = visible(chart);
    if (!chart.contains(shown)) return marks[0];
    const forward = key === "ArrowRight" || key === "ArrowDown" ? 1 : -1;
    if (key === "ArrowLeft" || key === "ArrowRight") {
      return marks[(marks.indexOf(shown) + forward + marks.length) % marks.length];
    }
    const groups = [...new Set(marks.map((mark) => mark.parentNode))];
    const next = groups[(groups.indexOf(shown.parentNode) + forward + groups.length) % groups.length];
    const [x, y] = middle(shown);
    return nearest(all(next, ".mark"), x, y, Infinity);
  }

  for (const chart of all(document, ".chart")) {
    const point = (event) => show(nearest(visible(chart), event.clientX, event.clientY, 60));
    chart.addEventListener("pointermove", point);
    chart.addEventListener("pointerdown", point);
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("focus", () => chart.matches(":focus-visible") && show(visible(chart)[0]));
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      if (event.key === "Escape") hide();
      if (!event.key.startsWith("Arrow")) return;
      event.preventDefault();
      show(step(chart, event.key));
    });
  }
  addEventListener("scroll", hide, { passive: true, capture: true });

  const flip = (button) => {
    const pressed = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", pressed);
    return pressed;
  };
  const swap = (element, name) => {
    const other = element.getAttribute(`data-${name}`);
    element.setAttribute(`data-${name}`, element.getAttribute(name));
    element.setAttribute(name, other);
  };

  for (const group of all(document, ".charts")) {
    for (const button of all(group, ".key")) {
      button.addEventListener("click", () => {
        const pressed = flip(button);
        all(group, `.grid [data-slot="${button.dataset.slot}"]`).forEach((one) => one.classList.toggle("off", !pressed));
      });
    }
    for (const button of all(group, ".log")) {
      button.addEventListener("click", () => {
        flip(button);
        all(group, "[data-x]").forEach((one) => swap(one, "x"));
        all(group, "[data-d]").forEach((one) => swap(one, "d"));
        all(group, ".x-axis + .x-axis").forEach((linear) => {
          [linear, linear.previousElementSibling].forEach((axis) => axis.toggleAttribute("hidden"));
        });
      });
    }
  }

  function sort(head, column) {
    const sign = head.getAttribute("aria-sort") === "ascending" ? -1 : 1;
    const key = (row) => row.cells[column].dataset.key ?? row.cells[column].textContent;
    const compare = "numeric" in head.dataset ? (a, b) => a - b : (a, b) => a.localeCompare(b, "en", { numeric: true });
    const body = head.closest("table").tBodies[0];
    const rows = [...body.rows].map((row) => [key(row), row]);
    // Missing values stay at the end, whichever way the rest goes.
    rows.sort(([a], [b]) => (a === "" || b === "" ? (a === "") - (b === "") : sign * compare(a, b)));
    body.append(...rows.map(([, row]) => row));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", sign > 0 ? "ascending" : "descending");
  }
  for (const table of all(document, "table")) {
    [...table.tHead.lastElementChild.cells].forEach((head, column) => {
      head.firstElementChild.addEventListener("click", () => sort(head, column));
    });
  }
})();
