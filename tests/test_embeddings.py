"""Embedding policies: which rows move, which do not to the last bit, and what the optimizer remembers."""

import dataclasses
from functools import partial

import pytest
import torch

from unseen_lib.embeddings import ActivePolicy, EmbeddingPolicy, check_policy, embedding_matrices, rows_of
from unseen_lib.errors import ConfigError
from unseen_lib.experiments import preset
from unseen_lib.model import GPT
from unseen_lib.optimizers import EMBEDDING_OPTIMIZERS, build_optimizers
from unseen_lib.problems import sample_batch
from unseen_lib.training import loss_of
from unseen_lib.training import train as train_anywhere
from unseen_lib.vocabulary import Vocabulary

train = partial(train_anywhere, device="cpu", progress=False)
ROWS = ["all", "symbols", "unseen"]


def smoke(policy=None, *, tied=True, optimizer=None, **changes):
    config = preset("smoke", steps=24)
    return dataclasses.replace(
        config,
        policy=policy or EmbeddingPolicy(),
        model=dataclasses.replace(config.model, tied=tied),
        optimizer=dataclasses.replace(config.optimizer, **(optimizer or {})),
        **changes,
    )


def initial(config):
    return GPT(config.model, torch.Generator().manual_seed(config.seed))


def observed(config, steps):
    """Copies of W_E just before each of ``steps``, and of the last."""
    seen = {}

    def measure(model, step):
        if step in steps:
            seen[step] = [matrix.detach().clone() for matrix in embedding_matrices(model)]
        return {}

    train(config, measure=measure, measure_every=1)
    return [seen[step] for step in steps]


def unequal_rows(before, after):
    return (before != after).any(dim=1)


def test_untied_models_have_both_matrices_under_the_policy():
    assert len(embedding_matrices(GPT(smoke(tied=False).model))) == 2
    assert len(embedding_matrices(GPT(smoke().model))) == 1


def test_a_trainable_matrix_moves():
    config = smoke()
    assert unequal_rows(initial(config).embedding, train(config).model.embedding).all()


# ----------------------------------------------------------------------------------------------------- frozen
@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
@pytest.mark.parametrize(("hidden", "tied"), [("muon", True), ("adamw", False)])
def test_frozen_rows_are_bit_identical_at_the_end_and_the_others_move(rows, embedding, hidden, tied):
    rates = {"hidden": hidden, "hidden_rate": 1e-3, "embedding": embedding, "weight_decay": 0.1}
    config = smoke(EmbeddingPolicy("frozen", rows=rows), tied=tied, optimizer=rates)
    trained = train(config).model
    first = rows_of(config.policy, config.vocabulary).start
    for before, after in zip(embedding_matrices(initial(config)), embedding_matrices(trained), strict=True):
        assert torch.equal(before[first:], after[first:])
        seen = min(first, config.vocabulary.unseen_ids.start)
        assert unequal_rows(before[:seen], after[:seen]).all()


def test_frozen_rows_take_no_part_in_the_norm_that_is_clipped():
    config = smoke(EmbeddingPolicy("frozen", rows="symbols"))
    model = initial(config)
    policy = ActivePolicy(config.policy, model, config.vocabulary, seed=0)
    loss_of(model, sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=0)).backward()
    whole = model.embedding.grad.clone()
    policy.after_backward(0)
    first = config.vocabulary.seen_ids.start
    assert (whole[first:] != 0).any()
    assert (model.embedding.grad[first:] == 0).all() and torch.equal(
        model.embedding.grad[:first], whole[:first]
    )


@pytest.mark.parametrize("tied", [True, False])
def test_orthogonal_rows_are_orthonormal_and_stay(tied):
    config = smoke(EmbeddingPolicy("frozen"), tied=tied)
    config = dataclasses.replace(
        config,
        model=dataclasses.replace(config.model, width=64),
        policy=EmbeddingPolicy("frozen", drawn="orthogonal"),
    )
    for matrix in embedding_matrices(train(config).model):
        products = matrix.detach().double() @ matrix.detach().double().T
        assert (products - torch.eye(len(matrix))).abs().max() < 1e-5
    other = train(dataclasses.replace(config, seed=1)).model.embedding
    assert not torch.allclose(other, train(config).model.embedding, atol=0.1)


