"""The first cells of a notebook: where it is from, and the cell that installs the library.

The cell has to run before the library is there, so it holds as little as possible: it finds out whether the
right library is installed, installs it alone if not, and leaves all checks to ``unseen_lib.notebook.set_up``.
"""

from __future__ import annotations

import base64
import hashlib
import io
import lzma
import re
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

PYTHON = (3, 11)
COLUMNS = (
    2000  # of the packed library in a cell: few enough lines to scroll past, none too long for an editor
)

CELL = '''\
# @title Set-up: run this cell first
# A folder where long cells keep their progress, to go on after a disconnect, or "" for none.
# On Colab, for example: /content/drive/MyDrive/unseen
keep_in = ""  # @param {{type: "string"}}
# How large the models are; "" leaves it as it is: cpu, unless UNSEEN_SCALE says otherwise.
scale = ""  # @param ["", "smoke", "cpu", "gpu"]

import json
import sys
from importlib import invalidate_caches, metadata

VERSION = "{version}"
SHA256 = "{sha256}"  # of the library in this notebook, if it carries one


def installed():
    """Whether the library of this notebook is there."""
    try:
        library = metadata.distribution("unseen_lib")
    except metadata.PackageNotFoundError:
        return False
    origin = json.loads(library.read_text("direct_url.json") or "{{}}")
    sha256 = origin.get("archive_info", {{}}).get("hashes", {{}}).get("sha256", SHA256)
    return library.version == VERSION and sha256 == SHA256


if sys.version_info < {python}:
    raise RuntimeError(
        "this course needs Python {python_text} or newer, and this is %d.%d: choose a newer runtime"
        % sys.version_info[:2]
    )
if not installed():
{install}
import unseen_lib.notebook

unseen_lib.notebook.set_up(
    VERSION, chapter="{chapter}", keep_in=keep_in, scale=scale, extras={extras}, models={models}
)
'''

PIP = """\
    import subprocess
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
{source}
        # Without its dependencies: torch, numpy and all else stay as they are.
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", source]
        done = subprocess.run(pip, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip() or "pip gave no reason").splitlines()[-1]
        raise RuntimeError("the library could not be installed, and nothing was changed: " + reason)
    invalidate_caches()
    if "unseen_lib" in sys.modules:
        raise RuntimeError("another library is loaded: restart the runtime and run this cell again")
"""

PACKED = '''\
        import base64
        import lzma

        # The library itself, a wheel: compressed, and written in characters.
        packed = """
{packed}
"""
        source = str(Path(folder) / "{wheel}")
        try:
            Path(source).write_bytes(lzma.decompress(base64.b85decode(packed.replace("\\n", ""))))
        except OSError as error:
            raise RuntimeError(f"the library could not be unpacked: {{error}}") from None'''

ADDRESS = '''\
        source = "{address}"'''

MISSING = """\
    raise RuntimeError(
        "the library is not installed, and this notebook does not say where it is: use the notebook that "
        "carries it (`make colab` writes it to _build/colab), or tell the book its address with "
        "`make retarget URL=...`"
    )
"""


