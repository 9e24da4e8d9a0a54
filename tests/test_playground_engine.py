"""The code of the playground against the library: both get the same problems, proofs, texts and weights.

Nothing is typed in that the library could say: test vectors are drawn here, and compared with what the files
of the built site answer in Chromium.
"""

import base64
import json
import random
import re
from collections import Counter
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Browser, Page
from safetensors.torch import save
from scipy.stats import chi2_contingency

from tests.conftest import needed
from tests.test_logic import problem_of as small_problem
from unseen_lib.collapse import measure_rows
from unseen_lib.errors import ParseError
from unseen_lib.evaluation import generate
from unseen_lib.export import Exported, import_model
from unseen_lib.language import CONTROL_WORDS, EOS, NO, YES, read_proof, write_problem, write_proof
from unseen_lib.logic import Problem, Proof, Rule, Step, check_proof, closure, prove
from unseen_lib.problems import SCENARIOS, Task, problem_of, sample_batch
from unseen_lib.transcripts import ERRORS, continuations, read_transcript
from unseen_lib.vocabulary import Vocabulary

SCRIPTS = ("engine.js", "logic.js", "language.js", "problems.js")
BLANK = "<!doctype html><meta charset=utf-8><title>engine</title>" + "".join(
    f'<script src="_static/playground/{script}"></script>' for script in (*SCRIPTS, "models/manifest.js")
)
PROBLEMS = 200
TASK = Task("chain", "compact")


@pytest.fixture(scope="module")
def folder(site: Path) -> Path:
    """Where the site keeps the engine; its models are in ``models`` below."""
    folder = site / "_static" / "playground"
    needed((folder / "models" / "manifest.js").exists(), "the book was built without a playground")
    return folder


@pytest.fixture(scope="module")
def page(folder: Path, address: str, browser: Browser) -> Iterator[Page]:
    """A page with the engine and nothing else."""
    page = browser.new_page()
    page.route("**/blank.html", lambda route: route.fulfill(body=BLANK, content_type="text/html"))
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(address + "blank.html")
    yield page
    assert errors == []
    page.close()


@pytest.fixture(scope="module")
def manifest(page: Page) -> dict[str, Any]:
    return page.evaluate("unseen.manifest")


@pytest.fixture(scope="module")
def vocabulary(manifest: dict[str, Any]) -> Vocabulary:
    return Vocabulary("compact", manifest["vocabulary"]["seen"], manifest["vocabulary"]["unseen"])


@pytest.fixture(autouse=True)
def in_vocabulary(page: Page) -> None:
    page.evaluate("() => { globalThis.vocabulary = unseen.vocabulary(unseen.manifest.vocabulary); }")


# ---------------------------------------------------------------------------------- between the two languages
def as_json(problem: Problem) -> dict[str, Any]:
    rules = [{"body": list(rule.body), "head": rule.head} for rule in problem.rules]
    return {"rules": rules, "facts": list(problem.facts), "query": problem.query}


def proof_json(proof: Proof) -> dict[str, Any]:
    return {"steps": [step.new for step in proof.steps], "answer": proof.answer}


def from_json(problem: dict[str, Any]) -> Problem:
    rules = tuple(Rule(tuple(rule["body"]), rule["head"]) for rule in problem["rules"])
    return Problem(rules, tuple(problem["facts"]), problem["query"])


def verdict_json(verdict: Any) -> dict[str, Any]:
    return {
        "valid": verdict.valid,
        "step": verdict.step,
        "kind": verdict.kind,
        "reason": verdict.reason,
        "symbols": list(verdict.symbols),
    }


# ----------------------------------------------------------------------------------------------- test vectors
def random_problem(rng: random.Random, words: list[str]) -> Problem:
    """Up to three premises (the same one twice at times), cycles, no rules, facts twice, no facts."""
    symbols = rng.sample(words, rng.randint(1, 8))
    rules = tuple(
        Rule(tuple(rng.choices(symbols, k=rng.randint(1, 3))), rng.choice(symbols))
        for _ in range(rng.randint(0, 2 * len(symbols)))
    )
    return Problem(rules, tuple(rng.choices(symbols, k=rng.randint(0, 3))), rng.choice(symbols))


