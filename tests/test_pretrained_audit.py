"""The audit of published models: measures, verdicts, the command line, and two real models."""

import json
import math
import os
import re
import subprocess
import sys

import pytest
import torch

from tests.published import FIRST, IMAGE, PADDED, SECOND, SPECIAL, WIDTH, collapse, drift, tiny_gemma
from unseen_lib import __main__ as cli
from unseen_lib.collapse import measure_rows
from unseen_lib.pretrained.audit import audit, identical_rows, verdict
from unseen_lib.pretrained.report import report_text
from unseen_lib.pretrained.tokens import UNUSED

FIRST_LABEL = "<unused0> … <unused98>"
SECOND_LABEL = f"<unused99> … <unused{98 + len(SECOND)}>"


def by_label(found, side="input"):
    return {group.label: group for group in found.groups if group.side == side}


# ------------------------------------------------------------------------------------ tiny Gemma 3 models
@pytest.mark.parametrize("far", [False, True], ids=["local", "served"])
@pytest.mark.parametrize("name", ["single", "sharded-bf16", "untied", "untied-bf16", "multimodal"])
def test_collapsed_rows_are_found_whatever_the_way_a_model_is_saved(published, served, name, far):
    found = audit(f"tiny/{name}" if far else published / "tiny" / name)
    assert found.collapsed
    for side in ("input", "output") if "untied" in name else ("input",):
        groups = by_label(found, side)
        for label, ids in ((FIRST_LABEL, FIRST), (SECOND_LABEL, SECOND)):
            group = groups[label]
            assert (group.kind, group.count, group.verdict) == ("unused", len(ids), "collapsed")
            assert group.centered.cosine == pytest.approx(0.95, abs=0.05)  # as it was made, drift and all
            assert group.norm_ratio == pytest.approx(0.5, abs=0.1)
        ordinary = groups["ordinary tokens"]
        assert ordinary.raw.cosine == pytest.approx(0.5, abs=0.1) and abs(ordinary.centered.cosine) < 0.02
        assert ordinary.measured == 256 and not ordinary.judged
        assert groups["special tokens"].count == len(SPECIAL) + ("multimodal" in name)
    assert found.tied == ("untied" not in name)
    if name == "multimodal":
        padding = by_label(found)["beyond the tokenizer"]
        assert padding.count == PADDED - IMAGE - 1 and padding.verdict == "healthy"  # never collapsed here
    assert (found.scan is None) == far


def test_near_and_far_give_the_same_numbers_and_far_reads_a_few_rows(published, served):
    near, far = audit(published / "tiny" / "sharded", scan=False), audit("tiny/sharded")
    assert near.groups == far.groups
    groups = [group.measured for group in far.groups]
    header = 1 << 17
    assert sum(groups) * WIDTH * 4 <= far.bytes_read <= sum(groups) * WIDTH * 4 + header
    assert far.bytes_read + far.bytes_beside <= served.sent  # beside them only what lists the files
    assert served.sent < far.bytes_read + far.bytes_beside + 10_000


def test_the_measures_are_those_of_the_course(published):
    found = by_label(audit(published / "tiny" / "single", range(6, 105), scan=False))
    from safetensors.torch import load_file

    weight = load_file(published / "tiny" / "single" / "model.safetensors")["model.embed_tokens.weight"]
    (given,) = (group for group in found.values() if group.kind == "given")
    expected = measure_rows(weight[6:105])
    for name, value in expected.to_dict().items():
        assert given.raw.to_dict()[name] == pytest.approx(value, rel=1e-6)


def test_healthy_and_partly_collapsed_rows_are_told_apart(published):
    healthy, partly = (audit(published / "tiny" / name) for name in ("healthy", "partly"))
    assert not healthy.collapsed and partly.collapsed
    assert {group.verdict for group in partly.groups if group.kind == "unused"} == {"partly collapsed"}
    assert "Healthy" in report_text(healthy) and "Partly collapsed" in report_text(partly)


def test_a_scan_finds_under_trained_ordinary_tokens_and_twins(tmp_path, published):
    from safetensors.torch import load_file, save_file

    source = published / "tiny" / "single"
    weights = load_file(source / "model.safetensors")
    weight = weights["model.embed_tokens.weight"]
    weight[[500, 901]] = weight[list(FIRST)].mean(0)  # as if never trained, and the same to the last bit
    weight[1200] = weight[1300]
    for file in source.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    scan = audit(tmp_path).scan
    assert scan.suspect_count == 2 and {s.id for s in scan.suspects} == {500, 901}
    assert {s.name for s in scan.suspects} == {"w500", "w901"}
    assert sorted(map(sorted, scan.twins)) == [[500, 901], [1200, 1300]] and scan.twin_count == 4
    reference = torch.cat([weight[list(FIRST)], weight[list(SECOND)]]).mean(0)
    assert torch.allclose(scan.distances, (weight - reference).norm(dim=1), rtol=1e-4, atol=1e-4)
    assert "w500 (500)" in report_text(audit(tmp_path))


