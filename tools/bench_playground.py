"""How long a token takes in the playground of the built page, beside PyTorch on one thread.

Both read the same text one token at a time with a cache of keys and values, as decoding does. Run it as
``python -m tools.bench_playground``, after ``make book``.
"""

from __future__ import annotations

import base64
import importlib.util
import statistics
import time
from pathlib import Path

import torch

from tools.chromium import find
from unseen_lib.experiments import TEST_SEED
from unseen_lib.export import import_model
from unseen_lib.model import GPT, KVCache
from unseen_lib.problems import Task, sample_batch

ROOT = Path(__file__).parents[1]
ENGINE = ROOT / "assets" / "playground" / "engine.js"
MODEL = ROOT / "_build" / "playground" / "frozen-copy-1000.js"
TEXTS = 100
IN_PAGE = """texts => {
  const model = unseen.decodeModel(unseen.delivered["frozen-copy-1000"]);
  return texts.map(text => {
    const session = model.start();
    const began = performance.now();
    text.forEach(session.read);
    return (performance.now() - began) / text.length;
  });
}"""


def main() -> None:
    """Print both."""
    chromium = find()
    for found, missing in (
        (MODEL.exists(), "the models of the playground (make book)"),
        (chromium, "chromium"),
        (importlib.util.find_spec("playwright"), "playwright (make test installs it)"),
    ):
        if not found:
            print(f"not measured, for want of {missing}")
            return
    assert chromium is not None
    script = MODEL.read_text(encoding="utf-8")
    exported = import_model(base64.b64decode(script.split('"')[3]))
    vocabulary = exported.vocabulary
    batch = sample_batch(
        Task(), vocabulary, batch_size=TEXTS, seed=TEST_SEED, index=0, scenario="all_unseen", stream="test"
    )
    texts = [row[row != vocabulary.pad].tolist() for row in batch.tokens]
    torch_time = statistics.median(in_torch(exported.model, texts))
    print(f"milliseconds a token in PyTorch, one thread    {torch_time:6.2f}")
    in_page = statistics.median(in_browser(chromium, script, texts))
    print(f"milliseconds a token in the page               {in_page:6.2f} (at most 50)")


def in_torch(model: GPT, texts: list[list[int]]) -> list[float]:
    """Milliseconds a token, for each text."""
    torch.set_num_threads(1)
    times = []
    with torch.inference_mode():
        for text in texts:
            cache = KVCache(len(text))
            began = time.perf_counter()
            for token in text:
                model.unembed(model.features(torch.tensor([[token]]), cache=cache))
            times.append((time.perf_counter() - began) / len(text) * 1e3)
    return times


def in_browser(chromium: str, script: str, texts: list[list[int]]) -> list[float]:
    """The same, by the clock of the page."""
    from tests.browsing import browsing

    with browsing(chromium) as browser:
        page = browser.new_page()
        page.add_script_tag(path=str(ENGINE))
        page.add_script_tag(content=script)
        times: list[float] = page.evaluate(IN_PAGE, texts)
    return times


if __name__ == "__main__":
    main()
