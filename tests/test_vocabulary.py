"""Words and ids: distinct names, unseen ones apart, and errors that name what does not fit."""

import re
from itertools import pairwise

import pytest

from unseen_lib.errors import ConfigError, ParseError
from unseen_lib.language import CONTROL_WORDS, FORMATS
from unseen_lib.vocabulary import Vocabulary


def test_ids_are_control_words_then_seen_then_unseen():
    vocabulary = Vocabulary("compact", seen=5, unseen=3)
    controls = CONTROL_WORDS["compact"]
    assert vocabulary.size == len(vocabulary.words) == len(controls) + 8
    assert [*vocabulary.control_ids, *vocabulary.seen_ids, *vocabulary.unseen_ids] == list(
        range(vocabulary.size)
    )
    assert tuple(vocabulary.decode(vocabulary.control_ids)) == controls
    assert [len(vocabulary.seen_ids), len(vocabulary.unseen_ids)] == [5, 3]
    special = (vocabulary.pad, vocabulary.bos, vocabulary.eos, vocabulary.yes, vocabulary.no)
    assert vocabulary.decode(special) == ["<pad>", "<bos>", "<eos>", "yes", "no"]
    assert special[:3] == (0, 1, 2)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "seen, unseen", [(1, 0), (512, 100), (9600, 100), (100_000, 5_000), (2_340, 105_300)]
)
def test_names(format, seen, unseen):
    vocabulary = Vocabulary(format, seen, unseen)
    names = vocabulary.decode([*vocabulary.seen_ids, *vocabulary.unseen_ids])
    assert len(names) == seen + unseen
    assert len({word.lower() for word in vocabulary.words}) == vocabulary.size  # apart from capitals too
    syllables = re.compile("([bdfgklmnrstvz][aeiou]){2,3}")
    assert all(syllables.fullmatch(name.lower()) for name in names)
    assert all(name.islower() for name in names[:seen])
    assert all(name[0].isupper() and name[1:].islower() for name in names[seen:])
    # Neighbors share neither their first two letters nor their last two.
    for some in (names[:seen], names[seen:]):
        assert all(a[:2].lower() != b[:2].lower() and a[-2:] != b[-2:] for a, b in pairwise(some))


def test_names_do_not_depend_on_the_sizes():
    small, large = Vocabulary("compact", 32, 10), Vocabulary("full", 9600, 100)
    assert small.decode(small.seen_ids) == large.decode(large.seen_ids)[:32]
    assert small.decode(small.unseen_ids) == large.decode(large.unseen_ids)[:10]


def test_encode_and_decode():
    vocabulary = Vocabulary("full", seen=50, unseen=10)
    assert vocabulary.encode(vocabulary.words) == list(range(vocabulary.size))
    assert vocabulary.decode(range(vocabulary.size)) == list(vocabulary.words)
    name = vocabulary.words[vocabulary.seen_ids[7]]
    assert vocabulary.encode(f"Facts: {name}\n EndFacts") == vocabulary.encode(["Facts:", name, "EndFacts"])


def test_is_unseen():
    vocabulary = Vocabulary("compact", seen=50, unseen=10)
    assert [word for word in vocabulary.words if vocabulary.is_unseen(word)] == list(vocabulary.words[-10:])
    assert not vocabulary.is_unseen("Anna")


def test_words_and_ids_that_are_not_there_are_named():
    vocabulary = Vocabulary("compact", seen=5, unseen=0)
    with pytest.raises(ParseError, match="word 1 is 'Anna', which is not among the 15 words") as caught:
        vocabulary.encode("Facts: Anna Bob")
    assert caught.value.position == 1
    for number in (-1, 15, -100):
        with pytest.raises(ConfigError, match=f"id is {number}, but should be from 0 to 14"):
            vocabulary.decode([0, number])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("prose", 5, 5), "format is 'prose', but should be one of compact, full"),
        ((None, 5, 5), "format is None"),
        (("full", 0, 5), "seen is 0, but should be an int from 1 to 107635"),
        (("full", -3, 5), "seen is -3"),
        (("full", 5, -1), "unseen is -1, but should be an int from 0 to 105300"),
        (("full", 5, 105_301), "unseen is 105301"),
        (("full", 2_341, 105_300), "seen is 2341, but should be an int from 1 to 2340"),
        (("full", 5.0, 5), "seen is 5.0"),
        (("full", 5, "5"), "unseen is '5'"),
        (("full", True, 5), "seen is True"),
    ],
)
def test_sizes_that_do_not_fit_are_named(arguments, message):
    with pytest.raises(ConfigError, match=message):
        Vocabulary(*arguments)