# ----------------------------------------------------------------------------------------------------- resets
@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
@pytest.mark.parametrize("optimizer_state", ["reset", "keep"])
@pytest.mark.parametrize("rows", ROWS)
def test_a_reset_redraws_its_rows_and_forgets_what_the_optimizer_knew_of_them_only(
    rows, optimizer_state, embedding
):
    policy = EmbeddingPolicy("forgetting", every=6, rows=rows, optimizer_state=optimizer_state)
    config = smoke(policy, tied=False, optimizer={"embedding": embedding})
    model = initial(config)
    active = ActivePolicy(config.policy, model, config.vocabulary, seed=0)
    optimizers = build_optimizers(model, config.optimizer)
    for index in range(2):
        batch = sample_batch(config.task, config.vocabulary, batch_size=8, seed=0, index=index)
        loss_of(model, batch).backward()
        for optimizer in optimizers:
            optimizer.step()
    (optimizer,) = (optimizer for optimizer in optimizers if model.embedding in optimizer.state)
    others = [tensor.clone() for name, tensor in model.named_parameters() if "blocks" in name]
    before = [matrix.detach().clone() for matrix in embedding_matrices(model)]
    memory = [
        {name: value.clone() for name, value in optimizer.state[matrix].items()}
        for matrix in embedding_matrices(model)
    ]

    active.before_step(7, optimizers)
    assert all(torch.equal(*pair) for pair in zip(embedding_matrices(model), before, strict=True))
    active.before_step(12, optimizers)
    first = rows_of(policy, config.vocabulary).start
    for matrix, old, old_memory in zip(embedding_matrices(model), before, memory, strict=True):
        assert torch.equal(matrix[:first], old[:first]) and unequal_rows(matrix[first:], old[first:]).all()
        assert matrix[first:].norm(dim=1).mean().item() == pytest.approx(1, abs=0.15)
        if optimizer_state == "keep":
            assert all(
                torch.equal(optimizer.state[matrix][name], value) for name, value in old_memory.items()
            )
        else:
            assert matrix not in optimizer.state
    now = [tensor for name, tensor in model.named_parameters() if "blocks" in name]
    assert all(torch.equal(*pair) for pair in zip(now, others, strict=True))


def test_steps_after_a_reset_are_as_large_as_those_of_a_fresh_optimizer():
    """With a constant gradient each of Adam's steps has the size of its rate, if moments and counter fit."""
    config = smoke(EmbeddingPolicy("forgetting", every=20, rows="symbols"))
    model = initial(config)
    active = ActivePolicy(config.policy, model, config.vocabulary, seed=0)
    optimizer = torch.optim.AdamW(
        [model.embedding], lr=1e-3, betas=(0.9, 0.98), eps=0, weight_decay=0, fused=True
    )
    for step in range(60):
        active.before_step(step, [optimizer])
        before = model.embedding.detach().clone()
        model.embedding.grad = torch.ones_like(before)
        optimizer.step()
        torch.testing.assert_close(
            before - model.embedding.detach(), torch.full_like(before, 1e-3), rtol=1e-2, atol=0
        )


def test_a_reset_depends_on_seed_and_step_alone():
    def drawn(seed, step):
        config = smoke(EmbeddingPolicy("forgetting", every=6))
        model = GPT(config.model)
        ActivePolicy(config.policy, model, config.vocabulary, seed).before_step(step, [])
        return model.embedding.detach()

    assert torch.equal(drawn(0, 6), drawn(0, 6))
    assert not torch.equal(drawn(0, 6), drawn(0, 12)) and not torch.equal(drawn(0, 6), drawn(1, 6))
    assert not torch.equal(drawn(0, 6), initial(smoke()).embedding)


def test_whether_memory_is_kept_changes_what_is_learned():
    reset, keep = (
        train(smoke(EmbeddingPolicy("forgetting", every=6, optimizer_state=state))).model.embedding
        for state in ("reset", "keep")
    )
    assert not torch.equal(reset, keep)


