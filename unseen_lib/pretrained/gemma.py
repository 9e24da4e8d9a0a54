"""The symbols of the paper's fine-tuning, in the tokens of a published model, and that model loaded.

A problem is written as one text: control words, adjectives and letters with a space before each, and unused
tokens without one, because it would be a token of its own. The tokenizer of Gemma puts a space into the token
of the word that follows. So a text is cut where its words begin, and a word has the same ids wherever it
stands. That is checked, not assumed: :func:`spelled` cuts whole problems and compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from importlib.metadata import version
from typing import Any

import torch

from unseen_lib import __version__
from unseen_lib.errors import ConfigError, PretrainedError
from unseen_lib.language import BOS, CONTROL_WORDS, EOS, PAD
from unseen_lib.pretrained.files import INSTALL, download, open_folder
from unseen_lib.pretrained.finetune import FinetuneConfig, Symbols, finetune, spell, steps_to
from unseen_lib.pretrained.repair import reinitialize
from unseen_lib.pretrained.tables import find_tables
from unseen_lib.pretrained.tokens import UNUSED, tokenizer_tokens, unused_groups
from unseen_lib.problems import Task, sample_batch
from unseen_lib.vocabulary import Vocabulary

#: What the symbols of a fine-tuning are.
KINDS = ("unused", "adjectives", "letters")
COUNT = 80  # symbols of the paper's fine-tuning

_LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Lower case alone has 52 letters and doubled letters, fewer than 80: so capitals too.
_WRITTEN = [letters * times for times in (1, 2) for letters in (*_LETTERS, *_LETTERS.upper())]
_ADJECTIVES = """
big small large little long short tall wide narrow deep high low heavy light thick thin fat slim huge tiny
old young new ancient modern early late recent fresh fast slow quick rapid sudden steady hot cold warm cool
dry wet soft hard smooth rough sharp dull flat round square straight loose tight strong weak loud quiet
silent noisy bright dark pale clear dim red blue green yellow white black brown gray pink purple golden
silver good bad great fine nice poor rich cheap expensive free busy idle full empty open closed clean dirty
neat plain simple complex easy difficult safe dangerous true false real fake right wrong correct exact
certain sure likely possible impossible common rare usual strange normal odd even special general local
foreign public private happy sad angry calm brave afraid proud shy kind cruel gentle polite rude honest
loyal wise clever smart stupid foolish lazy active careful curious eager patient nervous tired asleep awake
alive dead healthy sick ill hungry thirsty blind deaf bare bold sweet sour bitter salty raw ripe rotten
major minor main final total whole complete partial single double equal similar different separate solid
liquid natural human social moral legal royal holy sacred famous popular unknown secret hidden visible
absolute formal casual stable fragile fierce wild tame rural urban northern southern eastern western central
upper lower inner outer left nearby distant useful useless
"""


def symbol_kinds(tokenizer: Any, kind: str, count: int = COUNT) -> dict[str, int]:
    """``count`` symbols of one kind, each exactly one token: how each is written in a text, and its id.

    Parameters
    ----------
    tokenizer : a tokenizer of transformers
    kind : {"unused", "adjectives", "letters"}
        - ``unused``: the first tokens by id that nobody named a text for, as ``<unused0>``.
        - ``adjectives``: English ones, after a space.
        - ``letters``: a ... z, A ... Z, then doubled, aa ... ZZ, after a space.

    Raises
    ------
    ConfigError
        If the kind is unknown.
    PretrainedError
        If too few candidates are one token that stays one between other words. Some that failed are named.
    """
    if kind not in KINDS:
        raise ConfigError(f"kind={kind!r} is unknown; use one of {', '.join(map(repr, KINDS))}")
    if kind == "unused":
        known = tokenizer_tokens(tokenizer)
        unused = [row for group in unused_groups(known, known.size) for row in group.ids]
        candidates = [known.name(row) for row in unused if UNUSED.fullmatch(known.name(row))]
    else:
        listed = _ADJECTIVES.split() if kind == "adjectives" else _WRITTEN
        candidates = [f" {word}" for word in listed]
    before, after = _cut(tokenizer, " If"), _cut(tokenizer, " then")
    words = {word for words in CONTROL_WORDS.values() for word in words}
    taken = {token for word in words for token in _cut(tokenizer, f" {word}")}
    chosen: dict[str, int] = {}
    failed = []
    for text in candidates:
        if len(chosen) == count:
            break
        ids, around = _cut(tokenizer, text), f" If{text}{text} then"
        if len(ids) != 1:
            failed.append(f"{text!r} ({len(ids)} tokens)")
        elif ids[0] in taken:
            failed.append(f"{text!r} (part of a control word)")
        elif (
            _cut(tokenizer, around) != [*before, *ids, *ids, *after]
            or _text(tokenizer, _cut(tokenizer, around)) != around.lstrip()
        ):
            failed.append(f"{text!r} (not so between other words)")
        else:
            chosen[text] = ids[0]
            taken.add(ids[0])
    if len(chosen) < count:
        why = f", not {', '.join(failed[:5])}{' …' * (len(failed) > 5)}" if failed else ""
        raise PretrainedError(
            f"{count} {kind} are wanted and {len(chosen)} of {len(candidates)} are single tokens of this "
            f"tokenizer{why}: ask for fewer, or take another kind of symbol"
        )
    return chosen


def spelled(tokenizer: Any, task: Task, names: Mapping[str, int]) -> Symbols:
    """What `.finetune.finetune` needs: these names, and control words as this tokenizer cuts them.

    Parameters
    ----------
    task : Task
        Some of its problems are cut as a whole and compared.
    names : dict of str to int
        As :func:`symbol_kinds` gives them.

    Raises
    ------
    PretrainedError
        If the tokenizer has no end token, or does not cut a problem word by word.
    """
    bos, eos, pad = (getattr(tokenizer, f"{which}_token_id") for which in ("bos", "eos", "pad"))
    if eos is None:
        raise PretrainedError("this tokenizer has no token for the end of a text: use another model")
    outside = {BOS: () if bos is None else (bos,), EOS: (eos,), PAD: (eos if pad is None else pad,)}
    control = CONTROL_WORDS[task.format]
    words = {word: tuple(_cut(tokenizer, f" {word}")) for word in control}
    symbols = Symbols(words | outside, tuple(names.values()))

    vocabulary = Vocabulary(task.format, len(names), 0)
    texts = ["" if word in outside else f" {word}" for word in control] + list(names)  # by id
    for index in range(32):
        batch = sample_batch(task, vocabulary, batch_size=1, seed=0, index=index)
        text = "".join(texts[word] for word in [*batch.tokens[0], batch.targets[0, -1]])
        whole = [*outside[BOS], *_cut(tokenizer, text), *outside[EOS]]
        if whole != spell(batch, vocabulary, symbols).tokens[0].tolist():
            raise PretrainedError(
                "this tokenizer cuts a word otherwise beside other words than alone, so problems cannot be "
                "spelled word by word: use another model"
            )
    return symbols


def load(name: str) -> tuple[Any, Any]:
    """A causal language model with float32 weights and its tokenizer, from a folder or the hub.

    Only safetensors are read, and no code that lies beside them is run.

    Parameters
    ----------
    name : str
        A folder, or ``owner/name`` or ``owner/name@revision`` on the hub, which is downloaded.

    Raises
    ------
    PretrainedError
        If it is neither, the hub does not let us in, or what is there cannot be loaded.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise PretrainedError(f"to load {name}, transformers is missing: {INSTALL}") from error
    find_tables(open_folder(name))  # says at once what is in the way, before gigabytes are fetched
    path = download(name)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, use_safetensors=True)
    except Exception as error:  # of whatever is damaged, or not known to the version at hand
        raise PretrainedError(
            f"transformers cannot load {name} ({type(error).__name__}): it is no causal language model with "
            "a tokenizer, or damaged, or made for another version: try to update transformers"
        ) from error
    return model, tokenizer


