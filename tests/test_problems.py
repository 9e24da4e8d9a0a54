"""Sampled problems against the logic, the language and a plain sampler of the same recipe."""

import dataclasses
import random
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tools.bench_problems import plain_problem
from unseen_lib.errors import ConfigError
from unseen_lib.language import read_problem, read_proof, write_problem, write_proof
from unseen_lib.logic import Problem, Proof, Rule, check_proof, entails, expand, prove
from unseen_lib.problems import (
    IGNORE,
    SCENARIOS,
    Batch,
    Task,
    check_vocabulary,
    longest_sequence,
    problem_of,
    sample_batch,
)
from unseen_lib.vocabulary import Vocabulary

TASKS = {
    "chain": Task(),
    "chain, full": Task(format="full"),
    "chain, longer": Task(predicates=(8, 12), chain=(2, 5)),
    "chain, deep": Task(predicates=(9, 14), depth=(4, 8)),
    "paper": Task("rule_priority", "full"),
    "paper, compact": Task("rule_priority", "compact"),
    "any rule": Task("rule_priority", "full", choose="any"),
    "SimpleLogic": Task("rule_priority", "full", predicates=(5, 30), rules=None),
    "small": Task("rule_priority", "full", predicates=(4, 6), rules=(0, 8)),
    "two premises": Task("rule_priority", "compact", predicates=(4, 4), rules=(2, 6), body=(2, 2)),
    "no rules": Task("rule_priority", "full", predicates=(2, 5), rules=(0, 0), body=(1, 1)),
    "every rule there is": Task("rule_priority", "full", predicates=(4, 4), rules=(28, 28)),
    "deep": Task("rule_priority", "full", predicates=(5, 12), depth=(3, 4)),
}
each_task = pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)


def vocabulary_of(task: Task, seen: int = 64, unseen: int = 50) -> Vocabulary:
    return Vocabulary(task.format, seen, unseen)


def sample(task: Task, size: int = 128, index: int = 0, **options: object) -> Batch:
    options = {"seed": 1, **options}
    return sample_batch(task, vocabulary_of(task), batch_size=size, index=index, **options)


def texts(batch: Batch, vocabulary: Vocabulary) -> list[tuple[list[str], list[str]]]:
    """Prompt and completion of each row in words, the completion from the targets."""
    pairs = []
    for tokens, targets, length in zip(batch.tokens, batch.targets, batch.prompt_length, strict=True):
        completion = targets[targets != IGNORE].tolist()
        pairs.append((vocabulary.decode(tokens[:length].tolist()), vocabulary.decode(completion)))
    return pairs


def read(batch: Batch, task: Task) -> list[tuple[Problem, Proof]]:
    pairs = texts(batch, vocabulary_of(task))
    return [(read_problem(prompt, task.format), read_proof(proof, task.format)) for prompt, proof in pairs]


def depth_of(problem: Problem) -> int:
    """Rounds of using every rule that applies, until the query is known or nothing is new."""
    known, depth = set(problem.facts), 0
    while problem.query not in known:
        new = {rule.head for rule in problem.rules if known.issuperset(rule.body)} - known
        if not new:
            break
        known, depth = known | new, depth + 1
    return depth


def same_distribution(first: Iterable[Hashable], second: Iterable[Hashable]) -> bool:
    """Two-sample chi-square test, one false alarm in about 100,000; cells with few counts count as one."""
    a, b = Counter(first), Counter(second)
    cells = [(a[key], b[key]) for key in a | b if a[key] + b[key] >= 10]
    cells.append((a.total() - sum(x for x, _ in cells), b.total() - sum(y for _, y in cells)))
    ratio = (b.total() / a.total()) ** 0.5
    statistic = sum((ratio * x - y / ratio) ** 2 / (x + y) for x, y in cells if x + y)
    freedom = len(cells) - 1
    return statistic < freedom + 4.3 * (2 * freedom) ** 0.5 + 12


