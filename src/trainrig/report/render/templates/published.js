// Sorts and filters the page's tables; without it every row is there, in the page's order.
(() => {
  "use strict";
  const number = (cell) => parseFloat(cell.dataset.v);
  const sorted = (table, column, down) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const compare = (a, b) => {
      const [x, y] = [a.cells[column], b.cells[column]];
      const [m, n] = [number(x), number(y)];
      if (isNaN(m) && isNaN(n)) return x.textContent.localeCompare(y.textContent, undefined, { numeric: true });
      if (isNaN(m)) return 1;
      if (isNaN(n)) return -1;
      return m - n;
    };
    const sign = down ? -1 : 1;
    const empty = (row) => row.cells[column].textContent.trim() === "";
    rows.sort((a, b) => empty(a) - empty(b) || sign * compare(a, b));
    body.append(...rows);
  };
  for (const table of document.querySelectorAll("table.sorts")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") !== "descending";
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        sorted(table, column, down);
      });
    });
  }
  const bar = document.querySelector(".filters");
  const cases = document.querySelector("#cases");
  if (!bar || !cases) return;
  bar.hidden = false;
  const rows = [...cases.tBodies[0].rows].map((row) => ({ row, text: row.textContent.toLowerCase() }));
  const count = bar.querySelector("output");
  const order = bar.querySelector("[name=order]");
  const heads = [...cases.tHead.rows[0].cells];
  const apply = () => {
    const wanted = bar.querySelector("[name=text]").value.toLowerCase().split(/\s+/).filter(Boolean);
    const picked = [...bar.querySelectorAll("select[data-key]")].filter((one) => one.value);
    let shown = 0;
    for (const { row, text } of rows) {
      const fits = picked.every((one) => row.dataset[one.dataset.key] === one.value) &&
        wanted.every((word) => text.includes(word));
      row.hidden = !fits;
      shown += fits;
    }
    count.textContent = count.dataset.text.replace("{shown}", shown).replace("{all}", rows.length);
  };
  bar.addEventListener("input", apply);
  bar.addEventListener("submit", (event) => event.preventDefault());
  order.addEventListener("change", () => {
    if (order.value) heads[order.value].querySelector("button").click();
  });
  bar.addEventListener("reset", () => setTimeout(apply));
  for (const link of document.querySelectorAll("a[data-card]"))
    link.addEventListener("click", () => {
      bar.reset();
      bar.querySelector("[data-key=card]").value = link.dataset.card;
      apply();
    });
  apply();
})();