@dataclass(frozen=True)
class Needs:
    """What a page needs beside the library: optional dependencies, and packages that hold a model."""

    extras: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wheel:
    """The library as one file, packed as tightly as a notebook needs."""

    name: str
    data: bytes

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass(frozen=True)
class Repository:
    """Where the book's repository lives; ``url`` is "" while it lives nowhere.

    Raises
    ------
    ValueError
        If the URL is not one that git and a browser can open.
    """

    url: str
    branch: str = "main"

    def __post_init__(self) -> None:
        if not self.url:
            return
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https"):
            raise ValueError(
                f"repository url {self.url!r} must begin with https://, as in https://github.com/OWNER/NAME"
            )
        if not parts.hostname or len([part for part in parts.path.split("/") if part]) < 2:
            raise ValueError(
                f"repository url {self.url!r} must name an owner and a repository, as in "
                "https://github.com/OWNER/NAME"
            )
        if parts.username or parts.query or parts.fragment or re.search(r"[\s\"'\\<>()]", self.url):
            raise ValueError(f"repository url {self.url!r} must be the plain address of a repository")

    @property
    def _github(self) -> str:
        """Owner and name on GitHub, the one host whose notebooks Colab opens; "" elsewhere."""
        parts = urlsplit(self.url)
        return parts.path.strip("/") if parts.hostname in ("github.com", "www.github.com") else ""

    @property
    def book(self) -> str:
        """Where GitHub Pages serves the book; "" if that is not known."""
        if not self._github:
            return ""
        owner, name = self._github.split("/")[:2]
        root = f"https://{owner.lower()}.github.io"
        return root if name.lower() == f"{owner.lower()}.github.io" else f"{root}/{name}"

    def colab(self, notebook: str) -> str:
        """The address that opens a notebook of the repository in Colab, "" if Colab cannot."""
        if not self._github:
            return ""
        return f"https://colab.research.google.com/github/{self._github}/blob/{self.branch}/{notebook}"


def build_wheel(book: Path) -> Wheel:
    """Build the library's wheel, and store its files uncompressed: together they are compressed later."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "wheel",
            "--quiet",
            "--no-deps",
        ]
        done = subprocess.run([*command, "--wheel-dir", folder, str(book)])
        if done.returncode:
            raise ValueError("the library's wheel could not be built: what pip printed above says why")
        (built,) = Path(folder).glob("*.whl")
        stored = io.BytesIO()
        with zipfile.ZipFile(built) as old, zipfile.ZipFile(stored, "w", zipfile.ZIP_STORED) as new:
            for info in old.infolist():
                entry = zipfile.ZipInfo(
                    info.filename
                )  # with the earliest date there is: always the same bytes
                entry.external_attr = info.external_attr
                new.writestr(entry, old.read(info))
        return Wheel(built.name, stored.getvalue())


def setup_cell(needs: Needs, version: str, chapter: str, repository: Repository, wheel: Wheel | None) -> str:
    """The source of the cell that installs the library: from ``wheel``, else from the repository, if any."""
    if wheel is not None:
        packed = base64.b85encode(lzma.compress(wheel.data, preset=9)).decode()
        lines = "\n".join(packed[i : i + COLUMNS] for i in range(0, len(packed), COLUMNS))
        install = PIP.replace("{source}", PACKED.format(packed=lines, wheel=wheel.name))
    elif repository.url:
        address = f"git+{repository.url.removesuffix('/')}@{repository.branch}"
        install = PIP.replace("{source}", ADDRESS.format(address=address))
    else:
        install = MISSING
    return CELL.format(
        version=version,
        sha256=wheel.sha256 if wheel else "",
        python=PYTHON,
        python_text=".".join(map(str, PYTHON)),
        install=install,
        chapter=chapter,
        extras=list(needs.extras),
        models=list(needs.models),
    ).rstrip()


def opening(title: str, page: str, repository: Repository, wheel: Wheel | None) -> str:
    """The Markdown above that cell."""
    notebook = page.removesuffix(".md") + ".ipynb"
    lines = []
    if repository.colab(notebook) and wheel is None:
        badge = "https://colab.research.google.com/assets/colab-badge.svg"
        lines.append(f"[![Open in Colab]({badge})]({repository.colab(notebook)})")
    where = (
        f"[*{title}*]({repository.book}/{page.removesuffix('.md')}.html)" if repository.book else f"*{title}*"
    )
    lines.append(
        f"This notebook is the page {where} of the course *Unseen names*. Its first cell finds or installs "
        "the course's library, and leaves PyTorch, NumPy and every other package as they are. Some "
        "paragraphs state numbers that your own run computes: each is a cell, and its text appears when you "
        "run it."
    )
    return "\n\n".join(lines)
