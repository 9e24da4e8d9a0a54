"""Optimizers: schedules, who updates what, and Coupled Adam against a written-out loop."""

import dataclasses
import math

import pytest
import torch

from unseen_lib.checkpoint import load_checkpoint, save_checkpoint
from unseen_lib.embeddings import embedding_matrices
from unseen_lib.errors import ConfigError
from unseen_lib.experiments import preset
from unseen_lib.model import GPT
from unseen_lib.optimizers import (
    EMBEDDING_OPTIMIZERS,
    HIDDEN_OPTIMIZERS,
    CoupledAdam,
    OptimizerConfig,
    build_optimizers,
    schedule_factor,
)
from unseen_lib.problems import sample_batch
from unseen_lib.training import loss_of


def test_schedules_hit_their_written_out_values():
    paper = OptimizerConfig()
    rate = [
        paper.hidden_rate * schedule_factor("cosine", step, 50_000, paper)
        for step in (0, 1999, 2000, 26_000, 50_000)
    ]
    assert rate == pytest.approx([1e-5, 1e-4, 1e-4, 5.5e-5, 1e-5], rel=1e-2)
    quick = preset("cpu").optimizer
    factors = [schedule_factor("stable_decay", step, 1000, quick) for step in (0, 24, 49, 500, 700, 850, 999)]
    assert factors == pytest.approx([0.02, 0.5, 1.0, 1.0, 1.0, 0.5, 0.05], abs=1e-9)
    assert schedule_factor("constant", 999, 1000, quick) == 1.0


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("decay", [None, 0.0, 0.5])
@pytest.mark.parametrize("hidden", HIDDEN_OPTIMIZERS)
@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
def test_every_weight_belongs_to_exactly_one_group_with_its_own_decay_and_rate(
    embedding, hidden, decay, tied
):
    config = OptimizerConfig(
        hidden=hidden, embedding=embedding, hidden_rate=1.0, gain_rate=2.0, embedding_rate=3.0
    )
    config = dataclasses.replace(config, embedding_decay=decay)
    model = GPT(dataclasses.replace(preset("smoke", copy=True).model, tied=tied))
    optimizers = build_optimizers(model, config)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    ids = [id(parameter) for group in groups for parameter in group["params"]]
    assert sorted(ids) == sorted(id(parameter) for parameter in model.parameters())
    matrices = {id(matrix) for matrix in embedding_matrices(model)}
    for group in groups:
        if all(parameter.ndim == 1 for parameter in group["params"]):
            expected = (0.0, 2.0)
        elif {id(parameter) for parameter in group["params"]} == matrices:
            expected = (config.weight_decay if decay is None else decay, 3.0)
        else:
            assert not matrices & {id(parameter) for parameter in group["params"]}
            expected = (config.weight_decay, 1.0)
        assert (group["weight_decay"], group["peak"]) == expected
    kind = {"adamw": torch.optim.AdamW, "coupled_adam": CoupledAdam, "sgd": torch.optim.SGD}[embedding]
    (holder,) = (o for o in optimizers for g in o.param_groups if id(g["params"][0]) in matrices)
    assert type(holder) is kind


def test_a_frozen_matrix_belongs_to_no_optimizer():
    for embedding in EMBEDDING_OPTIMIZERS:
        model = GPT(preset("smoke").model)
        model.embedding.requires_grad_(False)
        optimizers = build_optimizers(model, OptimizerConfig(embedding=embedding))
        held = [p for o in optimizers for group in o.param_groups for p in group["params"]]
        assert all(parameter is not model.embedding for parameter in held)


@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
def test_decay_on_the_embedding_can_be_dropped(embedding):
    """Rows without a gradient shrink by decay, or keep every bit without it."""
    for decay in (0.1, 0.0):
        config = OptimizerConfig(embedding=embedding, embedding_rate=0.01, embedding_decay=decay)
        model = GPT(preset("smoke").model, torch.Generator().manual_seed(0))
        before = model.embedding.detach().clone()
        for optimizer in build_optimizers(model, config):
            model.embedding.grad = torch.zeros_like(model.embedding)
            optimizer.step()
        torch.testing.assert_close(model.embedding.detach(), before * (1 - 0.01 * decay))
        assert torch.equal(model.embedding, before) is (decay == 0)


