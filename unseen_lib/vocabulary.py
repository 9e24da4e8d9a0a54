"""Words and their ids: first the control words of a format, then the seen symbols, then the unseen ones.

Symbols are invented names that can be said aloud and do not depend on the sizes: seen ones in lower case
("radu"), unseen ones, which training never uses, with a capital ("Sururo").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from unseen_lib.errors import ConfigError, ParseError
from unseen_lib.language import BOS, CONTROL_WORDS, EOS, FORMATS, NO, PAD, YES

# Fewer letters than English has, and fewer still at the end, so that next to no name is a word one knows.
_FIRST = [consonant + vowel for consonant in "bdfgklmnrstvz" for vowel in "aeiou"]
_MIDDLE = [consonant + vowel for consonant in "bdlmnrstv" for vowel in "aeiou"]
_LAST = [consonant + vowel for consonant in "bdlmnrstv" for vowel in "aiou"]
_SHORT = len(_FIRST) * len(_LAST)  # names of two syllables: 2,340
_LONG = len(_FIRST) * len(_MIDDLE) * len(_LAST)  # names of three syllables: 105,300


@dataclass(frozen=True)
class Vocabulary:
    """The words of a task.

    Parameters
    ----------
    format : {"compact", "full"}
        Which control words there are (`.language.CONTROL_WORDS`).
    seen, unseen : int
        How many symbols training may use, and how many it never sees.

    Raises
    ------
    ConfigError
        If the format is unknown, there is no seen symbol, a size is negative, or there are not enough names.
    """

    format: str
    seen: int
    unseen: int

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"format is {self.format!r}, but should be one of {', '.join(FORMATS)}")
        _check_size("unseen", self.unseen, 0, _LONG)
        _check_size("seen", self.seen, 1, _SHORT + _LONG - self.unseen)

    @cached_property
    def words(self) -> tuple[str, ...]:
        """Every word, at the index that is its id."""
        seen = (_seen_name(i) for i in range(self.seen))
        unseen = (_unseen_name(i) for i in range(self.unseen))
        return (*CONTROL_WORDS[self.format], *seen, *unseen)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {word: i for i, word in enumerate(self.words)}

    @property
    def size(self) -> int:
        """How many words there are, V."""
        return len(CONTROL_WORDS[self.format]) + self.seen + self.unseen

    @property
    def control_ids(self) -> range:
        """Ids of the control words."""
        return range(len(CONTROL_WORDS[self.format]))

    @property
    def seen_ids(self) -> range:
        """Ids of the names that training uses."""
        return range(self.control_ids.stop, self.control_ids.stop + self.seen)

    @property
    def unseen_ids(self) -> range:
        """Ids of the names that it never uses."""
        return range(self.seen_ids.stop, self.size)

    @property
    def pad(self) -> int:
        """Id of ``<pad>``, which fills a batch up."""
        return self._ids[PAD]

    @property
    def bos(self) -> int:
        """Id of ``<bos>``, the first word of a text."""
        return self._ids[BOS]

    @property
    def eos(self) -> int:
        """Id of ``<eos>``, its last."""
        return self._ids[EOS]

    @property
    def yes(self) -> int:
        """Id of the answer ``yes``."""
        return self._ids[YES]

    @property
    def no(self) -> int:
        """Id of the answer ``no``."""
        return self._ids[NO]

    def encode(self, words: str | Sequence[str]) -> list[int]:
        """The ids of some words (a string is split at spaces); raises ParseError at a word that has none."""
        words = words.split() if isinstance(words, str) else words
        ids = self._ids
        try:
            return [ids[word] for word in words]
        except KeyError:
            position, word = next((i, word) for i, word in enumerate(words) if word not in ids)
            message = (
                f"word {position} is {word!r}, which is not among the {self.size} words of this vocabulary"
            )
            raise ParseError(message, position) from None

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The words of some ids; raises ConfigError at a number that is none."""
        words, result = self.words, []
        for i in ids:
            if not 0 <= i < len(words):
                raise ConfigError(f"id is {int(i)}, but should be from 0 to {len(words) - 1}")
            result.append(words[i])
        return result

    def is_unseen(self, word: str) -> bool:
        """Whether this is a name that training never uses."""
        return self._ids.get(word, -1) in self.unseen_ids


def _check_size(field: str, size: int, smallest: int, largest: int) -> None:
    if type(size) is not int or not smallest <= size <= largest:
        raise ConfigError(f"{field} is {size!r}, but should be an int from {smallest} to {largest}")


# The steps 1447 and 65077 are near the golden section of the number of names and share no factor with it: so
# every name comes up once, and neighbors differ in every syllable.


def _seen_name(i: int) -> str:
    if i < _SHORT:
        return _spell(i * 1447 % _SHORT, _FIRST, _LAST)
    return _spell((i - _SHORT) * 65077 % _LONG, _FIRST, _MIDDLE, _LAST)


def _unseen_name(i: int) -> str:
    # Long names taken from the other end, so that no seen name is an unseen one without its capital.
    return _spell((_LONG - 1 - i) * 65077 % _LONG, _FIRST, _MIDDLE, _LAST).capitalize()


def _spell(number: int, *syllables: list[str]) -> str:
    name = ""
    for choices in reversed(syllables):
        number, i = divmod(number, len(choices))
        name = choices[i] + name
    return name