def test_resets_come_when_they_should():
    def resets(**options):
        return [step for step in range(60) if EmbeddingPolicy(**options).resets_at(step)]

    assert resets() == resets(kind="frozen") == []
    assert resets(kind="forgetting", every=25) == [25, 50]
    assert resets(kind="forgetting", every=10, until=25) == [10, 20]
    assert resets(kind="reset_then_freeze", at=7) == [7]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("embedding", EMBEDDING_OPTIMIZERS)
@pytest.mark.parametrize("rows", ROWS)
def test_reset_then_freeze_redraws_its_rows_once_and_freezes_them(rows, embedding, tied):
    at = 7
    policy = EmbeddingPolicy("reset_then_freeze", at=at, rows=rows)
    config = smoke(policy, tied=tied, optimizer={"embedding": embedding, "weight_decay": 0.1})
    first, unseen = rows_of(policy, config.vocabulary).start, config.vocabulary.unseen_ids.start
    plain = observed(dataclasses.replace(config, policy=EmbeddingPolicy()), [at])[0]
    before, after, last = observed(config, [at, at + 1, 24])
    for plainly, old, redrawn, end in zip(plain, before, after, last, strict=True):
        assert torch.equal(old, plainly)  # until then it trains like any other
        assert unequal_rows(old[first:], redrawn[first:]).all()
        assert torch.equal(redrawn[first:], end[first:])
        assert redrawn[first:].norm(dim=1).mean().item() == pytest.approx(1, abs=0.15)
        assert unequal_rows(redrawn[: min(first, unseen)], end[: min(first, unseen)]).all()


# -------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "melted"}, r"kind='melted' is unknown"),
        ({"rows": "some"}, r"rows='some' is unknown; use one of all, symbols, unseen"),
        ({"kind": "frozen", "drawn": "square"}, r"drawn='square' is unknown"),
        ({"kind": "forgetting", "every": 5, "optimizer_state": "lost"}, r"optimizer_state='lost' is unknown"),
        ({"kind": "forgetting"}, r"every=None must be at least 1"),
        ({"kind": "forgetting", "every": 0}, r"every=0 must be at least 1"),
        ({"kind": "forgetting", "every": 10, "until": 5}, r"until=5 ends before the first reset"),
        ({"kind": "reset_then_freeze"}, r"at=None must be at least 1"),
        ({"kind": "reset_then_freeze", "at": 0}, r"at=0 must be at least 1"),
        ({"kind": "frozen", "every": 10}, r"every=10 means nothing to kind='frozen'"),
        ({"rows": "unseen"}, r"rows='unseen' means nothing to kind='trainable'"),
        ({"kind": "forgetting", "every": 10, "drawn": "orthogonal"}, r"drawn='orthogonal' means nothing"),
        ({"kind": "forgetting", "every": 10, "at": 20}, r"at=20 means nothing"),
        ({"kind": "frozen", "optimizer_state": "keep"}, r"optimizer_state='keep' means nothing"),
    ],
)
def test_a_policy_whose_parts_do_not_fit_is_refused_in_one_sentence(options, message):
    with pytest.raises(ConfigError, match=message) as caught:
        EmbeddingPolicy(**options)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (EmbeddingPolicy("frozen", drawn="orthogonal"), r"{size} rows of width=32"),
        (EmbeddingPolicy("forgetting", every=24), r"every=24 .* beyond the run of steps=24; .* every=23"),
        (EmbeddingPolicy("reset_then_freeze", at=30), r"at=30 .* beyond the run of steps=24"),
    ],
)
def test_a_policy_that_does_not_fit_its_run_is_refused_before_training(policy, message):
    with pytest.raises(ConfigError, match=message.format(size=smoke().vocabulary.size)) as caught:
        smoke(policy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "policy",
    [EmbeddingPolicy("frozen", rows="unseen"), EmbeddingPolicy("forgetting", every=5, rows="unseen")],
)
def test_rows_that_the_vocabulary_lacks_are_refused(policy):
    with pytest.raises(ConfigError, match=r"rows='unseen' .* unseen=0"):
        check_policy(policy, Vocabulary("compact", 8, 0), width=32, steps=24)
