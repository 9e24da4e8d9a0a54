"""Logic against a SAT solver, and the proof checker against proofs spoiled on purpose."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pysat.solvers import Solver

from unseen_lib.errors import ConfigError
from unseen_lib.logic import Problem, Proof, Rule, Step, check_proof, closure, entails, expand, prove


def problem_of(rules: str, facts: str, query: str) -> Problem:
    """`problem_of("A B > C, C > D", "A B", "D")`: one letter, one symbol."""
    pairs = [rule.split(">") for rule in rules.split(",") if rule.strip()]
    return Problem(
        tuple(Rule(tuple(body.split()), head.strip()) for body, head in pairs), tuple(facts.split()), query
    )


def compact_proof(text: str) -> Proof:
    """`compact_proof("A B C yes")`; without yes or no at the end the proof has no answer."""
    words = text.split()
    answer = {"yes": True, "no": False}.get(words[-1]) if words else None
    return Proof(tuple(Step(word) for word in words if word not in ("yes", "no")), answer)


def random_problem(rng: random.Random) -> Problem:
    """Up to three premises (the same one twice at times), cycles, self-rules, no rules, no facts."""
    n = rng.randint(1, 9)
    symbols = range(1, n + 1)
    rules = tuple(
        Rule(tuple(rng.choices(symbols, k=rng.randint(1, 3))), rng.choice(symbols))
        for _ in range(rng.randint(0, 3 * n))
    )
    return Problem(rules, tuple(rng.sample(symbols, rng.randint(0, n // 2))), rng.choice(symbols))


def consequences(problem: Problem) -> set[int]:
    """The symbols whose negation a SAT solver refutes."""
    clauses = [[-symbol for symbol in rule.body] + [rule.head] for rule in problem.rules]
    clauses += [[fact] for fact in problem.facts]
    with Solver(name="minisat22", bootstrap_with=clauses) as solver:
        return {symbol for symbol in problem.symbols if not solver.solve(assumptions=[-symbol])}


def wandering_proof(problem: Problem, rng: random.Random) -> Proof:
    """A valid full proof: to the fix-point in any order, with repetitions and shuffled facts."""
    known, steps = set(problem.facts), []

    def restated() -> tuple[int, ...]:
        return tuple(rng.sample(sorted(known), len(known))) + tuple(sorted(known)[:1])

    while usable := [rule for rule in problem.rules if set(rule.body) <= known]:
        if all(rule.head in known for rule in usable) and rng.random() < 0.5:
            break
        rule = rng.choice(usable)
        steps.append(Step(rule.head, Rule(rule.body[::-1], rule.head), restated()))
        known.add(rule.head)
    return Proof(tuple(steps), problem.query in known, restated())


def assert_agrees_with_solver(count: int) -> None:
    rng = random.Random(count)
    kinds = set()
    for _ in range(count):
        problem = random_problem(rng)
        truth = consequences(problem)
        assert closure(problem) == truth, problem
        assert entails(problem) == (problem.query in truth), problem
        for proof in (prove(problem), prove(problem, rng=rng)):
            assert proof.answer == (problem.query in truth), problem
            for form in (proof, proof.compact()):
                verdict = check_proof(problem, form)
                assert verdict, (problem, form, verdict)
        kinds.add((bool(problem.rules), bool(problem.facts), proof.answer, min(len(proof.steps), 4)))
    assert len(kinds) == 14  # all that there can be: a step needs rules and facts


def test_agrees_with_a_sat_solver():
    assert_agrees_with_solver(2_000)


@pytest.mark.slow
def test_agrees_with_a_sat_solver_on_many_problems():
    assert_agrees_with_solver(100_000)


def test_the_published_example():
    problem = problem_of("A B > C, B > A", "B", "C")
    first, second = problem.rules
    proof = prove(problem)
    assert proof == Proof((Step("A", second, ("B",)), Step("C", first, ("B", "A"))), True, ("B", "A", "C"))
    assert proof.compact() == compact_proof("B A C yes")


def test_prove_takes_the_first_rule_or_any():
    problem = problem_of("A > B, A > C, A > D", "A", "E")
    assert [step.new for step in prove(problem).steps] == ["B", "C", "D"]
    orders = {tuple(s.new for s in prove(problem, rng=random.Random(seed)).steps) for seed in range(60)}
    assert len(orders) == 6  # every order of the three


def test_a_given_query_needs_no_step():
    assert prove(problem_of("A > B", "B A", "A")) == Proof((), True, ("B", "A"))


def test_closure_is_linear():
    """A long chain of rules in the worst order, where starting over after each new symbol takes minutes."""
    n = 100_000
    problem = Problem(tuple(Rule((i,), i + 1) for i in reversed(range(n))), (0,), n)
    assert len(closure(problem)) == n + 1


def test_any_valid_proof_is_accepted():
    rng = random.Random(0)
    for _ in range(500):
        problem = random_problem(rng)
        proof = wandering_proof(problem, rng)
        assert (verdict := check_proof(problem, proof)), (problem, proof, verdict)
        assert (verdict := check_proof(problem, proof.compact())), (problem, proof, verdict)


def test_what_is_accepted_is_true():
    """Proofs drawn blindly: whatever the checker lets through, a SAT solver confirms."""
    rng = random.Random(0)
    accepted = 0
    for _ in range(4_000):
        problem = random_problem(rng)
        proof = wandering_proof(problem, rng) if rng.random() < 0.5 else prove(problem)
        if rng.random() < 0.5:
            proof = proof.compact()
        proof = replace(proof, answer=rng.random() < 0.5)
        steps = list(proof.steps)
        for _ in range(rng.randint(0, 2)):  # delete, swap or overwrite
            if steps:
                i, j = rng.randrange(len(steps)), rng.randrange(len(steps))
                steps[i : i + 1] = rng.choice(
                    [[], [steps[j]], [replace(steps[i], new=rng.choice(problem.symbols))]]
                )
        proof = replace(proof, steps=tuple(steps))
        if check_proof(problem, proof):
            accepted += 1
            truth = consequences(problem)
            assert {step.new for step in proof.steps} <= truth
            assert proof.answer == (problem.query in truth)
    assert 500 < accepted < 3_500


PROBLEM = problem_of("A > C, C B > D, D > E, X > Y", "A B", "D")


@pytest.mark.parametrize(
    "text, step, kind, symbols",
    [
        ("A B C D yes", None, "", ""),
        ("B A C D E yes", None, "", ""),  # another order, and on beyond the query
        ("A C B B D yes", None, "", ""),  # a fact late, and twice
        ("A B C A C D yes", None, "", ""),  # nothing wrong with saying it again
        ("A C D yes", 2, "fact_dropped", "B"),
        ("C D yes", 0, "fact_dropped", "A"),
        ("B C D yes", 1, "fact_dropped", "A"),
        ("A B D yes", 2, "rule_misapplied", "C"),
        ("A B Y C D yes", 2, "rule_misapplied", "X"),
        ("A B X C D yes", 2, "rule_misapplied", "X"),  # no rule concludes X
        ("A B C Z D yes", 3, "unknown_symbol", "Z"),
        ("A B C D no", 4, "wrong_answer", "D"),
        ("A B C no", 3, "stopped_early", "D"),
        ("A B C yes", 3, "stopped_early", "D"),
        ("A B C D", 4, "no_answer", ""),
        ("", 0, "no_answer", ""),
        ("no", 0, "fact_dropped", "AB"),
    ],
)
def test_compact_proofs(text, step, kind, symbols):
    verdict = check_proof(PROBLEM, compact_proof(text))
    assert (verdict.step, verdict.kind, verdict.symbols) == (step, kind, tuple(symbols))
    assert verdict.valid == bool(verdict) == (kind == "")
    assert all(symbol in verdict.reason for symbol in symbols)


def test_a_query_that_does_not_follow():
    problem = replace(PROBLEM, query="Y")
    assert check_proof(problem, compact_proof("A B C D E no"))
    verdict = check_proof(problem, compact_proof("A B C D E yes"))
    assert (verdict.step, verdict.kind) == (5, "wrong_answer")
    verdict = check_proof(problem, compact_proof("A B C D no"))
    assert (verdict.step, verdict.kind, verdict.symbols) == (4, "stopped_early", ("E",))


def test_an_unneeded_fact_must_be_stated_too():
    verdict = check_proof(problem_of("A > C", "A B", "C"), compact_proof("A C yes"))
    assert (verdict.step, verdict.kind, verdict.symbols) == (2, "fact_dropped", ("B",))


def test_a_dropped_fact_is_found_among_several_rules():
    verdict = check_proof(problem_of("X > C, A B > C", "A B", "C"), compact_proof("B C yes"))
    assert (verdict.step, verdict.kind, verdict.symbols) == (1, "fact_dropped", ("A",))


FULL = prove(PROBLEM)  # A, B; then C by A > C; then D by C B > D
TO_C, TO_D, TO_E, TO_Y = PROBLEM.rules


def with_step(i: int, **changes: object) -> Proof:
    steps = list(FULL.steps)
    steps[i] = replace(steps[i], **changes)
    return replace(FULL, steps=tuple(steps))


@pytest.mark.parametrize(
    "proof, step, kind, symbols",
    [
        (with_step(1, known=("C", "B", "A", "B")), None, "", ""),
        (with_step(1, rule=Rule(("B", "C"), "D")), None, "", ""),  # premises in another order
        (with_step(0, known=("A",)), 0, "fact_dropped", "B"),
        (with_step(1, known=("A", "B")), 1, "fact_dropped", "C"),
        (with_step(0, known=("A", "B", "D")), 0, "fact_invented", "D"),
        (with_step(0, known=("A", "Z")), 0, "unknown_symbol", "Z"),
        (with_step(0, new="Z"), 0, "unknown_symbol", "Z"),
        (with_step(0, rule=Rule(("Z",), "C")), 0, "unknown_symbol", "Z"),
        (with_step(0, rule=Rule(("B",), "C")), 0, "invented_rule", ""),
        (with_step(1, rule=Rule(("C",), "D")), 1, "invented_rule", ""),  # a premise left out
        (with_step(1, rule=TO_E, new="E"), 1, "rule_misapplied", "D"),
        (with_step(1, rule=TO_Y, new="Y"), 1, "rule_misapplied", "X"),
        (with_step(1, new="E"), 1, "rule_misapplied", "E"),  # not what the rule gives
        (with_step(1, rule=None), 1, "malformed", ""),
        (with_step(0, known=None), 0, "malformed", ""),
        (replace(FULL, known=None), 2, "malformed", ""),
        (replace(FULL, known=("A", "B", "C")), 2, "fact_dropped", "D"),
        (replace(FULL, known=("A", "B", "C", "D", "E")), 2, "fact_invented", "E"),
        (replace(FULL, answer=False), 2, "wrong_answer", "D"),
        (replace(FULL, answer=None), 2, "no_answer", ""),
        (replace(FULL, answer=None, known=None), 2, "no_answer", ""),
        (Proof(FULL.steps[:1], False, ("A", "B", "C")), 1, "stopped_early", "D"),
        (Proof(FULL.steps[1:], True, FULL.known), 0, "fact_invented", "C"),
        (Proof(FULL.steps[::-1], True, FULL.known), 0, "fact_invented", "C"),
    ],
)
def test_full_proofs(proof, step, kind, symbols):
    verdict = check_proof(PROBLEM, proof)
    assert (verdict.step, verdict.kind, verdict.symbols) == (step, kind, tuple(symbols))
    assert all(symbol in verdict.reason for symbol in symbols)


def test_every_spoiled_proof_is_refused():
    """A fact left out or made up, an absent rule, a premise not known, the other answer, an early stop."""
    rng = random.Random(0)
    spoiled = 0
    for _ in range(2_000):
        problem = random_problem(rng)
        proof = prove(problem, rng=rng)
        end = len(proof.steps)

        def refused(bad: Proof, step: int, kind: str, problem: Problem = problem) -> None:
            verdict = check_proof(problem, bad)
            assert (verdict.step, verdict.kind) == (step, kind), (problem, bad, verdict)

        refused(replace(proof, answer=not proof.answer), end, "wrong_answer")
        refused(replace(proof, answer=None), end, "no_answer")
        for i, step in enumerate(proof.steps):
            spoiled += 1

            def with_changes(i: int = i, step: Step = step, proof: Proof = proof, **changes: object) -> Proof:
                changed = replace(step, **changes)
                return replace(proof, steps=(*proof.steps[:i], changed, *proof.steps[i + 1 :]))

            dropped = rng.choice(step.known)
            refused(with_changes(known=tuple(s for s in step.known if s != dropped)), i, "fact_dropped")
            refused(with_changes(known=(*step.known, step.new)), i, "fact_invented")
            circular = Rule((*step.rule.body, step.new), step.new)
            absent = all(set(r.body) != set(circular.body) or r.head != step.new for r in problem.rules)
            refused(with_changes(rule=circular), i, "invented_rule" if absent else "rule_misapplied")
            refused(Proof(proof.steps[:i], False, step.known), i, "stopped_early")
            unusable = [rule for rule in problem.rules if not set(rule.body) <= set(step.known)]
            if unusable:
                rule = rng.choice(unusable)
                refused(with_changes(rule=rule, new=rule.head), i, "rule_misapplied")
            skipped = Proof((*proof.steps[:i], *proof.steps[i + 1 :]), proof.answer, proof.known)
            refused(skipped, i, "fact_invented")
    assert spoiled > 500


def test_expand_undoes_compact():
    problem = problem_of("A B > C, B > A", "B", "C")
    assert expand(problem, prove(problem).compact()) == prove(problem)
    rng = random.Random(0)
    for _ in range(300):
        problem = random_problem(rng)
        expanded = expand(problem, prove(problem, rng=rng).compact())
        assert expanded.is_full and check_proof(problem, expanded)
    with pytest.raises(ConfigError, match="B is not known yet"):
        expand(problem_of("A > B, B > C", "A", "C"), compact_proof("A C yes"))


def test_a_reason_can_be_read():
    verdict = check_proof(problem_of("A B > C, A > B", "A", "C"), compact_proof("A C yes"))
    assert verdict.reason == "step 1 writes C, but for `If A B then C` B is not known yet"
    full = Proof((Step("C", Rule(("A", "B"), "C"), ("A",)),), True, ("A", "C"))
    verdict = check_proof(problem_of("A B > C, A > B", "A", "C"), full)
    assert verdict.reason == "step 0 uses `If A B then C`, but B is not known yet"


symbols = st.one_of(
    st.integers(0, 3), st.text(max_size=2), st.none(), st.floats(), st.tuples(st.integers(0, 1))
)
tuples = st.lists(symbols, max_size=4).map(tuple)
rules = st.builds(Rule, tuples.filter(bool), symbols)
problems = st.builds(Problem, st.lists(rules, max_size=4).map(tuple), tuples, symbols)
steps = st.builds(Step, symbols, st.none() | rules, st.none() | tuples)
proofs = st.builds(
    Proof, st.lists(steps, max_size=4).map(tuple), st.sampled_from([True, False, None]), st.none() | tuples
)


@given(problems, proofs)
def test_any_proof_gets_a_verdict(problem, proof):
    for form in (proof, proof.compact(), prove(problem)):
        verdict = check_proof(problem, form)
        assert verdict.valid == (verdict.kind == "") == (verdict.reason == "") == (verdict.step is None)
        assert verdict.valid or 0 <= verdict.step <= len(form.steps)
    assert check_proof(problem, prove(problem))


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: Rule((), "A"), r"Rule.body is \(\), but should be a tuple of at least one symbol"),
        (lambda: Rule("AB", "C"), "Rule.body is 'AB'"),
        (lambda: Problem(("A",), (), "A"), "Problem.rules .* tuple of Rule"),
        (lambda: Problem((), "AB", "A"), "Problem.facts is 'AB'"),
        (lambda: Step("A", rule="A > B"), "Step.rule .* a Rule or None"),
        (lambda: Step("A", known=["A"]), "Step.known"),
        (lambda: Proof(["A"], True), "Proof.steps .* tuple of Step"),
        (lambda: Proof((), "yes"), "Proof.answer is 'yes', but should be a bool or None"),
        (lambda: Proof((), True, known="A"), "Proof.known"),
    ],
)
def test_parts_that_do_not_fit_are_named(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