def test_a_loaded_model_is_audited_with_a_tokenizer_or_with_ids(published):
    import transformers

    model = transformers.Gemma3ForCausalLM.from_pretrained(published / "tiny" / "single")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(published / "tiny" / "single" / "tokenizer.json")
    )
    found = audit(model, tokenizer=tokenizer)
    assert by_label(found)[FIRST_LABEL].verdict == "collapsed"
    assert audit(model, FIRST).collapsed
    assert not audit(model, range(300, 400)).collapsed
    named = audit(model, ["<unused0>", "<unused7>", 20], tokenizer=tokenizer)
    assert named.groups[1].measured == 3 and named.collapsed


# ------------------------------------------------------------------------------------------------ verdicts
@pytest.mark.parametrize(
    ("cosine", "ratio", "identical", "expected"),
    [
        (0.8, 0.2, 0, "collapsed"),
        (0.8, 1.3, 0, "partly collapsed"),  # one way, but as far apart as any
        (0.3, 0.2, 0, "partly collapsed"),
        (0.0, 0.2, 0, "healthy"),  # short, and still different from each other
        (0.0, 1.0, 50, "collapsed"),
        (0.0, 1.0, 2, "partly collapsed"),
        (-0.2, 1.0, 0, "healthy"),
    ],
)
def test_a_verdict_rests_on_more_than_one_number(cosine, ratio, identical, expected):
    assert verdict(cosine, ratio, identical, 99, 1152) == expected


@pytest.mark.parametrize("drifting", ["all rows", "the others", "none"])
def test_independent_rows_are_healthy_at_any_scale_and_in_any_number(drifting):
    for count in (2, 3, 17, 99):
        for scale in (0.05, 0.3, 1.0, 3.0):
            if scale == 0.05 and drifting == "all rows":
                continue  # these are the drift and little else, which makes them alike indeed
            model = tiny_gemma()
            weight = model.get_input_embeddings().weight
            ids = range(6, 6 + count)
            if drifting == "the others":
                drift(weight)
            collapse(weight, ids, cosine=0.0, norm=scale, seed=count)
            if drifting == "all rows":
                drift(weight)
            assert not audit(model, ids, scan=False).collapsed, (count, scale)


def test_zero_rows_and_equal_rows_have_collapsed():
    model = tiny_gemma()
    weight = model.get_input_embeddings().weight
    drift(weight)
    with torch.no_grad():
        weight[6:20] = 0
        weight[30:40] = weight[30].clone()
    for ids in (range(6, 20), range(30, 40)):
        group = audit(model, ids).groups[1]
        assert group.verdict == "collapsed" and group.identical == [list(ids)]


def test_identical_rows_are_grouped_as_in_a_loop_over_pairs():
    generator = torch.Generator().manual_seed(0)
    rows = torch.randint(0, 3, (60, 4), generator=generator).float()
    rows += 1e-4 * torch.rand(60, 4, generator=generator)
    ids = list(range(100, 160))
    groups = identical_rows(rows, ids, 0.01)
    together = {(i, j) for group in groups for i in group for j in group if i != j}
    slow = {
        (ids[i], ids[j])
        for i in range(60)
        for j in range(60)
        if i != j and (rows[i] - rows[j]).norm() <= 0.01
    }
    assert together == slow and groups == sorted(groups, key=len, reverse=True)


@pytest.mark.parametrize(
    "token",
    [
        "<unused0>",
        "[unused993]",
        "<|reserved_special_token_12|>",
        "<|text_post_train_reserved_special_token_3|>",
        "<reserved_7>",
        "<|extra_204|>",
        "<SPECIAL_20>",
        "[control_700]",
        "<|dummy_3|>",
        "<｜place▁holder▁no▁5｜>",
        "madeupword0002",
    ],
)
def test_names_of_unused_tokens(token):
    assert UNUSED.fullmatch(token)


@pytest.mark.parametrize(
    "token", ["unused", "unused0", "<extra_id_0>", "<pad>", "<0x0A>", "control_1", "<|im_start|>", "[MASK]"]
)
def test_names_of_other_tokens(token):
    assert not UNUSED.fullmatch(token)


