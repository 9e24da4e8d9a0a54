"""What the tests share."""

import os
import shutil
from pathlib import Path

import pytest

from unseen_lib.exercises import Result

ROOT = Path(__file__).parents[1]


def needed(found: object, reason: str) -> None:
    """Skip with `reason` where something is missing; on CI nothing may be missing, so fail there."""
    if not found:
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def told(result: Result, *phrases: str) -> None:
    """The answer to an exercise is called wrong, with a message that says each of these."""
    assert result.status == "wrong", result
    for phrase in phrases:
        assert phrase in result.message, result.message


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the built pages."""
    folder = ROOT / "_build" / "html"
    needed((folder / "index.html").exists(), "the book is not built: run `make book` first")
    return folder


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of the system's Chromium."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    needed(found, "chromium is not installed (Debian and Ubuntu: `apt-get install chromium`)")
    assert found is not None
    return found
