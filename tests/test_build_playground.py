"""The models of the playground: what is made, what is kept, and that nothing half-made is left.

On a book with a library of its own to hash, and with one model that trains for a second, in this process.
"""

import base64
import re

import pytest

from tools import build_playground
from tools.build_playground import build, check_sizes, checkpoint_steps, read_manifest
from unseen_lib.experiments import measurement
from unseen_lib.export import import_model
from unseen_lib.training import train


@pytest.fixture
def book(tmp_path, monkeypatch):
    """A folder with what the key depends on; `runs` counts the trainings."""
    files = {"constraints.txt": "torch==1", "unseen_lib/__init__.py": ""}
    files |= {f"unseen_lib/{name}.py": "ONE = 1" for name in ("experiments", "export", "training")}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.setenv("UNSEEN_SCALE", "smoke")
    monkeypatch.setattr(build_playground, "CHOICES", build_playground.CHOICES[1:2])
    monkeypatch.setattr(build_playground, "PARTS", (0, 0.5, 1))
    monkeypatch.setattr(build_playground, "PROBLEMS", 8)
    monkeypatch.setattr(build_playground, "run_apart", run_here)
    run_here.runs = 0
    return tmp_path


def run_here(jobs, what, *, processes):
    for job in jobs.values():
        job()
        run_here.runs += 1
    return {}


def test_what_is_made_is_what_training_gives(book):
    assert build(book) == 0
    folder = book / "_build" / "playground"
    manifest = read_manifest(folder / "manifest.js")
    assert {file.name for file in folder.iterdir()} == {
        "manifest.js",
        "copy-0.js",
        "copy-20.js",
        "copy-40.js",
    }
    assert [file.name for file in folder.parent.iterdir()] == ["playground"], "nothing else is left"
    (model,) = manifest["models"]
    (choice,) = build_playground.CHOICES
    config = choice.config()
    run = train(config, measure=measurement(config, problems=8), measure_every=20, progress=False)
    for point, expected in zip(model["checkpoints"], run.curve, strict=True):
        assert point["step"] == expected["step"]
        assert point["loss"] == (expected["loss"] and pytest.approx(expected["loss"], rel=1e-4))
        text = (folder / point["file"]).read_text(encoding="utf-8")
        match = re.fullmatch(rf'unseen\.deliver\("{point["id"]}", "(.+)"\);\n', text)
        exported = import_model(base64.b64decode(match[1]))
        assert exported.vocabulary == config.vocabulary
        assert exported.about == {"name": "copy", "step": point["step"], "seed": 0, "policy": "trainable"}
        assert point["bytes"] == len(text)
        # What was measured is the model with rounded weights, so only nearly that of the run.
        cosine = expected["rows"]["seen"]["cosine"]
        assert point["measures"]["rows"]["seen"]["cosine"] == pytest.approx(cosine, abs=1e-3)
        assert 0 <= point["measures"]["same_text"] <= 1
    for name, weight in exported.model.state_dict().items():
        assert weight.equal(run.model.state_dict()[name].half().float()), name
    assert manifest["vocabulary"]["words"] == list(config.vocabulary.words)


def test_nothing_is_trained_again_until_something_changes(book):
    assert (build(book), build(book), run_here.runs) == (0, 0, 1)
    (book / "unseen_lib" / "unrelated.py").write_text("TWO = 2", encoding="utf-8")
    assert (build(book), run_here.runs) == (0, 1)
    (book / "unseen_lib" / "training.py").write_text("ONE = 2", encoding="utf-8")
    assert (build(book), run_here.runs) == (0, 2)
    (book / "constraints.txt").write_text("torch==2", encoding="utf-8")
    assert (build(book), run_here.runs) == (0, 3)
    (book / "_build" / "playground" / "manifest.js").write_text("cut off", encoding="utf-8")
    assert (build(book), run_here.runs) == (0, 4)


def test_what_was_there_stays_when_a_training_fails(book, monkeypatch):
    assert build(book) == 0
    folder = book / "_build" / "playground"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (book / "unseen_lib" / "training.py").write_text("ONE = 2", encoding="utf-8")
    monkeypatch.setattr(build_playground, "run_apart", lambda *_, **__: {"copy": "it was killed"})
    assert build(book) == 1
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert [file.name for file in folder.parent.iterdir()] == ["playground"]


def test_models_that_are_too_large_are_refused(book, monkeypatch):
    def manifest_with(*sizes):
        points = [{"file": f"m-{i}.js", "bytes": size} for i, size in enumerate(sizes)]
        return {"models": [{"checkpoints": points}]}

    check_sizes(manifest_with(*[1_000_000] * 16))
    with pytest.raises(ValueError, match=r"m-1\.js has 1,000,001 bytes, but may have 1,000,000"):
        check_sizes(manifest_with(10, 1_000_001))
    with pytest.raises(ValueError, match="16,000,010 bytes together, but may have 16,000,000"):
        check_sizes(manifest_with(10, *[1_000_000] * 16))
    monkeypatch.setattr(build_playground, "LARGEST_FILE", 1000)
    with pytest.raises(ValueError, match="may have 1,000"):
        build(book)
    assert list((book / "_build").iterdir()) == []


def test_checkpoints_go_from_the_first_step_to_the_last():
    assert checkpoint_steps(1000) == [0, 50, 100, 200, 300, 500, 700, 1000]
    assert checkpoint_steps(3) == [0, 1, 2, 3]


def test_a_missing_or_spoiled_manifest_is_none(tmp_path):
    assert read_manifest(tmp_path / "manifest.js") == {}
    (tmp_path / "manifest.js").write_text("unseen.manifest = {", encoding="utf-8")
    assert read_manifest(tmp_path / "manifest.js") == {}