def run_arm(
    name: str, kind: str, config: FinetuneConfig, *, repair: bool = False, **options: Any
) -> dict[str, Any]:
    """One arm of the paper's experiment, or its repaired one: load, choose symbols, fine-tune.

    Parameters
    ----------
    name : str
        As for :func:`load`.
    kind : {"unused", "adjectives", "letters"}
    config : FinetuneConfig
    repair : bool
        Draw the rows of the unused tokens anew first (`.repair.reinitialize`, seeded as the run). This arm is
        not in the paper.
    options
        Of `.finetune.finetune`.

    Returns
    -------
    dict
        JSON data: the settings, the symbols, the curve, where it ran, and with which versions.

    Raises
    ------
    ConfigError
        If rows are to be drawn anew that are in use; also what :func:`load` and `.finetune.finetune` raise.
    """
    if repair and kind != "unused":
        raise ConfigError(
            f"repair=True would destroy the rows of {kind}, which are in use; use kind='unused'"
        )
    model, tokenizer = load(name)
    names = symbol_kinds(tokenizer, kind)
    symbols = spelled(tokenizer, config.task, names)
    if repair:
        reinitialize(model, symbols.names, tokenizer=tokenizer, seed=config.seed)
    run = finetune(model, symbols, config, **options)
    about = {
        "model": name,
        "symbols": kind,
        "repair": repair,
        "names": names,
        "steps_to_90": steps_to(run.curve),
    }
    versions = {
        "unseen_lib": __version__,
        "torch": torch.__version__,
        "transformers": version("transformers"),
    }
    return about | asdict(run) | {"versions": versions}


def _cut(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _text(tokenizer: Any, ids: list[int]) -> str:
    """Of some ids, without the space at the start that some tokenizers keep and others drop."""
    text: str = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
    return text.lstrip()
