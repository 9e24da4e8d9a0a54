"""Run one submission in a process of its own, and hand the grader its functions and values.

`Submission` is the grader's end: a mapping from names to values, in which a function of the student's is a
`Proxy` that is called over a pipe. Whatever happens in that process ends as a :class:`Failure` or in
``problems``, in words for a person.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.grading.wire import from_line, to_line

ROOT = Path(__file__).parents[2]
MARK = "UNSEEN_SUBMISSION"  # in the environment of the process and of all it starts
GIGABYTE = 1 << 30
LONGEST_REPLY = 1 << 26  # bytes
STARTUP = 120.0  # seconds in which a busy machine should have imported torch


@dataclass(frozen=True)
class Limits:
    """What one submission may take: seconds in all, for one cell and for one call; bytes of memory."""

    seconds: float = 180.0
    cell_seconds: float = 90.0
    call_seconds: float = 20.0
    memory: int = 6 * GIGABYTE
    disk: int = GIGABYTE // 16


class Failure(Exception):
    """The submission did not give what was asked for: the message says why."""


class Submission:
    """A notebook that is being run; use it in a ``with``.

    Parameters
    ----------
    cells : list of str
        Its code cells.
    files : iterable of Path
        What lies beside the notebook; copied.
    hidden : iterable of Path
        Folders that it may not read.
    limits : Limits

    Attributes
    ----------
    problems : list of str
        What went wrong, so far.
    """

    def __init__(
        self, cells: list[str], files: Iterable[Path], hidden: Iterable[Path], limits: Limits
    ) -> None:
        self.limits, self.problems = limits, []  # type: tuple[Limits, list[str]]
        self._folder = Path(tempfile.mkdtemp(prefix="submission-"))
        self._deadline = time.monotonic() + STARTUP  # until it is ready; then its own time begins
        self._buffer, self._cell, self._total = b"", 0, len(cells)
        self._ready, self._dead = False, None  # type: tuple[bool, str | None]
        self._hidden = [str(folder.resolve()) for folder in hidden]
        work = self._folder / "work"
        work.mkdir()
        files = list(files)
        self._handed_out = str(files[0].parent) if files else None
        for file in files:
            shutil.copy2(file, work / file.name)
        self._start(work, cells)

    def _start(self, work: Path, cells: list[str]) -> None:
        asked_in, self._requests = os.pipe()
        self._replies, said_out = os.pipe()
        settings = {
            "requests": asked_in,
            "replies": said_out,
            "work": str(work),
            "readable": [str(ROOT / "unseen_lib"), str(ROOT / "tools" / "grading")],
            "hidden": self._hidden,
            "cells": cells,
            "cell_seconds": self.limits.cell_seconds,
            "call_seconds": self.limits.call_seconds,
            "memory": self.limits.memory,
            "cpu": int(self.limits.seconds) + 1,
            "disk": self.limits.disk,
        }
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
        environment = kept | {
            MARK: self._folder.name,
            "HOME": str(work),
            "TMPDIR": str(work),
            "IPYTHONDIR": str(work / ".ipython"),
            "MPLCONFIGDIR": str(work / ".matplotlib"),
            "MPLBACKEND": "agg",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "PYTHONDONTWRITEBYTECODE": "1",
            "UNSEEN_PROGRESS": "off",
        }
        # Settings travel as a file: a long notebook does not fit on a command line.
        (self._folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tools.grading.host", str(self._folder / "settings.json")],
            cwd=work,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,  # megabytes of prints go nowhere
            stderr=subprocess.DEVNULL,
            pass_fds=(asked_in, said_out),
            start_new_session=True,
        )
        os.close(asked_in)
        os.close(said_out)
        os.set_blocking(self._requests, False)

    def __enter__(self) -> Submission:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        for pipe in (self._requests, self._replies):
            with suppress(OSError):
                os.close(pipe)
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(self) -> None:
        """Execute all cells; errors are in ``problems``."""
        with suppress(Failure):
            reply = self._receive()
            if not isinstance(reply.get("errors"), list):
                self._give_up("sent something that is no reply")
            for number, error in reply["errors"]:
                self.problems.append(f"code cell {number} of {self._total}: {error}")

    def get(self, name: str, default: Any = None) -> Any:
        """The value of a name, a `Proxy` for a function, ``default`` if it is missing or cannot be sent.

        ``assignment_files`` is the folder of the files as they were handed out: a test trusts no other copy.
        """
        if name == "assignment_files":
            return self._handed_out
        try:
            reply = self._ask({"name": name})
        except Failure:
            return default
        return Proxy(self, name) if "callable" in reply else reply.get("value", default)

    def call(self, name: str, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """What the submission's function returns; raises Failure with its error if it raises one."""
        reply = self._ask({"name": name, "arguments": arguments, "named": named})
        if "value" not in reply:
            raise Failure(str(reply.get("error", f"{name} is not there any more")))
        return reply["value"]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        if self._dead:
            raise Failure(self._dead)
        view = memoryview(to_line(message))
        while view:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([], [self._requests], [], left)[1]:
                self._give_up(f"stopped after {self.limits.seconds:g} s, {self._where()}")
            try:
                view = view[os.write(self._requests, view) :]
            except OSError:
                self._give_up(self._how_it_ended())
        return self._receive()

    def _receive(self) -> dict[str, Any]:
        """The next reply; what is said on the way is noted."""
        while True:
            message = self._next_message()
            if "ready" in message and not self._ready:
                self._ready, self._deadline = True, time.monotonic() + self.limits.seconds
            elif isinstance(message.get("cell"), int):
                self._cell = message["cell"]
            elif message.get("forbidden") in self._hidden:  # no other text: it could carry out a test's input
                problem = f"tried to open {message['forbidden']}, which is not for submissions"
                self.problems += [problem] if problem not in self.problems else []
            else:
                return message

    def _next_message(self) -> dict[str, Any]:
        if self._dead:
            raise Failure(self._dead)
        while b"\n" not in self._buffer:
            left = self._deadline - time.monotonic()
            if left <= 0 or not select.select([self._replies], [], [], left)[0]:
                self._give_up(f"stopped after {self.limits.seconds:g} s, {self._where()}")
            part = os.read(self._replies, 1 << 20)
            if not part:
                self._give_up(self._how_it_ended())
            self._buffer += part
            if len(self._buffer) > LONGEST_REPLY:
                self._give_up(f"sent more than {LONGEST_REPLY >> 20} MB, {self._where()}")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = from_line(line)
        except ValueError as error:
            self._give_up(str(error))
        if not isinstance(message, dict):
            self._give_up("sent something that is no reply")
        return dict(message)

    def _give_up(self, why: str) -> None:
        self._end()
        self._dead = why
        self.problems.append(why)
        raise Failure(why)

    def _where(self) -> str:
        return f"in code cell {self._cell} of {self._total}, or a call after it"

    def _how_it_ended(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        status = self._process.returncode
        if status is None:
            return f"cut itself off from the grader, {self._where()}"
        if status < 0:
            hint = " (out of memory, or of its CPU time?)" if -status in (6, 9, 11, 24) else ""
            return f"its process was ended by {signal.Signals(-status).name}{hint}, {self._where()}"
        return f"ended its own process with exit status {status}, {self._where()}"

    def _end(self) -> None:
        """Kill the process and what it started; a process that hid from both lists runs out of CPU time."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        mark = f"{MARK}={self._folder.name}".encode()
        for entry in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in entry.read_bytes().split(b"\0"):
                    os.kill(int(entry.parent.name), signal.SIGKILL)


@dataclass(frozen=True)
class Proxy:
    """A function of the submission: calling it calls that one, in its own process."""

    submission: Submission
    name: str

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.submission.call(self.name, arguments, named)
