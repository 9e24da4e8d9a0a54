"""Definite (Horn) clauses: problems, forward chaining, proofs and the proof checker.

A rule says that its head follows when every symbol of its body is known. Starting from the given facts,
forward chaining applies rules until the query is proved or nothing new can be derived; what cannot be proved
is false. Plain Python, and a symbol is anything hashable, so the same code serves words, ids and a reader's
own names.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from unseen_lib.errors import ConfigError

Symbol = Hashable  #: A name: a word, an id, anything hashable


@dataclass(frozen=True)
class Rule:
    """If every symbol of ``body`` is known, ``head`` follows."""

    body: tuple[Symbol, ...]
    head: Symbol

    def __post_init__(self) -> None:
        _expect(
            "Rule.body", self.body, _is_tuple(self.body) and bool(self.body), "a tuple of at least one symbol"
        )

    def __str__(self) -> str:
        return f"If {_listed(self.body)} then {self.head}"


@dataclass(frozen=True)
class Problem:
    """Does ``query`` follow from ``rules`` and ``facts``?"""

    rules: tuple[Rule, ...]
    facts: tuple[Symbol, ...]
    query: Symbol

    def __post_init__(self) -> None:
        _expect("Problem.rules", self.rules, _is_tuple(self.rules, Rule), "a tuple of Rule")
        _expect("Problem.facts", self.facts, _is_tuple(self.facts), "a tuple of symbols")

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Every symbol once, in the order of its first appearance."""
        in_rules = (symbol for rule in self.rules for symbol in (*rule.body, rule.head))
        return _distinct((*in_rules, *self.facts, self.query))


@dataclass(frozen=True)
class Step:
    """One step of a proof: ``new`` becomes known.

    The full form also says by which ``rule``, and restates in ``known`` all that was known before the step.
    """

    new: Symbol
    rule: Rule | None = None
    known: tuple[Symbol, ...] | None = None

    def __post_init__(self) -> None:
        _expect("Step.rule", self.rule, self.rule is None or isinstance(self.rule, Rule), "a Rule or None")
        _expect(
            "Step.known",
            self.known,
            self.known is None or _is_tuple(self.known),
            "a tuple of symbols or None",
        )


@dataclass(frozen=True)
class Proof:
    """A derivation and its answer: True (yes), False (no) or None (it gives none).

    In the full form each step names its rule and restates what is known, and ``known`` restates it a last
    time. In the compact form the steps are bare symbols, the given facts first, and ``known`` is None.
    """

    steps: tuple[Step, ...]
    answer: bool | None
    known: tuple[Symbol, ...] | None = None

    def __post_init__(self) -> None:
        _expect("Proof.steps", self.steps, _is_tuple(self.steps, Step), "a tuple of Step")
        _expect(
            "Proof.answer",
            self.answer,
            self.answer is None or isinstance(self.answer, bool),
            "a bool or None",
        )
        _expect(
            "Proof.known",
            self.known,
            self.known is None or _is_tuple(self.known),
            "a tuple of symbols or None",
        )

    @property
    def is_full(self) -> bool:
        """Whether any part is there that only the full form has."""
        return self.known is not None or any(s.rule is not None or s.known is not None for s in self.steps)

    def compact(self) -> Proof:
        """The same derivation as bare symbols: what is restated first, then each new fact."""
        if not self.is_full:
            return self
        given = (self.steps[0].known if self.steps else self.known) or ()
        return Proof(
            tuple(Step(symbol) for symbol in (*given, *(step.new for step in self.steps))), self.answer
        )


@dataclass(frozen=True)
class Verdict:
    """What `check_proof` found; true in a condition exactly when the proof is valid.

    Attributes
    ----------
    valid : bool
    step : int or None
        Index in ``proof.steps`` of the first wrong step, counted from 0 (in ``reason`` too); the number of
        steps when the fault lies after the last one; None for a valid proof.
    kind : str
        "" for a valid proof, else one of: "malformed" (a full proof with a part missing), "unknown_symbol"
        (not in the problem), "fact_dropped" and "fact_invented" (what is restated is not what is known),
        "invented_rule" (not in the problem), "rule_misapplied", "stopped_early" (something new could still be
        derived), "wrong_answer" (after a derivation that is complete), "no_answer".
    reason : str
        The fault in one sentence.
    symbols : tuple
        The symbols at fault: those dropped, invented, unknown or not known yet.
    """

    valid: bool
    step: int | None = None
    kind: str = ""
    reason: str = ""
    symbols: tuple[Symbol, ...] = ()

    def __bool__(self) -> bool:
        return self.valid


