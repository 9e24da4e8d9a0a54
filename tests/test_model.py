"""The model against a slow reference written out in float64, and what it must never do."""

import cmath
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from unseen_lib.errors import ConfigError
from unseen_lib.experiments import preset
from unseen_lib.model import GPT, GPTConfig, KVCache, count_parameters, rotate, rotations, visible
from unseen_lib.training import train

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
    "copy every": replace(PLAIN, copy=True, copy_where="every", copy_heads=2, local_window=3),
    "identity": replace(PLAIN, identity=True),
    "identity and copy": replace(PLAIN, heads=2, head_dim=8, local_window=2, identity=True, copy=True),
}
COPYING = {name: config for name, config in VARIANTS.items() if config.copy} | {
    f"{combine}{' rope' * rope}{' norm' * norm} {where}": replace(
        PLAIN,
        copy=True,
        copy_heads=2,
        copy_combine=combine,
        copy_rope=rope,
        copy_norm=norm,
        copy_where=where,
    )
    for combine in ("mean", "sum", "slices")
    for rope in (False, True)
    for norm in (False, True)
    for where in ("last", "every")
}
every_variant = pytest.mark.parametrize("config", VARIANTS.values(), ids=VARIANTS.keys())
every_copy = pytest.mark.parametrize("config", COPYING.values(), ids=COPYING.keys())


def build(config: GPTConfig, seed: int = 0) -> GPT:
    """A model in float64 whose gains are not all the same and whose scalars not 0: a missing one shows."""
    generator = torch.Generator().manual_seed(seed)
    model = GPT(config, generator).double()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, torch.nn.LayerNorm):
                module.weight.mul_(torch.rand(config.width, generator=generator) + 0.5)
        for name, parameter in model.named_parameters():
            if name.endswith("identity"):
                parameter.copy_(torch.randn(config.heads, generator=generator) / 4)
    return model


def distinct_tokens(batch: int, length: int, config: GPTConfig) -> torch.Tensor:
    """No token twice in a row, so that the gradient of a row of W_E belongs to one position."""
    generator = torch.Generator().manual_seed(7)
    rows = [torch.randperm(config.vocab_size, generator=generator)[:length] for _ in range(batch)]
    return torch.stack(rows)


