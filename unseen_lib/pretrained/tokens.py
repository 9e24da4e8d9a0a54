"""Which rows of an embedding nobody named a text for, and a sample of those that are ordinary.

A tokenizer is read as the data it is: the names and ids in its files, never code.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.files import Folder

# <unused0>, [unused0], <|reserved_special_token_0|>, <reserved_0>, <|extra_0|>, <SPECIAL_20>, [control_8],
# <|dummy_0|>, <｜place▁holder▁no▁0｜>, madeupword0000
UNUSED = re.compile(
    r"[<\[][|｜]?\w*?(?:unused|reserved(?:_special)?(?:_token)?|extra|dummy|special|control|place▁holder▁no)"
    r"[_▁]?\d+[|｜]?[>\]]|madeupword\d+",
    re.IGNORECASE,
)
GAP = 1000  # unused ids further apart than this are two groups: <unused98> is 104 in Gemma, <unused99> 256001
GGUF_SPECIAL, GGUF_UNUSED = 3, 5  # of the token types in a GGUF file


@dataclass(frozen=True)
class Tokens:
    """What a tokenizer says.

    Parameters
    ----------
    names : dict of int to str
        The text of each id; of the added tokens alone if the rest was not read.
    special : frozenset of int
        Ids that the tokenizer calls special, and that are not unused.
    unused : frozenset of int
        Ids whose name says that they are unused, or that have none.
    size : int
        One more than the highest id.
    """

    names: Mapping[int, str]
    special: frozenset[int] = frozenset()
    unused: frozenset[int] = frozenset()
    size: int = 0

    def name(self, row: int) -> str:
        """The text of a row, for people."""
        return self.names.get(row, "(no name)")


NOTHING_KNOWN = Tokens({})


@dataclass(frozen=True)
class Group:
    """Rows that belong together, of a kind: ``unused``, ``padding``, ``special``, ``given``, ``ordinary``."""

    kind: str
    label: str
    ids: tuple[int, ...] = field(repr=False)


def read_tokens(folder: Folder, table_size: int, *, all_names: bool) -> Tokens:
    """What the tokenizer of a model says, from as little as will do.

    A tokenizer_config.json that names unused tokens and reaches the end of the table is enough, unless
    ``all_names`` are wanted: the whole vocabulary of Gemma has 33 MB, its added tokens 1 MB.

    Raises
    ------
    PretrainedError
        If a file of it is damaged. Without any tokenizer, nothing is known and that is said later.
    """
    added: list[Mapping[str, Any]] = []
    if "tokenizer_config.json" in folder.sizes:
        decoder = _object(folder, "tokenizer_config.json").get("added_tokens_decoder") or {}
        added = [{**entry, "id": int(row)} for row, entry in decoder.items()]
    partly = _tokens({}, added)
    if partly.unused and partly.size >= 0.99 * table_size and not all_names:
        return partly
    if "tokenizer.json" in folder.sizes:
        data = _object(folder, "tokenizer.json")
        vocabulary = (data.get("model") or {}).get("vocab") or {}
        if isinstance(vocabulary, list):  # of a unigram model: pairs of a token and its score
            vocabulary = {token: row for row, (token, *_) in enumerate(vocabulary)}
        return _tokens(vocabulary, [*(data.get("added_tokens") or []), *added])
    if "vocab.txt" in folder.sizes:
        lines = folder.read_text("vocab.txt").splitlines()
        return _tokens({token: row for row, token in enumerate(lines)}, added)
    if "vocab.json" in folder.sizes:
        vocabulary = _object(folder, "vocab.json")
        more = _object(folder, "added_tokens.json") if "added_tokens.json" in folder.sizes else {}
        return _tokens(vocabulary | more, added)
    return NOTHING_KNOWN


def gguf_tokens(names: Sequence[str] | None, kinds: Sequence[int] | None) -> Tokens:
    """What a GGUF file says about its tokens: their texts and the kind of each."""
    if names is None:
        return NOTHING_KNOWN
    kinds = kinds or [0] * len(names)
    unused = {row for row, kind in enumerate(kinds) if kind == GGUF_UNUSED}
    special = [
        {"id": row, "content": names[row], "special": True}
        for row, kind in enumerate(kinds)
        if kind == GGUF_SPECIAL
    ]
    tokens = _tokens({name: row for row, name in enumerate(names)}, special)
    return Tokens(tokens.names, tokens.special - unused, tokens.unused | unused, len(names))


def tokenizer_tokens(tokenizer: Any) -> Tokens:
    """What a tokenizer of transformers says."""
    added = [
        {"id": row, "content": token.content, "special": token.special}
        for row, token in tokenizer.added_tokens_decoder.items()
    ]
    return _tokens(tokenizer.get_vocab(), added)


def unused_groups(tokens: Tokens, table_size: int) -> list[Group]:
    """The unused ids in blocks, and the rows beyond the tokenizer: where one might put one's own symbols."""
    groups = []
    inside = sorted(row for row in tokens.unused if row < table_size)
    for block in _blocks(inside):
        first, last = tokens.name(block[0]), tokens.name(block[-1])
        groups.append(Group("unused", first if len(block) == 1 else f"{first} … {last}", tuple(block)))
    if 0 < tokens.size < table_size:
        padding = tuple(range(tokens.size, table_size))
        groups.append(Group("padding", "beyond the tokenizer", padding))
    return groups