def closure(problem: Problem) -> set[Symbol]:
    """All that follows from the facts.

    Each rule counts the premises it still waits for, so the time is linear in the size of the rules
    (Dowling and Gallier, 1984).
    """
    waiting = [len(set(rule.body)) for rule in problem.rules]
    rules_with = defaultdict(list)
    for i, rule in enumerate(problem.rules):
        for symbol in set(rule.body):
            rules_with[symbol].append(i)
    known = set(problem.facts)
    agenda = list(known)
    while agenda:
        for i in rules_with[agenda.pop()]:
            waiting[i] -= 1
            head = problem.rules[i].head
            if waiting[i] == 0 and head not in known:
                known.add(head)
                agenda.append(head)
    return known


def entails(problem: Problem) -> bool:
    """Whether the query follows."""
    return problem.query in closure(problem)


def prove(problem: Problem, *, rng: random.Random | None = None) -> Proof:
    """Forward chaining until the query is proved or nothing new can be derived, as a full proof.

    Parameters
    ----------
    rng : random.Random, optional
        Of several rules that give something new, take any, drawn from this; without it the first in the
        problem's order.

    Returns
    -------
    Proof
        In the full form; ``prove(problem).compact()`` is the compact one.
    """
    known = dict.fromkeys(problem.facts)  # an ordered set
    steps = []
    while problem.query not in known and (rules := list(_applicable(problem, known))):
        rule = rng.choice(rules) if rng else rules[0]
        steps.append(Step(rule.head, rule, tuple(known)))
        known[rule.head] = None
    return Proof(tuple(steps), problem.query in known, tuple(known))


def expand(problem: Problem, proof: Proof) -> Proof:
    """A valid proof in the full form; for a compact one, each symbol by the first rule that gives it there.

    Raises
    ------
    ConfigError
        If the proof is not valid.
    """
    verdict = check_proof(problem, proof)
    if not verdict:
        raise ConfigError(f"proof is {verdict.kind}, but should be valid: {verdict.reason}")
    if proof.is_full:
        return proof
    known = dict.fromkeys(problem.facts)
    steps = []
    for new in (step.new for step in proof.steps):
        if new not in known:
            rule = next(rule for rule in _applicable(problem, known) if rule.head == new)
            steps.append(Step(new, rule, tuple(known)))
            known[new] = None
    return Proof(tuple(steps), proof.answer, tuple(known))


def check_proof(problem: Problem, proof: Proof) -> Verdict:
    """Whether a proof, compact or full, is valid; if not, where it first goes wrong and why.

    Any valid proof is accepted: rules in any order, facts restated in any order or twice, premises in any
    order, steps that repeat what is known, steps beyond the query. The answer yes needs the query derived,
    the answer no needs that nothing new can be derived. A full proof restates exactly what is known at each
    step; a compact proof states every given fact before its answer, and uses none before it is stated.
    """
    known: set[Symbol] = set(problem.facts) if proof.is_full else set()
    check_step = _check_full_step if proof.is_full else _check_compact_step
    for i, step in enumerate(proof.steps):
        fault = check_step(problem, step, known, i)
        if fault is not None:
            return fault
        known.add(step.new)
    return _check_end(problem, proof, known)


def _check_full_step(problem: Problem, step: Step, known: set[Symbol], i: int) -> Verdict | None:
    rule = step.rule
    if rule is None or step.known is None:
        return Verdict(
            False, i, "malformed", f"step {i} does not give both its rule and the facts known before it"
        )
    fault = _check_restated(problem, step.known, known, i)
    if fault is not None:
        return fault
    unknown = _without((*rule.body, rule.head, step.new), problem.symbols)
    if unknown:
        return _unknown_symbol(i, unknown)
    if not any(rule.head == other.head and set(rule.body) == set(other.body) for other in problem.rules):
        return Verdict(
            False, i, "invented_rule", f"step {i} uses `{rule}`, which is not a rule of the problem"
        )
    missing = _without(rule.body, known)
    if missing:
        reason = f"step {i} uses `{rule}`, but {_are(missing)} not known yet"
        return Verdict(False, i, "rule_misapplied", reason, missing)
    if step.new != rule.head:
        reason = f"step {i} concludes {step.new} from `{rule}`, which gives {rule.head}"
        return Verdict(False, i, "rule_misapplied", reason, (step.new,))
    return None


