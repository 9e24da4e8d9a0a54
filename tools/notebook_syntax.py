"""Read MyST Markdown with the parser that the book itself uses: cells, blocks, directives, inline spans."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode
from myst_nb.core.read import read_myst_markdown_notebook
from myst_parser.config.main import MdParserConfig
from myst_parser.parsers.mdit import create_md_parser

CONFIG = Path(__file__).parents[1] / "_config.yml"
FENCES = ("fence", "colon_fence")
DIRECTIVE = re.compile(r"\{(?P<name>[^\s}]+)\}\s*(?P<argument>.*)", re.DOTALL)
OPTION = re.compile(r":(?P<name>[\w-]+):\s*(?P<value>.*)")
# `text <target>`, in the roles that take both
EXPLICIT = re.compile(r"(?P<text>.*?)\s*<(?P<target>[^<>]+)>", re.DOTALL)
# Inline rules whose source text a notebook cannot show as it is.
SPANNED = ("myst_role", "footnote_ref", "span", "attr", "image", "substitution_inline")


class MystError(ValueError):
    """A construct that cannot be turned into a notebook, or a reference to nothing."""


@dataclass(frozen=True)
class Directive:
    """One directive: ``{name} argument``, its options, and the text inside."""

    name: str
    argument: str
    options: dict[str, str]
    body: str

    @property
    def holds_markdown(self) -> bool:
        return self.name not in ("code-cell", "code", "code-block", "math", "glossary", "raw", "bibliography")


@dataclass(frozen=True)
class Span:
    """Where an inline rule matched, in the text of its block."""

    rule: str
    start: int
    end: int
    token: Token | None  # what it made; None where it only changed one before


# ---- the parser ----
def _config() -> MdParserConfig:
    settings = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    return MdParserConfig(enable_extensions=set(settings["parse"]["myst_enable_extensions"]))


@cache
def parser() -> MarkdownIt:
    """The book's parser, which also notes where in a block each rule of SPANNED matched."""
    md = create_md_parser(_config(), RendererHTML)
    for rule in md.inline.ruler.__rules__:
        if rule.name in SPANNED:
            rule.fn = _noting(rule.name, rule.fn)
    md.inline.ruler.__compile__()
    return md


def _noting(name: str, rule: Callable[..., bool]) -> Callable[..., bool]:
    def noting(state: StateInline, silent: bool) -> bool:
        start, before = state.pos, len(state.tokens)
        matched = rule(state, silent)
        if matched and not silent:
            token = state.tokens[-1] if len(state.tokens) > before else None
            spans = state.env.setdefault("spans", {}).setdefault(state.src, {})
            spans[start] = Span(name, start, state.pos, token)
        return matched

    return noting


def page_cells(text: str) -> list[Any]:
    """The cells of a page, as the book reads them; the options of a code cell are its metadata."""
    return list(read_myst_markdown_notebook(text, _config()).cells)


def blocks_of(text: str) -> list[SyntaxTreeNode]:
    """The blocks of a text; inline nodes know their spans as ``meta["spans"]``."""
    env: dict[str, Any] = {}
    tokens = parser().parse(text, env)
    spans = env.get("spans", {})
    for token in tokens:
        if token.type == "inline":
            token.meta["spans"] = list(spans.get(token.content, {}).values())
    return list(SyntaxTreeNode(tokens).children)


# ---- directives ----
def directive_of(node: SyntaxTreeNode) -> Directive | None:
    """The directive that a fence holds, or None if it holds code or is no fence."""
    if node.type not in FENCES:
        return None
    match = DIRECTIVE.fullmatch(node.info.strip())
    if match is None:
        return None
    options, body = _split_options(node.content)
    return Directive(match["name"], match["argument"].strip(), options, body)


def _split_options(content: str) -> tuple[dict[str, str], str]:
    lines = content.splitlines()
    if lines and lines[0].strip() == "---":
        end = lines.index("---", 1)
        options = yaml.safe_load("\n".join(lines[1:end])) or {}
        return {name: str(value) for name, value in options.items()}, "\n".join(lines[end + 1 :])
    options = {}
    count = 0
    for line in lines:
        match = OPTION.fullmatch(line.strip())
        if match is None:
            break
        options[match["name"]] = match["value"].strip()
        count += 1
    return options, "\n".join(lines[count:])


def label_of_math(node: SyntaxTreeNode) -> str:
    """The label behind a ``$$`` block, or ""."""
    return str(node.info).strip() if node.type == "math_block_label" else ""


def split_target(content: str) -> tuple[str, str]:
    """Text and target of a role: ``text <target>``, or the target alone with an empty text."""
    match = EXPLICIT.fullmatch(content.strip())
    return (match["text"], match["target"].strip()) if match else ("", content.strip())
