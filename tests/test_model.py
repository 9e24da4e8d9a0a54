"""The model against a slow reference written out in float64, and what it must never do."""

import cmath
import math
from dataclasses import replace

import pytest
import torch

from unseen_lib.errors import ConfigError
from unseen_lib.model import GPT, GPTConfig, KVCache, count_parameters, rotate, rotations, visible

PLAIN = GPTConfig(vocab_size=19, width=12, layers=3, heads=3, mlp_width=10, context=16)
VARIANTS = {
    "plain": PLAIN,
    "untied": replace(PLAIN, tied=False),
    "wide heads": replace(PLAIN, heads=2, head_dim=8),
    "cpu regime": replace(
        PLAIN, local_window=3, output_scale=0.25, final_gain=4.0, copy=True, copy_combine="sum"
    ),
    "window": replace(PLAIN, local_window=2),
    "copy mean": replace(PLAIN, copy=True),
    "copy slices": replace(PLAIN, copy=True, copy_combine="slices"),
    "copy bare": replace(PLAIN, copy=True, copy_heads=2, copy_rope=False, copy_norm=False),
    "one layer": replace(PLAIN, layers=1, copy=True, rope_base=50.0),
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())


def build(config: GPTConfig, seed: int = 0) -> GPT:
    """A model in float64 whose gains are not all the same, so that a missing one shows."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(config, generator).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.mul_(torch.rand(config.width, generator=generator) + 0.5)
    return model


def distinct_tokens(batch: int, length: int, config: GPTConfig) -> torch.Tensor:
    """No token twice in a row, so that the gradient of a row of W_E belongs to one position."""
    generator = torch.Generator().manual_seed(7)
    rows = [torch.randperm(config.vocab_size, generator=generator)[:length] for _ in range(batch)]
    return torch.stack(rows)


# ---------------------------------------------------------------------------------- the written-out reference
def reference_logits(model: GPT, tokens: list[int]) -> torch.Tensor:
    """Logits (T, V) of one row, in loops over heads and positions, from nothing but the weights."""
    c, w = model.config, model.state_dict()
    head_dim = c.head_dim or c.width // c.heads

    def norm(x: torch.Tensor, gain: torch.Tensor | None) -> torch.Tensor:
        if gain is None:
            return x
        mean = torch.einsum("td->t", x)[:, None] / c.width
        variance = torch.einsum("td,td->t", x - mean, x - mean)[:, None] / c.width
        return (x - mean) / torch.sqrt(variance + 1e-5) * gain

    def turn(x: torch.Tensor, position: int) -> torch.Tensor:
        out = []
        for j in range(head_dim // 2):
            angle = position * c.rope_base ** (-2 * j / head_dim)
            z = complex(x[2 * j], x[2 * j + 1]) * cmath.exp(1j * angle)
            out += [z.real, z.imag]
        return torch.tensor(out, dtype=torch.float64)

    def weights(x: torch.Tensor, name: str, head: int, rope: bool, window: int | None) -> torch.Tensor:
        """Attention map (T, T) of one head, row by row."""
        rows = slice(head * head_dim, (head + 1) * head_dim)
        q = torch.einsum("td,kd->tk", x, w[f"{name}.query.weight"][rows])
        k = torch.einsum("td,kd->tk", x, w[f"{name}.key.weight"][rows])
        table = torch.zeros(len(x), len(x), dtype=torch.float64)
        for t in range(len(x)):
            first = 0 if window is None else max(0, t - window + 1)
            scores = []
            for s in range(first, t + 1):
                a, b = (turn(q[t], t), turn(k[s], s)) if rope else (q[t], k[s])
                scores.append(math.exp(float(torch.einsum("k,k->", a, b)) / math.sqrt(head_dim)))
            for s, score in enumerate(scores):
                table[t, first + s] = score / sum(scores)
        return table

    embedded = torch.stack([w["embedding"][token] for token in tokens])
    y = below = embedded
    for i in range(c.layers):
        below, name = y, f"blocks.{i}"
        x = norm(y, w[f"{name}.attention_norm.weight"])
        heads = []
        for h in range(c.heads):
            v = torch.einsum(
                "td,kd->tk", x, w[f"{name}.attention.value.weight"][h * head_dim : (h + 1) * head_dim]
            )
            table = weights(x, f"{name}.attention", h, True, c.local_window if i == 0 else None)
            heads.append(torch.einsum("ts,sk->tk", table, v))
        middle = y + torch.einsum("tk,dk->td", torch.cat(heads, 1), w[f"{name}.attention.output.weight"])
        z = torch.einsum("td,md->tm", norm(middle, w[f"{name}.mlp_norm.weight"]), w[f"{name}.expand.weight"])
        z = z * (1 + torch.erf(z / math.sqrt(2))) / 2
        y = middle + torch.einsum("tm,dm->td", z, w[f"{name}.contract.weight"])
    if c.copy:
        x = norm(below, w.get("copy.norm.weight"))
        count = c.copy_heads or c.heads
        size = c.width // count
        for h in range(count):
            copied = torch.einsum("ts,sd->td", weights(x, "copy", h, c.copy_rope, None), embedded)
            if c.copy_combine == "slices":
                kept = torch.zeros_like(copied)
                kept[:, h * size : (h + 1) * size] = copied[:, h * size : (h + 1) * size]
                copied = kept
            y = y + (copied / count if c.copy_combine == "mean" else copied)
    return torch.einsum("td,vd->tv", norm(y, w["norm.weight"]), w["embedding" if c.tied else "untied"])


@every_variant
def test_logits_equal_the_written_out_reference(config: GPTConfig) -> None:
    model = build(config)
    tokens = torch.randint(config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([reference_logits(model, row) for row in tokens.tolist()])
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-10)


# ------------------------------------------------------------------------------------ what may depend on what
@every_variant
@pytest.mark.parametrize("padding", [0, 2])
def test_no_position_reads_a_later_one_or_the_padding(config: GPTConfig, padding: int) -> None:
    model, length = build(config), 8
    tokens = distinct_tokens(1, length, config)
    start = torch.tensor([padding]) if padding else None
    features = model.features(tokens, start=start)
    direction = torch.randn(config.width, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    for t in range(padding, length):
        (slope,) = torch.autograd.grad(features[0, t] @ direction, model.embedding, retain_graph=True)
        reads = slope[tokens[0]].abs().sum(1) > 0  # (T,)
        assert not reads[t + 1 :].any()
        assert not reads[:padding].any()
        # It does read all it may: a mask that hides too much fails here.
        near = 0 if config.layers > 1 or config.local_window is None else t - config.local_window + 1
        assert reads[max(near, padding) : t + 1].all()


@every_variant
@pytest.mark.parametrize("padding", [0, 2])
@pytest.mark.parametrize("cached", [False, True])
def test_changing_what_comes_later_changes_nothing_before(
    config: GPTConfig, padding: int, cached: bool
) -> None:
    model = build(config)
    start = torch.tensor([padding, 0]) if padding else None
    tokens = distinct_tokens(2, 9, config)

    @torch.no_grad()
    def features(tokens: torch.Tensor) -> torch.Tensor:
        if not cached:
            return model.features(tokens, start=start)
        cache = KVCache(9)
        parts = [model.features(part, cache=cache, start=start) for part in (tokens[:, :4], tokens[:, 4:])]
        return torch.cat(parts, 1)

    before = features(tokens)
    for t in range(3, 8):
        changed = tokens.clone()
        changed[:, t + 1 :] = (changed[:, t + 1 :] + 1) % config.vocab_size
        after = features(changed)
        torch.testing.assert_close(after[:, : t + 1], before[:, : t + 1], rtol=0, atol=1e-13)
        assert (after[:, t + 1 :] - before[:, t + 1 :]).abs().amax(-1).min() > 1e-6
    if padding:
        changed = tokens.clone()
        changed[0, :padding] = (changed[0, :padding] + 1) % config.vocab_size
        torch.testing.assert_close(features(changed)[0, padding:], before[0, padding:], rtol=0, atol=1e-13)


def test_local_window_binds_layer_0_only() -> None:
    tokens = distinct_tokens(1, 9, PLAIN)
    for layers, first in ((1, 6), (2, 0)):
        model = build(replace(PLAIN, layers=layers, local_window=3))
        (slope,) = torch.autograd.grad(model.features(tokens)[0, 8, 0], model.embedding)
        reads = slope[tokens[0]].abs().sum(1) > 0
        assert reads.tolist() == [t >= first for t in range(9)]


# ------------------------------------------------------------------------------------------------- symmetries
@every_variant
def test_renaming_symbols_with_their_rows_renames_the_output_and_no_more(config: GPTConfig) -> None:
    model, renamed = build(config), build(config)
    new_name = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        renamed.embedding[new_name] = model.embedding
        if renamed.untied is not None:
            renamed.untied[new_name] = model.untied
    tokens = torch.randint(config.vocab_size, (3, 10), generator=torch.Generator().manual_seed(4))
    logits = renamed(new_name[tokens])
    torch.testing.assert_close(logits[..., new_name], model(tokens), rtol=0, atol=1e-12)
    assert not torch.allclose(logits, model(tokens))


@every_variant
def test_shifting_all_positions_changes_nothing(config: GPTConfig) -> None:
    model = build(config)
    tokens = distinct_tokens(3, 10, config)
    shifts = [0, 3, 6]
    padded = torch.stack(
        [torch.cat([row.new_zeros(s), row[: 10 - s]]) for row, s in zip(tokens, shifts, strict=True)]
    )
    shifted = model.features(padded, start=torch.tensor(shifts))
    for row, s in enumerate(shifts):
        alone = model.features(tokens[row : row + 1, : 10 - s])
        torch.testing.assert_close(shifted[row, s:], alone[0], rtol=0, atol=1e-11)
    assert not torch.allclose(
        model.features(padded)[2, 6:], shifted[2, 6:]
    )  # `start` is what hides the padding


def test_every_query_sees_something_even_in_the_padding() -> None:
    """A softmax over nothing is NaN in some attention kernels, and its gradient would reach every weight."""
    for window in (None, 3):
        mask = visible(9, 0, torch.tensor([0, 4, 8]), window, torch.device("cpu"))
        assert mask is not None
        assert mask.any(-1).all()


def test_positions_matter_through_their_distance() -> None:
    q, k = torch.randn(2, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(5))

    def product(at: int, distance: int) -> torch.Tensor:
        turned = rotate(torch.stack([k, q]).unsqueeze(1), rotations(at, 1, 8, 1e4, q))
        far = rotate(q.view(1, 1, 8), rotations(at + distance, 1, 8, 1e4, q))
        return (turned[0] * far[0]).sum()

    torch.testing.assert_close(product(0, 5), product(900, 5), rtol=0, atol=1e-11)
    assert abs(product(0, 5) - product(0, 6)) > 1e-3


# -------------------------------------------------------------------------------------------------- the cache
@every_variant
@pytest.mark.parametrize("pieces", [[5, 1, 1, 1, 1, 1], [1] * 10, [3, 4, 3], [10]])
def test_features_with_the_cache_equal_those_without(config: GPTConfig, pieces: list[int]) -> None:
    model = build(config)
    tokens = distinct_tokens(3, 10, config)
    for start in (None, torch.tensor([0, 2, 4])):
        cache, parts = KVCache(12), []
        with torch.no_grad():
            for piece in tokens.split(pieces, 1):
                parts.append(model.features(piece, cache=cache, start=start))
            expected = model.features(tokens, start=start)
        assert cache.length == 10
        for row, first in enumerate([0, 0, 0] if start is None else start.tolist()):
            torch.testing.assert_close(
                torch.cat(parts, 1)[row, first:], expected[row, first:], rtol=0, atol=1e-12
            )


# --------------------------------------------------------------------------------------------- copy attention
@pytest.mark.parametrize(("combine", "factor"), [("mean", 1), ("slices", 1), ("sum", 4)])
def test_copy_attention_that_looks_everywhere_copies_the_running_mean(combine: str, factor: int) -> None:
    config = replace(PLAIN, copy=True, copy_heads=4, copy_combine=combine)
    model = build(config)
    assert model.copy is not None
    torch.nn.init.zeros_(model.copy.query.weight)  # all scores 0
    generator = torch.Generator().manual_seed(6)
    y, embedded = torch.randn(2, 2, 6, config.width, dtype=torch.float64, generator=generator)
    rotation = rotations(0, 6, config.head_size, config.rope_base, y)
    mean = embedded.cumsum(1) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(model.copy(y, embedded, rotation, None, None), factor * mean)


# ----------------------------------------------------------------------------------- sizes and initial values
@pytest.mark.parametrize(("seen", "copy"), [(150, False), (9600, True)])
def test_paper_scale_has_the_papers_size(seen: int, copy: bool) -> None:
    """The smallest and the largest of the grid; the others lie between."""
    vocab_size, width, layers = 20 + seen + 100, 1024, 10
    count = count_parameters(GPT(GPTConfig(vocab_size, copy=copy)))
    by_hand = vocab_size * width + layers * (6 * width**2 + 2 * width) + width + copy * (2 * width**2 + width)
    assert count == by_hand
    assert 63e6 <= count <= 75e6


@every_variant
def test_a_seed_means_the_same_weights_and_leaves_global_randomness_alone(config: GPTConfig) -> None:
    before = torch.get_rng_state()
    one, same, other = (GPT(config, torch.Generator().manual_seed(seed)).state_dict() for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    for name, value in one.items():
        assert torch.equal(value, same[name])
        assert torch.equal(value, other[name]) == name.endswith("norm.weight")


def test_initial_values() -> None:
    config = GPTConfig(
        2000, width=256, layers=2, heads=4, mlp_width=512, output_scale=0.25, final_gain=3.0, tied=False
    )
    model = GPT(config, torch.Generator().manual_seed(0))
    for matrix in (model.embedding, model.untied):
        assert matrix is not None
        assert matrix.norm(dim=1).mean().item() == pytest.approx(1, abs=0.01)
        assert (matrix[:1000] * matrix[1000:]).sum(1).mean().abs() < 0.01
    for name, value in model.named_parameters():
        if name == "norm.weight":
            assert (value == 3).all()
        elif value.ndim == 1:
            assert (value == 1).all()
        elif name.startswith("blocks"):
            xavier = math.sqrt(2 / sum(value.shape))
            scale = 0.25 if name.endswith(("attention.output.weight", "contract.weight")) else 1
            assert value.std().item() == pytest.approx(scale * xavier, rel=0.02), name


@pytest.mark.parametrize("tied", [True, False])
def test_reset_rows_draws_those_rows_and_no_others(tied: bool) -> None:
    model = GPT(GPTConfig(500, width=64, layers=1, heads=2, mlp_width=8, tied=tied))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.reset_rows(range(100, 400), torch.Generator().manual_seed(3))
    changed = {name for name, value in model.state_dict().items() if not torch.equal(value, before[name])}
    assert changed == ({"embedding"} if tied else {"embedding", "untied"})
    for name in changed:
        rows = model.state_dict()[name]
        assert (rows != before[name]).any(1).tolist() == [100 <= i < 400 for i in range(500)]
        assert rows[100:400].norm(dim=1).mean().item() == pytest.approx(1, abs=0.02)
    again = GPT(model.config)
    again.reset_rows(range(100, 400), torch.Generator().manual_seed(3))
    assert torch.equal(again.embedding[100:400], model.embedding[100:400])
    if model.untied is not None:
        assert not torch.equal(model.untied[100:400], model.embedding[100:400])


def test_tied_means_one_matrix() -> None:
    tied, untied = GPT(PLAIN), GPT(replace(PLAIN, tied=False))
    assert tied.unembedding is tied.embedding
    assert untied.unembedding is not untied.embedding
    assert count_parameters(untied) - count_parameters(tied) == PLAIN.vocab_size * PLAIN.width


def test_half_precision_stays_half_and_close() -> None:
    model = GPT(VARIANTS["cpu regime"], torch.Generator().manual_seed(0))
    tokens = distinct_tokens(2, 10, PLAIN)
    expected = model(tokens)
    logits = model.bfloat16()(tokens)
    assert logits.dtype == torch.bfloat16
    assert (logits - expected).abs().max() < 0.05 * expected.abs().max()


# ------------------------------------------------------------------------------------------ what does not fit
@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"width": -12}, "width is -12"),
        ({"layers": 0}, "layers is 0"),
        ({"layers": 2.5}, "layers is 2.5"),
        ({"layers": None}, "layers is None"),
        ({"heads": 5}, r"heads is 5, but it must divide width \(12\)"),
        ({"heads": 4}, "head_dim is 3, but it must be even"),
        ({"head_dim": 7}, "head_dim is 7, but it must be even"),
        ({"mlp_width": -1}, "mlp_width is -1"),
        ({"context": 0}, "context is 0"),
        ({"rope_base": 0.0}, "rope_base is 0.0"),
        ({"local_window": 0}, "local_window is 0"),
        ({"output_scale": -1.0}, "output_scale is -1.0"),
        ({"final_gain": math.nan}, "final_gain is nan"),
        ({"copy_combine": "max"}, "copy_combine is 'max', but it must be 'mean', 'sum' or 'slices'"),
        ({"copy": True, "copy_heads": 0}, "copy_heads is 0"),
        (
            {"copy": True, "copy_heads": 5, "copy_combine": "slices"},
            r"copy_heads is 5, but it must divide width \(12\)",
        ),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(f"{k}={v}" for k, v in value.items()),
)
def test_a_config_that_does_not_fit_says_which_field(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        replace(PLAIN, **wrong)


def test_a_sequence_longer_than_its_room_is_refused() -> None:
    model = GPT(PLAIN)
    model(torch.zeros(1, 16, dtype=torch.long))
    with pytest.raises(ValueError, match="17 tokens, but there is room for 16"):
        model(torch.zeros(1, 17, dtype=torch.long))
    cache = KVCache(4)
    with torch.no_grad():
        model.features(torch.zeros(1, 4, dtype=torch.long), cache=cache)
        with pytest.raises(ValueError, match="5 tokens, but there is room for 4"):
            model.features(torch.zeros(1, 1, dtype=torch.long), cache=cache)
