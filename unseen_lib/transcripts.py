"""What a model wrote, read beside what could have stood there: the first mistake in a proof and its name.

A text goes wrong at its first word that no valid proof can have there. `continuations` says which words can,
for any valid proof and not only the one that training would show, so the place of a mistake is exact. The
name of the mistake (`ERRORS`) then depends on that word and on what was due instead.
"""

from __future__ import annotations

import html
import textwrap
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import dropwhile, islice, takewhile

from unseen_lib.errors import ParseError
from unseen_lib.language import CONTROL_WORDS, EOS, NO, YES, read_problem, read_proof
from unseen_lib.logic import Problem, Rule, Symbol, Verdict, check_proof, entails
from unseen_lib.vocabulary import Vocabulary

#: Every name of a mistake, and what it means.
ERRORS: dict[str, str] = {
    "fact_dropped": "a known fact is left out, and the text goes on as if it had been written",
    "symbol_replaced": "a name of training stands where an unseen name was due",
    "fact_invented": "a name stands among the known facts that nothing has shown",
    "invented_rule": "a rule that the problem does not have (compact: a name that no rule gives)",
    "rule_misapplied": "a rule of the problem, but a premise is not known or the conclusion is another",
    "stopped_early": "an answer while the query is not derived and something new can be",
    "wrong_answer": "the derivation is right and complete, and the answer contradicts it",
    "no_answer": "the text ends, or runs out of room, before an answer",
    "malformed": "a word that no proof can have in this place, or no end after the answer",
}
# One first wrong word can fit several only where a name stands in the place of another: then the first of
# fact_dropped, symbol_replaced and the others.


@dataclass(frozen=True)
class Mistake:
    """The first mistake of a completion.

    Attributes
    ----------
    error : str
        Its name, one of `ERRORS`.
    position : int
        Index in the completion of the first wrong word; the number of words if the text ends too early.
    expected : str
        The word that forward chaining, first rule first, would have written there.
    """

    error: str
    position: int
    expected: str


@dataclass(frozen=True)
class Transcript:
    """A problem and what a model wrote under it. ``str()`` marks the first wrong word, as does a notebook.

    Attributes
    ----------
    problem : Problem
    prompt, completion : tuple of str
        The words given and the words written, the latter up to ``<eos>`` if it came.
    verdict : Verdict
        What `.logic.check_proof` says of the proof, as far as it can be read.
    mistake : Mistake or None
        None exactly when the completion is a valid proof.
    vocabulary : Vocabulary
        Tells which words are names that training never used.
    """

    problem: Problem
    prompt: tuple[str, ...]
    completion: tuple[str, ...]
    verdict: Verdict
    mistake: Mistake | None
    vocabulary: Vocabulary

    @property
    def valid(self) -> bool:
        """Whether the completion is a valid proof from its first word to ``<eos>``."""
        return self.mistake is None

    @property
    def error(self) -> str | None:
        """The name of the first mistake, one of `ERRORS`, or None."""
        return None if self.mistake is None else self.mistake.error

    @property
    def answer(self) -> bool | None:
        """The first yes (True) or no (False) in the completion, whatever surrounds it; None without one."""
        return next((word == YES for word in self.completion if word in (YES, NO)), None)

    @property
    def provable(self) -> bool:
        """Whether the query follows."""
        return entails(self.problem)

    def __str__(self) -> str:
        written = self._marked(self.completion, ">>{}<<")
        parts = (" ".join(self.prompt), ""), (" ".join(written), "    "), (f"= {self._summary()}", "    ")
        return "\n".join(textwrap.fill(text, 100, initial_indent=i, subsequent_indent=i) for text, i in parts)

    def _repr_html_(self) -> str:
        """The same for notebooks and pages; what the classes look like is the style sheet's business."""
        prompt = [self._span(word) for word in self.prompt]
        written = self._marked(
            [self._span(word) for word in self.completion], '<strong class="first-error">▸{}◂</strong>'
        )
        summary = f'<span class="quiet">= {html.escape(self._summary())}</span>'
        return f'<pre class="proof">{" ".join(prompt)}\n{" ".join(written)}\n{summary}</pre>'

    def _marked(self, words: Sequence[str], mark: str) -> list[str]:
        """The words, the first wrong one put into the mark."""
        marked = list(words)
        if self.mistake is not None:
            i = self.mistake.position
            marked[i : i + 1] = [mark.format(marked[i] if i < len(marked) else "(end)")]
        return marked

    def _span(self, word: str) -> str:
        if word in CONTROL_WORDS[self.vocabulary.format]:
            kind = "quiet"
        else:
            kind = "unseen" if self.vocabulary.is_unseen(word) else "seen"
        return f'<span class="{kind}">{html.escape(word)}</span>'

    def _summary(self) -> str:
        if self.mistake is None:
            return "valid proof"
        return f"{self.mistake.error}: {self.mistake.expected} was due; {self.verdict.reason}"


