"""The generated notebooks: that they say what the book says, and run where the book is not."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from importlib import metadata
from pathlib import Path

import nbformat
import pytest
import torch
import yaml
from IPython.core.inputtransformer2 import TransformerManager
from markdown_it import MarkdownIt
from nbclient import NotebookClient

import unseen_lib
from tests.conftest import needed
from tests.test_build import Book
from tools.build_notebooks import (
    all_notebooks,
    away_from_the_book,
    cells_of_text,
    drift,
    joined,
    main,
    markdown_cell,
    with_ids,
)
from tools.notebook_markdown import Page, translate
from tools.notebook_references import read_names
from tools.notebook_setup import Needs, Repository, Wheel, setup_cell
from tools.notebook_syntax import MystError, blocks_of, directive_of
from tools.try_notebooks import run_alone, try_all
from unseen_lib import notebook
from unseen_lib.errors import ConfigError, EnvironmentMisfit, OutOfMemory
from unseen_lib.experiments import preset
from unseen_lib.training import kept_folder, train

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return all_notebooks(ROOT)


@pytest.fixture(scope="module")
def notebooks(texts: dict[str, str]) -> dict[str, dict]:
    return {name: json.loads(text) for name, text in texts.items()}


def source(cell: dict) -> str:
    return "".join(cell["source"])


# ---- what lies beside the pages ----


def test_notebooks_are_what_their_pages_give(texts: dict[str, str]) -> None:
    assert drift(ROOT, texts) == [], "run `make notebooks`"


def test_a_notebook_that_drifted_or_lost_its_page_is_found(small_book: Path, capsys) -> None:
    assert main(["--book", str(small_book)]) == 0
    assert main(["--book", str(small_book), "--check"]) == 0
    page = small_book / "chapters" / "one.md"
    page.write_text(page.read_text(encoding="utf-8").replace("Some prose", "Other prose"), encoding="utf-8")
    (small_book / "chapters" / "gone.ipynb").write_text("{}", encoding="utf-8")
    assert main(["--book", str(small_book), "--check"]) == 1
    error = capsys.readouterr().err
    assert "chapters/one.ipynb" in error and "chapters/gone.ipynb" in error and "make notebooks" in error
    assert main(["--book", str(small_book)]) == 0
    assert main(["--book", str(small_book), "--check"]) == 0
    assert not (small_book / "chapters" / "gone.ipynb").exists()


def test_notebooks_are_valid_and_hold_no_outputs(notebooks: dict[str, dict]) -> None:
    assert len(notebooks) >= 7
    for name, content in notebooks.items():
        nbformat.validate(content)
        ids = [cell["id"] for cell in content["cells"]]
        assert len(ids) == len(set(ids)), name
        assert content["metadata"]["accelerator"] == "GPU"
        for cell in content["cells"]:
            assert cell["cell_type"] == "markdown" or (cell["outputs"], cell["execution_count"]) == ([], None)


def test_no_myst_is_left_in_the_text(notebooks: dict[str, dict]) -> None:
    """By the parser of the book, and no directive hides behind a fence."""
    for name, content in notebooks.items():
        for cell in content["cells"]:
            text = source(cell)
            if cell["cell_type"] == "code" and "notebook.tell(" in text:
                text = text.partition('r"""')[2].rpartition('"""')[0]
            elif cell["cell_type"] == "code":
                continue
            for node in blocks_of(text):
                for part in node.walk():
                    assert directive_of(part) is None, (name, part.info)
                    assert part.type not in ("myst_target", "math_block_label", "dl"), (name, text)
                    if part.type == "inline":
                        assert not [s for s in part.meta["spans"] if s.rule != "image"], (name, part.content)


def test_code_cells_compile_and_never_need_the_book(notebooks: dict[str, dict]) -> None:
    for name, content in notebooks.items():
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                tree = ast.parse(TransformerManager().transform_cell(source(cell)), name)
                for node in ast.walk(tree):
                    modules = [getattr(node, "module", "") or ""] if isinstance(node, ast.ImportFrom) else []
                    modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                    assert not [m for m in modules if m.partition(".")[0] in ("myst_nb", "tools", "tests")]


def test_folded_blocks_are_closed_and_readable(notebooks: dict[str, dict]) -> None:
    """Jupyter reads the inside of <details> as Markdown only behind a blank line."""
    count = 0
    for content in notebooks.values():
        for cell in content["cells"]:
            text = source(cell)
            if cell["cell_type"] == "markdown" and "<details>" in text:
                assert text.count("<details>") == text.count("</details>") == text.count("</summary>\n\n")
                assert text.count("<details>\n<summary>") == text.count("\n\n</details>")
                html = MarkdownIt("commonmark").render(text)
                assert "&lt;details" not in html and "&lt;/details" not in html
                count += text.count("<details>")
    assert count > 100


# ---- numbers, against those of the built book ----


class Numbers(HTMLParser):
    """Numbers of figures, equations and exercises of a built page, by label."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}
        self.label, self.waiting = "", ""

    def handle_starttag(self, tag: str, attributes: list) -> None:
        given = dict(attributes)
        name = given.get("id") or ""
        if tag == "figure" or name.startswith(("equation-", "ex-")):
            self.label = name.removeprefix("equation-")
        self.waiting = given.get("class") or ""

    def handle_data(self, data: str) -> None:
        if self.waiting in ("caption-number", "eqno"):
            self.found.setdefault(self.label, re.sub(r"[^\d.]", "", data).strip("."))
        self.waiting = ""


