// What scrolls sideways can be reached by keyboard, and shows that it goes on: pictures and formulas. The theme sees
// to the keyboard in code and tables.
const BOXES = ".bd-article figure, .bd-article .katex-display";

function markScrolling() {
  for (const box of document.querySelectorAll(BOXES)) {
    const scrolls = box.scrollWidth > box.clientWidth;
    box.classList.toggle("scrolls", scrolls);
    if (scrolls) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}

function markEnd({ target }) {
  if (!(target instanceof Element) || !target.matches(BOXES)) return;
  target.classList.toggle("at-end", target.scrollLeft + target.clientWidth > target.scrollWidth - 2);
}

addEventListener("load", markScrolling);
addEventListener("resize", markScrolling);
addEventListener("scroll", markEnd, { capture: true, passive: true });
