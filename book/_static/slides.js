// One slide at a time: arrow keys, space, page keys or a click on an edge; #n in the address is slide n.
(() => {
  const slides = [...document.querySelectorAll("section.slide")];
  let now = Math.min(slides.length, Math.max(1, parseInt(location.hash.slice(1)) || 1)) - 1;

  // A body larger than its slide is drawn smaller, never cut.
  const fit = (slide) => {
    const body = slide.querySelector(".body");
    body.style.zoom = 1;
    for (let zoom = 1; zoom > 0.45; zoom -= 0.05) {
      body.style.zoom = zoom;
      const wide = [...body.querySelectorAll("table, mjx-container, pre")]
        .some((e) => e.getBoundingClientRect().right > body.getBoundingClientRect().right + 1);
      if (!wide && body.scrollHeight <= body.clientHeight + 1 && body.scrollWidth <= body.clientWidth + 1) break;
    }
  };
  const show = (index) => {
    now = Math.min(slides.length - 1, Math.max(0, index));
    slides.forEach((s, i) => s.classList.toggle("now", i === now));
    document.getElementById("place").textContent = `${now + 1} / ${slides.length}`;
    history.replaceState(null, "", `#${now + 1}`);
    fit(slides[now]);
  };
  const keys = {
    ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Home: -1e9, End: 1e9,
  };
  addEventListener("keydown", (event) => {
    if (event.key in keys && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      show(now + keys[event.key]);
    }
  });
  addEventListener("click", (event) => {
    if (String(getSelection())) return;
    if (event.clientX > innerWidth * 0.85) show(now + 1);
    else if (event.clientX < innerWidth * 0.15) show(now - 1);
  });
  addEventListener("resize", () => show(now));
  addEventListener("hashchange", () => show((parseInt(location.hash.slice(1)) || 1) - 1));
  const ready = () => (window.MathJax?.startup?.promise ?? Promise.resolve()).then(() => show(now));
  document.documentElement.classList.add("live");
  show(now);
  if (document.readyState === "complete") ready();
  else addEventListener("load", ready);
})();
