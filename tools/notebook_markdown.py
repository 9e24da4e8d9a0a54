"""Turn MyST into what Jupyter and Colab render: plain Markdown, MathJax math, and <details> for what folds.

Blocks are written anew from the parser's tree; the text of a paragraph stays as it is in the source, with
only the roles, footnotes and attributes in it replaced. What this module does not know is an error, never a
guess.
"""

from __future__ import annotations

import base64
import html
import mimetypes
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it.token import Token
from markdown_it.tree import SyntaxTreeNode

from tools.notebook_references import Names, cited, definition_of
from tools.notebook_syntax import (
    Directive,
    MystError,
    Span,
    blocks_of,
    directive_of,
    label_of_math,
    parser,
    split_target,
)

# A number that the notebook computes, where the text shows it; `unseen_lib.notebook.tell` fills it in.
VALUE = "⟦{}⟧"
ADMONITIONS = {
    name: name.capitalize()
    for name in ("note", "tip", "warning", "hint", "important", "caution", "attention", "danger", "error")
} | {"seealso": "See also", "margin": "Note", "sidebar": "Note", "topic": "Note"}
# What only arranges its contents.
BARE = ("grid", "tab-set", "card-carousel", "card-group", "container", "div", "centered")
TITLED = ("grid-item-card", "card", "grid-item", "tab-item")
DROPPED = ("exercise-end", "solution-end", "bibliography", "tableofcontents", "contents", "toctree", "index")
RAW_MATH = re.compile(r"\\begin\{")


@dataclass(frozen=True)
class Block:
    """One block of a notebook's text.

    Attributes
    ----------
    heading : int
        Level of a heading, 0 for all else.
    values : bool
        Whether the text shows numbers that the notebook computes.
    figure : str
        Name of the value that is the picture above this caption; "" for all else.
    """

    text: str
    heading: int = 0
    values: bool = False
    figure: str = ""


@dataclass
class Page:
    """What translating one page needs to know, and what it collects for the notebook's end."""

    names: Names
    page: str
    folder: Path
    book_url: str = ""
    cited: set[str] = field(default_factory=set)
    terms: dict[str, str] = field(default_factory=dict)
    exercise: str = ""
    unlabelled: dict[str, int] = field(default_factory=dict)

    def next_number(self, kind: str, label: str | None) -> str:
        """Number of the labelled thing, or of the next one of its kind without a label."""
        if label:
            return self.names.target(label, (kind,)).number
        # Its index among all of its kind on this page is how notebook_references names it.
        own = [
            t for name, t in self.names.targets.items() if t.kind == kind and name.startswith(f"{self.page}#")
        ]
        index = self.unlabelled.get(kind, 0)
        self.unlabelled[kind] = index + 1
        return own[index].number


# ---- a whole text ----
def translate(text: str, page: Page) -> list[Block]:
    """The blocks of ``text``, a Markdown cell of ``page``.

    Raises
    ------
    MystError
        If it holds a construct that this module does not know, or refers to what is not there.
    """
    found = []
    for node in blocks_of(text):
        directive = directive_of(node)
        try:
            if directive is not None and directive.name == "glue:figure":
                found.append(_glued_figure(directive, page))
                continue
            written = _block(node, page)
        except MystError as error:
            line = f", near {node_text(node)!r}" if node_text(node) else ""
            raise MystError(f"{error}{line}") from None
        if written:
            level = int(node.tag[1]) if node.type == "heading" else 0
            is_card = directive is not None and directive.name in ("exercise", "exercise-start")
            found.append(Block(written, 3 if is_card else level, "⟦" in written))
    return found


def node_text(node: SyntaxTreeNode) -> str:
    """The first line of a block, to name it in an error."""
    inline = next((part for part in node.walk() if part.type == "inline"), None)
    text = (
        inline.content if inline is not None else getattr(node, "content", "") if not node.is_nested else ""
    )
    return text.strip().partition("\n")[0][:60]