def test_numbers_are_those_of_the_built_book(site: Path) -> None:
    names = read_names(ROOT)
    compared = 0
    for page in names.chapters:
        file = (site / page).with_suffix(".html")
        needed(file.exists(), f"{page} is not built: run `make book` first")
        built = Numbers()
        built.feed(file.read_text(encoding="utf-8"))
        ours = {label: t.number for label, t in names.targets.items() if t.page == page and t.number}
        assert {label: built.found.get(label) for label in ours} == ours
        compared += len(ours)
    assert compared > 50


# ---- what becomes of each construct ----


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(read_names(ROOT), "chapters/02-the-failure.md", ROOT / "chapters")


@pytest.mark.parametrize(
    ("myst", "markdown"),
    [
        ("```{admonition} A *title*\n:class: tip\n\nText.\n```", "> **A *title***\n>\n> Text."),
        ("```{note}\nText.\n```", "> **Note**\n>\n> Text."),
        ("```{note} It begins here\nand goes on.\n```", "> **Note**\n>\n> It begins here\n> and goes on."),
        (
            "```{admonition} More\n:class: dropdown\nText.\n```",
            "<details>\n<summary>More</summary>\n\nText.\n\n</details>",
        ),
        (
            ':::{dropdown} Is `a < b` and $x_1 < 2$ *so*, "yes"?\nText.\n:::',
            "<details>\n"
            "<summary>Is <code>a &lt; b</code> and $x_1 &lt; 2$ <em>so</em>, \"yes\"?</summary>\n\n"
            "Text.\n\n</details>",
        ),
        ("````{tab-set}\n```{tab-item} One\nText.\n```\n````", "**One**\n\nText."),
        ("$$\na = b\n$$ (eq-model)", "$$\na = b\n\\tag{2.1}\n$$"),
        ("$$\na = b \\\\ c = d\n$$", "$$\n\\begin{aligned}\na = b \\\\ c = d\n\\end{aligned}\n$$"),
        ("```{math}\n:label: eq-floor\na\n```", "$$\na\n\\tag{2.2}\n$$"),
        ("See {eq}`eq-floor` and {numref}`fig-live`.", "See (2.2) and Fig. 2.1."),
        ("{numref}`Figure %s <fig-live>`", "Figure 2.1"),
        ("{numref}`ex-greedy`", "Exercise 2.1"),
        ("{ref}`the-push`", "*A row that no text uses is pushed all the same*"),
        ("{doc}`03-the-collapse`", "*The collapse*"),
        ("{doc}`../status` and {doc}`a page <05-copy-attention>`", "*Status* and a page (chapter 5)"),
        (
            "{cite:t}`lazic2026unseen`, {cite}`gu2016copying,see2017pointer`",
            "[Lazić et al. (2026)](https://arxiv.org/abs/2604.21632), "
            "([Gu et al., 2016](https://arxiv.org/abs/1603.06393); "
            "[See et al., 2017](https://arxiv.org/abs/1704.04368))",
        ),
        ("{cite:t}`dowling1984linear`", "Dowling and Gallier (1984)"),
        ("{term}`seen names <seen name>` and {term}`query`", "seen names and query"),
        ("A{sub}`1` and {kbd}`x` and {math}`a`", "A<sub>1</sub> and <kbd>x</kbd> and $a$"),
        ("It is so.[^1]\n\n[^1]: Not quite.", "It is so.<sup>1</sup>\n\n<sup>1</sup> Not quite."),
        ("A [word]{.class #name} and `code`{.lang}.", "A word and `code`."),
        ("`{term}`x`` stays.", "`{term}`x`` stays."),
        ("- a\n- b {eq}`eq-floor`\n  - c\n\n1. d\n2. e", "- a\n- b (2.2)\n  - c\n\n1. d\n2. e"),
        ("3. a\n\n   b\n4. c", "3. a\n\n   b\n\n4. c"),
        ("- [a link {eq}`eq-floor`](https://a.b/c)", "- [a link (2.2)](https://a.b/c)"),
        ("| a | b |\n|:--|--:|\n| {eq}`eq-floor` | 1 |", "| a | b |\n| :--- | ---: |\n| (2.2) | 1 |"),
        ("| a |\n|--|\n| $\\|x\\|$ |", "| a |\n| --- |\n| $\\|x\\|$ |"),
        ("Term\n: What it means.", "- **Term**  \n  What it means."),
        ("(a-label)=\n## A heading", "## A heading"),
        ("% a comment\n\nText", "Text"),
        ("    indented", "```\nindented\n```"),
        ("````\n```{note}\n```\n````", "````\n```{note}\n```\n````"),
        ("> {eq}`eq-floor`", "> (2.2)"),
        ("a\\\nb  \nc", "a\\\nb  \nc"),
        ("<b>raw</b> {eq}`eq-floor`", "<b>raw</b> (2.2)"),
    ],
)  # fmt: skip
def test_each_construct(page: Page, myst: str, markdown: str) -> None:
    assert "\n\n".join(block.text for block in translate(myst, page)) == markdown


