"""Rows drawn anew in a loaded model: decorrelated, matched to ordinary ones, and kept by the file."""

import pytest
import torch

from tests.published import FIRST, WIDTH, collapse, drift, tiny_gemma
from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.audit import audit
from unseen_lib.pretrained.repair import HOW, freeze_rows, reinitialize


def collapsed(*, tied=True, dtype=torch.float32):
    model = tiny_gemma(tied=tied)
    weights = [model.get_input_embeddings().weight]
    weights += [] if tied else [model.get_output_embeddings().weight]
    for weight in weights:
        collapse(weight, FIRST)
        drift(weight)
    return model.to(dtype)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_repaired_rows_are_healthy_on_both_sides_and_no_other_weight_changes(how, tied):
    model = collapsed(tied=tied)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert audit(model, FIRST).collapsed
    assert reinitialize(model, FIRST, how) == list(FIRST)
    found = audit(model, FIRST)
    if how != "normal":  # which knows nothing of the drift that ordinary rows share
        assert not found.collapsed
        for group in found.groups:
            assert abs(group.centered.cosine) < 0.1
            assert group.norm_ratio == pytest.approx(1, abs=0.1)
            assert group.distance_ratio == pytest.approx(1, abs=0.1)
    kept = torch.ones(2048, dtype=torch.bool)
    kept[list(FIRST)] = False
    for name, value in model.state_dict().items():
        table = name.endswith(("embed_tokens.weight", "lm_head.weight"))
        assert torch.equal(value[kept], before[name][kept]) if table else torch.equal(value, before[name])
    assert tied == (model.get_input_embeddings().weight is model.get_output_embeddings().weight)


def test_what_each_way_matches():
    model = collapsed()
    weight = model.get_input_embeddings().weight
    ids = range(6, 1006)
    ordinary = weight.detach()[1006:1800].clone()
    mean, covariance = ordinary.mean(0), torch.cov(ordinary.T)
    reinitialize(model, ids, "covariance")
    drawn = weight.detach()[list(ids)]
    error = (torch.cov(drawn.T) - covariance).norm() / covariance.norm()
    assert error < 0.6 and torch.allclose(drawn.mean(0), mean, atol=0.01)  # 64 x 64 from a thousand rows
    reinitialize(model, ids, "norm")
    drawn = weight.detach()[list(ids)]
    lengths = [(rows - mean).norm(dim=1).mean().item() for rows in (drawn, ordinary)]
    assert lengths[0] == pytest.approx(lengths[1], rel=0.02)
    reinitialize(model, ids, "normal")
    assert weight.detach()[list(ids)].std().item() == pytest.approx(WIDTH**-0.5, rel=0.02)


def test_the_seed_draws_the_rows():
    first, second, third = collapsed(), collapsed(), collapsed()
    reinitialize(first, FIRST, seed=1)
    reinitialize(second, FIRST, seed=1)
    reinitialize(third, FIRST, seed=2)
    rows = [model.get_input_embeddings().weight.detach()[6:105] for model in (first, second, third)]
    assert torch.equal(rows[0], rows[1]) and not torch.equal(rows[0], rows[2])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_saving_and_loading_keeps_the_new_rows(tmp_path, tied, dtype):
    import transformers

    model = collapsed(tied=tied, dtype=dtype)
    reinitialize(model, FIRST)
    model.save_pretrained(tmp_path)
    again = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path, dtype="auto")
    for get in ("get_input_embeddings", "get_output_embeddings"):
        there, here = getattr(again, get)().weight, getattr(model, get)().weight
        assert there.dtype == dtype and torch.equal(there, here)
    assert not audit(tmp_path, FIRST).collapsed
    if dtype == torch.float32:  # `.to(bfloat16)` also rounded what a file does not hold
        tokens = torch.tensor([[2, 7, 300, 90]])
        assert torch.equal(model(tokens).logits, again(tokens).logits)


def test_a_pushed_down_bias_is_repaired_too():
    import transformers

    config = transformers.BertConfig(
        vocab_size=200, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48
    )
    model = transformers.BertForMaskedLM(config)
    bias = model.get_output_embeddings().bias
    with torch.no_grad():
        bias[:] = 1.0
        bias[5:10] = -9.0
    reinitialize(model, range(5, 10))
    assert torch.allclose(bias, torch.ones(200))


def test_frozen_rows_stay_while_the_rest_trains_with_momentum_and_decay():
    model = collapsed()
    reinitialize(model, FIRST)
    weight = model.get_input_embeddings().weight
    before = weight.detach().clone()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    tokens = torch.tensor([[2, 7, 300, 90, 8]])

    def step():
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    kept = freeze_rows(model, FIRST, optimizer)
    for _ in range(3):
        step()
    assert torch.equal(weight[6:105], before[6:105]) and not torch.equal(weight[300], before[300])
    kept.remove()
    step()
    assert not torch.equal(weight[7], before[7])


@pytest.mark.parametrize(
    ("tokens", "how", "message"),
    [
        ([2048], "norm", "token id 2048 is out of range: the embedding has rows 0 to 2047"),
        ([-1], "norm", "token id -1 is out of range"),
        ([], "norm", "no tokens were named"),
        (["<unused0>"], "norm", "'<unused0>' cannot be looked up, as no tokenizer is known"),
        ([6], "melt", "how='melt' is unknown: use one of norm, covariance, normal"),
        (range(2048), "norm", "only 0 ordinary rows are left"),
    ],
)
def test_a_bad_request_leaves_the_model_as_it_was(tokens, how, message):
    model = tiny_gemma()
    before = model.get_input_embeddings().weight.detach().clone()
    with pytest.raises(PretrainedError, match=message):
        reinitialize(model, tokens, how)
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_a_model_without_its_numbers_is_refused():
    with torch.device("meta"):
        model = tiny_gemma()
    with pytest.raises(PretrainedError, match="meta device"):
        reinitialize(model, FIRST)
    with pytest.raises(PretrainedError, match="meta device"):
        audit(model, FIRST)