# ----------------------------------------------------------------------------------------------- Coupled Adam
def test_coupled_adam_does_what_a_loop_over_rows_and_columns_does():
    generator = torch.Generator().manual_seed(0)
    rows, width, rate, beta1, beta2, eps, decay = 5, 3, 0.05, 0.9, 0.98, 1e-9, 0.1
    matrix = torch.randn(rows, width, generator=generator, dtype=torch.float64).requires_grad_()
    w = matrix.tolist()
    m = [[0.0] * width for _ in range(rows)]
    v = [[0.0] * width for _ in range(rows)]
    optimizer = CoupledAdam([matrix], lr=rate, betas=(beta1, beta2), eps=eps, weight_decay=decay)
    for step in range(1, 8):
        scale = torch.logspace(-3, 1, rows, dtype=torch.float64)[:, None]  # rows of very unequal gradients
        matrix.grad = scale * torch.randn(rows, width, generator=generator, dtype=torch.float64)
        g = matrix.grad.tolist()
        optimizer.step()
        for i in range(rows):
            for j in range(width):
                m[i][j] = beta1 * m[i][j] + (1 - beta1) * g[i][j]
                v[i][j] = beta2 * v[i][j] + (1 - beta2) * g[i][j] ** 2
        for j in range(width):
            mean = sum(v[i][j] for i in range(rows)) / rows / (1 - beta2**step)
            for i in range(rows):
                w[i][j] -= rate * decay * w[i][j]
                w[i][j] -= rate * m[i][j] / (1 - beta1**step) / (math.sqrt(mean) + eps)
        torch.testing.assert_close(matrix.detach(), torch.tensor(w, dtype=torch.float64), rtol=1e-12, atol=0)


def test_coupled_adam_is_adamw_where_all_rows_have_the_same_gradient_and_not_elsewhere():
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    for spread in (0.0, 1.0):
        ours, adamw = (start.clone().requires_grad_() for _ in range(2))
        options = {"lr": 0.05, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.1}
        optimizers = CoupledAdam([ours], **options), torch.optim.AdamW([adamw], **options)
        for _ in range(10):
            gradient = torch.randn(1, 3, generator=generator, dtype=torch.float64).expand(5, 3)
            gradient = gradient + spread * torch.randn(5, 3, generator=generator, dtype=torch.float64)
            ours.grad, adamw.grad = gradient.clone(), gradient.clone()
            for optimizer in optimizers:
                optimizer.step()
        assert torch.allclose(ours, adamw, rtol=1e-12, atol=0) is (spread == 0)


def test_a_row_with_a_tiny_gradient_makes_a_tiny_step_under_coupled_adam_and_a_full_one_under_adamw():
    gradient = torch.tensor([[1.0], [1e-5]])
    steps = {}
    for kind in (CoupledAdam, torch.optim.AdamW):
        matrix = torch.zeros(2, 1, requires_grad=True)
        matrix.grad = gradient
        kind([matrix], lr=0.1, weight_decay=0.0, eps=1e-12).step()
        steps[kind] = matrix.detach()[:, 0].abs().tolist()
    assert steps[torch.optim.AdamW] == pytest.approx([0.1, 0.1], rel=1e-3)
    assert steps[CoupledAdam] == pytest.approx([0.1 * 2**0.5, 0.1 * 2**0.5 * 1e-5], rel=1e-3)


@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
@pytest.mark.parametrize("hidden", HIDDEN_OPTIMIZERS)
def test_optimizers_go_on_from_a_checkpoint_bit_for_bit(tmp_path, hidden, embedding):
    config = preset("smoke")
    settings = dataclasses.replace(config.optimizer, hidden=hidden, embedding=embedding)

    def fresh(seed):
        model = GPT(config.model, torch.Generator().manual_seed(seed))
        return model, build_optimizers(model, settings)

    def advance(model, optimizers, indices):
        for index in indices:
            batch = sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=index)
            loss_of(model, batch).backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()

    model, optimizers = fresh(0)
    advance(model, optimizers, range(3))
    save_checkpoint(tmp_path / "saved", model, optimizers, {})
    loaded, loaded_optimizers = fresh(1)
    load_checkpoint(tmp_path / "saved", loaded, loaded_optimizers)
    for ours, theirs in zip(optimizers, loaded_optimizers, strict=True):
        states = ours.state_dict()["state"], theirs.state_dict()["state"]
        assert states[0].keys() == states[1].keys()
        for index, state in states[0].items():
            assert state.keys() == states[1][index].keys()
            for name, value in state.items():
                assert value.dtype == states[1][index][name].dtype
                assert torch.equal(value, states[1][index][name])
    advance(model, optimizers, range(3, 6))
    advance(loaded, loaded_optimizers, range(3, 6))
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), loaded.parameters(), strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": "sgdm"}, r"hidden='sgdm' is unknown; use one of adamw, muon"),
        ({"embedding": "adam"}, r"embedding='adam' is unknown; use one of adamw, coupled_adam, sgd"),
        ({"schedule": "step"}, r"schedule='step' is unknown"),
        ({"hidden_rate": 0}, r"hidden_rate=0 must be above 0"),
        ({"weight_decay": -1}, r"weight_decay=-1 must be 0 or more"),
        ({"embedding_decay": -1}, r"embedding_decay=-1 must be 0 or more"),
        ({"warmup_steps": -1}, r"warmup_steps=-1"),
        ({"final_factor": 2}, r"final_factor=2 must lie between 0 and 1"),
    ],
)
def test_an_optimizer_config_whose_parts_do_not_fit_is_refused_in_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        OptimizerConfig(**options)
    assert "\n" not in str(caught.value)