@pytest.mark.parametrize(
    ("myst", "said"),
    [
        ("```{mermaid}\na\n```", "{mermaid}"),
        ("{py:func}`train`", "{py:func}"),
        ("Somewhere {eq}`eq-nowhere`.", "'eq-nowhere'"),
        ("{numref}`eq-floor`", "'eq-floor'"),
        ("{doc}`nowhere`", "'nowhere'"),
        ("{cite}`nobody1999`", "'nobody1999'"),
        ("{term}`no such term`", "'no such term'"),
        ("![a picture](nowhere.png)", "nowhere.png"),
    ],
)
def test_what_cannot_be_turned_is_an_error_that_says_where(page: Page, myst: str, said: str) -> None:
    with pytest.raises(MystError, match=re.escape(said)):
        translate(myst, page)


def test_links_lead_to_the_published_book_where_it_is_known() -> None:
    page = Page(read_names(ROOT), "chapters/02-the-failure.md", ROOT, "https://me.github.io/fork")
    (text,) = translate("{doc}`03-the-collapse`, {term}`seen names <seen name>`, {ref}`the-push`", page)
    assert "[The collapse](https://me.github.io/fork/chapters/03-the-collapse.html)" in text.text
    assert "[seen names](https://me.github.io/fork/glossary.html#term-seen-name)" in text.text
    assert "(https://me.github.io/fork/chapters/03-the-collapse.html#the-push)" in text.text


def test_anchors_of_terms_are_those_of_the_built_book(site: Path) -> None:
    page = Page(read_names(ROOT), "intro.md", ROOT, "https://x.y")
    built = (site / "glossary.html").read_text(encoding="utf-8")
    for term in list(page.names.terms):
        (block,) = translate(f"{{term}}`{term}`", page)
        anchor = block.text.rpartition("#")[2].rstrip(")")
        assert f'id="{anchor}"' in built, anchor


def test_text_with_computed_numbers_becomes_a_cell(page: Page) -> None:
    """With the numbers' own cell in front, if it stands there, and math with braces as it is."""
    blocks = translate("Plain.\n\nIt is {glue:text}`live:.2f` of $\\frac{1}{2}$.\n\n## Next\n\nPlain.", page)
    cells = list(cells_of_text(blocks))
    assert [cell["cell_type"] for cell in cells] == ["markdown", "code", "markdown"]
    assert "It is ⟦live:.2f⟧ of $\\frac{1}{2}$." in cells[1]["source"]
    numbers = {**cells[1], "source": "# @title The numbers of the next paragraphs\nglue('live', 0.5)"}
    (both,) = joined([numbers, cells[1]])
    shown = run_cell(both["source"].replace("unseen_lib.notebook.tell", "tell"))
    assert shown == ["\nIt is 0.50 of $\\frac{1}{2}$.\n"]


def run_cell(code: str) -> list[str]:
    """What a cell tells."""
    shown: list[str] = []
    exec(code, {"glue": notebook.glue, "tell": lambda text: shown.append(notebook.filled(text))})
    return shown


def test_a_number_that_was_not_computed_says_so() -> None:
    assert "run the cells above" in notebook.filled("It is ⟦never-glued:.2f⟧.")


def test_an_edit_changes_the_id_of_its_own_cell_only() -> None:
    cells = [markdown_cell("a"), markdown_cell("b"), markdown_cell("b")]
    before = [cell["id"] for cell in with_ids(cells)]
    after = [cell["id"] for cell in with_ids([markdown_cell("new"), *cells])]
    assert after[1:] == before and len(set(after)) == 4


