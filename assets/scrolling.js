// What scrolls sideways can be reached by keyboard: pictures and formulas. The theme sees to code and tables.
function markScrolling() {
  for (const box of document.querySelectorAll(".bd-article figure, .katex-display")) {
    if (box.scrollWidth > box.clientWidth) box.tabIndex = 0;
    else box.removeAttribute("tabindex");
  }
}
addEventListener("load", markScrolling);
addEventListener("resize", markScrolling);