def special_group(tokens: Tokens, table_size: int) -> Group:
    """The tokens that the tokenizer calls special; most of them are in use."""
    return Group(
        "special", "special tokens", tuple(sorted(row for row in tokens.special if row < table_size))
    )


def given_group(tokens: Tokens, wanted: Iterable[int | str], table_size: int) -> Group:
    """The tokens a user names, by id or by text.

    Raises
    ------
    PretrainedError
        If an id is out of range, or a text is not one token.
    """
    ids = {text: row for row, text in tokens.names.items()}
    found = []
    for token in wanted:
        row = ids.get(token) if isinstance(token, str) else token
        if row is None:
            why = "is no token of this tokenizer" if ids else "cannot be looked up, as no tokenizer is known"
            raise PretrainedError(f"the text {token!r} {why}: name the token by its id")
        if not 0 <= row < table_size:
            raise PretrainedError(
                f"token id {row} is out of range: the embedding has rows 0 to {table_size - 1}"
            )
        found.append(row)
    if not found:
        raise PretrainedError("no tokens were named: name at least one, by id or by text")
    unique = tuple(dict.fromkeys(found))
    names = [tokens.name(row) if row in tokens.names else f"id {row}" for row in unique]
    return Group("given", names[0] if len(names) == 1 else f"{names[0]} … {names[-1]}", unique)


def ordinary_group(
    tokens: Tokens, others: Iterable[int], table_size: int, *, sample: int, seed: int
) -> Group:
    """A sample, the same for the same seed, of the rows that are none of ``others``, unused or special.

    Raises
    ------
    PretrainedError
        If fewer than two rows are left.
    """
    reserved = {*others, *tokens.special, *tokens.unused}
    end = min(tokens.size or table_size, table_size)
    ordinary = [row for row in range(end) if row not in reserved]
    if len(ordinary) < 2:
        raise PretrainedError(
            f"only {len(ordinary)} ordinary rows are left to compare with: name fewer tokens"
        )
    chosen = sorted(random.Random(seed).sample(ordinary, min(sample, len(ordinary))))
    return Group("ordinary", "ordinary tokens", tuple(chosen))


def thinned(group: Group, sample: int, seed: int) -> Group:
    """At most ``sample`` rows of a group, drawn at random."""
    if len(group.ids) <= sample:
        return group
    return Group(group.kind, group.label, tuple(sorted(random.Random(seed).sample(group.ids, sample))))


def _tokens(vocabulary: Mapping[str, int], added: Iterable[Mapping[str, Any]]) -> Tokens:
    names = {row: token for token, row in vocabulary.items()}
    special = set()
    for entry in added:
        row, token = int(entry["id"]), str(entry.get("content", ""))
        names[row] = token
        if entry.get("special"):
            special.add(row)
    unused = {row for row, token in names.items() if UNUSED.fullmatch(token)}
    size = max(names, default=-1) + 1
    if vocabulary:  # ids below the highest that no token has
        unused |= set(range(size)) - names.keys()
    return Tokens(names, frozenset(special - unused), frozenset(unused), size)


def _blocks(ids: Sequence[int]) -> list[list[int]]:
    blocks: list[list[int]] = []
    for row in ids:
        if blocks and row - blocks[-1][-1] <= GAP:
            blocks[-1].append(row)
        else:
            blocks.append([row])
    return blocks


def _object(folder: Folder, file: str) -> dict[str, Any]:
    data = folder.read_json(file)
    if not isinstance(data, dict):
        raise PretrainedError(f"{file} of {folder.name} is not a JSON object: download it again")
    return data