# ---------------------------------------------------------------------------------------- two real models
def test_minilm_has_collapsed_unused_rows_and_characters_hardly_trained(minilm):
    found = audit(minilm)
    groups = by_label(found)
    unused = groups["[unused0] … [unused993]"]
    assert unused.count == 994 and unused.verdict == "collapsed"
    assert unused.raw.cosine == pytest.approx(0.822, abs=0.01)
    assert unused.centered.cosine == pytest.approx(0.80, abs=0.02)
    assert unused.distance_ratio < 0.2 and groups["ordinary tokens"].raw.cosine < 0.02
    assert found.scan.suspect_count > 400 and found.scan.suspects[0].name.startswith("##")
    for start in range(2000, 29_000, 3000):
        assert not audit(minilm, range(start, start + 99), scan=False).collapsed


def test_smollm2_is_anisotropic_and_its_special_tokens_have_twins(smollm2):
    found = audit(smollm2, range(17))
    ordinary, special = found.groups
    assert ordinary.raw.cosine == pytest.approx(0.44, abs=0.02) and abs(ordinary.centered.cosine) < 0.01
    assert special.raw.cosine == pytest.approx(0.82, abs=0.01)
    assert special.centered.cosine == pytest.approx(0.73, abs=0.02)
    assert special.verdict == "collapsed" and len(special.identical[0]) == 11
    assert {s.name for s in found.scan.suspects} >= {"ManagementPlaneProtection", "Ġtransistorsum"}
    assert found.bytes_read < found.bytes_stored / 3


def test_digits_in_use_look_collapsed_which_is_why_a_verdict_is_no_proof(smollm2):
    digits = audit(smollm2, [str(digit) for digit in range(10)], scan=False)
    assert digits.collapsed and digits.groups[1].raw.cosine == pytest.approx(0.74, abs=0.01)
    assert "chat markers and digits" in report_text(digits)


# ---------------------------------------------------------------------------------------- the command line
def test_the_exit_status_says_healthy_collapsed_or_not_audited(published, capsys):
    folder = published / "tiny"
    assert cli.main(["audit", str(folder / "healthy")]) == 0
    assert cli.main(["audit", str(folder / "sharded")]) == 1
    assert cli.main(["audit", str(folder / "nowhere at all")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("unseen: ") and captured.err.count("\n") == 1
    assert FIRST_LABEL in captured.out and "chat markers and digits" in captured.out


def test_json_is_all_that_is_printed_and_holds_all_measures(published, capsys):
    assert cli.main(["audit", str(published / "tiny" / "untied"), "--json"]) == 1
    data = json.loads(capsys.readouterr().out)
    assert data["collapsed"] is True and not data["tied"]
    assert data["bytes_read"] > 0 and data["bytes_stored"] > 0
    assert [group["side"] for group in data["groups"]] == ["input"] * 4 + ["output"] * 4
    for group in data["groups"]:
        assert set(group["raw"]) == set(group["centered"]) == set(measure_rows(torch.eye(3)).to_dict())
        assert all(math.isfinite(value) for value in (*group["raw"].values(), group["distance_ratio"]))
    assert data["scan"]["suspect_count"] == 0 and "Collapsed" in data["advice"][0]


def test_tokens_are_named_by_id_range_or_text(published, capsys):
    folder = str(published / "tiny" / "single")
    assert cli.main(["audit", folder, "--tokens", "6-10", "<unused9>", "20", "--json"]) == 1
    given = json.loads(capsys.readouterr().out)["groups"][1]
    assert (given["kind"], given["count"]) == ("given", 7)
    assert cli.main(["audit", folder, "--tokens", "300-380"]) == 0


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_a_figure_is_written_whole_or_not_at_all(published, tmp_path, kind):
    place = tmp_path / f"rows.{kind}"
    assert cli.main(["audit", str(published / "tiny" / "single"), "--plot", str(place)]) == 1
    assert place.stat().st_size > 3000 and list(tmp_path.iterdir()) == [place]


def test_the_installed_command_audits_a_served_model(published, served):
    environment = os.environ | {"HF_ENDPOINT": served.address, "HF_HUB_DISABLE_TELEMETRY": "1"}
    call = [sys.executable, "-m", "unseen_lib", "audit", "tiny/multimodal@main"]
    done = subprocess.run(call, env=environment, capture_output=True, text=True)
    assert done.returncode == 1, done.stderr
    assert FIRST_LABEL in done.stdout and "Only rows of these groups were read" in done.stdout
    read = re.search(r"read +([\d.]+ \w+) of ([\d.]+ \w+) of weights", done.stdout)
    assert read


def test_a_token_cannot_act_on_the_terminal(tmp_path, published, capsys):
    for file in (published / "tiny" / "single").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    text = (tmp_path / "tokenizer.json").read_text(encoding="utf-8").replace('"w300"', '"\\u001b[2Jw300"')
    (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
    cli.main(["audit", str(tmp_path), "--tokens", "300-310"])
    out = capsys.readouterr().out
    assert "\x1b" not in out and r"\x1b[2Jw300" in out
