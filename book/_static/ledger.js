// Filters for the claims table. Without scripts the whole table is shown.
document.addEventListener("DOMContentLoaded", () => {
  for (const ledger of document.querySelectorAll(".ledger")) {
    const form = ledger.querySelector("form");
    const rows = [...ledger.querySelectorAll("tbody tr")];
    const count = ledger.querySelector("[data-count]");
    const words = new Map(rows.map((row) => [row, row.textContent.toLowerCase()]));
    const value = (name) => form.querySelector(`[data-filter="${name}"]`).value;

    const update = () => {
      const wanted = value("words").toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const row of rows) {
        const fits =
          ["paper", "kind", "status"].every((name) => !value(name) || row.dataset[name] === value(name)) &&
          wanted.every((word) => words.get(row).includes(word));
        row.hidden = !fits;
        shown += fits;
      }
      count.textContent = `${shown} of ${rows.length} claims`;
    };

    form.hidden = false;
    form.addEventListener("input", update);
    form.addEventListener("submit", (event) => event.preventDefault());
    update();
    if (location.hash.includes(".")) {
      document.getElementById(decodeURIComponent(location.hash.slice(1)))?.scrollIntoView({ block: "center" });
    }
  }
});