def test_glue_is_the_librarys_own() -> None:
    assert away_from_the_book("from myst_nb import glue") == "from unseen_lib.notebook import glue"
    assert away_from_the_book("%time x = 1") == "%time x = 1"
    with pytest.raises(MystError, match="load_glue"):
        away_from_the_book("from myst_nb import load_glue")


# ---- where the repository lives ----


CHAPTER = """\
---
file_format: mystnb
kernelspec:
  name: python3
---
# One

Some prose.

```{code-cell} ipython3
print(1)
```
"""


@pytest.fixture
def small_book(tmp_path: Path) -> Path:
    """A book of one chapter under the settings of this one."""
    files = {
        "_config.yml": (ROOT / "_config.yml").read_text(encoding="utf-8"),
        "_toc.yml": "format: jb-book\nroot: intro\nchapters:\n  - file: chapters/one.md\n",
        "intro.md": "# A book\n",
        "chapters/one.md": CHAPTER,
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_retarget_says_it_once_and_all_follows(small_book: Path) -> None:
    before = (small_book / "_config.yml").read_text(encoding="utf-8").splitlines()
    assert main(["--book", str(small_book), "--retarget", "https://github.com/me/fork"]) == 0
    after = (small_book / "_config.yml").read_text(encoding="utf-8").splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1 and '"https://github.com/me/fork"' in changed[0][1]
    assert changed[0][0].partition("#")[2] == changed[0][1].partition("#")[2], "the comment was lost"
    text = (small_book / "chapters" / "one.ipynb").read_text(encoding="utf-8")
    assert "https://colab.research.google.com/github/me/fork/blob/main/chapters/one.ipynb" in text
    assert "git+https://github.com/me/fork@main" in text
    assert "https://me.github.io/fork/chapters/one.html" in text


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("github.com/me/fork", "must begin with https://"),
        ("git@github.com:me/fork.git", "must begin with https://"),
        ("ftp://github.com/me/fork", "must begin with https://"),
        ("https://github.com/me", "owner and a repository"),
        ("https:///me/fork", "owner and a repository"),
        ('https://github.com/me/fo"rk', "plain address"),
        ("https://token@github.com/me/fork", "plain address"),
        ("", "is missing"),
    ],
)
def test_a_url_that_cannot_be_one_changes_nothing(small_book: Path, capsys, url: str, said: str) -> None:
    before = {file: file.read_bytes() for file in small_book.rglob("*") if file.is_file()}
    assert main(["--book", str(small_book), "--retarget", url]) == 1
    error = capsys.readouterr().err
    assert said in error and len(error.strip().splitlines()) == 1
    assert {file: file.read_bytes() for file in small_book.rglob("*") if file.is_file()} == before


def test_a_host_that_colab_cannot_open_has_no_badge() -> None:
    elsewhere = Repository("https://git.example.org/me/fork")
    assert elsewhere.colab("a.ipynb") == elsewhere.book == ""
    assert "git+https://git.example.org/me/fork@main" in setup_cell(Needs(), "1", "a", elsewhere, None)
    assert Repository("https://github.com/Me/me.github.io").book == "https://me.github.io"


def test_a_page_that_cannot_be_turned_is_named_and_nothing_is_written(small_book: Path, capsys) -> None:
    page = small_book / "chapters" / "one.md"
    page.write_text(page.read_text(encoding="utf-8") + "\n{nope}`x`\n", encoding="utf-8")
    assert main(["--book", str(small_book)]) == 1
    assert "chapters/one.md: a notebook cannot show the role {nope}" in capsys.readouterr().err
    assert not (small_book / "chapters" / "one.ipynb").exists()


# ---- the set-up cell ----

FORK = Repository("https://github.com/me/fork")
ABSENT = """
from importlib import metadata
def absent(name): raise metadata.PackageNotFoundError(name)
metadata.distribution = absent
"""
FULL_DISK = """
import subprocess
class Done: returncode, stderr = 1, "ERROR: Could not install: [Errno 28] No space left on device"
subprocess.run = lambda *args, **more: Done
"""
OLD = "import sys; sys.version_info = (3, 10, 4)"
STALE = """
import subprocess, types, sys
class Done: returncode, stderr = 0, ""
subprocess.run = lambda *args, **more: Done
sys.modules["unseen_lib"] = types.ModuleType("unseen_lib")
"""