# ---------------------------------------------------------------------------------- the written-out reference
def reference(model: GPT, tokens: list[int]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """One row, in loops over heads and positions, from nothing but the weights.

    Logits (T, V), and the map (H, T, T) of each copy attention, from the bottom.
    """
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

    def weights(
        x: torch.Tensor, name: str, head: int, rope: bool, window: int | None, alike: float = 0.0
    ) -> torch.Tensor:
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
                score = float(torch.einsum("k,k->", a, b) + alike * torch.einsum("d,d->", x[t], x[s]))
                scores.append(math.exp(score / math.sqrt(head_dim)))
            for s, score in enumerate(scores):
                table[t, first + s] = score / sum(scores)
        return table

    embedded = torch.stack([w["embedding"][token] for token in tokens])
    y, maps = embedded, []
    for i in range(c.layers):
        below, name = y, f"blocks.{i}"
        x = norm(y, w[f"{name}.attention_norm.weight"])
        heads = []
        for h in range(c.heads):
            v = torch.einsum(
                "td,kd->tk", x, w[f"{name}.attention.value.weight"][h * head_dim : (h + 1) * head_dim]
            )
            alike = float(w[f"{name}.attention.score_identity"][h]) if c.identity else 0.0
            window = c.local_window if i == 0 else None
            table = weights(x, f"{name}.attention", h, True, window, alike)
            heads.append(torch.einsum("ts,sk->tk", table, v))
            if c.identity:
                y = y + float(w[f"{name}.attention.value_identity"][h]) * torch.einsum("ts,sd->td", table, x)
        middle = y + torch.einsum("tk,dk->td", torch.cat(heads, 1), w[f"{name}.attention.output.weight"])
        z = torch.einsum("td,md->tm", norm(middle, w[f"{name}.mlp_norm.weight"]), w[f"{name}.expand.weight"])
        z = z * (1 + torch.erf(z / math.sqrt(2))) / 2
        y = middle + torch.einsum("tm,dm->td", z, w[f"{name}.contract.weight"])
        if not c.copy or (c.copy_where == "last" and i < c.layers - 1):
            continue
        name = f"copy_blocks.{len(maps)}"
        x = norm(below, w.get(f"{name}.norm.weight"))
        count = c.copy_heads or c.heads
        size = c.width // count
        maps.append(torch.stack([weights(x, name, h, c.copy_rope, None) for h in range(count)]))
        for h, table in enumerate(maps[-1]):
            copied = torch.einsum("ts,sd->td", table, embedded)
            if c.copy_combine == "slices":
                kept = torch.zeros_like(copied)
                kept[:, h * size : (h + 1) * size] = copied[:, h * size : (h + 1) * size]
                copied = kept
            y = y + (copied / count if c.copy_combine == "mean" else copied)
    unembedding = w["embedding" if c.tied else "untied"]
    return torch.einsum("td,vd->tv", norm(y, w["norm.weight"]), unembedding), maps


@every_variant
def test_logits_equal_the_written_out_reference(config: GPTConfig) -> None:
    model = build(config)
    tokens = torch.randint(config.vocab_size, (2, 7), generator=torch.Generator().manual_seed(1))
    expected = torch.stack([reference(model, row)[0] for row in tokens.tolist()])
    torch.testing.assert_close(model(tokens), expected, rtol=0, atol=1e-10)


@every_copy
def test_copy_attention_and_its_maps_equal_the_written_out_reference(config: GPTConfig) -> None:
    model = build(config)
    tokens = torch.randint(config.vocab_size, (1, 6), generator=torch.Generator().manual_seed(1))
    logits, maps = reference(model, tokens[0].tolist())
    torch.testing.assert_close(model(tokens)[0], logits, rtol=0, atol=1e-10)
    assert len(maps) == (config.layers if config.copy_where == "every" else 1)
    for above, expected in enumerate(reversed(maps), start=1):
        seen = model.copy_attention_map(tokens, layer=-above)
        torch.testing.assert_close(seen[0], expected, rtol=0, atol=1e-12)
        assert torch.equal(model.copy_attention_map(tokens, layer=config.layers - above), seen)
    with pytest.raises(ValueError, match=f"layer {-1 - config.layers} of {config.layers} has no copy"):
        model.copy_attention_map(tokens, layer=-1 - config.layers)
    padded = torch.cat([tokens.new_zeros(1, 3), tokens], 1)
    seen = model.copy_attention_map(padded, start=torch.tensor([3]))
    torch.testing.assert_close(seen[0, :, 3:, 3:], maps[-1], rtol=0, atol=1e-12)
    assert (seen[0, :, 3:, :3] == 0).all()


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
    copy = model.copy_blocks[-1]
    torch.nn.init.zeros_(copy.query.weight)  # all scores 0
    generator = torch.Generator().manual_seed(6)
    y, embedded = torch.randn(2, 2, 6, config.width, dtype=torch.float64, generator=generator)
    rotation = rotations(0, 6, config.head_size, config.rope_base, y)
    mean = embedded.cumsum(1) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(copy(y, embedded, rotation, None, None), factor * mean)


def test_a_map_of_what_is_not_there_is_refused() -> None:
    tokens = torch.zeros(1, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="layer -1 of 3 has no copy attention: copy is False"):
        GPT(PLAIN).copy_attention_map(tokens)
    with pytest.raises(ValueError, match=r"layer 1 of 3 has no copy attention: .* copy_where is 'last'"):
        GPT(replace(PLAIN, copy=True)).copy_attention_map(tokens, layer=1)


def test_the_top_copy_attention_of_every_layer_is_the_one_of_the_last() -> None:
    one = GPT(replace(PLAIN, copy=True))
    every = GPT(replace(PLAIN, copy=True, copy_where="every"))
    assert one.copy_beside[:-1] == [None, None]
    assert one.copy_beside[-1] is one.copy_blocks[0]
    assert every.copy_beside == list(every.copy_blocks)
    every.load_state_dict(one.state_dict() | {k: v for k, v in every.state_dict().items() if "copy" in k})
    every.copy_blocks[-1].load_state_dict(one.copy_blocks[0].state_dict())
    for below in every.copy_blocks[:-1]:
        below.forward = lambda y, *rest: torch.zeros_like(y)
    tokens = distinct_tokens(2, 9, PLAIN)
    assert torch.equal(every(tokens), one(tokens))


# --------------------------------------------------------------------------------------- the identity scalars
@pytest.mark.parametrize("start", [None, torch.tensor([0, 3])])
def test_identity_scalars_start_at_0_where_they_change_nothing(start: torch.Tensor | None) -> None:
    plain, model = (
        GPT(replace(PLAIN, identity=identity), torch.Generator().manual_seed(0)).double()
        for identity in (False, True)
    )
    scalars = model.state_dict().keys() - plain.state_dict().keys()
    names = ("score_identity", "value_identity")
    assert scalars == {f"blocks.{i}.attention.{name}" for i in range(PLAIN.layers) for name in names}
    for name, value in model.state_dict().items():
        assert (value == (0 if name in scalars else plain.state_dict()[name])).all()
        if name in scalars:
            assert value.shape == (PLAIN.heads,)  # build_optimizers takes 1-d parameters for gains
    tokens = distinct_tokens(2, 12, PLAIN)
    # A longer sum of products may be added up in another order, hence the last bits.
    expected = plain.features(tokens, start=start)
    torch.testing.assert_close(model.features(tokens, start=start), expected, rtol=0, atol=1e-14)


def test_every_scalar_receives_a_gradient_from_the_start() -> None:
    model = GPT(replace(PLAIN, identity=True), torch.Generator().manual_seed(0))
    model(distinct_tokens(2, 12, PLAIN)).square().sum().backward()
    for name, parameter in model.named_parameters():
        if name.endswith("identity"):
            assert (parameter.grad != 0).all(), name


@pytest.mark.parametrize("options", [{"identity": True}, {"copy": True, "copy_where": "every"}], ids=str)
def test_the_new_forms_train_and_resume_to_the_same_bits(options: dict[str, object], tmp_path: Path) -> None:
    config = preset("smoke", steps=24)
    config = replace(config, model=replace(config.model, **options))

    def stop(model: GPT, step: int) -> dict[str, object]:
        if step == 11:
            raise KeyboardInterrupt
        return {}

    kept = {"folder": tmp_path, "checkpoint_every": 5, "device": "cpu", "progress": False}
    with pytest.raises(KeyboardInterrupt):
        train(config, measure=stop, measure_every=1, **kept)
    resumed, whole = train(config, **kept), train(config, device="cpu", progress=False)
    start = GPT(config.model, torch.Generator().manual_seed(config.seed)).state_dict()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name])
        assert (value != start[name]).any(), name


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
        assert torch.equal(value, other[name]) == name.endswith(("norm.weight", "identity"))


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
        ({"copy_where": "first"}, "copy_where is 'first', but it must be 'last' or 'every'"),
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
