"""Random problems, a batch at a time: structure first, then names, then text.

Each of the three steps is done for all problems of a batch at once, without a Python loop over them.

1. *Structure*: which predicates are facts, which rules connect them, what is asked. A predicate is a number
   within its problem, a slot: 0, 1, 2, ... Names are handed out at random afterwards, so nothing is lost if
   the given facts are always the first slots. A set of slots is one integer with a bit for each (bit 3: slot
   3 is in it), and a step of forward chaining is a few operations on integers.
2. *Names*: each slot gets a name, from where the scenario says. Structure and names come from separate random
   streams, so problem 7 of batch 3 is the same in every scenario, under other names.
3. *Text*: problem and proof become token ids, in the words of `unseen_lib.language`.

Shapes: B problems, P slots, R rules, K premises, S proof steps, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from unseen_lib.errors import ConfigError
from unseen_lib.language import CONTROL_WORDS, FORMATS, read_problem
from unseen_lib.logic import Problem
from unseen_lib.vocabulary import Vocabulary

#: Recipes for the rules of a problem.
FAMILIES = ("chain", "rule_priority")
#: Where the names of a problem come from.
SCENARIOS = ("seen", "query_unseen", "all_unseen")
#: Sequences of batches with nothing in common.
STREAMS = ("train", "test")
IGNORE = -100  #: What torch's cross entropy leaves out of the loss
MAX_PREDICATES = 40  # a set of slots, a slot and the place of a rule share one 64-bit integer
MAX_RULES = 255
ABSENT = np.int8(-1)  # an empty place in a table of slots, rules or codes

Int = TypeVar("Int", np.int64, np.int8)
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bytes = NDArray[np.int8]  # slots and codes: there are so many of them that their size is felt


# --------------------------------------------------------------------------------------------- what to sample
@dataclass(frozen=True)
class Task:
    """A distribution over problems and the format they are written in. Every range includes both its ends.

    Parameters
    ----------
    family : {"chain", "rule_priority"}
        ``"chain"``: a chain of rules ``X then Y`` starts from the only fact; the other predicates form a
        second chain, the distractor, which no fact starts; rules are shuffled.
        ``"rule_priority"``: SimpleLogic's recipe of that name: rules drawn at random, no two the same, and
        from none to all of the predicates as facts.
    format : {"compact", "full"}
        How problem and proof are written, see `unseen_lib.language`.
    predicates : (int, int), optional
        Predicates of a problem: 6 for ``"chain"``, 5 to 20 for ``"rule_priority"`` (the paper) by default.
    chain : (int, int), optional
        ``"chain"`` only: predicates on the true chain, the fact included; by default 2 to all but 2. Those
        left over, at least 2, are the distractor's.
    rules : (int, int), optional
        ``"rule_priority"`` only: rules of a problem. None: from 0 to 4 for each predicate, as in SimpleLogic.
    body : (int, int)
        ``"rule_priority"`` only: premises of a rule.
    choose : {"first", "any"}
        ``"rule_priority"`` only: of several rules that give something new, the proof uses the first in the
        order of the problem, or any with equal chance.
    depth : (int, int), optional
        Only problems of this depth. Let forward chaining go in rounds, and in each use every rule that
        applies: the depth is the number of rounds until the query is known (0 for a given fact) or, where it
        does not follow, until nothing is new.

    Raises
    ------
    ConfigError
        If a value is unknown, out of range or does not fit the others.

    Notes
    -----
    The query follows with probability 1/2: this is drawn first, then a problem that has such a query, then
    one of its queries uniformly (in ``"rule_priority"`` a given fact counts too).
    SimpleLogic: Zhang et al., On the Paradox of Learning to Reason from Data, IJCAI 2023, whose depth is ours
    for a query that follows; for one that does not, theirs is how far a search back from it gets.
    """

    family: str = "chain"
    format: str = "compact"
    predicates: tuple[int, int] | None = None
    chain: tuple[int, int] | None = None
    rules: tuple[int, int] | None = (0, 40)
    body: tuple[int, int] = (1, 3)
    choose: str = "first"
    depth: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        _check_choice("family", self.family, FAMILIES)
        _check_choice("format", self.format, FORMATS)
        _check_choice("choose", self.choose, ("first", "any"))
        if self.predicates is None:
            object.__setattr__(self, "predicates", (6, 6) if self.family == "chain" else (5, 20))
        if self.family == "chain":
            _check_unused(self, rules=(0, 40), body=(1, 3), choose="first")
            _check_range("predicates", self.predicates, 4, MAX_PREDICATES)
            if self.chain is None:
                object.__setattr__(self, "chain", (2, self.sizes[1] - 2))
            _check_range("chain", self.chain, 2, self.sizes[1] - 2)
            self._check_chain_fits()
        else:
            _check_unused(self, chain=None)
            _check_range("predicates", self.predicates, 2, MAX_PREDICATES)
            _check_range("body", self.body, 1, self.sizes[0] - 1)
            if self.rules is not None:
                _check_range("rules", self.rules, 0, MAX_RULES)
            self._check_rules_fit()
            if self.depth is not None:
                _check_range("depth", self.depth, 0, min(self.sizes[1] - 2, self.most_rules(self.sizes[1])))

    @property
    def sizes(self) -> tuple[int, int]:
        """``predicates``, which is never None once the defaults are in."""
        assert self.predicates is not None
        return self.predicates

    def most_rules(self, predicates: int) -> int:
        """The largest number of rules in a problem of this many predicates."""
        if self.family == "chain":
            return predicates - 2
        return 4 * predicates if self.rules is None else self.rules[1]

    def _check_chain_fits(self) -> None:
        assert self.chain is not None
        smallest = self.sizes[0] - 2
        if self.chain[0] > smallest:
            raise ConfigError(
                f"chain={self.chain} leaves no distractor of 2 in a problem of {self.sizes[0]} predicates; "
                f"let the chain start at {smallest} or less"
            )
        if self.depth is not None:
            _check_range("depth", self.depth, 1, self.chain[1] - 1)
            low, high = min(self.chain[1], smallest) - 1, self.chain[0] - 1
            if self.depth[0] > low or self.depth[1] < high:
                raise ConfigError(
                    f"depth={self.depth} is not to be had with chain={self.chain} and predicates="
                    f"{self.predicates}; let it start at {low} or less and end at {high} or more"
                )

    def _check_rules_fit(self) -> None:
        for n in range(self.sizes[0], self.sizes[1] + 1):
            different = sum(n * math.comb(n - 1, k) for k in range(self.body[0], self.body[1] + 1))
            most = self.most_rules(n)
            if most > different:
                raise ConfigError(
                    f"rules={self.rules} allows {most} rules, but {n} predicates with body={self.body} make "
                    f"only {different} different ones; use at most {different}, or more predicates"
                )


def _check_choice(field: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{field}={value!r} is unknown; use one of {', '.join(map(repr, choices))}")


def _check_range(field: str, value: object, least: int, most: int) -> None:
    """Refuse what is not a pair of integers with ``least <= low <= high <= most``."""
    fits = (
        isinstance(value, tuple)
        and len(value) == 2
        and all(isinstance(end, int) and not isinstance(end, bool) for end in value)
        and least <= value[0] <= value[1] <= most
    )
    if not fits:
        if least > most:
            raise ConfigError(
                f"{field}={value!r} does not fit: the other fields leave no room for any {field}"
            )
        raise ConfigError(
            f"{field}={value!r} must be a pair (low, high) of integers, {least} <= low <= high <= {most}"
        )


def _check_unused(task: Task, **defaults: object) -> None:
    for field, default in defaults.items():
        if getattr(task, field) != default:
            raise ConfigError(
                f"{field}={getattr(task, field)!r} means nothing for family={task.family!r}; "
                f"leave it at {default!r}"
            )


def check_vocabulary(task: Task, vocabulary: Vocabulary, scenario: str = "seen") -> None:
    """Raise ConfigError unless the vocabulary has the task's format and names enough for the scenario."""
    _check_choice("scenario", scenario, SCENARIOS)
    if vocabulary.format != task.format:
        raise ConfigError(
            f"vocabulary format={vocabulary.format!r} does not fit a task in format={task.format!r}; "
            "give both the same"
        )
    needed = {"seen": 0, "unseen": 0}
    needed["unseen" if scenario == "all_unseen" else "seen"] = task.sizes[1]
    if scenario == "query_unseen":
        needed["unseen"] = 1
    for kind, least in needed.items():
        if getattr(vocabulary, kind) < least:
            raise ConfigError(
                f"{kind}={getattr(vocabulary, kind)} names are too few for predicates={task.predicates} in "
                f"scenario={scenario!r}; use {kind}={least} or more, or fewer predicates"
            )


