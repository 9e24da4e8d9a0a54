"""Problems and proofs as words: exact texts, round trips, and what is said about ill-formed ones."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unseen_lib.errors import ConfigError, ParseError
from unseen_lib.language import (
    CONTROL_WORDS,
    FORMATS,
    read_problem,
    read_proof,
    write_problem,
    write_proof,
)
from unseen_lib.logic import Problem, Proof, Rule, Step, check_proof, prove

PROBLEM = Problem((Rule(("A", "B"), "C"), Rule(("B",), "A")), ("B",), "C")
TEXTS = {
    "compact": (
        "<bos> Rules: A B then C B then A Facts: B Query: C Reasoning:",
        "B A C yes <eos>",
    ),
    "full": (
        "<bos> Rules: If A B then C EndIf If B then A EndIf EndRules "
        "Facts: B EndFacts Query: C EndQuery Reasoning:",
        "Facts: B EndFacts If B then A EndIf Newfact A EndNewfact "
        "Facts: B A EndFacts If A B then C EndIf Newfact C EndNewfact "
        "Facts: B A C EndFacts EndReasoning Answer: yes EndAnswer <eos>",
    ),
}

every_format = pytest.mark.parametrize("format", FORMATS)
names = st.sampled_from(["A", "B", "C", "Mirelo", "é", "Then", "0"])
tuples = st.lists(names, max_size=4).map(tuple)
rules = st.builds(Rule, tuples.filter(bool), names)
problems = st.builds(Problem, st.lists(rules, max_size=4).map(tuple), tuples, names)
answers = st.sampled_from([True, False, None])
proofs = {
    "compact": st.builds(Proof, st.lists(st.builds(Step, names), max_size=5).map(tuple), answers),
    "full": st.builds(
        Proof, st.lists(st.builds(Step, names, rules, tuples), max_size=3).map(tuple), answers, tuples
    ),
}


@every_format
def test_the_published_example(format):
    prompt, completion = TEXTS[format]
    assert " ".join(write_problem(PROBLEM, format)) == prompt
    assert " ".join(write_proof(PROBLEM, prove(PROBLEM), format)) == completion
    assert " ".join(write_proof(PROBLEM, prove(PROBLEM).compact(), format)) == completion
    assert read_problem(prompt, format) == PROBLEM
    assert check_proof(PROBLEM, read_proof(completion, format))


@every_format
def test_control_words_are_those_that_the_format_writes(format):
    words = CONTROL_WORDS[format]
    assert words[:3] == ("<pad>", "<bos>", "<eos>") and len(set(words)) == len(words)
    written = set(" ".join(TEXTS[format]).split()) - {"A", "B", "C"}
    assert set(words) == written | {"<pad>", "no"}


@every_format
@given(data=st.data())
def test_round_trip(format, data):
    problem, proof = data.draw(problems), data.draw(proofs[format])
    pads = ["<pad>"] * data.draw(st.integers(0, 2))
    assert read_problem(write_problem(problem, format) + pads, format) == problem
    assert read_proof(write_proof(problem, proof, format) + pads, format) == proof


@every_format
@given(data=st.data())
def test_any_words_are_read_or_refused(format, data):
    """Any words at all: a value that writes back to the same words, or an error that says where."""
    words = data.draw(st.lists(st.sampled_from(CONTROL_WORDS[format]) | names | st.text(max_size=3)))
    for read in (read_problem, read_proof):
        check_reading(read, words, format)


@every_format
@given(data=st.data())
def test_spoiled_texts_are_read_or_refused(format, data):
    """The same, nearer to well-formed text: one stretch of a true one is replaced."""
    problem, proof = data.draw(problems), data.draw(proofs[format])
    for read, words in (
        (read_problem, write_problem(problem, format)),
        (read_proof, write_proof(problem, proof, format)),
    ):
        i, j = data.draw(st.integers(0, len(words))), data.draw(st.integers(0, len(words)))
        words[i:j] = data.draw(st.lists(st.sampled_from(CONTROL_WORDS[format]) | names, max_size=2))
        check_reading(read, words, format)


def check_reading(read, words, format):
    try:
        value = read(words, format)
    except ParseError as error:
        assert 0 <= error.position <= len(words) and "was expected" in str(error)
        if read is read_proof:
            verdict = check_proof(PROBLEM, error.partial)
            assert verdict.kind != "" or error.partial.answer is not None
    else:
        while words[-1] == "<pad>":
            words.pop()
        assert words == (
            write_problem(value, format) if read is read_problem else write_proof(PROBLEM, value, format)
        )


@every_format
def test_a_truncated_completion_gives_what_was_read(format):
    words = TEXTS[format][1].split()
    whole = read_proof(words, format)
    seen = set()
    for end in range(len(words)):
        with pytest.raises(ParseError, match=f"the text ends after {end} words") as caught:
            read_proof(words[:end], format)
        partial = caught.value.partial
        assert caught.value.position == end
        assert partial.steps == whole.steps[: len(partial.steps)]
        assert partial.answer is None or end >= words.index("yes")
        restated = [*(step.known for step in whole.steps), whole.known][len(partial.steps) :]
        assert partial.known in (None, *restated[:1])  # of the step to come, not of one read already
        seen.add((len(partial.steps), partial.answer))
    assert (len(whole.steps), True) in seen and len(seen) == len(whole.steps) + 2


@pytest.mark.parametrize(
    "read, format, text, position, message",
    [
        (read_problem, "compact", "Rules: Facts:", 0, "word 0 is 'Rules:', where '<bos>' was expected"),
        (read_problem, "compact", "<bos> Rules: then C", 2, "where a symbol or 'Facts:' was expected"),
        (read_problem, "compact", "<bos> Rules: A Facts:", 3, "where a symbol or 'then' was expected"),
        (read_problem, "compact", "<bos> Rules: A then Facts:", 4, "where a symbol was expected"),
        (read_problem, "compact", "<bos> Rules: Facts: A Query: Reasoning:", 5, "where a symbol was"),
        (read_problem, "compact", TEXTS["compact"][0] + " B", 14, "'B', where the end of the text was"),
        (read_problem, "full", TEXTS["compact"][0], 2, "'A', where 'If' or 'EndRules' was expected"),
        (read_problem, "full", "<bos> Rules: If then", 3, "'then', where a symbol was expected"),
        (
            read_problem,
            "full",
            "<bos> Rules: EndRules Facts: A Query:",
            5,
            "a symbol or 'EndFacts' was expected",
        ),
        (read_proof, "compact", "", 0, "ends after 0 words, where a symbol, 'yes' or 'no' was expected"),
        (read_proof, "compact", "A then yes", 1, "'then', where a symbol, 'yes' or 'no' was expected"),
        (read_proof, "compact", "A yes A <eos>", 2, "'A', where '<eos>' was expected"),
        (read_proof, "compact", "A yes <eos> <pad> B", 4, "'B', where the end of the text was expected"),
        (read_proof, "full", "Facts: EndFacts Newfact", 2, "'If' or 'EndReasoning' was expected"),
        (read_proof, "full", "Facts: EndFacts EndReasoning Answer: A", 4, "'yes' or 'no' was expected"),
    ],
)
def test_errors_say_where_and_what_was_expected(read, format, text, position, message):
    with pytest.raises(ParseError, match=message) as caught:
        read(text, format)
    assert caught.value.position == position


@pytest.mark.parametrize("symbol", ["Facts:", "yes", "<pad>", "two words", "", " A", 7, None])
@every_format
def test_symbols_that_are_not_words_are_refused(format, symbol):
    proof = Proof((Step(symbol),), True) if format == "compact" else Proof((), True, (symbol,))
    for write in (
        lambda: write_problem(Problem((), (symbol,), "A"), format),
        lambda: write_proof(PROBLEM, proof, format),
    ):
        with pytest.raises(ConfigError, match=r"symbol is .* one word that is not a control word"):
            write()


def test_control_words_of_the_other_format_are_symbols():
    problem = Problem((), ("If",), "If")
    assert read_problem(write_problem(problem, "compact"), "compact") == problem
    with pytest.raises(ConfigError, match="symbol is 'If'"):
        write_problem(problem, "full")


def test_what_the_full_format_cannot_write_is_refused():
    with pytest.raises(ConfigError, match=r"rule_misapplied.*step 1"):
        write_proof(PROBLEM, Proof((Step("B"), Step("C")), True), "full")
    with pytest.raises(ConfigError, match=r"proof\.known is None"):
        write_proof(PROBLEM, Proof((Step("A", Rule(("B",), "A"), ("B",)),), None), "full")
    with pytest.raises(ConfigError, match="a step has its rule and known facts"):
        write_proof(PROBLEM, Proof((Step("A", Rule(("B",), "A")),), True, ("B", "A")), "full")


@pytest.mark.parametrize("call", [write_problem, read_problem, write_proof, read_proof])
def test_an_unknown_format_is_named(call):
    arguments = {write_problem: (PROBLEM,), write_proof: (PROBLEM, prove(PROBLEM))}.get(call, ("",))
    with pytest.raises(ConfigError, match="format is 'prose', but should be one of compact, full"):
        call(*arguments, "prose")
