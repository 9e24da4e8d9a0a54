"""How problems and proofs are written as words, and read back.

Two formats. The full one delimits everything, as the paper does; the compact one leaves out what a reader
can do without, so a small model learns it in a minute. Both texts below say the same::

    compact   <bos> Rules: A B then C B then A Facts: B Query: C Reasoning:
              B A C yes <eos>

    full      <bos> Rules: If A B then C EndIf If B then A EndIf EndRules
              Facts: B EndFacts Query: C EndQuery Reasoning:
              Facts: B EndFacts If B then A EndIf Newfact A EndNewfact
              Facts: B A EndFacts If A B then C EndIf Newfact C EndNewfact
              Facts: B A C EndFacts EndReasoning Answer: yes EndAnswer <eos>

Every symbol is one word, and every word that is not a control word of the format is a symbol.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NoReturn

from unseen_lib.errors import ConfigError, ParseError
from unseen_lib.logic import Problem, Proof, Rule, Step, Symbol, expand

#: The two ways of writing a problem and its proof.
FORMATS = ("compact", "full")
PAD, BOS, EOS = "<pad>", "<bos>", "<eos>"
YES, NO = "yes", "no"
#: The words of each format that are no names.
CONTROL_WORDS: dict[str, tuple[str, ...]] = {
    "compact": (PAD, BOS, EOS, "Rules:", "then", "Facts:", "Query:", "Reasoning:", YES, NO),
    "full": (
        *(
            PAD,
            BOS,
            EOS,
            "Rules:",
            "If",
            "then",
            "EndIf",
            "EndRules",
            "Facts:",
            "EndFacts",
            "Query:",
            "EndQuery",
        ),
        *("Reasoning:", "Newfact", "EndNewfact", "EndReasoning", "Answer:", YES, NO, "EndAnswer"),
    ),
}


def write_problem(problem: Problem, format: str) -> list[str]:
    """The prompt: the words of a problem, from ``<bos>`` to ``Reasoning:``.

    Raises
    ------
    ConfigError
        If the format is unknown, or a symbol is not one word (no string, a space in it, a control word).
    """
    _check_format(format)
    _check_names(problem.symbols, format)
    rules = [word for rule in problem.rules for word in _rule_words(rule, format)]
    facts, query = _words(problem.facts), _words([problem.query])
    if format == "compact":
        return [BOS, "Rules:", *rules, "Facts:", *facts, "Query:", *query, "Reasoning:"]
    return [
        BOS,
        "Rules:",
        *rules,
        "EndRules",
        *_facts_words(facts),
        "Query:",
        *query,
        "EndQuery",
        "Reasoning:",
    ]


def write_proof(problem: Problem, proof: Proof, format: str) -> list[str]:
    """The completion: the words of a proof, up to ``<eos>``; without an answer where the proof gives none.

    Either form of a proof can be written in either format: the full format expands a compact one.

    Raises
    ------
    ConfigError
        As for `write_problem`; also if a full proof misses a part, or the compact one to expand is not valid.
    """
    _check_format(format)
    if format == "compact":
        steps = [step.new for step in proof.compact().steps]
        _check_names(steps, format)
        return [*_words(steps), *_answer_words(proof, format), EOS]
    if not proof.is_full:
        proof = expand(problem, proof)
    words = []
    for step in proof.steps:
        if step.rule is None or step.known is None:
            raise ConfigError(
                f"proof has the step {step}, but in the full form a step has its rule and known facts"
            )
        _check_names((*step.known, *step.rule.body, step.rule.head, step.new), format)
        words += [*_facts_words(step.known), *_rule_words(step.rule, format)]
        words += ["Newfact", *_words([step.new]), "EndNewfact"]
    if proof.known is None:
        raise ConfigError("proof.known is None, but in the full form the known facts are restated at the end")
    _check_names(proof.known, format)
    return [*words, *_facts_words(proof.known), "EndReasoning", *_answer_words(proof, format), EOS]


def read_problem(words: str | Sequence[str], format: str) -> Problem:
    """The problem that a prompt states (a string is split at spaces).

    Raises
    ------
    ParseError
        If the words, less any ``<pad>`` at the end, are not a problem of this format; ``position`` is the
        first word that does not fit.
    """
    reader = _Reader(words, format)
    rules = []
    reader.expect(BOS)
    reader.expect("Rules:")
    after_rules = "Facts:" if format == "compact" else "EndRules"
    while not reader.skip(after_rules):
        rules.append(reader.rule(instead=after_rules))
    if format == "compact":
        facts = reader.names_until("Query:")
    else:
        facts = reader.facts()
        reader.expect("Query:")
    query = reader.name()
    if format == "full":
        reader.expect("EndQuery")
    reader.expect("Reasoning:")
    reader.end()
    return Problem(tuple(rules), facts, query)


def read_proof(words: str | Sequence[str], format: str) -> Proof:
    """The proof that a completion states, whether valid or not (see `.logic.check_proof`).

    Raises
    ------
    ParseError
        If the words, less any ``<pad>`` at the end, are not a proof of this format; ``position`` is the first
        word that does not fit, and ``partial`` is the proof as far as it could be read.
    """
    reader = _Reader(words, format)
    steps: list[Step] = []
    known, answer = None, None
    try:
        if format == "compact":
            while reader.at_name():
                steps.append(Step(reader.name()))
        else:
            known = reader.facts()
            while not reader.skip("EndReasoning"):
                rule = reader.rule(instead="EndReasoning")
                reader.expect("Newfact")
                new = reader.name()
                reader.expect("EndNewfact")
                steps.append(Step(new, rule, known))
                known = None
                known = reader.facts()
        answer = reader.answer()
        reader.expect(EOS)
        reader.end()
    except ParseError as error:
        error.partial = Proof(tuple(steps), answer, known)
        raise
    return Proof(tuple(steps), answer, known)


class _Reader:
    """A cursor over words; each method reads one part or raises a ParseError that says what was expected."""

    def __init__(self, words: str | Sequence[str], format: str) -> None:
        _check_format(format)
        self.words = words.split() if isinstance(words, str) else list(words)
        self.format = format
        self.position = 0

    def fail(self, expected: str) -> NoReturn:
        if self.position < len(self.words):
            found = f"word {self.position} is {self.words[self.position]!r}"
        else:
            found = f"the text ends after {len(self.words)} words"
        raise ParseError(f"{found}, where {expected} was expected", self.position)

    def at(self, word: str) -> bool:
        return self.position < len(self.words) and self.words[self.position] == word

    def at_name(self) -> bool:
        return self.position < len(self.words) and _is_name(self.words[self.position], self.format)

    def skip(self, word: str) -> bool:
        found = self.at(word)
        self.position += found
        return found

    def expect(self, word: str) -> None:
        if not self.skip(word):
            self.fail(repr(word))

    def name(self, instead: str = "") -> str:
        if not self.at_name():
            self.fail(f"a symbol or {instead!r}" if instead else "a symbol")
        self.position += 1
        return self.words[self.position - 1]

    def names_until(self, end: str) -> tuple[str, ...]:
        names = []
        while not self.skip(end):
            names.append(self.name(instead=end))
        return tuple(names)

    def facts(self) -> tuple[str, ...]:
        self.expect("Facts:")
        return self.names_until("EndFacts")

    def rule(self, instead: str) -> Rule:
        if self.format == "compact":
            body = (self.name(instead), *self.names_until("then"))
            return Rule(body, self.name())
        if not self.skip("If"):
            self.fail(f"'If' or {instead!r}")
        body = (self.name(), *self.names_until("then"))
        rule = Rule(body, self.name())
        self.expect("EndIf")
        return rule

    def answer(self) -> bool | None:
        if self.at(EOS):
            return None
        if self.format == "full":
            self.expect("Answer:")
        answer = self.at(YES)
        if not (self.skip(YES) or self.skip(NO)):
            self.fail("a symbol, 'yes' or 'no'" if self.format == "compact" else "'yes' or 'no'")
        if self.format == "full":
            self.expect("EndAnswer")
        return answer

    def end(self) -> None:
        while self.skip(PAD):
            pass
        if self.position < len(self.words):
            self.fail("the end of the text")


def _rule_words(rule: Rule, format: str) -> list[str]:
    words = [*_words(rule.body), "then", *_words([rule.head])]
    return words if format == "compact" else ["If", *words, "EndIf"]


def _facts_words(facts: Iterable[Symbol]) -> list[str]:
    return ["Facts:", *_words(facts), "EndFacts"]


def _answer_words(proof: Proof, format: str) -> list[str]:
    if proof.answer is None:
        return []
    answer = YES if proof.answer else NO
    return [answer] if format == "compact" else ["Answer:", answer, "EndAnswer"]


def _words(symbols: Iterable[Symbol]) -> list[str]:
    return [str(symbol) for symbol in symbols]


def _is_name(word: Symbol, format: str) -> bool:
    return isinstance(word, str) and word.split() == [word] and word not in CONTROL_WORDS[format]


def _check_names(symbols: Iterable[Symbol], format: str) -> None:
    for symbol in symbols:
        if not _is_name(symbol, format):
            raise ConfigError(f"symbol is {symbol!r}, but should be one word that is not a control word")


def _check_format(format: str) -> None:
    if format not in FORMATS:
        raise ConfigError(f"format is {format!r}, but should be one of {', '.join(FORMATS)}")