def run_setup(cell: str, prelude: str) -> str:
    """The last line that the cell prints, run where `prelude` has changed the world; it has to fail."""
    done = subprocess.run([sys.executable, "-I", "-c", f"{prelude}\n{cell}"], capture_output=True, text=True)
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("repository", "prelude", "said"),
    [
        (Repository(""), ABSENT, "does not say where it is: use the notebook that carries it"),
        (FORK, ABSENT + OLD, "needs Python 3.11 or newer, and this is 3.10"),
        (FORK, ABSENT + FULL_DISK, "nothing was changed: ERROR: Could not install: [Errno 28] No space left"),
        (FORK, ABSENT + STALE, "restart the runtime"),
    ],
)
def test_a_set_up_that_cannot_work_says_why(repository: Repository, prelude: str, said: str) -> None:
    assert said in run_setup(setup_cell(Needs(), "0.1.0", "a", repository, None), prelude)


def test_a_wheel_travels_inside_the_cell() -> None:
    """Byte for byte, and pip is asked for it alone."""
    wheel = Wheel("x-1-py3-none-any.whl", bytes(range(256)) * 50)
    cell = setup_cell(Needs(), "1", "a", Repository(""), wheel)
    spy = """
import subprocess, sys
def run(command, **more):
    import hashlib
    print(hashlib.sha256(open(command[-1], "rb").read()).hexdigest(), *command[3:-1])
    sys.exit(0)
subprocess.run = run
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", f"{ABSENT}{spy}{cell}"], capture_output=True, text=True, check=True
    )
    sha256, *arguments = done.stdout.split()
    assert sha256 == wheel.sha256
    assert "--no-deps" in arguments


def test_set_up_is_quick_and_does_nothing_where_all_is_there(capsys, monkeypatch) -> None:
    monkeypatch.setattr(notebook, "run_pip", lambda arguments: pytest.fail(f"pip was called: {arguments}"))
    monkeypatch.setattr(metadata, "version", versions(unseen_lib=unseen_lib.__version__))
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2.9", 'gguf; extra == "pretrained"'])
    monkeypatch.setattr(metadata, "files", lambda name: [])  # as of a library that is not copied, but linked
    notebook.set_up(unseen_lib.__version__, chapter="a")
    assert f"unseen_lib {unseen_lib.__version__}, torch {torch.__version__.partition('+')[0]}" in (
        capsys.readouterr().out
    )


def versions(**changed: str):
    """`importlib.metadata.version`, with some packages at another version, or absent if it is ""."""
    real = metadata.version

    def version(name: str) -> str:
        if name in changed and not changed[name]:
            raise metadata.PackageNotFoundError(name)
        return changed.get(name) or real(name)

    return version


def test_a_library_without_its_recorded_runs_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(metadata, "files", lambda name: [])
    with pytest.raises(EnvironmentMisfit, match="its recorded runs are missing"):
        notebook.check_recorded(tmp_path)
    lost = metadata.PackagePath("unseen_lib/recorded/main/lost.json")
    lost.dist = metadata.PathDistribution(tmp_path)
    monkeypatch.setattr(metadata, "files", lambda name: [lost])
    with pytest.raises(EnvironmentMisfit, match=r"1 files of it, such as lost\.json, are missing"):
        notebook.check_recorded(Path(unseen_lib.__file__).parent)


def test_another_version_in_memory_than_installed_is_told(monkeypatch) -> None:
    monkeypatch.setattr(metadata, "version", versions(torch="9.9", unseen_lib="0.1.0"))
    with pytest.raises(EnvironmentMisfit, match=r"torch .* is loaded, 9\.9 is installed: restart"):
        notebook.check_loaded("torch")
    with pytest.raises(EnvironmentMisfit, match=r"this notebook wants 7\.0: restart"):
        notebook.check_loaded("unseen_lib", "7.0")


def test_an_old_torch_is_told_and_left_alone(monkeypatch) -> None:
    monkeypatch.setattr(metadata, "requires", lambda name: ["torch>=2.9", "numpy"])
    monkeypatch.setattr(metadata, "version", versions(torch="2.5.1+cu121"))
    with pytest.raises(
        EnvironmentMisfit, match=r"needs torch>=2\.9, and 2\.5\.1\+cu121 is installed.*nothing"
    ):
        notebook.install_missing(pip=lambda arguments: pytest.fail("pip was called"))


def test_what_is_missing_is_installed_with_all_else_held(monkeypatch) -> None:
    monkeypatch.setattr(
        metadata, "requires", lambda name: ["torch>=2.9", "einops>=0.6", 'gguf; extra == "pretrained"']
    )
    monkeypatch.setattr(metadata, "version", versions(einops="", gguf="", torch="2.13.0"))
    calls = []

    def pip(arguments: list[str]) -> str:
        held = Path(arguments[arguments.index("--constraint") + 1]).read_text(encoding="utf-8").split()
        calls.append((arguments[-1], held))
        return ""

    notebook.install_missing(pip=pip)
    ((asked, held),) = calls
    assert asked == "einops>=0.6"
    assert any(line.startswith("torch==") for line in held) and any(
        line.startswith("numpy==") for line in held
    )
    assert notebook.misfits(["pretrained"])[0] == ["einops>=0.6", "gguf"]


def test_a_model_that_cannot_be_installed_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(metadata, "version", versions(**{"a-model": ""}))

    def pip(arguments: list[str]) -> str:
        assert "--no-deps" in arguments
        raise EnvironmentMisfit("a-model==1 could not be installed: no network")

    notebook.install_models(["a-model==1"], pip)
    assert "the cells about this model show nothing" in capsys.readouterr().out


def test_scale_gpu_without_a_gpu_is_told(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setenv("UNSEEN_SCALE", "cpu")
    notebook.choose_scale("")
    with pytest.raises(EnvironmentMisfit, match="needs a GPU, and there is none here"):
        notebook.choose_scale("gpu")
    with pytest.raises(ConfigError, match="huge"):
        notebook.choose_scale("huge")


def test_a_folder_that_cannot_be_written_is_told(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("UNSEEN_FOLDER", "")
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(EnvironmentMisfit, match="progress cannot be kept in"):
        notebook.choose_folder(str(tmp_path / "file" / "inside"), "a")
    with pytest.raises(EnvironmentMisfit, match="which only Colab has"):
        notebook.choose_folder("/content/drive/MyDrive/unseen", "a")
    assert os.environ["UNSEEN_FOLDER"] == ""
    notebook.choose_folder(str(tmp_path), "a")
    assert os.environ["UNSEEN_FOLDER"] == str(tmp_path / "a")


# ---- long cells ----


def test_a_long_cell_goes_on_after_a_disconnect(tmp_path: Path, monkeypatch) -> None:
    """Tensors that `measure` returned are still there, and the end is that of an undisturbed run."""
    config = preset("smoke")
    undisturbed = train(config, measure=measured, measure_every=10, progress=False)
    monkeypatch.setenv("UNSEEN_FOLDER", str(tmp_path))

    with pytest.raises(KeyboardInterrupt):
        train(config, measure=stopping(measured, 30), measure_every=10, checkpoint_every=5, progress=False)
    # The same code, that no longer stops: as after a disconnect.
    seen: list[int] = []
    run = train(
        config, measure=stopping(measured, -1, seen), measure_every=10, checkpoint_every=5, progress=False
    )
    assert seen == [30, 40]
    assert [entry["step"] for entry in run.curve] == [0, 10, 20, 30, 40]
    for ours, theirs in zip(run.curve, undisturbed.curve, strict=True):
        assert ours["loss"] == theirs["loss"]
        assert torch.equal(ours["rows"], theirs["rows"])


def measured(model, step) -> dict:
    return {"rows": model.embedding.detach().clone()}


def stopping(measure, at: int, seen: list[int] | None = None):
    def measure_or_stop(model, step):
        if step == at:
            raise KeyboardInterrupt
        if seen is not None:
            seen.append(step)
        return measure(model, step)

    return measure_or_stop


def test_a_run_measured_otherwise_keeps_its_progress_elsewhere(tmp_path: Path, monkeypatch) -> None:
    config = preset("smoke")
    assert kept_folder(config, measured, 10) is None or os.environ.get("UNSEEN_FOLDER")
    monkeypatch.setenv("UNSEEN_FOLDER", str(tmp_path))
    other = torch.inference_mode()(lambda model, step: {"rows": model.embedding.sum().item()})
    folders = {
        kept_folder(config, measured, 10),
        kept_folder(config, measured, 20),
        kept_folder(config, None, 10),
        kept_folder(config, other, 10),
        kept_folder(preset("smoke", seed=1), measured, 10),
    }
    assert len(folders) == 5
    assert kept_folder(preset("smoke"), measured, 10) in folders


@pytest.mark.parametrize("error", [torch.OutOfMemoryError("CUDA out of memory"), MemoryError()])
def test_out_of_memory_names_two_settings(monkeypatch, error: BaseException) -> None:
    def no_room(*_) -> None:
        raise error

    monkeypatch.setattr("unseen_lib.training.loss_of", no_room)
    config = preset("smoke")
    with pytest.raises(OutOfMemory, match=rf"batch_size={config.batch_size}.*width={config.model.width}"):
        train(config, progress=False)


def test_a_real_allocation_that_fails_is_recognized(monkeypatch) -> None:
    monkeypatch.setattr("unseen_lib.training.loss_of", lambda *_: torch.empty(2**60))
    with pytest.raises(OutOfMemory, match="batch_size"):
        train(preset("smoke"), progress=False)


# ---- publishing ----


@pytest.fixture(scope="module")
def workflows() -> dict[str, dict]:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return {file.stem: yaml.safe_load(file.read_text(encoding="utf-8")) for file in files}


def steps_of(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job["steps"]]


def test_workflows_only_call_make(workflows: dict[str, dict]) -> None:
    """What they run is a target of the Makefile, with variables that it reads; and each has a time limit."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert set(workflows) == {"publish", "weekly"}
    for workflow in workflows.values():
        for step in steps_of(workflow):
            command = step.get("run", "")
            assert "run" in step or "uses" in step
            assert command.startswith(("make ", "cat .github/pins.env", "gh issue create")) or not command
            if command.startswith("make "):
                target, *settings = command.split()[1:]
                assert re.search(rf"^{target}:.*##", makefile, re.MULTILINE)
                assert all(f"$({setting.partition('=')[0]})" in makefile for setting in settings)
        assert all(job.get("timeout-minutes") or "needs" in job for job in workflow["jobs"].values())
        assert workflow["permissions"]["contents"] == "read"


