"""A Sphinx extension: the library's pages show what a reader can use.

A default that is a function or made by one has no text that Python could read, so autodoc would give up
on the links of its whole signature. The value of a long constant says less than its description. And the
checks of the exercises, which chapters name where they are used, would fill the book's index. The index
itself is a page of the book like the others, and a command is found by its name.
"""

import re
from typing import Any

from sphinx.application import Sphinx
from sphinx.builders.html import StandaloneHTMLBuilder
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc import DataDocumenter, FunctionDocumenter

LONGEST_VALUE = 100  # characters
NO_TEXT = re.compile(r"<(?:[^<>]|<[^<>]*>)*>")  # a default such as <factory> or <function <lambda>>


class BriefDataDocumenter(DataDocumenter):
    """Shows the value of a constant only where it fits a line or two."""

    priority = DataDocumenter.priority + 1

    def should_suppress_value_header(self) -> bool:
        return super().should_suppress_value_header() or len(repr(self.object)) > LONGEST_VALUE


class UnlistedCheckDocumenter(FunctionDocumenter):
    """Keeps the checks of the exercises out of the index."""

    priority = FunctionDocumenter.priority + 1

    def add_directive_header(self, sig: str) -> None:
        super().add_directive_header(sig)
        if self.modname.startswith("unseen_lib.exercises."):
            self.add_line("   :no-index-entry:", self.get_sourcename())


def readable_signature(
    app: Sphinx,
    what: str,
    name: str,
    thing: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    return signature and NO_TEXT.sub("...", signature), returns


def lead_back(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give the index, which Sphinx writes outside of the book's order, the page before it."""
    if page != "genindex" or not isinstance(app.builder, StandaloneHTMLBuilder):
        return
    before = app.builder.relations.get(page, [None, None, None])[1]
    if before is not None:
        title = app.builder.render_partial(app.env.titles[before])["title"]
        context["prev"] = {"link": app.builder.get_relative_uri(page, before), "title": title}


def name_commands(app: Sphinx, env: BuildEnvironment) -> None:
    """Let a search find a command by its name: sphinx-argparse gives the description as what it is called."""
    commands = env.get_domain("commands").data["commands"]
    commands[:] = [(name, name, *rest) for name, _, *rest in commands]


def setup(app: Sphinx) -> dict[str, Any]:
    app.setup_extension("sphinx.ext.autodoc")
    app.add_autodocumenter(BriefDataDocumenter, override=True)
    app.add_autodocumenter(UnlistedCheckDocumenter, override=True)
    app.connect("autodoc-process-signature", readable_signature)
    app.connect("html-page-context", lead_back)
    app.connect("env-updated", name_commands)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