def markdown(text: str, page: Page) -> str:
    """``text`` as one piece of Markdown."""
    return "\n\n".join(block.text for block in translate(text, page))


def caption(text: str, page: Page, kind: str, label: str | None) -> str:
    """The caption of a figure or table, with its number."""
    return f"**{kind.capitalize()} {page.next_number(kind, label)}.** {markdown(text, page)}"


def described(alt: str) -> str:
    """What a picture shows, in words, folded away below it."""
    return fold("What the figure shows, in words", html.escape(alt.strip(), quote=False)) if alt else ""


def fold(title: str, body: str) -> str:
    """``body`` behind a line of HTML that opens it; blank lines make Jupyter read the body as Markdown."""
    return f"<details>\n<summary>{title}</summary>\n\n{body}\n\n</details>"


# ---- blocks ----
def _block(node: SyntaxTreeNode, page: Page) -> str:
    write = BLOCKS.get(node.type)
    if write is None:
        raise MystError(f"a notebook cannot show the construct {node.type!r}")
    return write(node, page)


def _children(node: SyntaxTreeNode, page: Page) -> str:
    return "\n\n".join(filter(None, (_block(child, page) for child in node.children)))


def _heading(node: SyntaxTreeNode, page: Page) -> str:
    level = int(node.tag[1])
    number = page.names.chapters.get(page.page, "")
    title = _inline(node.children[0], page)
    return "#" * level + (f" {number}. " if level == 1 and number else " ") + title


def _paragraph(node: SyntaxTreeNode, page: Page) -> str:
    return _inline(node.children[0], page)


def _list(node: SyntaxTreeNode, page: Page) -> str:
    number = int(node.attrs.get("start", 1))
    items = []
    for child in node.children:
        marker = f"{number}. " if node.type == "ordered_list" else "- "
        number += 1
        # In a tight list the paragraphs are hidden, and no blank line may part an item from a list inside it.
        tight = all(getattr(part, "hidden", True) for part in child.children if part.type == "paragraph")
        parts = [_block(part, page) for part in child.children]
        body = ("\n" if tight else "\n\n").join(filter(None, parts))
        items.append((marker + _indent(body, len(marker)), tight))
    return ("\n" if all(tight for _, tight in items) else "\n\n").join(item for item, _ in items)


def _indent(text: str, width: int) -> str:
    return text.replace("\n", "\n" + " " * width).replace("\n" + " " * width + "\n", "\n\n")


def _quote(text: str) -> str:
    return "\n".join(f"> {line}".rstrip() for line in text.split("\n"))


def _table(node: SyntaxTreeNode, page: Page) -> str:
    rows = []
    for row in (row for part in node.children for row in part.children):
        cells = [_inline(cell.children[0], page) if cell.children else "" for cell in row.children]
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    head = node.children[0].children[0].children
    marks = {"text-align:left": ":---", "text-align:right": "---:", "text-align:center": ":---:"}
    rule = "| " + " | ".join(marks.get(str(cell.attrs.get("style", "")), "---") for cell in head) + " |"
    return "\n".join([rows[0], rule, *rows[1:]])


def _definitions(node: SyntaxTreeNode, page: Page) -> str:
    """A list of terms in bold, each with its definition: Jupyter has no definition lists."""
    lines: list[str] = []
    for child in node.children:
        if child.type == "dt":
            lines.append(f"- **{_inline(child.children[0], page)}**")
        else:
            lines[-1] += "  \n  " + _indent(_children(child, page), 2)
    return "\n".join(lines)