def spoiled(words: list[str], others: list[str], rng: random.Random) -> list[str]:
    """A completion with one or two random edits; `others` is what may be written in."""
    words = list(words)
    for _ in range(rng.randint(1, 2)):
        i = rng.randrange(len(words) + 1)
        match rng.randrange(5):
            case 0:
                words[i : i + 1] = []
            case 1:
                words.insert(i, rng.choice(others))
            case 2:
                words[i : i + 1] = [rng.choice(others)]
            case 3:
                del words[i:]
            case 4:
                words = [{YES: NO, NO: YES}.get(word, word) for word in words]
    return words


def vectors(vocabulary: Vocabulary, count: int) -> list[tuple[Problem, list[str]]]:
    """Problems with completions under them: a valid one, and spoiled ones."""
    rng = random.Random(2026)
    seen = [vocabulary.words[i] for i in vocabulary.seen_ids]
    unseen = [vocabulary.words[i] for i in vocabulary.unseen_ids]
    found = []
    for i in range(count):
        if i % 2:
            scenario = SCENARIOS[i // 2 % 3]
            batch = sample_batch(TASK, vocabulary, batch_size=1, seed=5, index=i, scenario=scenario)
            problem = problem_of(batch, 0, vocabulary)
        else:
            problem = random_problem(rng, rng.sample(seen, 6) + rng.sample(unseen, 6))
        words = write_proof(problem, prove(problem, rng=rng), "compact")
        others = [*problem.symbols, *problem.symbols, *rng.sample(seen, 2), *rng.sample(unseen, 1)]
        others += [YES, NO, EOS, rng.choice(CONTROL_WORDS["compact"])]
        found.append((problem, words))
        found += [(problem, spoiled(words, others, rng)) for _ in range(4)]
    return found


# -------------------------------------------------------------------------------------------- words and logic
def test_the_vocabulary_is_the_librarys(page: Page, vocabulary: Vocabulary) -> None:
    found = page.evaluate(
        """() => ({
          control: unseen.CONTROL_WORDS,
          words: unseen.manifest.vocabulary.words,
          errors: unseen.manifest.errors,
          ids: vocabulary.encode(vocabulary.words),
          back: vocabulary.decode(vocabulary.words.map((_, i) => i)),
          isUnseen: vocabulary.words.map(vocabulary.isUnseen),
          isSeen: vocabulary.words.map(vocabulary.isSeen),
          isControl: vocabulary.words.map(vocabulary.isControl),
          seen: vocabulary.seenWords, unseen: vocabulary.unseenWords,
          stranger: [vocabulary.isUnseen("stranger"), vocabulary.isSeen("stranger")]})"""
    )
    words = vocabulary.words
    assert found["control"] == list(CONTROL_WORDS["compact"])
    assert found["words"] == found["back"] == list(words)
    assert found["ids"] == vocabulary.encode(words)
    assert found["isUnseen"] == [vocabulary.is_unseen(word) for word in words]
    assert found["isSeen"] == [i in vocabulary.seen_ids for i in range(len(words))]
    assert found["isControl"] == [i in vocabulary.control_ids for i in range(len(words))]
    assert found["seen"] == [words[i] for i in vocabulary.seen_ids]
    assert found["unseen"] == [words[i] for i in vocabulary.unseen_ids]
    assert found["stranger"] == [False, False]
    assert found["errors"] == ERRORS
    with pytest.raises(Exception, match="“stranger” is not among the model"):
        page.evaluate("vocabulary.encode(['stranger'])")


def test_logic_agrees(page: Page, vocabulary: Vocabulary) -> None:
    problems = [problem for problem, _ in vectors(vocabulary, 300)[::5]]
    found = page.evaluate(
        """problems => problems.map(problem => ({
          symbols: unseen.symbols(problem), closure: [...unseen.closure(problem)].sort(),
          entails: unseen.entails(problem), proof: unseen.prove(problem),
          prompt: unseen.writeProblem(problem), completion: unseen.writeProof(unseen.prove(problem)),
          open: unseen.writeProof({steps: [], answer: null}), room: unseen.longestProof(problem)}))""",
        [as_json(problem) for problem in problems],
    )
    for problem, answer in zip(problems, found, strict=True):
        proof = prove(problem)
        assert answer == {
            "symbols": list(problem.symbols),
            "closure": sorted(closure(problem)),
            "entails": problem.query in closure(problem),
            "proof": proof_json(proof.compact()),
            "prompt": write_problem(problem, "compact"),
            "completion": write_proof(problem, proof, "compact"),
            "open": [EOS],
            "room": len(problem.symbols) + 2,
        }
        assert answer["room"] >= len(answer["completion"])


def test_the_checker_agrees_on_valid_and_spoiled_proofs(page: Page, vocabulary: Vocabulary) -> None:
    cases = []
    for problem, words in vectors(vocabulary, 400):
        steps = tuple(Step(word) for word in words if word not in CONTROL_WORDS["compact"])
        answer = next((word == YES for word in words if word in (YES, NO)), None)
        cases.append((problem, Proof(steps, answer)))
    found = page.evaluate(
        "cases => cases.map(([problem, proof]) => unseen.checkProof(problem, proof))",
        [[as_json(problem), proof_json(proof)] for problem, proof in cases],
    )
    kinds = Counter()
    for (problem, proof), verdict in zip(cases, found, strict=True):
        assert verdict == verdict_json(check_proof(problem, proof)), (problem, proof)
        kinds[verdict["kind"]] += 1
    print(dict(kinds))
    expected = {
        "",
        "unknown_symbol",
        "fact_dropped",
        "rule_misapplied",
        "stopped_early",
        "wrong_answer",
        "no_answer",
    }
    assert set(kinds) == expected and min(kinds.values()) >= 20


def test_texts_are_read_alike_whatever_their_fault(page: Page, vocabulary: Vocabulary) -> None:
    cases = vectors(vocabulary, 600)
    # Texts that never end: a valid beginning, then what is known again and again.
    cases += [(problem, [*words[:-2], *words[:1] * 9]) for problem, words in cases[:100:5] if len(words) > 2]
    found = page.evaluate(
        """cases => cases.map(([problem, words]) => ({
          ...unseen.readTranscript(problem, words, vocabulary.isUnseen),
          form: unseen.readProof(words),
          due: unseen.continuations(problem, words),
          half: unseen.continuations(problem, words.slice(0, 2))}))""",
        [[as_json(problem), words] for problem, words in cases],
    )
    errors, kinds = Counter(), Counter()
    for (problem, words), answer in zip(cases, found, strict=True):
        expected = read_transcript(write_problem(problem, "compact"), words, vocabulary)
        mistake = expected.mistake
        assert answer["valid"] == expected.valid, (problem, words)
        assert answer["answer"] == expected.answer, (problem, words)
        assert answer["verdict"] == verdict_json(expected.verdict), (problem, words)
        assert answer["mistake"] == (mistake and vars(mistake)), (problem, words)
        assert answer["due"] == continuations(problem, words, "compact"), (problem, words)
        assert answer["half"] == continuations(problem, words[:2], "compact"), (problem, words)
        assert answer["form"] == form_of(words), words
        errors[expected.error] += 1
        kinds[expected.verdict.kind] += 1
    print(dict(errors), dict(kinds))
    assert set(errors) == {None, *ERRORS} and min(errors.values()) >= 10
    assert "malformed" in kinds


def form_of(words: list[str]) -> dict[str, Any]:
    try:
        return {"proof": proof_json(read_proof(words, "compact")), "error": None}
    except ParseError as error:
        assert error.partial is not None
        message = {"message": str(error), "position": error.position}
        return {"proof": proof_json(error.partial), "error": message}


# ------------------------------------------------------------------------------------------------- the reader
def test_own_names_take_unseen_rows_and_known_names_keep_theirs(page: Page, vocabulary: Vocabulary) -> None:
    seen, lent, other = vocabulary.words[20], *(vocabulary.words[i] for i in vocabulary.unseen_ids[:2])
    problem = small_problem("cat > dog, S > U, dog > bird", "cat", "bird")
    renamed = json.loads(json.dumps(as_json(problem)).replace('"S"', f'"{seen}"').replace('"U"', f'"{lent}"'))
    found = page.evaluate(
        """problem => {
          const naming = unseen.naming(problem, vocabulary);
          const names = unseen.symbols(problem);
          return {ids: naming.encode(names), back: naming.decode(naming.encode(names)), names,
                  isNew: names.map(naming.isNew), isUnseen: names.map(naming.isUnseen),
                  isSeen: names.map(naming.isSeen), control: naming.isControl("yes"),
                  again: unseen.naming(problem, vocabulary).encode(names)};
        }""",
        renamed,
    )
    assert found["names"] == found["back"] == ["cat", "dog", seen, lent, "bird"]
    assert found["again"] == found["ids"]
    assert len(set(found["ids"])) == 5
    assert found["ids"][2:4] == vocabulary.encode([seen, lent])
    assert all(found["ids"][i] in vocabulary.unseen_ids for i in (0, 1, 4))
    assert found["ids"][0] == vocabulary.encode([other])[0]
    assert found["isNew"] == [True, True, False, False, True]
    assert found["isUnseen"] == [True, True, False, True, True]
    assert found["isSeen"] == [False, False, True, False, False]
    assert found["control"] is True


def test_more_own_names_than_unseen_rows_are_refused(page: Page, vocabulary: Vocabulary) -> None:
    facts = [f"name{i}" for i in range(vocabulary.unseen + 1)]
    call = "facts => unseen.naming({rules: [], facts, query: facts[0]}, vocabulary) && 'fits'"
    assert page.evaluate(call, facts[:-1]) == "fits"
    with pytest.raises(
        Exception, match=f"{len(facts)} names of your own, but the model has only {vocabulary.unseen}"
    ):
        page.evaluate(call, facts)


def parse(page: Page, rules: str, facts: str = "a", query: str = "b") -> dict[str, Any]:
    call = "texts => unseen.parse(texts, unseen.manifest.task)"
    return page.evaluate(call, {"rules": rules, "facts": facts, "query": query})


@pytest.mark.parametrize(
    ("rules", "facts", "query", "expected"),
    [
        ("a then b", "a", "b", small_problem("a > b", "a", "b")),
        ("If a then b.\n\n b -> c ;\nc=>d", " a ", "d?", small_problem("a > b, b > c, c > d", "a", "d")),
        (
            *("if a and b then c\na, b → d\na,b, and e ⇒ f", "a,b\ne", "f"),
            small_problem("a b > c, a b > d, a b e > f", "a b e", "f"),
        ),
        ("a THEN b", "a and c", "b", small_problem("a > b", "a c", "b")),
        (
            *("Ångström then 🐱\n🐱 then O'Brien-2", "Ångström Ångström", "O'Brien-2"),
            small_problem("Ångström > 🐱, 🐱 > O'Brien-2", "Ångström", "O'Brien-2"),
        ),
    ],
)  # fmt: skip
def test_what_a_reader_writes_becomes_a_problem(page, rules, facts, query, expected):
    found = parse(page, rules, facts, query)
    assert found["errors"] == []
    assert from_json(found["problem"]) == expected
    again = parse(page, **page.evaluate("unseen.fields", found["problem"]))
    assert again == found


@pytest.mark.parametrize(
    ("rules", "facts", "query", "field", "line", "message"),
    [
        ("", "a", "b", "rules", None, "Write at least one rule"),
        ("a then b", " \n", "b", "facts", None, "Write at least one fact"),
        ("a then b", "a", " ? ", "query", None, "Write a query"),
        ("a then b\na b", "a", "b", "rules", 2, "Put “then” between"),
        ("a then b then c", "a", "b", "rules", 1, "a line of its own: “then” stands here more than once"),
        ("then b", "a", "b", "rules", 1, "a name before “then”"),
        ("if and then b", "a", "b", "rules", 1, "a name before “then”"),
        ("a then", "a", "b", "rules", 1, "a name after “then”"),
        ("a then b, c", "a", "b", "rules", 1, "A rule gives one name"),
        ("new york then b", "a", "b", "rules", 1, "if “new york” is one, write new_york"),
        ("a then new york", "a", "b", "rules", 1, "if “new york” is one, write new_york"),
        ("a then b", "a", "new york", "query", None, "if “new york” is one, write new_york"),
        ("a then Rules:", "a", "b", "rules", 1, "Choose another name than “Rules:”"),
        ("a then b", "facts", "b", "facts", 1, "Choose another name than “facts”"),
        ("a then b", "a", "YES", "query", None, "Choose another name than “YES”"),
        ("a then b", "x\n<eos>", "b", "facts", 2, "Choose another name than “<eos>”"),
        ("a then b", "a", "if", "query", None, "Choose another name than “if”"),
        ("a:b then b", "a", "b", "rules", 1, "Write “a:b” without “:”"),
        ("a then b", "a", "<img>", "query", None, "Write “<img>” without “<”"),
        ("a then b", "a" * 25, "b", "facts", 1, "a name has at most 24 letters"),
    ],
)  # fmt: skip
def test_what_does_not_fit_gets_a_sentence(page, rules, facts, query, field, line, message):
    found = parse(page, rules, facts, query)
    assert found["problem"] is None and found["warnings"] == []
    (error,) = found["errors"]
    assert (error["field"], error["line"]) == (field, line)
    assert message in error["message"]
    assert error["message"].endswith((".", "_york")), "it is a sentence"


def test_every_fault_is_told_at_once(page):
    found = parse(page, "a\nb then\nc then d", "yes", "")
    assert [(error["field"], error["line"]) for error in found["errors"]] == [
        ("rules", 1),
        ("rules", 2),
        ("facts", 1),
        ("query", None),
    ]


def test_problems_fit_exactly_as_far_as_the_model_reads(page, manifest):
    """Problem and proof less the last word, which is never read, in the context."""
    context, fits = manifest["task"]["context"], Counter()
    for count in range(1, 24):
        chain = [f"n{i}" for i in range(count + 1)]
        rules = tuple(Rule((one,), two) for one, two in pairwise(chain))
        problem = Problem(rules, (chain[0],), chain[count // 2])
        found = parse(page, **page.evaluate("unseen.fields", as_json(problem)))
        words = [*write_problem(problem, "compact"), *write_proof(problem, prove(problem), "compact")]
        assert (found["problem"] is not None) == (len(words) - 1 <= context)
        fits[found["problem"] is not None] += 1
        if found["problem"] is None:
            assert found["errors"][0]["message"].startswith(f"Problem and proof take {len(words)} words")
    assert set(fits) == {True, False}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_problems_of_training_raise_no_warning(page, vocabulary, scenario):
    batch = sample_batch(TASK, vocabulary, batch_size=200, seed=9, index=0, scenario=scenario)
    problems = [problem_of(batch, row, vocabulary) for row in range(200)]
    call = "problems => problems.map(problem => unseen.parse(unseen.fields(problem), unseen.manifest.task))"
    for problem, found in zip(problems, page.evaluate(call, [as_json(p) for p in problems]), strict=True):
        assert from_json(found["problem"]) == problem
        assert found["warnings"] == []


@pytest.mark.parametrize(
    ("problem", "warning"),
    [
        ("a b > c, c > d, x > y, y > z/a/c", "more than one name"),
        ("a > b, b > c, x > y, y > z/a x/c", "There are 2 facts"),
        ("a > b, b > c, x > y/a/c", "There are 3 rules; in training there were 4"),
        ("a > b/a/b", "There is 1 rule; in training"),
        ("a > b, b > c, x > y, y > z/a/a", "The query is a given fact"),
        ("a > b, b > c, x > y, y > z/a/q", "The query is in no rule"),
        ("a > b, b > a, x > y, y > z/a/b", "two chains"),
        ("a > b, b > c, c > d, d > e/a/c", "two chains"),
        ("a > b, a > c, x > y, y > z/a/b", "two chains"),
        ("a > c, b > c, x > y, y > z/a/c", "two chains"),
        ("a > b, x > y, u > v, v > u/a/b", "two chains"),
        ("x > y, y > z, a > b, b > c/b/c", "two chains"),
        ("a > b, b > c, b > c, x > y/a/c", "two chains"),
    ],
)  # fmt: skip
def test_what_training_never_showed_is_said(page, problem, warning):
    rules, facts, query = problem.split("/")
    found = parse(page, **page.evaluate("unseen.fields", as_json(small_problem(rules, facts, query))))
    assert found["errors"] == []
    assert any(warning in sentence for sentence in found["warnings"]), found["warnings"]


def structure_of(problem: Problem) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Length of the true chain and place of the query; and the order in which the rules stand."""
    following = {rule.body[0]: rule.head for rule in problem.rules}
    (other,) = set(following) - set(following.values()) - set(problem.facts)
    order = []
    for name in (problem.facts[0], other):
        order.append(name)
        while name in following:
            name = following[name]
            order.append(name)
    assert len(order) == len(set(order)) == 6
    places = tuple(order.index(rule.body[0]) for rule in problem.rules)
    return (order.index(other), order.index(problem.query)), tuple(sorted(range(4), key=places.__getitem__))


def test_random_problems_are_drawn_from_the_family_of_training(page, vocabulary):
    """Compared with the library's own sampler: kinds of problem, order of rules, where names come from."""
    count = 3000
    batch = sample_batch(TASK, vocabulary, batch_size=count, seed=4, index=0)
    theirs = [problem_of(batch, row, vocabulary) for row in range(count)]
    drawn = {}
    for scenario in SCENARIOS:
        call = """([names, count]) => Array.from({length: count}, (_, seed) =>
          unseen.randomProblem({task: unseen.manifest.task, vocabulary, names, seed}))"""
        drawn[scenario] = [from_json(problem) for problem in page.evaluate(call, [scenario, count])]
        for problem in drawn[scenario][:500]:
            unseen = {name for name in problem.symbols if vocabulary.is_unseen(name)}
            expected = {"seen": set(), "query_unseen": {problem.query}, "all_unseen": set(problem.symbols)}
            assert unseen == expected[scenario]
            assert len(problem.symbols) == 6
    assert drawn["seen"] == [from_json(p) for p in page.evaluate(call, ["seen", count])], (
        "a seed is a problem"
    )
    for part in (0, 1):  # kind of problem, order of rules
        ours = Counter(structure_of(problem)[part] for problem in drawn["seen"])
        library = Counter(structure_of(problem)[part] for problem in theirs)
        assert ours.keys() == library.keys()
        table = [[counts[key] for key in library] for counts in (ours, library)]
        assert chi2_contingency(table).pvalue > 1e-3, part
    names = Counter(name for problem in drawn["seen"] for name in problem.symbols)
    assert len(names) == vocabulary.seen, "every name comes up"


def test_renaming_keeps_the_problem(page):
    problem = as_json(small_problem("a b > c, c > d", "a b", "d"))
    call = "problem => unseen.rename(problem, {a: 'x', d: 'a'})"
    assert from_json(page.evaluate(call, problem)) == small_problem("x b > c, c > a", "x b", "a")


# ------------------------------------------------------------------------------------------------- the models
@dataclass
class Ran:
    """What the page wrote under each problem, with its logits (N, V) and copy weights (heads, N, T)."""

    prompts: list[list[int]]
    written: list[list[int]]
    logits: list[np.ndarray]
    copies: list[list[list[list[float]]]] | None
    milliseconds: float


RUN = """([id, prompts, room]) => {
  const model = unseen.decodeModel(unseen.delivered[id]);
  const written = [], logits = [], copies = [], times = [];
  for (const prompt of prompts) {
    const steps = [...unseen.complete(model, prompt, room)];
    written.push(steps.map(step => step.id));
    logits.push(btoa(steps.map(step => String.fromCharCode(...new Uint8Array(step.logits.buffer))).join("")));
    copies.push(steps.map(step => step.copy && step.copy.map(weights => [...weights])));
    const session = model.start();
    for (const token of prompt) {
      const began = performance.now();
      session.read(token);
      times.push(performance.now() - began);
    }
  }
  times.sort((a, b) => a - b);
  return {written, logits, copies, milliseconds: times[times.length >> 1]};
}"""


def exported(folder: Path, id: str) -> Exported:
    """What a script of the site delivers, read by the library."""
    text = (folder / "models" / f"{id}.js").read_text(encoding="utf-8")
    match = re.fullmatch(rf'unseen\.deliver\("{id}", "([\w+/=]+)"\);\n', text)
    assert match is not None
    return import_model(base64.b64decode(match[1]))


def run_in_page(page: Page, id: str, prompts: list[list[int]], room: int) -> Ran:
    page.add_script_tag(url=f"_static/playground/models/{id}.js")
    found = page.evaluate(RUN, [id, prompts, room])
    logits = [
        np.frombuffer(base64.b64decode(text), dtype="<f4").reshape(len(words), -1)
        for text, words in zip(found["logits"], found["written"], strict=True)
    ]
    copies = found["copies"] if found["copies"][0][0] is not None else None
    return Ran(prompts, found["written"], logits, copies, found["milliseconds"])


def prompts_of(vocabulary: Vocabulary) -> list[list[int]]:
    """Test problems of all three scenarios."""
    prompts = []
    for scenario in SCENARIOS:
        batch = sample_batch(
            TASK, vocabulary, batch_size=67, seed=3, index=0, scenario=scenario, stream="test"
        )
        lengths = batch.prompt_length.tolist()
        prompts += [row[:length] for row, length in zip(batch.tokens.tolist(), lengths, strict=True)]
    return prompts[:PROBLEMS]


@pytest.mark.parametrize(
    ("name", "checkpoint"), [("plain", -1), ("copy", -1), ("frozen-copy", -1), ("copy", 3)]
)
def test_the_page_computes_what_pytorch_does(page, manifest, folder, vocabulary, name, checkpoint, capsys):
    """On 200 problems: the same greedy words, the same logits and the same copy attention.

    Words are compared with those of the library as it is, in float32. Logits are compared with those of the
    same model in double precision, in which the page computes too: in float32 PyTorch itself is off by 1e-4.
    """
    entry = next(model for model in manifest["models"] if model["name"] == name)
    id, room = entry["checkpoints"][checkpoint]["id"], 8
    found = exported(folder, id)
    assert found.vocabulary == vocabulary
    assert found.about["name"] == name and found.model.config.copy == entry["copy"]
    ran = run_in_page(page, id, prompts_of(vocabulary), room)
    assert len(ran.prompts) == PROBLEMS
    assert (ran.copies is not None) == entry["copy"]

    single, double = found.model, deepcopy(found.model).double()
    prompts = torch.tensor(ran.prompts)  # all of one length
    start = prompts.shape[1] - 1  # what is read here chooses the first word
    texts = generate(
        *(single, prompts, torch.full((PROBLEMS,), start + 1)), vocabulary=vocabulary, max_new_tokens=room
    )
    written = [[*words, *[vocabulary.pad] * (texts.shape[1] - len(words))] for words in ran.written]
    assert written == texts.tolist()
    read = torch.cat([prompts, texts[:, :-1]], 1)
    with torch.inference_mode():
        exact, rough = (each(read)[:, start:].numpy() for each in (double, single))  # (B, N, V)
    maps = double.copy_attention_map(read).numpy() if entry["copy"] else None  # (B, H, T, T)

    off = Counter()
    for i, logits in enumerate(ran.logits):
        right = exact[i, : len(logits)]
        raise_to(off, "page", np.abs(logits - right))
        raise_to(off, "pytorch", np.abs(rough[i, : len(logits)] - right))
        raise_to(off, "both", np.abs(logits - rough[i, : len(logits)]))
        raise_to(off, "size", np.abs(right))
        for position, heads in enumerate(ran.copies[i] if ran.copies else [], start=start):
            looked = maps[i, :, position, : position + 1]
            raise_to(off, "copy", np.abs(np.array(heads) - looked))
    with capsys.disabled():
        print(
            f"\n{id}: logits up to {off['size']:.0f}; from those in double precision the page's are off by "
            f"{off['page']:.1e}, PyTorch's in float32 by {off['pytorch']:.1e}, from each other by "
            f"{off['both']:.1e}; copy weights by {off['copy']:.1e}; a token takes {ran.milliseconds:.2f} ms"
        )
    assert off["page"] < 1e-4
    assert off["page"] <= off["pytorch"], "no worse than float32"
    assert off["copy"] < 1e-6
    assert ran.milliseconds < 50


def raise_to(largest: dict[str, float], name: str, values: np.ndarray) -> None:
    largest[name] = max(largest[name], float(values.max()))


def test_rows_are_those_of_the_embedding(page, folder, manifest, vocabulary):
    id = manifest["models"][0]["checkpoints"][-1]["id"]
    page.add_script_tag(url=f"_static/playground/models/{id}.js")
    ids = list(vocabulary.unseen_ids)
    rows, cosine = page.evaluate(
        """([id, ids]) => {
          const rows = unseen.decodeModel(unseen.delivered[id]).rows(ids);
          const pairs = rows.flatMap((a, i) => rows.slice(i + 1).map(b => unseen.cosine(a, b)));
          return [rows.map(row => [...row]), pairs.reduce((a, b) => a + b) / pairs.length];
        }""",
        [id, ids],
    )
    expected = exported(folder, id).model.embedding.detach()[ids]
    assert np.array_equal(np.array(rows, dtype=np.float32), expected.numpy())
    assert cosine == pytest.approx(measure_rows(expected).cosine, abs=1e-5)


def test_a_text_that_never_ends_is_cut_and_the_context_is_kept(page, manifest, vocabulary):
    id = manifest["models"][0]["checkpoints"][0]["id"]  # untrained: it repeats itself
    page.add_script_tag(url=f"_static/playground/models/{id}.js")
    run = """([id, prompt, room]) =>
      [...unseen.complete(unseen.decodeModel(unseen.delivered[id]), prompt, room)].length"""
    prompt = prompts_of(vocabulary)[0]
    assert page.evaluate(run, [id, prompt, 5]) == 5
    assert page.evaluate(run, [id, prompt, 65 - len(prompt)]) == 65 - len(prompt)
    with pytest.raises(Exception, match="reads at most 64 words"):
        page.evaluate(run, [id, prompt, 66 - len(prompt)])
    with pytest.raises(Exception, match="Token 9999 is not one of the"):
        page.evaluate(run, [id, [9999], 1])


def test_other_files_are_refused(page):
    other = base64.b64encode(save({"x": torch.zeros(2)})).decode()
    with pytest.raises(Exception, match="format undefined, but this page reads format 1"):
        page.evaluate("text => unseen.decodeModel(text).config", other)


def test_sizes_and_what_the_manifest_says(folder, manifest):
    sizes = {file.name: file.stat().st_size for file in (folder / "models").iterdir()}
    said = {point["file"]: point["bytes"] for model in manifest["models"] for point in model["checkpoints"]}
    manifest_size = sizes.pop("manifest.js")
    print(
        f"models: {len(sizes)}, together {sum(sizes.values()) / 1e6:.1f} MB; "
        f"manifest: {manifest_size / 1e3:.0f} KB"
    )
    assert sizes == said
    assert max(sizes.values()) <= 1_000_000
    assert sum(sizes.values()) + manifest_size <= 16_000_000
    assert sum((folder / script).stat().st_size for script in SCRIPTS) <= 40_000
    assert manifest["seed"] == 0
    for model in manifest["models"]:
        assert model["checkpoints"][-1]["step"] == model["config"]["steps"]
        for point in model["checkpoints"]:
            assert point["measures"].keys() >= {*SCENARIOS, "rows", "suppression", "same_text"}