def longest_sequence(task: Task) -> int:
    """The largest T a batch can have: all tokens of the longest problem with its proof, less the last.

    The last token is a target only, never fed. A tight bound for ``"rule_priority"``, exact for ``"chain"``.
    """
    n = task.sizes[1]
    rules = task.most_rules(n)
    body = 1 if task.family == "chain" else task.body[1]
    full = task.format == "full"
    rule_words = body + (4 if full else 2)
    prompt = (9 if full else 6) + rules * rule_words

    def proof(facts: int, steps: int) -> int:
        if not full:
            return facts + steps + 2
        return sum(facts + i + rule_words + 5 for i in range(steps)) + facts + steps + 7

    if task.chain is not None:
        steps = task.chain[1] - 1 if task.depth is None else min(task.chain[1] - 1, task.depth[1])
        return prompt + 1 + proof(1, steps) - 1
    longest = (facts + proof(facts, min(n - facts, rules) if facts else 0) for facts in range(n + 1))
    return prompt + max(longest) - 1


# ---------------------------------------------------------------------------------------------------- batches
@dataclass(frozen=True)
class Batch:
    """Problems with their proofs as token ids, padded at the right to the longest of them.

    Attributes
    ----------
    tokens : Tensor, (B, T)
        What the model reads.
    targets : Tensor, (B, T)
        What it is to predict: ``targets[:, t]`` follows ``tokens[:, t]``; ``IGNORE`` outside the completion.
    prompt_length : Tensor, (B,)
        Tokens of the question, from ``<bos>`` to ``Reasoning:``; the completion starts there.
    answer : Tensor of bool, (B,)
        Whether the query follows.
    depth : Tensor, (B,)
        See :class:`Task`.
    """

    tokens: torch.Tensor
    targets: torch.Tensor
    prompt_length: torch.Tensor
    answer: torch.Tensor
    depth: torch.Tensor