def _check_compact_step(problem: Problem, step: Step, known: set[Symbol], i: int) -> Verdict | None:
    new = step.new
    if new in known or new in problem.facts:
        return None
    if new not in problem.symbols:
        return _unknown_symbol(i, (new,))
    rules = [rule for rule in problem.rules if rule.head == new]
    if not rules:
        reason = f"step {i} writes {new}, which is neither a given fact nor the conclusion of any rule"
        return Verdict(False, i, "rule_misapplied", reason, (new,))
    rule = min(rules, key=lambda rule: len(_without(rule.body, known)))
    if not _without(rule.body, known):
        return None
    # Had all given facts been stated, would the step be right? Then leaving them out is the fault.
    would_do = next((rule for rule in rules if not _without(rule.body, known.union(problem.facts))), None)
    if would_do is not None:
        missing = _without(would_do.body, known)
        reason = (
            f"step {i} needs {_listed(missing)} for `{would_do}`, a given fact that was not stated before it"
        )
        return Verdict(False, i, "fact_dropped", reason, missing)
    missing = _without(rule.body, known)
    reason = f"step {i} writes {new}, but for `{rule}` {_are(missing)} not known yet"
    return Verdict(False, i, "rule_misapplied", reason, missing)


def _check_restated(
    problem: Problem, restated: tuple[Symbol, ...], known: set[Symbol], i: int
) -> Verdict | None:
    unknown = _without(restated, problem.symbols)
    if unknown:
        return _unknown_symbol(i, unknown)
    dropped = _without((s for s in problem.symbols if s in known), restated)
    if dropped:
        reason = f"the facts restated at step {i} leave out {_listed(dropped)}"
        return Verdict(False, i, "fact_dropped", reason, dropped)
    invented = _without(restated, known)
    if invented:
        reason = f"the facts restated at step {i} include {_listed(invented)}, which nothing has shown"
        return Verdict(False, i, "fact_invented", reason, invented)
    return None


def _check_end(problem: Problem, proof: Proof, known: set[Symbol]) -> Verdict:
    end = len(proof.steps)
    if proof.known is not None:
        fault = _check_restated(problem, proof.known, known, end)
        if fault is not None:
            return fault
    if proof.answer is None:
        return Verdict(False, end, "no_answer", "the proof gives no answer")
    if proof.is_full and proof.known is None:
        return Verdict(False, end, "malformed", "the proof does not restate the facts before its answer")
    dropped = _without(problem.facts, known)
    if dropped:
        return Verdict(
            False, end, "fact_dropped", f"the proof never states the given {_listed(dropped)}", dropped
        )
    answer, query, proved = ("yes" if proof.answer else "no"), problem.query, problem.query in known
    if proved and proof.answer:
        return Verdict(True)
    if proved:
        return Verdict(False, end, "wrong_answer", f"the answer is no, but {query} is proved", (query,))
    rule = next(_applicable(problem, known), None)
    if rule is not None:
        reason = f"the answer is {answer} while {query} is not derived and `{rule}` still gives something new"
        return Verdict(False, end, "stopped_early", reason, (rule.head,))
    if proof.answer:
        reason = f"the answer is yes, but {query} was not derived and nothing new can be"
        return Verdict(False, end, "wrong_answer", reason, (query,))
    return Verdict(True)


def _applicable(problem: Problem, known: Collection[Symbol]) -> Iterator[Rule]:
    """The rules that give something new, in the problem's order."""
    return (rule for rule in problem.rules if rule.head not in known and all(s in known for s in rule.body))


def _unknown_symbol(i: int, symbols: tuple[Symbol, ...]) -> Verdict:
    reason = f"step {i} writes {_listed(symbols)}, which the problem does not mention"
    return Verdict(False, i, "unknown_symbol", reason, symbols)


def _distinct(symbols: Iterable[Symbol]) -> tuple[Symbol, ...]:
    return tuple(dict.fromkeys(symbols))


def _without(symbols: Iterable[Symbol], others: Collection[Symbol]) -> tuple[Symbol, ...]:
    return _distinct(symbol for symbol in symbols if symbol not in others)


def _listed(symbols: Iterable[Symbol]) -> str:
    return " ".join(str(symbol) for symbol in symbols)


def _are(symbols: tuple[Symbol, ...]) -> str:
    return f"{_listed(symbols)} {'is' if len(symbols) == 1 else 'are'}"


def _is_tuple(value: object, kind: type = object) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)


def _expect(field: str, value: object, fits: bool, wanted: str) -> None:
    if not fits:
        raise ConfigError(f"{field} is {value!r}, but should be {wanted}")
