"""What a trained model does: it is given problems, writes a proof under each, and every word is judged.

Answers alone flatter: a model that always says no is right half the time, and one that fails on names it has
never seen says no. So whole proofs are checked as well, and problems whose query follows are reported apart:
the proof of a false query never mentions the query, so an unseen one cannot spoil it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from unseen_lib.errors import ConfigError
from unseen_lib.model import GPT, KVCache
from unseen_lib.problems import Task, longest_sequence, sample_batch
from unseen_lib.transcripts import ERRORS, Transcript, read_transcript
from unseen_lib.vocabulary import Vocabulary

Adjust = Callable[[Tensor, Tensor], Tensor]
"""From logits (B, V) and the prompts (B, T), padded on the left, to the logits that decoding compares."""


@dataclass(frozen=True)
class Evaluation:
    """Shares of a sample of problems.

    Attributes
    ----------
    problems, true_problems : int
        Size of the sample, and how many of its queries follow.
    answer_accuracy : float
        Share of problems with the right yes or no.
    answer_chance : float
        What the better of two fixed answers would reach on this sample: read ``answer_accuracy`` against it.
    proof_validity : float
        Share whose whole completion is a valid proof, its answer included. Chance is next to nothing.
    true_answer_accuracy, true_proof_validity : float
        The same over the problems whose query follows (NaN if there are none). Always yes has 1 in the first,
        always no has 0.
    errors : dict
        How many completions first fail in each way of `.transcripts.ERRORS`; together all that are not valid.
    """

    problems: int
    true_problems: int
    answer_accuracy: float
    answer_chance: float
    proof_validity: float
    true_answer_accuracy: float
    true_proof_validity: float
    errors: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """The fields, ready for JSON."""
        return asdict(self)


def evaluate(
    model: GPT,
    task: Task,
    vocabulary: Vocabulary,
    *,
    scenario: str = "seen",
    problems: int = 256,
    seed: int = 0,
    batch_size: int = 256,
    adjust: Adjust | None = None,
) -> Evaluation:
    """Accuracy, proof validity and errors on test problems; for the parameters see `transcribe`."""
    return summarize(
        transcribe(
            model,
            task,
            vocabulary,
            scenario=scenario,
            problems=problems,
            seed=seed,
            batch_size=batch_size,
            adjust=adjust,
        )
    )


def summarize(transcripts: Sequence[Transcript]) -> Evaluation:
    """Count over transcripts.

    Raises
    ------
    ConfigError
        If there are none.
    """
    if not transcripts:
        raise ConfigError("transcripts is empty, but a share needs at least one.")
    provable = [transcript.provable for transcript in transcripts]
    valid = [transcript.valid for transcript in transcripts]
    right = [transcript.answer == truth for transcript, truth in zip(transcripts, provable, strict=True)]
    share = _share(provable)
    failures = Counter(transcript.error for transcript in transcripts)
    return Evaluation(
        problems=len(transcripts),
        true_problems=sum(provable),
        answer_accuracy=_share(right),
        answer_chance=max(share, 1 - share),
        proof_validity=_share(valid),
        true_answer_accuracy=_share([ok for ok, true in zip(right, provable, strict=True) if true]),
        true_proof_validity=_share([ok for ok, true in zip(valid, provable, strict=True) if true]),
        errors={error: failures[error] for error in ERRORS},
    )


def transcribe(
    model: GPT,
    task: Task,
    vocabulary: Vocabulary,
    *,
    scenario: str = "seen",
    problems: int = 256,
    seed: int = 0,
    batch_size: int = 256,
    adjust: Adjust | None = None,
) -> list[Transcript]:
    """Let the model prove test problems, and read what it wrote.

    Parameters
    ----------
    scenario : {"seen", "query_unseen", "all_unseen"}
        Which names the problems use.
    problems, seed : int
        Size and seed of the sample, drawn from the test stream.
    batch_size : int
        How many are decoded at a time; it changes speed and memory, not the sample.
    adjust : Callable, optional
        Changes the logits before each word is chosen; see `generate`.

    Raises
    ------
    ConfigError
        If a size is not positive or the vocabulary lacks the names.
    FloatingPointError
        If the model's logits are not finite.
    """
    if batch_size < 1:
        raise ConfigError(f"batch_size is {batch_size}, but it must be at least 1.")
    batch = sample_batch(
        task, vocabulary, batch_size=problems, seed=seed, index=0, scenario=scenario, stream="test"
    )
    transcripts = []
    for first in range(0, problems, batch_size):
        tokens, lengths = (x[first : first + batch_size] for x in (batch.tokens, batch.prompt_length))
        # Room for the longest proof of the task: none is cut off, and a text that would never end is.
        room = longest_sequence(task) + 1 - int(lengths.max())
        written = generate(model, tokens, lengths, vocabulary=vocabulary, max_new_tokens=room, adjust=adjust)
        transcripts += read_transcripts(tokens, lengths, written, vocabulary)
    return transcripts


def read_transcripts(
    tokens: Tensor, prompt_length: Tensor, written: Tensor, vocabulary: Vocabulary
) -> list[Transcript]:
    """Read completions (B, N), as `generate` returns them, of the prompts in tokens (B, T)."""
    return [
        read_transcript(vocabulary.decode(prompt[:length]), vocabulary.decode(completion), vocabulary)
        for prompt, length, completion in zip(
            tokens.tolist(), prompt_length.tolist(), written.tolist(), strict=True
        )
    ]


@torch.inference_mode()
def generate(
    model: GPT,
    tokens: Tensor,
    prompt_length: Tensor,
    *,
    vocabulary: Vocabulary,
    max_new_tokens: int,
    use_cache: bool = True,
    adjust: Adjust | None = None,
) -> Tensor:
    """Greedy decoding: each word is the one with the largest logit (of equal ones, that of the lowest id).

    Parameters
    ----------
    tokens : Tensor (B, T)
        Row b starts with a prompt of ``prompt_length[b]`` tokens; what follows it is not looked at.
    prompt_length : Tensor (B,)
    max_new_tokens : int
        Stop here, or sooner when every row has written ``<eos>``.
    use_cache : bool
        Read each token once and keep its keys and values, or read the whole text again for each new word.
        Both write the same, unless two logits are equal up to rounding.
    adjust : Callable, optional
        ``adjust(logits, prompts)`` is called for each word with the model's logits (B, V) and the prompts
        (B, T), their right ends aligned and ``<pad>`` before shorter ones, and returns the logits (B, V) to
        choose by. It may forbid a token with -inf.

    Returns
    -------
    Tensor (B, N)
        What follows each prompt, N at most ``max_new_tokens``; ``<pad>`` after ``<eos>``.

    Raises
    ------
    ConfigError
        If prompt and completion do not fit the model's context.
    FloatingPointError
        If the model's largest logit is not finite.
    """
    width = int(prompt_length.max())
    context = model.config.context
    if not 1 <= max_new_tokens <= context + 1 - width:  # the last word is written, never read
        raise ConfigError(
            f"max_new_tokens is {max_new_tokens}, but a context of {context} leaves room for 1 to "
            f"{context + 1 - width} after a prompt of {width} tokens."
        )
    device = model.embedding.device
    prompts, start = _left_pad(tokens.to(device), prompt_length.to(device), width, vocabulary.pad)
    unread = prompts
    cache = KVCache(width + max_new_tokens) if use_cache else None
    done = torch.zeros(len(tokens), dtype=torch.bool, device=device)
    written: list[Tensor] = []
    with _evaluating(model):
        while len(written) < max_new_tokens and not done.all():
            features = model.features(unread, cache=cache, start=start)[:, -1]  # (B, D)
            logits = model.unembed(features)  # (B, V)
            largest, word = logits.max(-1)  # (B,)
            if not largest.isfinite().all():
                raise FloatingPointError(
                    f"the logits of completion word {len(written)} are not finite: the model's weights have "
                    "overflowed or hold NaN; take an earlier checkpoint."
                )
            if adjust is not None:
                word = adjust(logits, prompts).max(-1).indices
            word = word.masked_fill(done, vocabulary.pad)
            done |= word == vocabulary.eos
            written.append(word)
            unread = word[:, None] if use_cache else torch.cat([unread, word[:, None]], 1)
    return torch.stack(written, 1)


def _left_pad(tokens: Tensor, prompt_length: Tensor, width: int, pad: int) -> tuple[Tensor, Tensor | None]:
    """Prompts moved to the right edge, (B, width), and the first real column of each (None if all are 0)."""
    start = width - prompt_length  # (B,)
    column = (
        torch.arange(width, device=tokens.device) - start[:, None]
    )  # (B, width), negative before the prompt
    prompts = tokens.gather(1, column.clamp(min=0)).masked_fill(column < 0, pad)
    return prompts, start if start.any() else None  # without padding attention has a faster path


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while, then each module as it was."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _share(outcomes: Sequence[bool]) -> float:
    return sum(outcomes) / len(outcomes) if outcomes else float("nan")