def _code(info: str, content: str) -> str:
    longest = max((len(run) for run in re.findall(r"`{3,}", content)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{info}\n{content.rstrip()}\n{fence}"


def _fence(node: SyntaxTreeNode, page: Page) -> str:
    directive = directive_of(node)
    if directive is None:
        return _code(node.info.strip(), node.content)
    return _directive(directive, page)


def math(content: str, number: str = "") -> str:
    """Displayed math with its number, as MathJax and KaTeX both take it."""
    content = content.strip()
    if "\\\\" in content and not RAW_MATH.search(content):
        content = f"\\begin{{aligned}}\n{content}\n\\end{{aligned}}"
    return f"$$\n{content}" + (f"\n\\tag{{{number}}}" if number else "") + "\n$$"


def _math(node: SyntaxTreeNode, page: Page) -> str:
    label = label_of_math(node)
    return math(node.content, page.names.target(label, ("equation",)).number if label else "")


def _footnote(node: SyntaxTreeNode, page: Page) -> str:
    return f"<sup>{node.meta['label']}</sup> " + _indent(_children(node, page), 2)


def _nothing(node: SyntaxTreeNode, page: Page) -> str:
    return ""


BLOCKS: dict[str, Callable[[SyntaxTreeNode, Page], str]] = {
    "heading": _heading,
    "paragraph": _paragraph,
    "bullet_list": _list,
    "ordered_list": _list,
    "blockquote": lambda node, page: _quote(_children(node, page)),
    "table": _table,
    "dl": _definitions,
    "fence": _fence,
    "colon_fence": _fence,
    "code_block": lambda node, page: _code("", node.content),
    "html_block": lambda node, page: node.content.rstrip(),
    "hr": lambda node, page: "---",
    "math_block": _math,
    "math_block_label": _math,
    "amsmath": lambda node, page: math(node.content),
    "footnote_block": _children,
    "footnote_reference": _footnote,
    "myst_target": _nothing,
    "myst_line_comment": _nothing,
    "myst_block_break": _nothing,
}


# ---- directives ----
def _directive(directive: Directive, page: Page) -> str:
    name, options = directive.name, directive.options
    if name == "admonition" or name in ADMONITIONS:
        return _admonition(directive, page)
    if name == "dropdown":
        return fold(_html(directive.argument, page), markdown(directive.body, page))
    if name.startswith("exercise") and name not in DROPPED:
        return _exercise(directive, page)
    if name.startswith("solution") and name not in DROPPED:
        return _solution(directive, page)
    if name in BARE:
        return markdown(directive.body, page)
    if name in TITLED:
        return _titled(directive, page)
    if name in ("figure", "image"):
        return _figure(directive, page)
    if name == "math":
        label = options.get("label")
        return math(directive.body, page.next_number("equation", label) if label else "")
    if name in ("code-block", "code", "sourcecode"):
        return _code(directive.argument, directive.body)
    if name == "raw":
        return directive.body.strip() if directive.argument == "html" else ""
    if name == "nb-exec-table":
        return "*(The book has a table here: how long each page took to run.)*"
    if name == "epigraph":
        return _quote(markdown(directive.body, page))
    if name in DROPPED:
        return ""
    raise MystError(f"a notebook cannot show the directive {{{name}}}")


def _admonition(directive: Directive, page: Page) -> str:
    # Only {admonition} and its like have a title; the others begin their text in the same line.
    titled = directive.name in ("admonition", "sidebar", "topic")
    title = directive.argument if titled else ADMONITIONS[directive.name]
    body = directive.body if titled else f"{directive.argument}\n{directive.body}".strip()
    if "dropdown" in directive.options.get("class", "").split():
        return fold(_html(title, page), markdown(body, page))
    return _quote(f"**{_inline_text(title, page)}**\n\n{markdown(body, page)}")


def _exercise(directive: Directive, page: Page) -> str:
    label = directive.options.get("label")
    number = page.next_number("exercise", label)
    title = f" ({_inline_text(directive.argument, page)})" if directive.argument else ""
    body = markdown(directive.body, page)
    return f"### Exercise {number}{title}" + (f"\n\n{body}" if body else "")


def _solution(directive: Directive, page: Page) -> str:
    target = page.names.target(directive.argument, ("exercise",))
    title = f" ({_html(target.title, page)})" if target.title else ""
    line = f"Solution to exercise {target.number}{title}"
    if directive.name == "solution-start":  # its cells follow: they cannot be folded with it
        return f"**{line}**\n\n{markdown(directive.body, page)}".strip()
    return fold(line, markdown(directive.body, page))


def _titled(directive: Directive, page: Page) -> str:
    # Cards mark their head and foot by lines of signs.
    body = "\n".join(line for line in directive.body.splitlines() if line.strip() not in ("^^^", "+++"))
    title = f"**{_inline_text(directive.argument, page)}**\n\n" if directive.argument else ""
    return title + markdown(body, page)


def _figure(directive: Directive, page: Page) -> str:
    alt = directive.options.get("alt", "")
    picture = f"![{alt}]({_source(directive.argument, page)})"
    if directive.name == "image" or not directive.body.strip():
        return picture
    label = directive.options.get("name") or directive.options.get("label")
    return f"{picture}\n\n{caption(directive.body, page, 'figure', label)}"


def _glued_figure(directive: Directive, page: Page) -> Block:
    text = caption(directive.body, page, "figure", directive.options.get("name"))
    words = described(directive.options.get("alt", ""))
    return Block(f"{text}\n\n{words}".strip(), values="⟦" in text, figure=directive.argument)


def _source(address: str, page: Page) -> str:
    """A picture that lies in the book, as part of the notebook; any other address as it is."""
    if re.match(r"[a-z]+:", address):
        return address
    file = page.folder / address
    if not file.is_file():
        raise MystError(f"there is no picture {address}")
    kind = mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(file.read_bytes()).decode()}"


# ---- inline ----
def _inline(node: SyntaxTreeNode, page: Page) -> str:
    return _replace(node.content, node.meta.get("spans", []), page)


def _inline_text(text: str, page: Page) -> str:
    """A line of MyST, such as a title, as a line of Markdown."""
    return " ".join(markdown(text, page).split())


def _replace(text: str, spans: list[Span], page: Page) -> str:
    edits: list[tuple[int, int, str]] = []
    for span in spans:
        if span.rule == "span":  # [text]{.class}: the text stays
            close = text.rfind("]{", span.start, span.end)
            edits += [(span.start, span.start + 1, ""), (close, span.end, "")]
        else:
            edits.append((span.start, span.end, _written(span, text, page)))
    for start, end, new in sorted(edits, reverse=True):
        text = text[:start] + new + text[end:]
    return text


def _written(span: Span, text: str, page: Page) -> str:
    token = span.token
    if span.rule == "attr" or token is None:
        return ""
    if span.rule == "myst_role":
        return _role(token, page)
    if span.rule == "footnote_ref":
        return f"<sup>{token.meta['label']}</sup>"
    if span.rule == "image":
        return f"![{token.content}]({_source(str(token.attrs['src']), page)})"
    raise MystError(f"a notebook cannot show {text[span.start : span.end]!r}")


def _html(text: str, page: Page) -> str:
    """A line of MyST as HTML, for a title that Jupyter does not read as Markdown; math stays for MathJax."""
    line = _inline_text(text, page)
    tokens = parser().parseInline(line)
    return "".join(map(_html_of, tokens[0].children or []))


def _html_of(token: Token) -> str:
    if token.type == "math_inline":
        return f"${html.escape(token.content, quote=False)}$"
    if token.type in ("softbreak", "hardbreak"):
        return " "
    if token.nesting:
        return f"<{'/' if token.nesting < 0 else ''}{token.tag}>"
    content = html.escape(token.content, quote=False)
    return f"<code>{content}</code>" if token.type == "code_inline" else content


def _role(token: Token, page: Page) -> str:
    name, content = token.meta["name"], token.content
    write = ROLES.get(name)
    if write is None:
        raise MystError(f"a notebook cannot show the role {{{name}}}")
    return write(content, page)


def _link(text: str, page: Page, target: str, anchor: str = "") -> str:
    """A link to a page of the published book; where it is not known, the text in italics."""
    if not page.book_url:
        return f"*{text}*"
    address = f"{page.book_url}/{target.removesuffix('.md')}.html" + (f"#{anchor}" if anchor else "")
    return f"[{text}]({address})"


def _doc(content: str, page: Page) -> str:
    text, target = split_target(content)
    parts: list[str] = [] if target.startswith("/") else list(Path(page.page).parent.parts)
    for part in target.strip("/").split("/"):
        parts = parts[:-1] if part == ".." else [*parts, part]
    path = "/".join(parts).removesuffix(".md") + ".md"
    if path not in page.names.titles:
        raise MystError(f"the book has no page {target!r}")
    title, number = page.names.titles[path], page.names.chapters[path]
    if text and not page.book_url:  # a link says where it leads, a text has to
        return f"{text} ({f'chapter {number}' if number else f'*{title}*'})"
    return _link(text or title, page, path)


def _ref(content: str, page: Page) -> str:
    text, label = split_target(content)
    target = page.names.target(label, ("section", "figure", "exercise", "solution"))
    named = f"{target.kind.capitalize()} {target.number}" if target.number else target.title
    if target.page == page.page:
        return text or (named if target.number else f"“{named}”")
    return _link(text or named, page, target.page, label)


def _numref(content: str, page: Page) -> str:
    text, label = split_target(content)
    target = page.names.target(label, ("figure", "exercise", "section"))
    words = {"figure": "Fig.", "exercise": "Exercise", "section": "Section"}
    return (
        (text or f"{words[target.kind]} %s").replace("%s", target.number).replace("{number}", target.number)
    )


def _eq(content: str, page: Page) -> str:
    text, label = split_target(content)
    return text or f"({page.names.target(label, ('equation',)).number})"


def _term(content: str, page: Page) -> str:
    text, term = split_target(content)
    spelled, definition = definition_of(page.names, term)
    page.terms[spelled] = definition
    if not page.book_url:
        return text or term
    return _link(text or term, page, "glossary.md", "term-" + re.sub(r"[^\w-]+", "-", spelled).strip("-"))


def _cite(form: str) -> Callable[[str, Page], str]:
    def write(content: str, page: Page) -> str:
        keys = [key.strip() for key in content.split(",")]
        page.cited.update(keys)
        papers = []
        for key in keys:
            entry = page.names.paper(key)
            authors, year = cited(entry)
            text = f"{authors} ({year})" if form == "text" else f"{authors}, {year}"
            url = entry.fields.get("url")
            papers.append(f"[{text}]({url})" if url else text)
        joined = "; ".join(papers)
        return joined if form == "text" else f"({joined})"

    return write


def _value(content: str, page: Page) -> str:
    return VALUE.format(content)


ROLES: dict[str, Callable[[str, Page], str]] = {
    "doc": _doc,
    "ref": _ref,
    "numref": _numref,
    "eq": _eq,
    "term": _term,
    "cite": _cite("parenthesis"),
    "cite:p": _cite("parenthesis"),
    "cite:ps": _cite("parenthesis"),
    "cite:t": _cite("text"),
    "cite:ts": _cite("text"),
    "glue:text": _value,
    "glue:": _value,
    "glue": _value,
    "math": lambda content, page: f"${content}$",
    "code": lambda content, page: f"`{content}`",
    "kbd": lambda content, page: f"<kbd>{html.escape(content)}</kbd>",
    "sub": lambda content, page: f"<sub>{html.escape(content)}</sub>",
    "sup": lambda content, page: f"<sup>{html.escape(content)}</sup>",
    "abbr": lambda content, page: content,
    "index": lambda content, page: split_target(content)[0] or content,
}