def uniform(drawn: Iterable[Hashable], values: Sequence[Hashable]) -> bool:
    drawn = list(drawn)
    assert set(drawn) <= set(values)
    return same_distribution(drawn, list(values) * (20 * len(drawn) // len(values)))


# ---------------------------------------------------------------------------------------- every row is right
@each_task
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_row_is_a_problem_with_a_valid_proof(task: Task, scenario: str) -> None:
    batch = sample(task, scenario=scenario)
    for row, (problem, proof) in enumerate(read(batch, task)):
        assert check_proof(problem, proof), check_proof(problem, proof).reason
        assert proof.answer == entails(problem) == bool(batch.answer[row])
        assert depth_of(problem) == batch.depth[row]
        assert problem == problem_of(batch, row, vocabulary_of(task))


@each_task
def test_the_text_is_what_the_language_module_writes(task: Task) -> None:
    batch = sample(task, index=1)
    for (prompt, completion), (problem, proof) in zip(
        texts(batch, vocabulary_of(task)), read(batch, task), strict=True
    ):
        assert prompt == write_problem(problem, task.format)
        expected = proof if task.choose == "any" else prove(problem)
        assert completion == write_proof(problem, expected, task.format)


@each_task
def test_targets_are_the_next_tokens_of_the_completion(task: Task) -> None:
    vocabulary = vocabulary_of(task)
    batch = sample(task, index=2)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert batch.tokens.shape == batch.targets.shape
    for tokens, targets, length in zip(
        batch.tokens, batch.targets, batch.prompt_length.tolist(), strict=True
    ):
        end = targets.tolist().index(vocabulary.eos)
        assert torch.equal(targets[length - 1 : end], tokens[length : end + 1])
        assert (targets[: length - 1] == IGNORE).all() and (targets[end + 1 :] == IGNORE).all()
        assert not (tokens[: end + 1] == vocabulary.pad).any()
        rest = tokens[end + 1 :].tolist()
        assert rest == ([vocabulary.eos] + [vocabulary.pad] * len(rest))[: len(rest)]
    assert (batch.targets[:, -1] == vocabulary.eos).any(), "trimmed to the longest row"


@each_task
def test_sizes_are_those_asked_for(task: Task) -> None:
    low, high = task.sizes
    for problem, _ in read(sample(task, index=3), task):
        assert len(problem.symbols) <= high
        assert len(set(problem.facts)) == len(problem.facts) <= high
        rules = {(frozenset(rule.body), rule.head) for rule in problem.rules}
        assert len(rules) == len(problem.rules) <= task.most_rules(high)
        if task.family == "chain":
            assert low <= len(problem.symbols) == len(problem.rules) + 2
        elif task.rules is not None:
            assert task.rules[0] <= len(rules)
        for rule in problem.rules:
            least, most = task.body if task.family == "rule_priority" else (1, 1)
            assert least <= len(set(rule.body)) == len(rule.body) <= most
            assert rule.head not in rule.body
        if task.depth is not None:
            assert task.depth[0] <= depth_of(problem) <= task.depth[1]


def test_compact_chain_is_the_text_of_the_cpu_regime() -> None:
    """Four rules `X then Y`, one fact, one query; then the chain up to the query or its end, and answer."""
    vocabulary = vocabulary_of(Task())
    for prompt, completion in texts(sample(Task()), vocabulary):
        assert prompt[:2] == ["<bos>", "Rules:"] and prompt[3:14:3] == ["then"] * 4
        assert [prompt[i] for i in (14, 16, 18)] == ["Facts:", "Query:", "Reasoning:"] and len(prompt) == 19
        successor = {prompt[i]: prompt[i + 2] for i in (2, 5, 8, 11)}
        chain = [prompt[15]]
        while chain[-1] in successor and chain[-1] != prompt[17]:
            chain.append(successor[chain[-1]])
        assert completion == [*chain, "yes" if chain[-1] == prompt[17] else "no", "<eos>"]


# --------------------------------------------------------------------------------------------- distributions
@pytest.mark.parametrize("name", ["chain", "chain, longer", "paper", "small", "any rule"])
def test_distribution_is_that_of_the_plain_sampler(name: str) -> None:
    task = TASKS[name]
    vocabulary = vocabulary_of(task)
    rng = random.Random(5)
    names = vocabulary.words[vocabulary.seen_ids.start : vocabulary.seen_ids.stop]
    plain = [plain_problem(task, names, rng) for _ in range(3000)]
    ours = [(problem, expand(problem, proof)) for problem, proof in read(sample(task, 3000), task)]
    statistics = {
        "answer": lambda problem, proof: proof.answer,
        "rules": lambda problem, proof: (proof.answer, len(problem.rules)),
        "facts": lambda problem, proof: (proof.answer, len(problem.facts)),
        "predicates": lambda problem, proof: len(problem.symbols),
        "steps": lambda problem, proof: (proof.answer, len(proof.steps)),
        "depth": lambda problem, proof: (proof.answer, depth_of(problem)),
        "premises": lambda problem, proof: sum(len(rule.body) for rule in problem.rules) // 3,
        "query in facts": lambda problem, proof: problem.query in problem.facts,
        "query in rules": lambda problem, proof: sum(problem.query == rule.head for rule in problem.rules),
        "first step": lambda problem, proof: tuple(
            problem.rules.index(step.rule) for step in proof.steps[:1]
        ),
        "first rule applies": lambda problem, proof: any(
            set(rule.body) <= set(problem.facts) for rule in problem.rules[:1]
        ),
    }
    for statistic, value in statistics.items():
        assert same_distribution((value(*pair) for pair in ours), (value(*pair) for pair in plain)), statistic


@each_task
def test_the_answer_is_yes_half_the_time(task: Task) -> None:
    yes = sum(int(sample(task, 1000, index).answer.sum()) for index in range(4))
    assert abs(yes - 2000) < 4.5 * 1000**0.5


def test_chain_lengths_and_the_order_of_rules_are_uniform() -> None:
    pairs = read(sample(Task(), 6000), Task())
    lengths = []
    for problem, _ in pairs:
        successor = {rule.body[0]: rule.head for rule in problem.rules}
        chain = [problem.facts[0]]
        while chain[-1] in successor:
            chain.append(successor[chain[-1]])
        lengths.append((len(chain), entails(problem)))
    assert uniform(lengths, [(length, answer) for length in (2, 3, 4) for answer in (True, False)])
    first = [[rule.body for rule in problem.rules].index(problem.facts) for problem, _ in pairs]
    assert uniform(first, range(4))


def test_of_two_rules_that_apply_any_is_taken_half_the_time() -> None:
    for choose, expected in (("any", [0, 1]), ("first", [0])):
        task = Task("rule_priority", "full", predicates=(6, 6), rules=(6, 12), choose=choose)
        places = []
        for problem, proof in read(sample(task, 3000), task):
            known = set(problem.facts)
            usable = [
                rule for rule in problem.rules if known.issuperset(rule.body) and rule.head not in known
            ]
            if len(usable) == 2 and proof.steps:
                places.append(usable.index(proof.steps[0].rule))
        assert len(places) > 200
        assert uniform(places, expected)


@pytest.mark.parametrize("scenario", ["seen", "all_unseen"])
def test_names_are_uniform_and_distinct(scenario: str) -> None:
    task, vocabulary = Task(), Vocabulary("compact", 12, 8)
    batch = sample_batch(task, vocabulary, batch_size=5000, seed=0, index=0, scenario=scenario)
    problems = [problem_of(batch, row, vocabulary) for row in range(5000)]
    assert all(len(problem.symbols) == 6 for problem in problems)
    ids = vocabulary.seen_ids if scenario == "seen" else vocabulary.unseen_ids
    words = vocabulary.words[ids.start : ids.stop]
    for place in range(6):  # which name stands first, second, ... in the text
        assert uniform((problem.symbols[place] for problem in problems), words)
    pairs = [(a, b) for a in words for b in words if a != b]
    assert uniform((problem.symbols[:2] for problem in problems), pairs)


def test_the_unseen_query_is_any_unseen_name() -> None:
    vocabulary = Vocabulary("compact", 12, 8)
    batch = sample_batch(Task(), vocabulary, batch_size=4000, seed=0, index=0, scenario="query_unseen")
    words = vocabulary.words[vocabulary.unseen_ids.start :]
    assert uniform((problem_of(batch, row, vocabulary).query for row in range(4000)), words)


def test_all_names_there_are_can_be_needed() -> None:
    task = Task("rule_priority", "compact", predicates=(20, 20), rules=(40, 40))
    vocabulary = Vocabulary("compact", 20, 20)
    batch = sample_batch(task, vocabulary, batch_size=50, seed=0, index=0)
    assert max(len(problem_of(batch, row, vocabulary).symbols) for row in range(50)) == 20


# ------------------------------------------------------------------------------------------------- scenarios
@each_task
def test_scenarios_differ_in_their_names_alone(task: Task) -> None:
    vocabulary = vocabulary_of(task)
    seen, query, every = (sample(task, index=4, scenario=scenario) for scenario in SCENARIOS)
    for row in range(len(seen.tokens)):
        asked = problem_of(seen, row, vocabulary).query
        new = problem_of(query, row, vocabulary).query
        assert vocabulary.is_unseen(new) and not vocabulary.is_unseen(asked)
        words = [vocabulary.decode(batch.tokens[row].tolist()) for batch in (seen, query, every)]
        assert words[1] == [new if word == asked else word for word in words[0]]

        names = problem_of(seen, row, vocabulary).symbols
        renamed = dict(zip(names, problem_of(every, row, vocabulary).symbols, strict=True))
        assert words[2] == [renamed.get(word, word) for word in words[0]]
        assert not any(map(vocabulary.is_unseen, names))
        assert all(map(vocabulary.is_unseen, renamed.values()))


# ---------------------------------------------------------------------------------------------- reproduction
@each_task
def test_a_batch_does_not_depend_on_what_was_drawn_before(task: Task) -> None:
    alone = sample(task, 16, index=7)
    for index in (0, 9, 3):
        sample(task, 5, index=index, seed=2)
    again = sample(task, 16, index=7)
    for field in dataclasses.fields(Batch):
        assert torch.equal(getattr(alone, field.name), getattr(again, field.name))


def test_seeds_streams_and_indices_give_different_batches() -> None:
    """Large numbers and small ones, and those that would be alike if they were only put one after another."""
    keys = [
        (seed, index, stream)
        for seed in (0, 1, 2**32, 2**32 + 1, 2**64)
        for index in (0, 1, 50_000)
        for stream in ("train", "test")
    ]
    texts = {
        str(sample(Task(), 8, index=index, seed=seed, stream=stream).tokens.tolist())
        for seed, index, stream in keys
    }
    assert len(texts) == len(keys)


def test_a_task_survives_being_written_as_json() -> None:
    for task in TASKS.values():
        assert Task(**dataclasses.asdict(task)) == task


# ------------------------------------------------------------------------------------------------- the bound
@pytest.mark.parametrize("name", [name for name in TASKS if "chain" in name])
def test_longest_sequence_is_exact_for_chains(name: str) -> None:
    task = TASKS[name]
    longest = max(sample(task, 512, index).tokens.shape[1] for index in range(3))
    assert longest == longest_sequence(task)


@pytest.mark.parametrize("name", [name for name in TASKS if "chain" not in name])
def test_longest_sequence_is_a_bound(name: str) -> None:
    task = TASKS[name]
    longest = max(sample(task, 512, index).tokens.shape[1] for index in range(3))
    assert 0.5 * longest_sequence(task) < longest <= longest_sequence(task)


def test_longest_sequence_is_reached() -> None:
    """By problems built by hand, in which each rule has all its premises.

    The full format restates what is known before each step, so it is longest when much is left to derive; the
    compact one states a given fact twice and a derived one once.
    """
    names = "abcdefgh"
    rules = tuple(Rule(tuple(names[i - 3 : i]), names[i]) for i in range(3, 8))
    for format, facts in (("full", names[:3]), ("compact", names)):
        problem = Problem(rules, tuple(facts), "h")
        words = write_problem(problem, format) + write_proof(problem, prove(problem), format)
        task = Task("rule_priority", format, predicates=(8, 8), rules=(0, 5))
        assert longest_sequence(task) == len(words) - 1


# ------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("field", "settings"),
    [
        ("family", {"family": "tree"}),
        ("format", {"format": "verbose"}),
        ("choose", {"family": "rule_priority", "choose": "last"}),
        ("predicates", {"predicates": (3, 6)}),
        ("predicates", {"predicates": (7, 6)}),
        ("predicates", {"predicates": (6, 41)}),
        ("predicates", {"predicates": 6}),
        ("predicates", {"predicates": (6.0, 6.0)}),
        ("predicates", {"predicates": (-1, 6)}),
        ("chain", {"chain": (1, 3)}),
        ("chain", {"chain": (2, 5)}),
        ("chain", {"predicates": (4, 12), "chain": (3, 8)}),
        ("chain", {"family": "rule_priority", "chain": (2, 4)}),
        ("rules", {"rules": (0, 3)}),
        ("body", {"body": (1, 2)}),
        ("choose", {"choose": "any"}),
        ("depth", {"depth": (0, 2)}),
        ("depth", {"depth": (1, 4)}),
        ("depth", {"predicates": (9, 9), "chain": (5, 6), "depth": (1, 3)}),
        ("depth", {"predicates": (6, 12), "depth": (5, 6)}),
        ("rules", {"family": "rule_priority", "rules": (-1, 4)}),
        ("rules", {"family": "rule_priority", "rules": (0, 256)}),
        ("rules", {"family": "rule_priority", "predicates": (4, 6), "rules": (0, 29)}),
        ("rules", {"family": "rule_priority", "predicates": (3, 3), "rules": None, "body": (1, 2)}),
        ("body", {"family": "rule_priority", "predicates": (3, 6), "body": (1, 3)}),
        ("body", {"family": "rule_priority", "body": (0, 3)}),
        ("depth", {"family": "rule_priority", "predicates": (5, 5), "depth": (0, 4)}),
        ("depth", {"family": "rule_priority", "rules": (0, 2), "depth": (3, 3)}),
    ],
)
def test_a_task_that_does_not_fit_is_refused_by_field(field: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"^{field}=.*(use|must be|leave|let)"):
        Task(**settings)


@pytest.mark.parametrize(
    ("scenario", "seen", "unseen", "field"),
    [
        ("seen", 5, 100, "seen=5"),
        ("query_unseen", 6, 0, "unseen=0"),
        ("query_unseen", 5, 100, "seen=5"),
        ("all_unseen", 512, 5, "unseen=5"),
        ("none_unseen", 512, 100, "scenario='none_unseen'"),
    ],
)
def test_a_vocabulary_with_too_few_names_is_refused(
    scenario: str, seen: int, unseen: int, field: str
) -> None:
    vocabulary = Vocabulary("compact", seen, unseen)
    with pytest.raises(ConfigError, match=f"^{field}.*use"):
        check_vocabulary(Task(), vocabulary, scenario)
    with pytest.raises(ConfigError, match=f"^{field}.*use"):
        sample_batch(Task(), vocabulary, batch_size=2, seed=0, index=0, scenario=scenario)


def test_a_vocabulary_with_just_enough_names_will_do() -> None:
    for scenario, seen, unseen in (("seen", 6, 0), ("query_unseen", 6, 1), ("all_unseen", 1, 6)):
        vocabulary = Vocabulary("compact", seen, unseen)
        batch = sample_batch(Task(), vocabulary, batch_size=8, seed=0, index=0, scenario=scenario)
        assert len(problem_of(batch, 0, vocabulary).symbols) == 6


@pytest.mark.parametrize(
    ("field", "value"),
    [("batch_size", 0), ("batch_size", -3), ("seed", -1), ("index", -1), ("stream", "validation")],
)
def test_bad_numbers_and_streams_are_refused(field: str, value: object) -> None:
    good: dict[str, object] = {"batch_size": 2, "seed": 0, "index": 0}
    with pytest.raises(ConfigError, match=f"^{field}="):
        sample_batch(Task(), vocabulary_of(Task()), **{**good, field: value})


def test_the_format_of_the_vocabulary_must_be_that_of_the_task() -> None:
    with pytest.raises(ConfigError, match=r"format='full'.*both the same"):
        sample_batch(Task(), Vocabulary("full", 64, 50), batch_size=2, seed=0, index=0)


def test_a_depth_that_next_to_no_problem_has_is_given_up() -> None:
    task = Task("rule_priority", "compact", predicates=(12, 12), rules=(10, 10), body=(3, 3), depth=(10, 10))
    with pytest.raises(ConfigError, match=r"depth=\(10, 10\)"):
        sample(task, 2)


def ranges(least: int, most: int) -> st.SearchStrategy[tuple[int, int]]:
    ends = st.integers(least, most)
    return st.tuples(ends, ends).map(lambda pair: (min(pair), max(pair)))


formats = st.sampled_from(["compact", "full"])
chains = st.fixed_dictionaries(
    {"format": formats, "predicates": ranges(3, 41)},
    optional={"chain": ranges(1, 10), "depth": ranges(0, 8)},
)
random_rules = st.fixed_dictionaries(
    {"family": st.just("rule_priority"), "format": formats, "predicates": ranges(1, 14)},
    optional={
        "rules": st.none() | ranges(0, 30),
        "body": ranges(0, 5),
        "choose": st.sampled_from(["first", "any"]),
        "depth": ranges(0, 2),
    },
)


@settings(max_examples=200, deadline=None)
@given(fields=chains | random_rules, scenario=st.sampled_from(SCENARIOS))
def test_any_task_is_refused_or_sampled_rightly(fields: dict[str, object], scenario: str) -> None:
    try:
        task = Task(**fields)
    except ConfigError:
        return
    try:
        batch = sample(task, 6, scenario=scenario)
    except ConfigError as error:
        assert str(error).startswith("depth=")
        return
    assert batch.tokens.shape[1] <= longest_sequence(task)
    for problem, proof in read(batch, task):
        assert check_proof(problem, proof)
        assert task.depth is None or task.depth[0] <= depth_of(problem) <= task.depth[1]
