"""A model as a file for a page: what comes back, what the bytes are, and what is refused."""

import json
from dataclasses import replace

import pytest
import torch

from unseen_lib.errors import CheckpointError, ConfigError
from unseen_lib.experiments import preset
from unseen_lib.export import export_model, import_model
from unseen_lib.model import GPT, GPTConfig, count_parameters
from unseen_lib.vocabulary import Vocabulary

VOCABULARY = Vocabulary("compact", 8, 4)
CONFIG = GPTConfig(
    VOCABULARY.size,
    width=16,
    layers=2,
    heads=2,
    head_dim=6,
    mlp_width=12,
    context=20,
    local_window=3,
    copy=True,
)


def model_of(config: GPTConfig = CONFIG) -> GPT:
    return GPT(config, torch.Generator().manual_seed(1))


def test_what_is_read_back_is_the_same_model_with_rounded_weights():
    model = model_of()
    exported = import_model(export_model(model, VOCABULARY, {"seed": 1}))
    assert exported.vocabulary == VOCABULARY
    assert exported.about == {"seed": 1}
    for name, weight in model.state_dict().items():
        assert torch.equal(exported.model.state_dict()[name], weight.half().float()), name
    tokens = torch.randint(VOCABULARY.size, (4, 20), generator=torch.Generator().manual_seed(2))
    rounded = model_of()
    rounded.load_state_dict({name: weight.half().float() for name, weight in model.state_dict().items()})
    assert torch.equal(exported.model(tokens), rounded(tokens))
    assert (exported.model(tokens) - model(tokens)).abs().max() < 0.02


@pytest.mark.parametrize("change", [{}, {"copy": False}, {"copy_combine": "sum"}, {"local_window": None}])
def test_settings_come_back_with_the_derived_ones_filled_in(change):
    config = replace(CONFIG, **change)
    exported = import_model(export_model(model_of(config), VOCABULARY))
    assert exported.model.config == replace(config, copy_heads=config.copies)
    assert exported.about == {}


def test_the_bytes_are_as_documented_and_two_a_weight():
    """Read by hand, as the page does."""
    model = model_of()
    data = export_model(model, VOCABULARY, {"step": 3})
    assert data == export_model(model, VOCABULARY, {"step": 3})
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    metadata = json.loads(header.pop("__metadata__")["unseen"])
    assert metadata["format"] == 1
    assert metadata["config"]["head_dim"] == 6
    assert metadata["vocabulary"] == {
        "format": "compact",
        "seen": 8,
        "unseen": 4,
        "words": list(VOCABULARY.words),
    }
    assert len(data) == start + 2 * count_parameters(model)
    place = header["blocks.1.attention.query.weight"]
    assert place["dtype"] == "F16" and place["shape"] == [12, 16]
    begin, end = (start + offset for offset in place["data_offsets"])
    values = torch.frombuffer(bytearray(data[begin:end]), dtype=torch.float16).view(12, 16)
    assert torch.equal(values, model.blocks[1].attention.query.weight.half())


def test_a_model_of_the_course_is_small():
    config = preset("cpu", names=512, policy="frozen", copy=True)
    assert len(export_model(GPT(config.model), config.vocabulary)) < 450_000


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tied": False}, "tied is False, but a model to export needs True"),
        ({"identity": True}, "identity is True"),
        ({"copy_where": "every"}, "copy_where is 'every', but a model to export needs 'last'"),
        ({"copy_combine": "slices"}, "copy_combine is 'slices', but a model to export needs 'sum' or 'mean'"),
        ({"copy_rope": False}, "copy_rope is False"),
        ({"copy_norm": False}, "copy_norm is False"),
        ({"vocab_size": 23}, "vocab_size is 23, but the vocabulary has 22 words"),
    ],
)
def test_what_a_page_cannot_run_is_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        export_model(model_of(replace(CONFIG, **change)), VOCABULARY)


def test_settings_of_a_copy_attention_that_is_not_there_do_not_matter():
    config = replace(CONFIG, copy=False, copy_combine="slices", copy_norm=False)
    assert import_model(export_model(model_of(config), VOCABULARY)).model.config.copy is False


def test_the_full_format_is_refused():
    vocabulary = Vocabulary("full", 8, 4)
    with pytest.raises(ConfigError, match="format is 'full'"):
        export_model(model_of(replace(CONFIG, vocab_size=vocabulary.size)), vocabulary)


@pytest.mark.parametrize("value", [70_000.0, float("nan"), float("inf")])
def test_weights_that_half_precision_cannot_hold_are_refused(value):
    model = model_of()
    with torch.no_grad():
        model.blocks[0].expand.weight[3, 3] = value
    with pytest.raises(ConfigError, match=r"blocks\.0\.expand\.weight holds .*65504"):
        export_model(model, VOCABULARY)


def test_what_is_not_an_exported_model_is_refused():
    data = export_model(model_of(), VOCABULARY)
    for bad in (b"", b"not a model", data[:-2], data[:40]):
        with pytest.raises(CheckpointError, match="cannot be read as safetensors"):
            import_model(bad)
    with pytest.raises(CheckpointError, match="has format None"):
        from safetensors.torch import save

        import_model(save({"x": torch.zeros(2)}))
    for old, new, message in (
        (b'width\\":16', b'width\\":18', "tensors do not fit the config"),
        (VOCABULARY.words[-1].encode(), b"x" * len(VOCABULARY.words[-1]), "has other words"),
    ):
        assert old in data
        with pytest.raises(CheckpointError, match=message):
            import_model(data.replace(old, new))