def read_transcript(prompt: Sequence[str], completion: Sequence[str], vocabulary: Vocabulary) -> Transcript:
    """Read what a model wrote under a prompt; words after the first ``<eos>`` do not count.

    Raises
    ------
    ParseError
        If the prompt is not a problem; a completion may be any list of words.
    """
    problem = read_problem(prompt, vocabulary.format)
    written = tuple(completion)
    if EOS in written:
        written = written[: written.index(EOS) + 1]
    verdict = _verdict(problem, written, vocabulary.format)
    mistake = None if verdict else find_mistake(problem, written, vocabulary)
    return Transcript(problem, tuple(prompt), written, verdict, mistake, vocabulary)


def find_mistake(problem: Problem, completion: Sequence[str], vocabulary: Vocabulary) -> Mistake | None:
    """The first mistake of a completion, or None if it is a valid proof up to its ``<eos>``."""
    reader = _READERS[vocabulary.format](problem)
    for i in range(len(completion) + 1):
        due = reader.due()
        if i == len(completion) or completion[i] not in due:
            return Mistake(reader.blame(completion, i, due[0], vocabulary), i, str(due[0]))
        if completion[i] == EOS:
            break
        reader.read(completion[i])
    return None


def continuations(problem: Problem, words: Iterable[str], format: str) -> list[str]:
    """The words that a valid proof can have after these, first the one that forward chaining would write.

    Empty when the words are not the beginning of a valid proof, or are a whole one.
    """
    reader = _READERS[format](problem)
    for word in words:
        if word == EOS or word not in reader.due():
            return []
        reader.read(word)
    return [str(word) for word in reader.due()]


def _verdict(problem: Problem, words: Sequence[str], format: str) -> Verdict:
    try:
        return check_proof(problem, read_proof(words, format))
    except ParseError as error:
        assert error.partial is not None  # read_proof always says how far it came
        verdict = check_proof(problem, error.partial)
        if verdict or verdict.kind in ("no_answer", "malformed"):
            return Verdict(False, len(error.partial.steps), "malformed", str(error))
        return verdict  # it was wrong before it could no longer be read