def sample_batch(
    task: Task,
    vocabulary: Vocabulary,
    *,
    batch_size: int,
    seed: int,
    index: int,
    scenario: str = "seen",
    stream: str = "train",
    device: str | torch.device = "cpu",
) -> Batch:
    """Batch ``index`` of a seed: the same whatever was drawn before.

    Parameters
    ----------
    scenario : {"seen", "query_unseen", "all_unseen"}
        Where names come from. A batch is the same in all three but for its names, and in the first two but
        for the name of the query.
    stream : {"train", "test"}
        Two sequences of batches with nothing in common.

    Raises
    ------
    ConfigError
        If the vocabulary lacks names, the scenario or stream is unknown, a number is negative, or problems of
        the depth asked for are too rare to be found.
    """
    check_vocabulary(task, vocabulary, scenario)
    _check_choice("stream", stream, STREAMS)
    for field, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0), ("index", index, 0)):
        if value < least:
            raise ConfigError(f"{field}={value} must be {least} or more")

    def generator(purpose: int) -> np.random.Generator:
        key = np.random.SeedSequence(seed, spawn_key=(STREAMS.index(stream), index, purpose))
        return np.random.Generator(np.random.PCG64(key))

    structure = _draw_structure(task, generator(0), batch_size)
    derivation = _derive(structure, task.sizes[1], task.choose, generator(1))

    def draw_names(ids: range, count: int, purpose: int) -> Ints:
        return ids.start + _distinct(generator(purpose), len(ids), count, (batch_size,), np.int64).T

    slots = task.sizes[1]
    if scenario == "all_unseen":
        names = draw_names(vocabulary.unseen_ids, slots, 3)
    else:
        names = draw_names(vocabulary.seen_ids, slots, 2)
    if scenario == "query_unseen":
        names[np.arange(batch_size), structure.query] = draw_names(vocabulary.unseen_ids, 1, 3)[:, 0]

    tokens, length, prompt_length = _write(structure, derivation, names, task.format)
    position = np.arange(1, tokens.shape[1])
    completion = (position >= prompt_length[:, None]) & (position < length[:, None])
    targets = np.where(completion, tokens[:, 1:], IGNORE)
    inputs = np.ascontiguousarray(tokens[:, :-1])
    parts = (inputs, targets, prompt_length, structure.answer, structure.depth)
    return Batch(*(torch.from_numpy(part).to(device) for part in parts))


def problem_of(batch: Batch, row: int, vocabulary: Vocabulary) -> Problem:
    """The problem that a row of a batch poses, read back from its text."""
    prompt = batch.tokens[row, : int(batch.prompt_length[row])].tolist()
    return read_problem(vocabulary.decode(prompt), vocabulary.format)