def test_versions_are_pinned_and_said_once(workflows: dict[str, dict]) -> None:
    pins = dict(
        line.split("=", 1)
        for line in (ROOT / ".github" / "pins.env").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    )
    used: dict[str, set[str]] = {}
    for file in (ROOT / ".github" / "workflows").glob("*.yml"):
        text = file.read_text(encoding="utf-8")
        assert all(value not in text for value in pins.values()), file
        for name in re.findall(r"(?:env\.|\$)([A-Z_]*(?:VERSION|IMAGE))\b", text):
            assert name in pins, (file, name)
    for workflow in workflows.values():
        for step in steps_of(workflow):
            if "uses" in step:
                action, version = step["uses"].split("@")
                used.setdefault(action, set()).add(version)
                assert re.fullmatch(r"v\d+(\.\d+)*|[0-9a-f]{40}", version), step["uses"]
    assert all(len(versions) == 1 for versions in used.values()), used
    assert tuple(map(int, pins["PYTHON_VERSION"].split("."))) >= (3, 11)


def test_the_weekly_run_opens_an_issue_and_publishing_waits_for_the_tests(workflows: dict[str, dict]) -> None:
    last = steps_of(workflows["weekly"])[-1]
    assert last["if"] == "failure()" and last["run"].startswith("gh issue create")
    assert workflows["weekly"]["permissions"]["issues"] == "write"
    assert "schedule" in workflows["weekly"][True]  # YAML reads the key `on` as true
    runs = [
        step.get("run") or step["uses"].partition("@")[0]
        for step in workflows["publish"]["jobs"]["build"]["steps"]
    ]
    assert runs.index("make test") < runs.index("make site") < runs.index("actions/upload-pages-artifact")
    assert workflows["publish"]["jobs"]["deploy"]["needs"] == "build"


