"""Parts of the files of one model: of a folder on this disk, or of a repository on the hub.

Nothing is stored, nothing is unpickled and no code that lies in the folder is run. The transport is the
business of huggingface_hub: what its errors mean is said here, in words for the person who asked.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from unseen_lib.errors import PretrainedError

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[^\s@]+)?")
Result = TypeVar("Result")
INSTALL = "install it with `pip install 'unseen_lib[pretrained]'`"


@dataclass
class Meter:
    """How many bytes were read, of weights and of everything else."""

    weights: int = 0
    other: int = 0


@dataclass(frozen=True)
class Folder:
    """Files that can be read in parts.

    Parameters
    ----------
    name : str
        As the user wrote it.
    sizes : dict of str to int
        Bytes in each file.
    fetch : function
        ``fetch(file, start, stop)`` gives bytes ``start`` to ``stop`` of a file.
    readers : int
        How many calls of ``fetch`` may run at once: a distant server takes long to answer, a disk does not.
    meter : Meter
        What was read so far.
    """

    name: str
    sizes: dict[str, int]
    fetch: Callable[[str, int, int], bytes]
    readers: int = 1
    meter: Meter = field(default_factory=Meter)

    def read(self, file: str, start: int, stop: int) -> bytes:
        """Bytes ``start`` to ``stop`` of a file of weights.

        Raises
        ------
        PretrainedError
            If fewer come.
        """
        data = self.fetch(file, start, stop)
        if len(data) != stop - start:
            raise PretrainedError(
                f"bytes {start:,} to {stop:,} of {file} in {self.name} came as {len(data):,} bytes: the file "
                "changed or its server gives no byte ranges; try again, or download the model and audit that"
            )
        self.meter.weights += len(data)
        return data

    def read_json(self, file: str) -> Any:
        """The whole of a JSON file.

        Raises
        ------
        PretrainedError
            If it is not one.
        """
        try:
            return json.loads(self.read_text(file))
        except ValueError as error:
            raise PretrainedError(
                f"{file} in {self.name} is not JSON ({error}): it is damaged, or only points to a file that "
                "was never fetched; download it again"
            ) from error

    def read_text(self, file: str) -> str:
        """The whole of a text file, in UTF-8."""
        data = self.fetch(file, 0, self.sizes[file])
        self.meter.other += len(data)
        return data.decode("utf-8", errors="replace")


def open_folder(model: str | Path) -> Folder:
    """The files of a local folder or, where there is none, of a model on the hub (``owner/name[@revision]``).

    Raises
    ------
    PretrainedError
        If there is neither, or the hub does not let us in.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        return _local(str(model), path)
    if path.exists():
        raise PretrainedError(
            f"{model} is a file that the audit does not read: give it a GGUF file, or the folder in which "
            "the safetensors lie beside their config.json"
        )
    if not HUB_ID.fullmatch(str(model)):
        raise PretrainedError(
            f"{model} is neither a folder nor a GGUF file here, nor does it look like a model on the hub: "
            "check the path, or name the model as owner/name"
        )
    return _on_the_hub(str(model))


def _local(name: str, path: Path) -> Folder:
    def fetch(file: str, start: int, stop: int) -> bytes:
        try:
            with open(path / file, "rb", buffering=0) as handle:
                handle.seek(start)
                return handle.read(stop - start)
        except OSError as error:
            raise PretrainedError(
                f"{path / file} cannot be read ({error.strerror}): make it readable"
            ) from error

    try:
        sizes = {found.name: found.stat().st_size for found in path.iterdir() if found.is_file()}
    except OSError as error:
        raise PretrainedError(f"{path} cannot be listed ({error.strerror}): make it readable") from error
    return Folder(name, sizes, fetch)


