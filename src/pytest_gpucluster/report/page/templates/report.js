"use strict";
// The page is whole without this: it filters by what is typed, and moves between failures by keys.
(function () {
  const all = (what) => Array.from(document.querySelectorAll(what));
  const field = document.getElementById("filter");
  const count = document.getElementById("found");
  const parts = all("[data-find]");
  const words = new Map();

  function text(part) {
    if (!words.has(part)) words.set(part, (part.textContent + " " + part.dataset.find).toLowerCase());
    return words.get(part);
  }

  function filter() {
    const wanted = field.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    for (const part of parts) {
      const fits = wanted.every((word) => text(part).includes(word));
      part.classList.toggle("none", !fits);
      if (fits && part.classList.contains("fail")) shown += 1;
    }
    count.textContent = wanted.length ? shown + " of " + all(".fail").length + " failures" : "";
  }

  function move(step) {
    const seen = all(".fail:not(.none)");
    if (!seen.length) return;
    const now = seen.findIndex((part) => part.classList.contains("here"));
    const next = seen[Math.min(seen.length - 1, Math.max(0, now + step))];
    all(".fail.here").forEach((part) => part.classList.remove("here"));
    next.classList.add("here");
    next.scrollIntoView({ block: "start" });
    next.focus({ preventScroll: true });
  }

  function unfold(open) {
    all("details").forEach((part) => { part.open = open; });
  }

  let unfolded = false;
  all(".tools, .help").forEach((part) => part.classList.remove("none"));
  field.addEventListener("input", filter);
  document.getElementById("unfold").addEventListener("click", () => unfold(unfolded = !unfolded));
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape" && document.activeElement === field) {
      field.value = "";
      filter();
      field.blur();
    }
    if (/^(input|textarea|select)$/i.test(event.target.tagName)) return;
    if (event.key === "/") { event.preventDefault(); field.focus(); }
    if (event.key === "j") move(1);
    if (event.key === "k") move(-1);
    if (event.key === "o") unfold(unfolded = !unfolded);
  });
})();