# ---- slow and long: the book's buttons, memory, and an environment that stands in for Colab ----


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_buttons_lead_to_the_generated_notebook(tmp_path: Path) -> None:
    """With a repository on GitHub; without one, or elsewhere, there is no button and no warning."""
    book = Book(tmp_path, {"one": "print(1)"})
    launch = re.compile(r'href="(https://colab[^"]*)"')
    for url, expected in (
        (
            "https://github.com/me/fork",
            ["https://colab.research.google.com/github/me/fork/blob/main/chapters/one.ipynb"],
        ),
        ("https://git.example.org/me/fork", []),
        ("", []),
    ):
        (tmp_path / "_build" / "html" / "chapters" / "one.html").unlink(missing_ok=True)
        assert main(["--book", str(tmp_path), "--retarget", url or "https://github.com/a/b"]) == 0
        if not url:
            book.edit("_config.yml", "https://github.com/a/b", "")
        result = book.build()
        assert result.returncode == 0, result.stdout
        built = tmp_path / "_build" / "html"
        assert launch.findall((built / "chapters" / "one.html").read_text(encoding="utf-8")) == expected
        if expected:
            offered = (built / "_sources" / "chapters" / "one.ipynb").read_text(encoding="utf-8")
            assert offered == (tmp_path / "chapters" / "one.ipynb").read_text(encoding="utf-8")