def _on_the_hub(name: str) -> Folder:
    try:
        from huggingface_hub import HfFileSystem
    except ImportError as error:
        raise PretrainedError(
            f"{name} is no folder here, and to read it from the hub huggingface_hub is missing: {INSTALL}"
        ) from error
    files = HfFileSystem(skip_instance_cache=True)

    def fetch(file: str, start: int, stop: int) -> bytes:
        def range_of_bytes() -> bytes:
            # Without a cache: read-ahead would fetch megabytes around every row.
            data: bytes = files.cat_file(f"{name}/{file}", start, stop, cache_type="none")
            return data

        return _or_say_why(range_of_bytes, name)

    listing: list[dict[str, Any]] = _or_say_why(lambda: files.ls(name, detail=True), name)
    sizes = {Path(found["name"]).name: found["size"] for found in listing if found["type"] == "file"}
    return Folder(name, sizes, fetch, readers=16)


def download(name: str) -> Path:
    """The folder of a model: the local one, or a copy of what the hub has, but for pickles and code.

    Raises
    ------
    PretrainedError
        As :func:`open_folder`, or if the disk is full.
    """
    path = Path(name).expanduser()
    if path.is_dir():
        return path
    from huggingface_hub import snapshot_download

    repository, _, revision = name.partition("@")
    kinds = ["*.safetensors", "*.json", "*.model", "*.txt", "*.jinja"]
    try:
        # A full disk is no matter of the hub.
        fetched = _or_say_why(
            lambda: snapshot_download(repository, revision=revision or None, allow_patterns=kinds), name
        )
    except PretrainedError as error:
        if getattr(error.__cause__, "errno", None) == errno.ENOSPC:
            raise PretrainedError(f"{name} does not fit on this disk: free some space") from error
        raise
    return Path(fetched)


def _or_say_why(call: Callable[[], Result], name: str) -> Result:
    """What ``call`` gives, or a PretrainedError about the model ``name`` in place of whatever stopped it."""
    try:
        return call()
    except Exception as error:  # the hub's errors, and those of the HTTP client of the version at hand
        raise PretrainedError(_reason(error, name)) from error


def _reason(error: Exception, name: str) -> str:
    """One sentence about an error of huggingface_hub, without its own text, which can hold addresses."""
    from huggingface_hub import errors, get_token

    # HfFileSystem raises FileNotFoundError from the error that tells more.
    cause = error.__cause__ if isinstance(error, FileNotFoundError) and error.__cause__ else error
    status = getattr(getattr(cause, "response", None), "status_code", None)
    log_in = "log in with `hf auth login`, or set HF_TOKEN"
    match cause:
        case errors.GatedRepoError() if get_token() is None:
            return f"{name} is behind a license: accept it on the model's page on the hub, then {log_in}"
        case errors.GatedRepoError():
            return (
                f"{name} is behind a license that the owner of this token has not accepted: accept it on the "
                "model's page on the hub, wait until access is granted, and try again"
            )
        case errors.RepositoryNotFoundError() | errors.HfHubHTTPError() if status == 401 and get_token():
            return (
                f"the hub does not accept this token for {name}: make a new one and {log_in}; if it accepts "
                "it elsewhere, check the model's name"
            )
        case errors.RepositoryNotFoundError():
            return f"the hub has no model {name}, or shows it to its owner only: check the name, or {log_in}"
        case errors.RevisionNotFoundError():
            return f"{name} names a revision that the model does not have: leave out what follows the @"
        case errors.HFValidationError() | ValueError():
            return f"{name} is not a name that the hub allows: use owner/name"
        case errors.OfflineModeIsEnabled():
            return f"{name} is no folder here, and HF_HUB_OFFLINE forbids to ask the hub: unset it"
        case errors.EntryNotFoundError() | FileNotFoundError():
            return f"a file of {name} vanished from the hub while it was being read: try again"
        case errors.HfHubHTTPError():
            return f"the hub answered with HTTP status {status} for {name}: try again later"
    return (
        f"{name} is no folder here, and the hub cannot be reached ({type(cause).__name__}): check the path, "
        "or the network and try again"
    )