class _CompactReader:
    """Reads a compact proof; knows at each word which ones a valid proof can have there."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.known: dict[Symbol, None] = {}  # an ordered set
        self.answered = False

    def read(self, word: str) -> None:
        if word in (YES, NO):
            self.answered = True
        else:
            self.known[word] = None

    def due(self) -> list[Symbol]:
        if self.answered:
            return [EOS]
        new = self._new()
        answers = [YES] if self.problem.query in self.known else [] if new else [NO]
        if _without(self.problem.facts, self.known):
            answers = []
        return [*answers, *new, *self.known]  # what is known may be repeated

    def _new(self) -> list[Symbol]:
        heads = (rule.head for rule in _applicable(self.problem, self.known))
        return _without((*self.problem.facts, *heads), self.known)

    def blame(self, words: Sequence[str], i: int, expected: Symbol, vocabulary: Vocabulary) -> str:
        word = words[i] if i < len(words) else EOS
        due_facts = _without(self.problem.facts, self.known)
        if word == EOS and not self.answered:
            return "no_answer"
        if word in (YES, NO) and not self.answered:
            if due_facts:
                return "fact_dropped"
            return "wrong_answer" if expected in (YES, NO) else "stopped_early"
        if word in CONTROL_WORDS["compact"] or self.answered:
            return "malformed"
        rules = [rule for rule in self.problem.rules if rule.head == word]
        could_be_known = {*self.known, *self._new()}
        if any(could_be_known.issuperset(rule.body) for rule in rules):
            return "fact_dropped"
        if _replaced(word, expected, vocabulary):
            return "symbol_replaced"
        if due_facts:
            return "fact_invented"
        return "rule_misapplied" if rules else "invented_rule"


class _FullReader:
    """The same for a full proof, always in some part of it: a control word and the names that follow it."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.known: dict[Symbol, None] = dict.fromkeys(problem.facts)  # an ordered set
        self.part = ""
        self.names: dict[Symbol, None] = {}
        self.body: set[Symbol] = set()
        self.head: Symbol = ""

    def read(self, word: str) -> None:
        if word not in CONTROL_WORDS["full"]:
            self.names[word] = None
            return
        if word == "then":
            self.body = set(self.names)
        elif word == "EndIf":
            (self.head,) = self.names
        elif word == "EndNewfact":
            self.known[self.head] = None
        self.part, self.names = word, {}

    def due(self) -> list[Symbol]:
        query_known = self.problem.query in self.known
        match self.part:
            case "Facts:":
                return [*(_without(self.known, self.names) or ["EndFacts"]), *self.names]
            case "EndFacts":
                rules = self._rules()
                done = query_known or all(rule.head in self.known for rule in rules)
                return [*["EndReasoning"] * done, *["If"] * bool(rules)]
            case "If":
                fitting = [rule for rule in self._rules() if self.names.keys() <= set(rule.body)]
                return [
                    *(word for rule in fitting for word in _without(rule.body, self.names) or ["then"]),
                    *self.names,
                ]
            case "then" if not self.names:
                return [rule.head for rule in self._rules() if set(rule.body) == self.body]
            case "Newfact" if not self.names:
                return [self.head]
            case "Answer:":
                return [YES if query_known else NO]
        return [_NEXT_PART[self.part]]

    def _rules(self) -> list[Rule]:
        """Those that apply, first the ones that give something new."""
        return sorted(_applicable(self.problem, self.known), key=lambda rule: rule.head in self.known)

    def blame(self, words: Sequence[str], i: int, expected: Symbol, vocabulary: Vocabulary) -> str:
        word = words[i] if i < len(words) else EOS
        match self.part, word:
            case _, "<eos>":
                return "malformed" if self.part in (YES, NO, "EndAnswer") else "no_answer"
            case "Facts:", "EndFacts":
                return "fact_dropped"
            case "EndFacts", "EndReasoning":
                return "stopped_early"
            case "Answer:", "yes" | "no":
                return "wrong_answer"
            case ("EndFacts", "If") | ("If", "then"):
                return self._blame_rule(words, i)
        name_due = self.part in ("Facts:", "If") or (self.part in ("then", "Newfact") and not self.names)
        if word in CONTROL_WORDS["full"] or not name_due:
            return "malformed"
        if _replaced(word, expected, vocabulary):
            return "symbol_replaced"
        if self.part in ("If", "then"):
            return self._blame_rule(words, i)
        return "fact_invented" if self.part == "Facts:" else "rule_misapplied"

    def _blame_rule(self, words: Sequence[str], i: int) -> str:
        """Is the rule around word i, as far as it is written, one of the problem's?"""
        start = max(j for j in range(i + 1) if words[j] == "If") + 1
        body = set(takewhile(_is_name, words[start:]))
        after = list(islice(dropwhile(_is_name, words[start:]), 2))
        if not body:
            return "malformed"
        if after[:1] == ["then"] and _is_name(after[-1]):
            known = any(rule.head == after[1] and set(rule.body) == body for rule in self.problem.rules)
        else:  # it breaks off in its body
            known = any(set(rule.body) >= body for rule in self.problem.rules)
        return "rule_misapplied" if known else "invented_rule"


_READERS: dict[str, type[_CompactReader] | type[_FullReader]] = {
    "compact": _CompactReader,
    "full": _FullReader,
}
_NEXT_PART = {  # of the full format, where there is no choice
    **{"": "Facts:", "then": "EndIf", "EndIf": "Newfact", "Newfact": "EndNewfact", "EndNewfact": "Facts:"},
    **{"EndReasoning": "Answer:", YES: "EndAnswer", NO: "EndAnswer", "EndAnswer": EOS},
}


def _applicable(problem: Problem, known: Collection[Symbol]) -> list[Rule]:
    return [rule for rule in problem.rules if all(premise in known for premise in rule.body)]


def _without(symbols: Iterable[Symbol], others: Collection[Symbol]) -> list[Symbol]:
    """Each once, in their order."""
    return [symbol for symbol in dict.fromkeys(symbols) if symbol not in others]


def _replaced(word: str, expected: Symbol, vocabulary: Vocabulary) -> bool:
    return vocabulary.is_unseen(str(expected)) and not vocabulary.is_unseen(word)


def _is_name(word: str) -> bool:
    return word not in CONTROL_WORDS["full"]