MEMORY = """\
import gc, torch
gc.collect()
print("bytes", sum(t.untyped_storage().nbytes() for t in gc.get_objects() if torch.is_tensor(t)))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_cell_that_runs_three_times_holds_no_more_memory(notebooks: dict[str, dict], monkeypatch) -> None:
    """The training cell of chapter 2 in a real kernel, which keeps what cells return and print."""
    monkeypatch.setenv("UNSEEN_SCALE", "smoke")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    code = [
        source(cell)
        for cell in notebooks["chapters/02-the-failure.ipynb"]["cells"][2:]
        if cell["cell_type"] == "code"
    ]
    last = next(i for i, text in enumerate(code) if text.startswith("run = train("))
    figure = next(text for text in code if "plots.training_curves(run.curve)" in text)
    again = [code[last], figure, MEMORY]
    cells = [nbformat.v4.new_code_cell(text) for text in [*code[:last], *again * 3]]
    executed = NotebookClient(
        nbformat.v4.new_notebook(cells=cells), timeout=300, kernel_name="python3"
    ).execute()
    printed = [out["text"] for cell in executed.cells for out in cell.outputs if out.get("name") == "stdout"]
    held = [
        int(line.split()[1]) for text in printed for line in text.splitlines() if line.startswith("bytes ")
    ]
    assert len(held) == 3 and held[0] > 0
    assert held[1] <= held[0] and held[2] <= held[0], held


STAND_IN = ("torch", "numpy", "scipy", "matplotlib", "seaborn", "tqdm", "einops", "safetensors", "pandas")
JUPYTER = ("ipykernel", "nbclient")
LIKE_COLAB = ("transformers", "huggingface_hub")


@pytest.mark.long
@pytest.mark.timeout(1500)
def test_every_notebook_runs_alone_where_only_colabs_packages_are(tmp_path: Path, monkeypatch, capfd) -> None:
    """In a fresh environment with what Colab has: each installs the library, moves nothing, and runs."""
    python = standing_in(tmp_path / "colab")
    assert main(["--colab", str(tmp_path / "notebooks")]) == 0
    monkeypatch.setenv("UNSEEN_SCALE", "smoke")
    found = sorted((tmp_path / "notebooks").glob("*.ipynb"))
    assert {file.name for file in found} == {Path(name).name for name in all_notebooks(ROOT)}
    wrong = try_all(python, found, together=2)
    printed = capfd.readouterr().out
    assert wrong == 0, printed
    # The first notebooks need nothing but the library; what chapter 8 adds is new, and moves nothing.
    assert "packages changed or gone: none" in printed
    again = run_alone(python, found[0])
    assert again == "", "the first cell fails where the library is there already"


def standing_in(folder: Path) -> str:
    """A Python with the packages of Colab that matter here, in versions of its own."""
    base = shutil.which("python3.12") or sys.executable
    if subprocess.run([base, "--version"], capture_output=True).returncode:  # a name that leads nowhere
        base = sys.executable
    subprocess.run([base, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin" / "python")
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    )
    packages = [f"torch=={pins['torch']}", *STAND_IN[1:], *JUPYTER, *LIKE_COLAB]
    subprocess.run([python, "-m", "pip", "install", "--quiet", *packages], check=True)
    return python


PRETEND = "from tests import pretend_gpu\npretend_gpu.enable()\nimport unseen_lib.notebook"


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_every_notebook_runs_on_a_gpu(notebooks: dict[str, dict], monkeypatch) -> None:
    """A pretend one, which refuses what a real one refuses: chapters train where the model is fastest."""
    monkeypatch.setenv("UNSEEN_SCALE", "smoke")
    monkeypatch.setenv("UNSEEN_PROGRESS", "off")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    training = {name: content for name, content in notebooks.items() if "= train(" in json.dumps(content)}
    assert len(training) >= 5

    def run(content: dict) -> None:
        cells = [nbformat.v4.new_code_cell(PRETEND)]
        cells += [
            nbformat.v4.new_code_cell(source(cell))
            for cell in content["cells"][2:]
            if cell["cell_type"] == "code"
        ]
        NotebookClient(nbformat.v4.new_notebook(cells=cells), timeout=600, kernel_name="python3").execute()

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, training.values()))


@pytest.mark.slow
def test_the_pretend_gpu_computes_what_the_cpu_does_and_refuses_to_mix() -> None:
    """In a process of its own, since it cannot be switched off."""
    code = """
import torch
from tests import pretend_gpu
from unseen_lib.experiments import preset
from unseen_lib.training import train
config = preset("smoke")
on_cpu = train(config, measure_every=1, progress=False).curve
pretend_gpu.enable()
run = train(config, measure_every=1, progress=False)
assert run.device == "lazy:0" and run.curve[1] == on_cpu[1]
# Later, Muon's bfloat16 shows that its sums are taken in another order.
assert abs(run.curve[-1]["loss"] / on_cpu[-1]["loss"] - 1) < 0.05
tokens = torch.zeros(1, 4, dtype=torch.long)
for wrong in (
    lambda: run.model(tokens),
    lambda: run.model(tokens.to("lazy")).numpy(),
    lambda: run.model.embedding.detach() + torch.ones(run.model.embedding.shape),
):
    try:
        wrong()
    except (RuntimeError, TypeError):
        continue
    raise AssertionError("not refused")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
