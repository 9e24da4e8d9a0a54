"""The errors this library raises on purpose; each message is one sentence that says what would fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from unseen_lib.logic import Proof


class ConfigError(ValueError):
    """A setting does not fit: the message names the field, its value and what would fit."""


class ParseError(ValueError):
    """A text is not well formed.

    Attributes
    ----------
    position : int
        Index of the first word that does not fit (the number of words when the text ends too early).
    partial : Proof or None
        For a proof, what could be read before that word.
    """

    def __init__(self, message: str, position: int, partial: Proof | None = None) -> None:
        super().__init__(message)
        self.position = position
        self.partial = partial


class CheckpointError(RuntimeError):
    """A file is truncated, foreign or does not belong to this run; it is left as it is."""


class PretrainedError(RuntimeError):
    """A published model cannot be audited, repaired or fine-tuned; the message says why and what to do."""


class EnvironmentMisfit(RuntimeError):
    """Python, a package, the device or the disk does not fit: the message says what would."""


class OutOfMemory(RuntimeError):
    """The device has too little memory for a run: the message names the two settings to turn down."""
