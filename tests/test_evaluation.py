"""Evaluation: decoding against its slow definition, every error by hand, and texts spoiled at random."""

import math
import random

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from unseen_lib import evaluation
from unseen_lib.errors import ConfigError
from unseen_lib.evaluation import evaluate, generate, summarize, transcribe
from unseen_lib.language import CONTROL_WORDS, EOS, FORMATS, read_proof, write_problem, write_proof
from unseen_lib.logic import Problem, Rule, check_proof, prove
from unseen_lib.model import GPT, GPTConfig
from unseen_lib.problems import IGNORE, SCENARIOS, Task, sample_batch
from unseen_lib.transcripts import ERRORS, continuations, find_mistake, read_transcript
from unseen_lib.vocabulary import Vocabulary

TASKS = {
    "compact": Task("chain", "compact", predicates=(4, 8)),
    "full": Task("rule_priority", "full", predicates=(3, 5), rules=(1, 6), body=(1, 2)),
}
VOCABULARIES = {format: Vocabulary(format, seen=24, unseen=10) for format in FORMATS}


def small_model(format: str, steps: int, **options: object) -> GPT:
    """A small model, trained for some steps, in float64: there rounding decides no word."""
    task, vocabulary = TASKS[format], VOCABULARIES[format]
    sizes = {"width": 32, "layers": 2, "heads": 2, "mlp_width": 64, "context": 128, "final_gain": 3.0}
    config = GPTConfig(vocabulary.size, **sizes, **options)
    model = GPT(config, torch.Generator().manual_seed(1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        batch = sample_batch(task, vocabulary, batch_size=16, seed=0, index=step)
        loss = F.cross_entropy(
            model(batch.tokens).flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORE
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.double()


def sample(format: str, count: int = 12, scenario: str = "seen"):
    return sample_batch(
        TASKS[format],
        VOCABULARIES[format],
        batch_size=count,
        seed=0,
        index=0,
        stream="test",
        scenario=scenario,
    )


# ------------------------------------------------------------------------------------------------- decoding
@torch.no_grad()
def decode_slowly(model: GPT, prompt: torch.Tensor, eos: int, max_new_tokens: int) -> list[int]:
    """The definition: one row, no padding, no cache, all logits of the whole text for each new word."""
    text = prompt[None]
    for _ in range(max_new_tokens):
        word = model(text)[0, -1].argmax()
        text = torch.cat([text, word[None, None]], 1)
        if word == eos:
            break
    return text[0, len(prompt) :].tolist()


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    ("steps", "options"),
    [
        (0, {}),
        (0, {"copy": True, "copy_combine": "slices", "tied": False}),
        (0, {"copy": True, "local_window": 3}),
        (120, {"copy": True, "local_window": 3}),
        (120, {}),
    ],
)
def test_cached_decoding_is_decoding(format, steps, options):
    model, vocabulary = small_model(format, steps, **options), VOCABULARIES[format]
    batch = sample(format)
    assert len(set(batch.prompt_length.tolist())) > 2  # ragged
    room = 20
    expected = [
        decode_slowly(model, tokens[:length], vocabulary.eos, room)
        for tokens, length in zip(batch.tokens, batch.prompt_length, strict=True)
    ]
    if steps and format == "compact":
        assert len({len(row) for row in expected}) > 1  # some rows end before others
    for use_cache in (True, False):
        written = generate(
            model,
            batch.tokens,
            batch.prompt_length,
            vocabulary=vocabulary,
            max_new_tokens=room,
            use_cache=use_cache,
        )
        width = max(len(row) for row in expected)  # it stops when all have ended
        assert written.tolist() == [row + [vocabulary.pad] * (width - len(row)) for row in expected]


def test_what_follows_a_prompt_is_not_looked_at():
    model, vocabulary, batch = small_model("compact", 0), VOCABULARIES["compact"], sample("compact")
    spoiled = batch.tokens.clone()
    for row, length in zip(spoiled, batch.prompt_length, strict=True):
        row[length:] = vocabulary.yes
    clean, other = (
        generate(model, tokens, batch.prompt_length, vocabulary=vocabulary, max_new_tokens=5)
        for tokens in (batch.tokens, spoiled)
    )
    assert not torch.equal(batch.tokens, spoiled)
    assert torch.equal(clean, other)


def test_logits_that_are_not_finite_are_an_error():
    vocabulary, batch = VOCABULARIES["compact"], sample("compact")
    for bad in (math.nan, math.inf):
        model = small_model("compact", 0)
        with torch.no_grad():
            model.norm.weight[0] = bad
        model.train()
        with pytest.raises(FloatingPointError, match="word 0"):
            generate(model, batch.tokens, batch.prompt_length, vocabulary=vocabulary, max_new_tokens=5)
        assert model.training


@pytest.mark.parametrize("room", [0, 1000])
def test_room_that_does_not_fit(room):
    model, batch = small_model("compact", 0), sample("compact")
    with pytest.raises(ConfigError, match=f"max_new_tokens is {room}"):
        generate(
            model, batch.tokens, batch.prompt_length, vocabulary=VOCABULARIES["compact"], max_new_tokens=room
        )


def test_modes_and_weights_are_left_as_they_were():
    model = small_model("compact", 0)
    model.train()
    model.blocks[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    during = []
    model.norm.register_forward_hook(
        lambda module, *_: during.append((module.training, torch.is_grad_enabled()))
    )
    evaluate(model, TASKS["compact"], VOCABULARIES["compact"], problems=4)
    assert set(during) == {(False, False)}
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(weight, weights[name]) for name, weight in model.state_dict().items())


# ------------------------------------------------------------------------------------------------- counting
def perfect(model, tokens, prompt_length, *, vocabulary, max_new_tokens, adjust):
    """Stands in for `generate`: a model that proves everything."""
    rows = []
    for row, length in zip(tokens.tolist(), prompt_length.tolist(), strict=True):
        problem = evaluation.read_transcript(vocabulary.decode(row[:length]), [], vocabulary).problem
        rows.append(vocabulary.encode(write_proof(problem, prove(problem), vocabulary.format)))
    assert max(map(len, rows)) <= max_new_tokens
    return torch.tensor([row + [vocabulary.pad] * (max_new_tokens - len(row)) for row in rows])


def pessimist(model, tokens, prompt_length, *, vocabulary, max_new_tokens, adjust):
    """Stands in for `generate`: a model that only ever says no."""
    return torch.tensor([[vocabulary.no, vocabulary.eos]] * len(tokens))


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("format", FORMATS)
def test_a_perfect_model_and_one_that_always_says_no(format, scenario, monkeypatch):
    batch = sample(format, 60, scenario)
    share = batch.answer.double().mean().item()
    arguments = {"scenario": scenario, "problems": 60}

    monkeypatch.setattr(evaluation, "generate", perfect)
    result = evaluate(None, TASKS[format], VOCABULARIES[format], **arguments)
    assert result.problems == 60
    assert result.true_problems == int(batch.answer.sum())
    assert result.answer_chance == pytest.approx(max(share, 1 - share))
    assert result.answer_accuracy == result.proof_validity == 1
    assert result.true_answer_accuracy == result.true_proof_validity == 1
    assert result.errors == dict.fromkeys(ERRORS, 0)

    monkeypatch.setattr(evaluation, "generate", pessimist)
    result = evaluate(None, TASKS[format], VOCABULARIES[format], **arguments)
    assert result.answer_accuracy == pytest.approx(1 - share)  # flattering
    assert result.true_answer_accuracy == result.true_proof_validity == 0
    assert sum(result.errors.values()) == 60 - round(60 * result.proof_validity)


def test_the_batch_size_changes_nothing():
    model = small_model("compact", 120)
    whole, parts = (
        transcribe(model, TASKS["compact"], VOCABULARIES["compact"], problems=30, batch_size=size)
        for size in (30, 7)
    )
    assert whole == parts
    assert 0 < summarize(whole).answer_accuracy < 1


@pytest.mark.parametrize(("prompts", "chance"), [("TTTF", 0.75), ("TFFF", 0.75), ("TF", 0.5), ("F", 1.0)])
def test_chance_is_the_better_fixed_answer(prompts, chance):
    vocabulary = VOCABULARIES["compact"]
    texts = [spell(TRUE if letter == "T" else FALSE, vocabulary) for letter in prompts]
    result = summarize([read_transcript(text, ["no", EOS], vocabulary) for text in texts])
    assert result.answer_chance == chance
    assert result.answer_accuracy == prompts.count("F") / len(prompts)
    assert result.errors == {**dict.fromkeys(ERRORS, 0), "fact_dropped": len(prompts)}
    assert math.isnan(result.true_answer_accuracy) == ("T" not in prompts)


def test_sizes_that_do_not_fit():
    with pytest.raises(ConfigError, match="batch_size is 0"):
        evaluate(None, TASKS["compact"], VOCABULARIES["compact"], batch_size=0)
    with pytest.raises(ConfigError, match="transcripts is empty"):
        summarize([])


# -------------------------------------------------------------------------------------------------- errors
# In these texts capital letters are unseen names and small ones names of training; > stands before the first
# wrong word.
def spell(text: str, vocabulary: Vocabulary) -> list[str]:
    """Letters as names of the vocabulary."""
    names = {
        **{letter: vocabulary.words[i] for letter, i in zip("ABCDEX", vocabulary.unseen_ids, strict=False)},
        **{letter: vocabulary.words[i] for letter, i in zip("abcdeq", vocabulary.seen_ids, strict=False)},
    }
    return [names.get(word, word) for word in text.split()]


TRUE = "<bos> Rules: D then E A then B B then C b then c Facts: A Query: C Reasoning:"
FALSE = "<bos> Rules: D then E A then B B then C Facts: A Query: E Reasoning:"
MIXED = "<bos> Rules: a then B B then c d then e Facts: a Query: c Reasoning:"
TWO = "<bos> Rules: A B then C Facts: A B Query: C Reasoning:"
FULL = (
    "<bos> Rules: If D then E EndIf If A B then C EndIf If A then B EndIf If b then c EndIf EndRules "
    "Facts: A EndFacts Query: C EndQuery Reasoning:"
)
FIRST = "Facts: A EndFacts If A then B EndIf Newfact B EndNewfact "
SECOND = FIRST + "Facts: A B EndFacts If A B then C EndIf Newfact C EndNewfact "
LAST = SECOND + "Facts: A B C EndFacts EndReasoning "
BY_HAND = [
    (TRUE, "A B C yes <eos>", None),
    (TRUE, "A A B B C yes <eos>", None),
    (TRUE, "A B C yes <eos> <pad> then", None),  # the text ends at <eos>
    (FALSE, "A B C no <eos>", None),
    (TWO, "B A C yes <eos>", None),
    (TRUE, ">B C yes <eos>", "fact_dropped"),
    (TRUE, ">no <eos>", "fact_dropped"),
    (TWO, "B >C yes <eos>", "fact_dropped"),
    (TRUE, "A >C yes <eos>", "fact_dropped"),  # B was due, and C follows from it
    (MIXED, "a >c yes <eos>", "fact_dropped"),  # not replaced: c follows from the B that was due
    (TRUE, ">q B C yes <eos>", "symbol_replaced"),
    (TRUE, "A >b C yes <eos>", "symbol_replaced"),
    (TRUE, "A B >q yes <eos>", "symbol_replaced"),
    (MIXED, "a >e c yes <eos>", "symbol_replaced"),
    (TRUE, ">X A B C yes <eos>", "fact_invented"),  # unseen for unseen
    (MIXED, ">q B c yes <eos>", "fact_invented"),  # seen for seen
    (TRUE, "A >D B C yes <eos>", "invented_rule"),
    (TRUE, "A >X B C yes <eos>", "invented_rule"),
    (TRUE, "A >E B C yes <eos>", "rule_misapplied"),  # D then E, but D is not known
    (FALSE, "A B C >E yes <eos>", "rule_misapplied"),
    (TRUE, "A >no <eos>", "stopped_early"),
    (TRUE, "A B >yes <eos>", "stopped_early"),
    (FALSE, "A B >no <eos>", "stopped_early"),
    (TRUE, "A B C >no <eos>", "wrong_answer"),
    (FALSE, "A B C >yes <eos>", "wrong_answer"),
    (TRUE, ">", "no_answer"),
    (TRUE, "A B C ><eos>", "no_answer"),
    (TRUE, "A B C >", "no_answer"),
    (TRUE, "A >then B yes <eos>", "malformed"),
    (TRUE, "A ><pad> B C yes <eos>", "malformed"),
    (TRUE, "A B C yes >", "malformed"),
    (TRUE, "A B C yes >yes <eos>", "malformed"),
    (TRUE, "A B C yes >C <eos>", "malformed"),
    (FULL, LAST + "Answer: yes EndAnswer <eos>", None),
    (FULL, LAST.replace("If A B", "If B A").replace("A B C", "C A B") + "Answer: yes EndAnswer <eos>", None),
    (FULL, FIRST + LAST.replace("Facts: A E", "Facts: A B E") + "Answer: yes EndAnswer <eos>", None),
    (FULL, "Facts: >EndFacts If A then B EndIf", "fact_dropped"),
    (FULL, FIRST + "Facts: A >EndFacts If A B then C EndIf", "fact_dropped"),
    (FULL, SECOND + "Facts: A B >EndFacts EndReasoning Answer: no EndAnswer <eos>", "fact_dropped"),
    (FULL, "Facts: >q EndFacts", "symbol_replaced"),
    (FULL, "Facts: >q q q q q", "symbol_replaced"),  # and it never ends
    (FULL, FIRST + "Facts: A >b EndFacts", "symbol_replaced"),
    (FULL, "Facts: A EndFacts If >b then c EndIf Newfact c EndNewfact", "symbol_replaced"),
    (FULL, "Facts: A EndFacts If A then >b EndIf Newfact b EndNewfact", "symbol_replaced"),
    (FULL, "Facts: A EndFacts If A then B EndIf Newfact >b EndNewfact", "symbol_replaced"),
    (FULL, "Facts: >X EndFacts", "fact_invented"),
    (FULL, "Facts: A >q EndFacts", "fact_invented"),  # nothing was due but the end
    (FULL, "Facts: A EndFacts If A then >C EndIf Newfact C EndNewfact", "invented_rule"),
    (FULL, "Facts: A EndFacts If >X then C EndIf Newfact C EndNewfact", "invented_rule"),
    (FULL, "Facts: A EndFacts If A >E then C EndIf Newfact C EndNewfact", "invented_rule"),
    (FULL, FIRST + "Facts: A B EndFacts If B >then C EndIf", "invented_rule"),
    (FULL, "Facts: A EndFacts If >X X", "invented_rule"),
    (FULL, "Facts: A EndFacts If >D then E EndIf Newfact E EndNewfact", "rule_misapplied"),
    (FULL, "Facts: A EndFacts If A >B then C EndIf Newfact C EndNewfact", "rule_misapplied"),
    (FULL, "Facts: A EndFacts If >D D D D", "rule_misapplied"),
    (FULL, "Facts: A EndFacts If A then B EndIf Newfact >C EndNewfact", "rule_misapplied"),
    (FULL, "Facts: A EndFacts >EndReasoning Answer: no EndAnswer <eos>", "stopped_early"),
    (FULL, FIRST + "Facts: A B EndFacts >EndReasoning Answer: yes EndAnswer <eos>", "stopped_early"),
    (FULL, LAST + "Answer: >no EndAnswer <eos>", "wrong_answer"),
    (FULL, ">", "no_answer"),
    (FULL, "Facts: A EndFacts ><eos>", "no_answer"),
    (FULL, LAST + ">", "no_answer"),
    (FULL, ">A B C yes <eos>", "malformed"),
    (FULL, "Facts: A EndFacts >Newfact B EndNewfact", "malformed"),
    (FULL, "Facts: A EndFacts If >then B EndIf", "malformed"),
    (FULL, "Facts: A EndFacts If A then B >B EndIf", "malformed"),
    (FULL, LAST + "Answer: yes ><eos>", "malformed"),
    (FULL, LAST + "Answer: yes EndAnswer >", "malformed"),
]


@pytest.mark.parametrize(("prompt", "text", "error"), BY_HAND)
def test_errors_by_hand(prompt, text, error):
    vocabulary = VOCABULARIES["full" if prompt == FULL else "compact"]
    completion = spell(text.replace(">", " ", 1) if error else text, vocabulary)
    transcript = read_transcript(spell(prompt, vocabulary), completion, vocabulary)
    assert transcript.error == error
    if error is None:
        assert transcript.valid and transcript.verdict
    else:
        assert transcript.mistake.position == len(text[: text.index(">")].split())
        assert transcript.verdict.reason and not transcript.verdict


@pytest.mark.parametrize("format", FORMATS)
def test_every_error_has_an_example(format):
    assert {error for prompt, _, error in BY_HAND if (prompt == FULL) == (format == "full")} == {
        *ERRORS,
        None,
    }


def test_the_first_error_counts():
    vocabulary = VOCABULARIES["compact"]
    prompt = spell(TRUE, vocabulary)
    errors = [
        read_transcript(prompt, spell(text, vocabulary), vocabulary).error
        for text in ("A E b no", "A b E no", "A no E b", "A then no b")
    ]
    assert errors == ["rule_misapplied", "symbol_replaced", "stopped_early", "malformed"]


def test_the_verdict_on_a_text_that_cannot_be_read_is_about_its_first_fault():
    vocabulary = VOCABULARIES["compact"]
    verdicts = [
        read_transcript(spell(TRUE, vocabulary), spell(text, vocabulary), vocabulary).verdict
        for text in ("A B then", "A E then")
    ]
    assert [verdict.kind for verdict in verdicts] == ["malformed", "rule_misapplied"]
    assert [verdict.step for verdict in verdicts] == [2, 1]
    assert "'then'" in verdicts[0].reason


def test_an_answer_counts_whatever_surrounds_it():
    vocabulary = VOCABULARIES["compact"]
    prompt = spell(TRUE, vocabulary)
    answers = [
        read_transcript(prompt, spell(text, vocabulary), vocabulary).answer
        for text in ("then q yes no <eos>", "no", "A B C <eos> yes")
    ]
    assert answers == [True, False, None]


# ------------------------------------------------------------------------------------- errors, at random
def random_problem(rng: random.Random, vocabulary: Vocabulary) -> Problem:
    names = rng.sample(
        [*vocabulary.words[-vocabulary.unseen :], *vocabulary.words[-20 - vocabulary.unseen :]], 6
    )
    names = list(dict.fromkeys(names))
    rules = [
        Rule(tuple(rng.sample(names, rng.randint(1, 2))), rng.choice(names)) for _ in range(rng.randint(0, 7))
    ]
    return Problem(tuple(rules), tuple(rng.sample(names, rng.randint(0, 3))), rng.choice(names))


def random_walk(rng: random.Random, problem: Problem, format: str) -> list[str]:
    """A valid proof of which every word was chosen at random, until it has gone on for long enough."""
    words: list[str] = []
    while not words or words[-1] != EOS:
        due = continuations(problem, words, format)
        words.append(rng.choice(due) if len(words) < 30 else due[0])
    return words


def spoil(rng: random.Random, words: list[str], others: list[str]) -> list[str]:
    """One to three words left out, doubled, replaced or inserted, or the end cut off."""
    words = list(words)
    for _ in range(rng.randint(1, 3)):
        i, j = (rng.randrange(len(words) + 1) for _ in range(2))
        edits = [words[:i] + words[i + 1 :], words[:i] + words[j:], words[:i]]
        edits += [[*words[:i], rng.choice(others), *words[i + k :]] for k in (0, 1, 1)]
        words = rng.choice(edits)
    return words


every_format = pytest.mark.parametrize("format", FORMATS)
rngs = st.randoms(use_true_random=False)


@every_format
@settings(max_examples=150, deadline=None)
@given(rng=rngs)
def test_any_text_is_valid_or_has_one_error(format, rng):
    vocabulary = VOCABULARIES[format]
    problem = random_problem(rng, vocabulary)
    proof = prove(problem, rng=rng)
    others = [*CONTROL_WORDS[format], *problem.symbols, *problem.symbols, *vocabulary.words[-15:]]
    for words in (write_proof(problem, proof, format), random_walk(rng, problem, format)):
        for text in (words, spoil(rng, words, others), rng.choices(others, k=rng.randint(0, 8))):
            transcript = read_transcript(write_problem(problem, format), text, vocabulary)
            # The checker of `logic` and the reader that looks for mistakes know nothing of each other.
            mistake = find_mistake(problem, text, vocabulary)
            assert (mistake is None) == transcript.verdict.valid
            assert transcript.mistake == mistake
            assert (transcript.error in ERRORS) == (not transcript.valid)
            if text is words:
                assert transcript.valid


@every_format
@settings(max_examples=100, deadline=None)
@given(rng=rngs)
def test_a_mistake_is_where_no_valid_proof_can_go_on(format, rng):
    vocabulary = VOCABULARIES[format]
    problem = random_problem(rng, vocabulary)
    words = random_walk(rng, problem, format)
    i = rng.randrange(len(words))
    due = continuations(problem, words[:i], format)
    # Any word that is due can be followed by the rest of a valid proof ...
    for word in due:
        text = [*words[:i], word]
        while text[-1] != EOS:
            text.append(continuations(problem, text, format)[0])
        assert check_proof(problem, read_proof(text, format))
    # ... and any other is the mistake.
    for word in {*vocabulary.words} - set(due):
        mistake = find_mistake(problem, [*words[:i], word, *words[i:]], vocabulary)
        assert (mistake.position, mistake.expected) == (i, due[0])
        assert continuations(problem, [*words[:i], word], format) == []


@every_format
@settings(max_examples=60, deadline=None)
@given(rng=rngs)
def test_what_is_expected_is_what_forward_chaining_writes(format, rng):
    problem = random_problem(rng, VOCABULARIES[format])
    words = write_proof(problem, prove(problem), format)
    assert [continuations(problem, words[:i], format)[0] for i in range(len(words))] == words
    assert continuations(problem, words, format) == []


# -------------------------------------------------------------------------------------------------- reading
@pytest.mark.parametrize(
    ("text", "marked"), [("A b C", "A >>b<< C"), ("A B", "A B >>(end)<<"), ("A B C yes <eos>", None)]
)
def test_the_first_wrong_word_is_marked(text, marked):
    vocabulary = VOCABULARIES["compact"]
    transcript = read_transcript(spell(TRUE, vocabulary), spell(text, vocabulary), vocabulary)
    page, terminal = transcript._repr_html_(), str(transcript)
    assert max(map(len, terminal.splitlines())) <= 100
    assert "&lt;bos&gt;" in page and "<bos>" not in page
    unseen, seen = vocabulary.words[vocabulary.unseen_ids[0]], vocabulary.words[vocabulary.seen_ids[1]]
    assert f'<span class="unseen">{unseen}</span>' in page
    assert f'<span class="seen">{seen}</span>' in page
    assert page.count('class="first-error"') == (marked is not None) == page.count("▸")
    if marked:
        inner = marked.split(">>")[1].split("<<")[0]
        spelled = spell(inner, vocabulary)[0]
        assert f">>{spelled}<<" in terminal
        assert transcript.error in terminal and transcript.error in page
    else:
        assert ">>" not in terminal and "= valid proof" in terminal