# -------------------------------------------------------------------------------------------- random integers
def _uniform(rng: np.random.Generator, low: Ints | int, high: Ints | int, shape: tuple[int, ...]) -> Ints:
    """Integers of [low, high); the ends may differ from place to place, at which ``rng.integers`` is slow."""
    drawn: Ints = low + (rng.random(shape) * (high - low)).astype(np.int64)
    return drawn


def _distinct(
    rng: np.random.Generator, high: Ints | int, width: int, shape: tuple[int, ...], dtype: type[Int]
) -> NDArray[Int]:
    """``width`` different integers of [0, high) in random order, for each place: (width, *shape).

    The i-th is drawn among the ``high - i`` that are left, then counted past those drawn before it.
    """
    drawn = np.empty((width, *shape), dtype=dtype)
    ordered: list[NDArray[Int]] = []  # those drawn before, in increasing order
    for i in range(width):
        value = (rng.random(shape) * (high - i)).astype(dtype)
        for earlier in ordered:
            value += value >= earlier
        drawn[i] = value
        for j, earlier in enumerate(ordered):
            ordered[j], value = np.minimum(earlier, value), np.maximum(earlier, value)
        ordered.append(value)
    return drawn


# -------------------------------------------------------------------------------------------------- structure
@dataclass
class _Structure:
    """Problems without names; the last axis goes over the problems. Given are the first ``facts`` slots."""

    facts: Ints  # (B,)
    body: Bytes  # (K, R, B)
    head: Bytes  # (R, B)
    query: Ints  # (B,)
    answer: Bools  # (B,)
    depth: Ints  # (B,)


def _draw_structure(task: Task, rng: np.random.Generator, count: int) -> _Structure:
    answer = rng.random(count) < 0.5
    draw = _draw_chain if task.family == "chain" else _draw_rule_priority
    return draw(task, rng, answer)


def _draw_chain(task: Task, rng: np.random.Generator, answer: Bools) -> _Structure:
    """The true chain has slots 0 to length - 1, the distractor the rest; rules lead from each to the next."""
    assert task.chain is not None
    shape = answer.shape
    predicates = _uniform(rng, task.sizes[0], task.sizes[1] + 1, shape)
    nearest, farthest = task.depth or (1, MAX_PREDICATES)
    shortest = max(task.chain[0], nearest + 1)
    longest = np.minimum(task.chain[1], predicates - 2)
    longest = np.where(answer, longest, np.minimum(longest, farthest + 1))
    length = _uniform(rng, shortest, longest + 1, shape)
    proved = _uniform(rng, nearest, np.minimum(length - 1, farthest) + 1, shape)
    query = np.where(answer, proved, _uniform(rng, length, predicates, shape))

    order = rng.random((task.sizes[1] - 2, *shape))
    order += np.arange(len(order))[:, None] >= predicates - 2  # the rules of smaller problems first
    rule = np.argsort(order, axis=0).astype(np.int8)
    unused = rule >= predicates - 2
    body = rule + (rule >= length - 1)  # the last slot of the true chain leads nowhere
    head = body + 1
    body[unused], head[unused] = ABSENT, ABSENT
    return _Structure(
        np.ones(shape, dtype=np.int64), body[None], head, query, answer, np.where(answer, query, length - 1)
    )


def _draw_rule_priority(task: Task, rng: np.random.Generator, answer: Bools) -> _Structure:
    """A problem for each label; where a problem has no query with its label, another problem."""
    structure, fits = _propose(task, rng, answer)
    for _ in range(1000):
        missing = np.flatnonzero(~fits)
        if len(missing) == 0:
            return structure
        # 64 problems cost little more than one, so the last ones missing get several proposals each; of
        # those that fit the first is written last.
        rows = np.resize(missing, max(len(missing), 64))
        proposal, proposal_fits = _propose(task, rng, answer[rows])
        chosen = np.flatnonzero(proposal_fits)[::-1]
        for field, values in vars(proposal).items():
            getattr(structure, field)[..., rows[chosen]] = values[..., chosen]
        fits[rows[chosen]] = True
    raise ConfigError(f"depth={task.depth} is met by less than 1 in 64,000 problems; use one nearer to 0")


