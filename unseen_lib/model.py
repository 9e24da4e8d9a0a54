"""The transformer of the course, in one file: read it from top to bottom.

A decoder-only model as in Lazić et al. 2026 (arXiv:2604.21632): pre-LayerNorm, rotary positions, no biases,
and one matrix ``W_E`` that both reads tokens and writes them. With ``X`` the one-hot tokens::

    Y_0     = X W_E
    A_i     = attention_i(LN(Y_i))
    Y_{i+1} = Y_i + A_i + MLP_i(LN(Y_i + A_i)) + copy_i(Y_i)
    p       = softmax(LN(Y_L) W_E^T)

where ``copy_i`` is there only if asked for: in the paper in the last layer alone, beside its block. Shapes: B
batch, T tokens, S columns attended to (T, or more with a cache), H heads, K width of a head, D width, V
vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from einops import einsum, rearrange, repeat
from torch import Tensor, nn

from unseen_lib.errors import ConfigError


@dataclass(frozen=True)
class GPTConfig:
    """Sizes and options of a ``GPT``; the defaults are the paper's model, 10 layers of width 1024.

    Parameters
    ----------
    vocab_size : int
        Number of tokens, V.
    width : int
        Length of a token's row and of the residual stream, D.
    layers, heads, mlp_width : int
        Blocks, attention heads a block, hidden units of the MLP.
    head_dim : int, optional
        Width of one head, K; by default ``width // heads``.
    rope_base : float
        The slowest pair of a head turns once in about ``2 pi rope_base`` positions.
    context : int
        Longest sequence the model accepts.
    tied : bool
        Whether ``W_E`` also unembeds. The paper ties; untied is a control.
    identity : bool
        Whether every head of every layer has the two extra parameters of Boix-Adserà et al. 2024
        (arXiv:2310.09753), the paper's predecessor: see ``Attention``. It leaves copy attention as it is.
    copy : bool
        Whether to add the paper's copy attention.
    copy_where : {"last", "every"}
        Beside the last block, as in the paper, or one copy attention with its own weights beside every block,
        added to the stream where that block ends. The top one of "every" is the paper's.
    copy_heads : int, optional
        Its heads; by default ``heads``.
    copy_combine : {"mean", "sum", "slices"}
        The paper does not say how its heads combine: the mean or the sum of what each copies, or head h
        copying only the h-th slice of a row.
    copy_rope, copy_norm : bool
        Nor does it say whether rotary positions and a LayerNorm act inside.
    output_scale, final_gain, local_window
        Not in the paper: the ``cpu`` scale needs them to learn within a minute. They scale the initial
        weights with which a block writes to the stream, set the initial gain of the final LayerNorm, and let
        a token in layer 0 see only that many tokens, itself included (copy attention sees all there too).

    Raises
    ------
    ConfigError
        If two parts do not fit, in one sentence that names the field, its value and what would fit.
    """

    vocab_size: int
    width: int = 1024
    layers: int = 10
    heads: int = 8
    head_dim: int | None = None
    mlp_width: int = 1024
    rope_base: float = 1e4
    context: int = 2048
    tied: bool = True
    copy: bool = False
    copy_heads: int | None = None
    copy_combine: str = "mean"
    copy_rope: bool = True
    copy_norm: bool = True
    output_scale: float = 1.0
    final_gain: float = 1.0
    local_window: int | None = None
    identity: bool = False
    copy_where: str = "last"

    def __post_init__(self) -> None:
        sizes = ("vocab_size", "width", "layers", "heads", "mlp_width", "context")
        for name in (*sizes, "head_dim", "copy_heads", "local_window"):
            value = getattr(self, name)
            if value is None and name not in sizes:
                continue
            if not isinstance(value, int) or value < 1:
                raise ConfigError(f"{name} is {value}, but it must be a whole number of at least 1.")
        for name in ("rope_base", "output_scale", "final_gain"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}, but it must be positive and finite.")
        if self.head_dim is None and self.width % self.heads:
            raise ConfigError(
                f"heads is {self.heads}, but it must divide width ({self.width}) unless head_dim is given."
            )
        if self.head_size % 2:
            raise ConfigError(
                f"head_dim is {self.head_size}, but it must be even, because rotary positions turn pairs."
            )
        if self.copy_combine not in ("mean", "sum", "slices"):
            raise ConfigError(
                f"copy_combine is {self.copy_combine!r}, but it must be 'mean', 'sum' or 'slices'."
            )
        if self.copy_where not in ("last", "every"):
            raise ConfigError(f"copy_where is {self.copy_where!r}, but it must be 'last' or 'every'.")
        if self.copy and self.copy_combine == "slices" and self.width % self.copies:
            raise ConfigError(
                f"copy_heads is {self.copies}, but it must divide width ({self.width}) to copy slices."
            )

    @property
    def head_size(self) -> int:
        """Width of one head, whether given or derived."""
        return self.width // self.heads if self.head_dim is None else self.head_dim

    @property
    def copies(self) -> int:
        """Heads of the copy attention, whether given or derived."""
        return self.heads if self.copy_heads is None else self.copy_heads


class KVCache:
    """Keys and values of the tokens already read, so that decoding reads each token once.

    Parameters
    ----------
    capacity : int
        Most columns it will hold, prompt and completion together; room for them is made on first use.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.length = 0  # columns read so far; GPT.features moves it on
        self._store: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def extend(self, owner: nn.Module, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values of one attention, (B, H, T, K); return all of them, (B, H, S, K)."""
        if owner not in self._store:
            self._store[owner] = (self._room(keys), self._room(values))
        all_keys, all_values = self._store[owner]
        end = self.length + keys.shape[2]
        all_keys[:, :, self.length : end] = keys
        all_values[:, :, self.length : end] = values
        return all_keys[:, :, :end], all_values[:, :, :end]

    def _room(self, x: Tensor) -> Tensor:
        batch, heads, _, width = x.shape
        return x.new_empty(batch, heads, self.capacity, width)


def rotations(first: int, length: int, head_dim: int, base: float, like: Tensor) -> Tensor:
    """Complex numbers of size 1 that turn each pair of a head by its position, (T, K / 2)."""
    real = torch.promote_types(like.dtype, torch.float32)  # half precision has no room for large angles
    positions = torch.arange(first, first + length, device=like.device, dtype=real)  # (T,)
    pairs = torch.arange(0, head_dim, 2, device=like.device, dtype=real)  # (K / 2,)
    angles = torch.outer(positions, base ** (-pairs / head_dim))  # (T, K / 2)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the pairs (x0, x1), (x2, x3), ... of each head in x, (B, H, T, K), by the token's position.

    The product of a turned query and a turned key depends only on how far apart they stand: rotary positions,
    RoPE (Su et al. 2021). One complex product is also the cheapest way to turn.
    """
    pairs = x.to(rotation.real.dtype).view(*x.shape[:-1], -1, 2)  # (B, H, T, K / 2, 2)
    turned = torch.view_as_complex(pairs) * rotation  # (B, H, T, K / 2)
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def visible(
    length: int, past: int, start: Tensor | None, window: int | None, device: torch.device
) -> Tensor | None:
    """Which columns a token may attend to: (T, S), or (B, 1, T, S) with ``start``; None: all up to itself."""
    if past == 0 and start is None and window is None:
        return None  # scaled_dot_product_attention skips the future by itself, and faster
    query = torch.arange(past, past + length, device=device)[:, None]  # (T, 1)
    key = torch.arange(past + length, device=device)  # (S,)
    mask = key <= query  # (T, S)
    if window is not None:
        mask = mask & (query - key < window)
    if start is not None:
        # Padding still sees itself: a softmax over nothing is NaN in some kernels.
        mask = (mask & (key >= start[:, None, None, None])) | (key == query)  # (B, 1, T, S)
    return mask


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear map without bias and without values yet: GPT draws them all, from the generator given."""
    return nn.Linear(inputs, outputs, bias=False, device="meta").to_empty(device="cpu")


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions.

    With ``identity``, head h has two scalars more, a_h and b_h, both 0 at first, which add a multiple of the
    identity to its two products of weights (Boix-Adserà et al. 2024). W_Q W_K^T + a_h I also scores how alike
    two tokens are; W_V W_O + b_h I also copies what the head looks at, even a name never trained on. There as
    here x is what the head reads, the normalized stream. Their positions are a part of x; ours turn queries
    and keys, and the paper does not say whether they would turn x too: they do not here, so that the same
    name is equally alike at any distance::

        scores_h = (q_h k_h^T + a_h x x^T) / sqrt(K)
        out      = sum over h of softmax(scores_h) (v_h W_O_h + b_h x)
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.scale = config.heads, 1 / math.sqrt(config.head_size)
        inner = config.heads * config.head_size
        # Three matrices, not one: Muon orthogonalizes each by itself, and one is no faster.
        self.query, self.key, self.value = (linear(config.width, inner) for _ in range(3))
        self.output = linear(inner, config.width)
        # Vectors (H,), so that optimizers treat them like the other gains: no decay, no Muon.
        self.score_identity = nn.Parameter(torch.zeros(config.heads)) if config.identity else None  # a
        self.value_identity = nn.Parameter(torch.zeros(config.heads)) if config.identity else None  # b

    def forward(self, x: Tensor, rotation: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
        """What attention adds, (B, T, D), from the normalized stream ``x`` (B, T, D)."""
        q = rotate(rearrange(self.query(x), "b t (h k) -> b h t k", h=self.heads), rotation)
        k = rotate(rearrange(self.key(x), "b t (h k) -> b h t k", h=self.heads), rotation)
        v = rearrange(self.value(x), "b t (h k) -> b h t k", h=self.heads)
        if self.score_identity is not None:
            # Heads grow from K to K + D: the product of longer queries and keys is the sum of both scores.
            whole = repeat(x, "b t d -> b h t d", h=self.heads)
            q = torch.cat([q, self.score_identity[:, None, None] * whole], -1)
            k, v = torch.cat([k, whole], -1), torch.cat([v, whole], -1)
        if cache is not None:
            k, v = cache.extend(self, k, v)  # (B, H, S, K), or K + D
        mixed = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=mask is None, scale=self.scale
        )
        if self.value_identity is None:
            added: Tensor = self.output(rearrange(mixed, "b h t k -> b t (h k)"))
            return added  # (B, T, D)
        width = x.shape[-1]
        mixed, copied = mixed[..., :-width], mixed[..., -width:]  # K and D of K + D
        added = self.output(rearrange(mixed, "b h t k -> b t (h k)"))
        return added + einsum(self.value_identity, copied, "h, b h t d -> b t d")


class Block(nn.Module):
    """One layer: attention, then an MLP; each reads the normalized stream and adds to the stream."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width, bias=False)
        self.attention = Attention(config)
        self.mlp_norm = nn.LayerNorm(config.width, bias=False)
        self.expand = linear(config.width, config.mlp_width)
        self.contract = linear(config.mlp_width, config.width)

    def forward(self, y: Tensor, rotation: Tensor, mask: Tensor | None, cache: KVCache | None) -> Tensor:
        """The stream after the block, from the stream before it, (B, T, D) both."""
        y = y + self.attention(self.attention_norm(y), rotation, mask, cache)  # (B, T, D)
        hidden = F.gelu(self.expand(self.mlp_norm(y)))  # (B, T, mlp_width); exact, the faster form on a CPU
        added: Tensor = self.contract(hidden)
        return y + added  # (B, T, D)


class CopyAttention(nn.Module):
    """Attention that copies input embeddings: it learns where to look, never what to write.

    It has no value projection, no output projection and no MLP. What it adds to the stream is a mix of rows
    of ``W_E``, so a name that training never used is copied as well as any other.
    """

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.heads, self.combine, self.rope = config.copies, config.copy_combine, config.copy_rope
        self.norm = nn.LayerNorm(config.width, bias=False) if config.copy_norm else nn.Identity()
        inner = self.heads * config.head_size
        self.query, self.key = linear(config.width, inner), linear(config.width, inner)

    def forward(
        self, y: Tensor, embedded: Tensor, rotation: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """From the stream and the input embeddings, (B, T, D) each, to what is copied, (B, T, D)."""
        if self.combine == "slices":
            v = rearrange(embedded, "b t (h d) -> b h t d", h=self.heads)
            return rearrange(self.attend(y, v, rotation, mask, cache), "b h t d -> b t (h d)")
        v = rearrange(embedded, "b t d -> b 1 t d")  # every head copies whole rows
        copied = self.attend(y, v, rotation, mask, cache)
        return copied.mean(1) if self.combine == "mean" else copied.sum(1)

    def attend(
        self, y: Tensor, v: Tensor, rotation: Tensor, mask: Tensor | None, cache: KVCache | None
    ) -> Tensor:
        """What each head sees when the tokens show ``v``, (B, H or 1, T, any), in its place."""
        x = self.norm(y)
        q = rearrange(self.query(x), "b t (h k) -> b h t k", h=self.heads)
        k = rearrange(self.key(x), "b t (h k) -> b h t k", h=self.heads)
        if self.rope:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if cache is not None:
            k, v = cache.extend(self, k, v)
        v = v.expand(-1, self.heads, -1, -1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)


class GPT(nn.Module):
    """The whole model.

    Parameters
    ----------
    config : GPTConfig
        Sizes and options.
    generator : torch.Generator, optional
        Source of every initial weight, on the CPU: the same seed gives the same weights. Left out, it is
        torch's global one, which will do for counting weights and the like.
    """

    def __init__(self, config: GPTConfig, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.config = config
        shape = (config.vocab_size, config.width)
        self.embedding = nn.Parameter(torch.empty(shape))  # W_E, (V, D)
        self.untied = None if config.tied else nn.Parameter(torch.empty(shape))  # an unembedding of its own
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.layers)])
        copies = {"last": 1, "every": config.layers}[config.copy_where] if config.copy else 0
        self.copy_blocks = nn.ModuleList(
            [CopyAttention(config) for _ in range(copies)]
        )  # beside the top ones
        self.norm = nn.LayerNorm(config.width, bias=False)
        self._initialize(generator)

    @torch.no_grad()
    def _initialize(self, generator: torch.Generator | None) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight, generator=generator)
        for module in self.modules():
            if isinstance(module, Block):  # what it writes to the stream
                module.attention.output.weight.mul_(self.config.output_scale)
                module.contract.weight.mul_(self.config.output_scale)
        self.norm.weight.fill_(self.config.final_gain)
        self.reset_rows(range(self.config.vocab_size), generator)

    @torch.no_grad()
    def reset_rows(self, rows: Sequence[int], generator: torch.Generator | None = None) -> None:
        """Draw rows of ``W_E``, and of the unembedding when untied, again from N(0, 1/D).

        Norms are then about 1 and directions nearly orthogonal. The draws are made on the CPU, where the
        generator must be, so that a seed means the same rows on every device.
        """
        index = torch.tensor(rows, device=self.embedding.device)
        for matrix in (self.embedding, self.untied):
            if matrix is not None:
                drawn = torch.randn(len(rows), self.config.width, generator=generator)  # (rows, D)
                matrix[index] = drawn.to(matrix) / math.sqrt(self.config.width)

    @property
    def unembedding(self) -> Tensor:
        """The matrix (V, D) that scores tokens, ``W_E`` itself when tied."""
        return self.embedding if self.untied is None else self.untied

    @property
    def copy_beside(self) -> list[nn.Module | None]:
        """The copy attention beside each block, None where there is none."""
        return [None] * (len(self.blocks) - len(self.copy_blocks)) + list(self.copy_blocks)

    def features(
        self, tokens: Tensor, *, cache: KVCache | None = None, start: Tensor | None = None
    ) -> Tensor:
        """What the model has computed at each token, just before it is compared with the rows of ``W_E``.

        Parameters
        ----------
        tokens : Tensor (B, T)
            Ids; with a cache, only those that follow what the cache holds.
        cache : KVCache, optional
            Read and extended in place; for decoding, without gradients.
        start : Tensor (B,), optional
            First real column of each row when prompts are padded on the left: no real column attends to one
            before it. Only distances count in RoPE, so a row means the same wherever it starts.

        Returns
        -------
        Tensor (B, T, D)
            The stream after the final LayerNorm.

        Raises
        ------
        ValueError
            If the sequence is longer than the config's ``context`` or the cache's capacity.
        """
        length, past = tokens.shape[1], 0 if cache is None else cache.length
        room = min(self.config.context, math.inf if cache is None else cache.capacity)
        if past + length > room:
            raise ValueError(
                f"the sequence has {past + length} tokens, but there is room for {room}: the model's context "
                f"({self.config.context}) or the cache's capacity, whichever is less."
            )
        embedded = F.embedding(tokens, self.embedding)  # (B, T, D)
        # (T, K / 2)
        rotation = rotations(past, length, self.config.head_size, self.config.rope_base, embedded)
        full = visible(length, past, start, None, tokens.device)
        local = visible(length, past, start, self.config.local_window, tokens.device)  # for layer 0

        y = embedded
        for i, (block, copy) in enumerate(zip(self.blocks, self.copy_beside, strict=True)):
            below, y = y, block(y, rotation, local if i == 0 else full, cache)
            if copy is not None:
                y = y + copy(below, embedded, rotation, full, cache)  # it reads Y_i, beside the block
        if cache is not None:
            cache.length += length
        normalized: Tensor = self.norm(y)
        return normalized  # (B, T, D)

    @torch.no_grad()
    def copy_attention_map(self, tokens: Tensor, *, layer: int = -1, start: Tensor | None = None) -> Tensor:
        """Where each head of a copy attention looks when the model reads ``tokens``.

        Parameters
        ----------
        tokens : Tensor (B, T)
        layer : int
            Which of the blocks it stands beside; counted from the top if negative.
        start : Tensor (B,), optional
            As for ``features``.

        Returns
        -------
        Tensor (B, H, T, T)
            Row t is a distribution over the columns up to t.

        Raises
        ------
        ValueError
            If there is no copy attention in that layer.
        """
        layers = len(self.blocks)
        copy = self.copy_beside[layer] if -layers <= layer < layers else None
        if not isinstance(copy, CopyAttention):
            raise ValueError(
                f"layer {layer} of {layers} has no copy attention: copy is {self.config.copy} and copy_where "
                f"is {self.config.copy_where!r}."
            )
        calls: list[tuple[Tensor, ...]] = []
        hook = copy.register_forward_pre_hook(lambda _, inputs: calls.append(inputs))
        try:
            self.features(tokens, start=start)
        finally:
            hook.remove()
        y, _, rotation, mask, _ = calls[0]
        # Token s shows a 1 in column s and nothing else: what a head then sees is how much it looks at each.
        places = torch.eye(tokens.shape[1]).to(y).expand(len(tokens), 1, -1, -1)
        return copy.attend(y, places, rotation, mask, None)

    def unembed(self, features: Tensor) -> Tensor:
        """Logits (..., V) of features (..., D)."""
        return F.linear(features, self.unembedding)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) of the token after each of ``tokens`` (B, T).

        Training unembeds less: the loss looks at the completion only, about a quarter of the positions.
        """
        return self.unembed(self.features(tokens))


def count_parameters(model: nn.Module) -> int:
    """Number of weights; a matrix used twice counts once."""
    return sum(parameter.numel() for parameter in model.parameters())
