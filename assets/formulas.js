// Sets the formulas that Sphinx leaves in a page as TeX, between \( and \) in a line or \[ and \] on a line of their own.
// KaTeX is on the pages that have formulas, and only there.

// Around a formula of several lines Sphinx lays a `split`, which KaTeX would set as a table of one column.
const SPLIT = /^\s*\\begin\{split\}\s*(\\begin\{aligned\}[^]*\\end\{aligned\})\s*\\end\{split\}\s*$/;

for (const box of window.katex ? document.querySelectorAll("span.math, div.math") : []) {
  for (const node of [...box.childNodes]) {  // beside the TeX there may be a number
    const [, open, tex] = node.nodeType === Node.TEXT_NODE ? /^\s*\\([([])([^]*)\\[)\]]\s*$/.exec(node.data) ?? [] : [];
    if (tex === undefined) continue;
    const place = document.createElement("span");
    place.className = "formula";
    katex.render(tex.replace(SPLIT, "$1"), place, { displayMode: open === "[", throwOnError: false });
    node.replaceWith(place);
  }
}