def _propose(task: Task, rng: np.random.Generator, answer: Bools) -> tuple[_Structure, Bools]:
    """A problem for each label, and whether it has a query with that label (if not, its query is void)."""
    shape = answer.shape
    predicates = _uniform(rng, task.sizes[0], task.sizes[1] + 1, shape)
    facts = _uniform(rng, 0, predicates + 1, shape)
    body, head = _draw_rules(task, rng, predicates)

    every = (1 << predicates) - 1
    known = _rounds(*_premises_and_conclusions(body, head), (1 << facts) - 1)
    at_rest = (known != known[-1]).sum(axis=0)  # the round after which nothing is new
    candidates = np.where(answer, known[-1], every & ~known[-1])
    if task.depth is not None:
        nearest, farthest = task.depth
        within = known[min(farthest, len(known) - 1)]
        if nearest > 0:
            within = within & ~known[min(nearest - 1, len(known) - 1)]
        candidates &= np.where(
            answer, within, -((nearest <= at_rest) & (at_rest <= farthest)).astype(np.int64)
        )

    slots = np.arange(task.sizes[1])[:, None]
    query = np.argmax((candidates >> slots & 1) * (1 - rng.random((len(slots), *shape))), axis=0)
    depth = np.minimum((known >> query & 1 == 0).sum(axis=0), at_rest)
    return _Structure(facts, body, head, query, answer, depth), candidates != 0


def _draw_rules(task: Task, rng: np.random.Generator, predicates: Ints) -> tuple[Bytes, Bytes]:
    """Rules over slots 0, ..., predicates - 1, no two the same: bodies (K, R, B) and heads (R, B)."""

    def draw(predicates: Ints, shape: tuple[int, ...]) -> Bytes:
        rules = _distinct(rng, predicates, task.body[1] + 1, shape, np.int8)
        size = _uniform(rng, task.body[0], task.body[1] + 1, shape)
        for k in range(task.body[0], task.body[1]):
            rules[1 + k][size <= k] = ABSENT
        return rules

    low, high = task.rules or (0, 4 * predicates)
    number = _uniform(rng, low, high + 1, predicates.shape)
    most = max(1, task.most_rules(task.sizes[1]))  # an empty axis has no first rule to look for
    place = np.arange(most)[:, None]
    rules = draw(predicates, (len(place), len(predicates)))
    rules[:, place >= number] = ABSENT
    head, body = rules[0], rules[1:]

    problems = np.arange(len(predicates))
    while len(problems):  # draw again each rule that already stands further up, until there is none
        # Sorted by what it says and then by its place, a rule comes right after another that says the same.
        key = (_bits(body[..., problems]).sum(axis=0) << 6 | head[:, problems]) << 8 | place
        key = np.where(head[:, problems] == ABSENT, ~place << 8, key)
        key = np.sort(key.T, axis=1)
        row, column = np.nonzero(key[:, 1:] >> 8 == key[:, :-1] >> 8)
        again = key[row, column + 1] & 255
        rules[:, again, problems[row]] = draw(predicates[problems[row]], row.shape)
        problems = problems[np.unique(row)]
    return body, head


# ---------------------------------------------------------------------------------------------------- forward
def _bits(slots: Bytes) -> Ints:
    """A set for each slot, with nothing in it where the slot is absent."""
    return np.where(slots == ABSENT, 0, np.int64(1) << slots)


def _premises_and_conclusions(body: Bytes, head: Bytes) -> tuple[Ints, Ints]:
    """What each rule needs and gives, as sets (R, B). An absent rule needs all 64 bits: it never applies."""
    needs = np.bitwise_or.reduce(_bits(body), axis=0)
    return np.where(head == ABSENT, -1, needs), _bits(head)


def _rounds(needs: Ints, gives: Ints, given: Ints) -> Ints:
    """What is known after 0, 1, 2, ... rounds of using every rule that applies, until nothing is new."""
    known = [given]
    while True:
        new = np.bitwise_or.reduce(np.where(needs & ~known[-1] == 0, gives, 0), axis=0)
        if not (new & ~known[-1]).any():
            return np.stack(known)
        known.append(known[-1] | new)


@dataclass
class _Derivation:
    """What the proofs do; S is the number of steps of the longest."""

    sequence: Bytes  # (P, B): the given facts, then what is derived, in order
    used: Ints  # (S, B): the rule of each step


def _derive(structure: _Structure, slots: int, choose: str, rng: np.random.Generator) -> _Derivation:
    """Apply one rule at a time until the query is known or no rule gives anything new."""
    needs, gives = _premises_and_conclusions(structure.body, structure.head)
    problems = np.arange(len(structure.facts))
    place = np.arange(slots, dtype=np.int8)[:, None]
    sequence = np.where(place < structure.facts, place, ABSENT)
    length = structure.facts.copy()
    known = (1 << length) - 1
    used: list[Ints] = []
    while True:
        applies = (needs & ~known) | (gives & known) == 0
        rule = np.argmax(applies if choose == "first" else applies * rng.random(applies.shape), axis=0)
        going = applies[rule, problems] & (known >> structure.query & 1 == 0)
        if not going.any():
            return _Derivation(sequence, np.array(used, dtype=np.int64).reshape(-1, len(problems)))
        known |= np.where(going, gives[rule, problems], 0)
        sequence[length[going], problems[going]] = structure.head[rule, problems][going]
        length += going
        used.append(np.where(going, rule, ABSENT))


