"""A Sphinx extension: the buttons of a page lead to the notebook generated beside it, or are not there.

The theme fails on a launch button without a repository and on a repository whose host it does not know, warns
about a button that Colab cannot open, and offers for download the page as the build ran it, with directives
that no notebook understands.
"""

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sphinx.application import Sphinx
from sphinx.config import Config

KNOWN_TO_THE_THEME = ("bitbucket", "github", "gitlab")


def follow_repository(app: Sphinx, config: Config) -> None:
    """Drop the launch buttons where their address would lead nowhere, and a repository of an unknown host."""
    options: dict[str, Any] = config.html_theme_options
    url = str(options.get("repository_url", ""))
    if not url.startswith("https://github.com/"):
        options.pop("launch_buttons", None)
    if not any(name in urlsplit(url).netloc.lower() for name in KNOWN_TO_THE_THEME):
        options.pop("repository_url", None)


def offer_generated(app: Sphinx, exception: Exception | None) -> None:
    """Let the download button give the generated notebook."""
    sources = Path(app.outdir) / "_sources"
    for offered in sources.rglob("*.ipynb"):
        generated = Path(app.srcdir) / offered.relative_to(sources)
        if generated.is_file():
            shutil.copyfile(generated, offered)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("config-inited", follow_repository, priority=100)  # before the theme reads its options
    app.connect("build-finished", offer_generated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
