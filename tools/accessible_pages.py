"""A Sphinx extension: what pages say to a screen reader, where Sphinx and its extensions say it wrongly."""

import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx

# A signature over several lines: Sphinx writes its parameters as definitions of nothing.
LINES = re.compile(r"<dl>\n((?:<dd>(?:(?!<dl>).)*?</dd>\n)+)</dl>", re.DOTALL)
# The same id in each exercise of a page, and "Solution to<a> Exercise 1</a>".
SHARED_ID = re.compile(r'<section id="(?:exercise|solution)-content">')
SPACE_IN_LINK = re.compile(r"(?<=Solution to)(<a [^>]*>) ")


def mend_roles(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let the list of references have items: docutils gives each a role that was withdrawn."""
    if "body" in context:
        context["body"] = context["body"].replace('role="doc-biblioentry"', 'role="listitem"')


def mend_marks(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Say in a word whether a page ran: a check mark needs a font that has it."""
    if page == "status" and "body" in context:
        context["body"] = (
            context["body"].replace("<p>✅</p>", "<p>ran</p>").replace("<p>❌</p>", "<p>failed</p>")
        )


def mend_exercises(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let no two parts of a page have one id, and a link begin where its words begin."""
    if "body" in context:
        body = SHARED_ID.sub("<section>", context["body"])
        context["body"] = SPACE_IN_LINK.sub(r" \1", body)


def mend_signatures(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Set the parameters of a long signature as lines of it."""
    if "body" in context:
        context["body"] = LINES.sub(_as_lines, context["body"])


def _as_lines(found: re.Match[str]) -> str:
    lines = found[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>")
    return f'<span class="sig-lines">\n{lines}</span>'


def name_toggles(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give the arrows of the sidebar, which fold a list of pages, a name."""
    make: Callable[..., Any] | None = context.get("generate_toctree_html")
    if make is None:
        return

    def named(*arguments: Any, **options: Any) -> Any:
        tree = make(*arguments, **options)
        for summary in tree.find_all("summary") if tree else ():
            link = summary.find_parent("li").find("a")
            summary["aria-label"] = f"Pages under {link.get_text().strip()}"
        return tree

    context["generate_toctree_html"] = named


def setup(app: Sphinx) -> dict[str, Any]:
    for mend in (mend_roles, mend_marks, mend_exercises, mend_signatures):
        app.connect("html-page-context", mend)
    app.connect("html-page-context", name_toggles, priority=900)  # after the theme has set its functions
    return {"parallel_read_safe": True, "parallel_write_safe": True}