# ------------------------------------------------------------------------------------------------------- text
def _write(
    structure: _Structure, derivation: _Derivation, names: Ints, format: str
) -> tuple[Ints, Ints, Ints]:
    """Token ids (B, T + 1), padded at the right, the length of each row and the length of its prompt.

    Each problem is first written with room for the largest, in codes: the id of a control word, or a slot
    plus the number of control words. Then the gaps are closed, and each problem's table turns codes into ids.
    """
    prompt, completion = _codes(structure, derivation, format)
    codes = np.concatenate([prompt, completion], axis=1)
    present = codes != ABSENT
    length, prompt_length = present.sum(axis=1), present[:, : prompt.shape[1]].sum(axis=1)
    controls = np.tile(np.arange(len(CONTROL_WORDS[format])), (len(codes), 1))
    table = np.hstack([controls, names])
    start = table.shape[1] * np.arange(len(table))  # where the table of each problem begins
    ids = table.ravel().take(codes[present] + np.repeat(start, length))
    tokens = np.zeros((len(codes), length.max()), dtype=np.int64)  # <pad> is 0
    tokens[np.arange(tokens.shape[1]) < length[:, None]] = ids
    return tokens, length, prompt_length


def _codes(structure: _Structure, derivation: _Derivation, format: str) -> tuple[Bytes, Bytes]:
    """The prompts and the completions, as :func:`language.write_problem` and ``write_proof`` have them."""
    code_of = {word: np.int8(code) for code, word in enumerate(CONTROL_WORDS[format])}

    def coded(slots: Bytes) -> Bytes:
        """(..., B) -> (B, ...)"""
        return np.where(slots == ABSENT, ABSENT, slots + np.int8(len(code_of))).T

    def text(there: Bools, *parts: str | Bytes) -> Bytes:
        """(B, lines, words) -> (B, lines * words), with a gap for each line that is not there."""
        columns = []
        for part in parts:
            if isinstance(part, str):
                columns += [np.where(there, code_of[word], ABSENT)[..., None] for word in part.split()]
            else:
                columns.append(part)
        return np.concatenate(columns, axis=-1).reshape(len(there), -1)

    body, head, sequence = coded(structure.body), coded(structure.head), coded(derivation.sequence)
    query = coded(structure.query.astype(np.int8))[:, None, None]
    answer = np.where(structure.answer, code_of["yes"], code_of["no"])[:, None, None]
    known = np.arange(sequence.shape[1])
    facts = np.where(known < structure.facts[:, None], sequence, ABSENT)[:, None]
    rule, once = head != ABSENT, np.ones((len(head), 1), dtype=bool)
    if format == "compact":
        prompt = [
            text(once, "<bos> Rules:"),
            text(rule, body, "then", head[..., None]),
            text(once, "Facts:", facts, "Query:", query, "Reasoning:"),
        ]
        return np.hstack(prompt), text(once, sequence[:, None], answer, "<eos>")
    prompt = [
        text(once, "<bos> Rules:"),
        text(rule, "If", body, "then", head[..., None], "EndIf"),
        text(once, "EndRules Facts:", facts, "EndFacts Query:", query, "EndQuery Reasoning:"),
    ]
    used = derivation.used.T
    step, problems = used != ABSENT, np.arange(len(used))[:, None]
    before = structure.facts[:, None] + np.arange(used.shape[1])  # how much is known before each step
    restated = np.where(step[..., None] & (known < before[..., None]), sequence[:, None], ABSENT)
    body = np.where(step[..., None], body[problems, used], ABSENT)
    head = np.where(step, head[problems, used], ABSENT)[..., None]
    completion = [
        text(
            step, "Facts:", restated, "EndFacts If", body, "then", head, "EndIf Newfact", head, "EndNewfact"
        ),
        text(once, "Facts:", sequence[:, None], "EndFacts EndReasoning Answer:", answer, "EndAnswer <eos>"),
    ]
    return np.hstack(prompt), np.hstack(completion)
