"""The process in which one submission runs: it executes the notebook, then answers what the grader asks.

The grader holds the tests. It asks for the value of a name, or to call a function with some arguments, and
gets data back; what would be right is never in this process. Started by `tools.grading.submission`.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tools.grading.sandbox import confine, report_forbidden
from tools.grading.wire import NotData, from_line, to_line

LONGEST_MESSAGE = 300  # characters of an error that are passed on


class TooLong(BaseException):
    """The time of a cell or call is up. Not an `Exception`, so that ``except Exception`` lets it through."""


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise TooLong inside after so many seconds."""

    def stop(*_: object) -> None:
        raise TooLong(f"took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def describe(error: BaseException) -> str:
    """Kind and message, on one line and not too long."""
    try:
        text = " ".join(f"{type(error).__name__}: {error}".split())
    except BaseException:  # an exception of the submission may fail to print itself
        text = type(error).__name__
    return text.removesuffix(":")[:LONGEST_MESSAGE]


def new_shell() -> InteractiveShell:
    """IPython without history or color, and with an ``otter`` whose checks do nothing."""
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell: InteractiveShell = InteractiveShell.instance(config=config)
    shell.showtraceback = lambda *_, **__: None  # type: ignore[method-assign]
    otter = types.ModuleType("otter")

    class Notebook:
        def __init__(self, *_: object, **__: object) -> None: ...

        def __getattr__(self, name: str) -> Any:
            return lambda *_, **__: None

    otter.Notebook = Notebook  # type: ignore[attr-defined]
    sys.modules["otter"] = otter
    return shell


def run_cells(shell: InteractiveShell, cells: list[str], seconds: float, say: Any) -> list[list[Any]]:
    """Run the code cells in their order; an error ends its cell and no more. Returns [cell number, error]."""
    errors = []
    for number, source in enumerate(cells, start=1):
        say({"cell": number})
        try:
            with at_most(seconds):
                result = shell.run_cell(source, store_history=False)
            error = result.error_before_exec or result.error_in_exec
        except BaseException as raised:
            error = raised
        if error is not None:
            errors.append([number, describe(error)])
    return errors


def answer(namespace: dict[str, Any], asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    """A value, that it is a function, that there is none, or the error that came up."""
    try:
        if asked["name"] not in namespace:
            return {"missing": True}
        value = namespace[asked["name"]]
        if "arguments" not in asked:
            return {"callable": True} if callable(value) else {"value": value}
        with at_most(seconds):
            returned = value(*asked["arguments"], **asked["named"])
            if isinstance(returned, types.GeneratorType):
                raise NotData("a generator is not data that can be graded: return a list")
            return {"value": returned}
    except BaseException as error:
        return {"error": describe(error)}


def main() -> None:
    settings = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    requests, replies = os.fdopen(settings["requests"], "rb"), os.fdopen(settings["replies"], "wb")
    work, hidden = Path(settings["work"]), [Path(folder) for folder in settings["hidden"]]

    def say(message: dict[str, Any]) -> None:
        try:
            line = to_line(message)
        except (NotData, MemoryError) as error:
            line = to_line({"error": describe(error)})
        replies.write(line)
        replies.flush()

    torch.set_num_threads(1)
    os.chdir(work)
    sys.path.insert(0, str(work))  # as for any notebook, what lies beside it can be imported
    shell = new_shell()
    readable = [Path(folder) for folder in settings["readable"]]
    confine(work, readable, hidden, memory=settings["memory"], cpu=settings["cpu"], disk=settings["disk"])
    report_forbidden(work, hidden, lambda path: say({"forbidden": path}))
    say({"ready": True})
    say({"errors": run_cells(shell, settings["cells"], settings["cell_seconds"], say)})
    for line in requests:
        say(answer(shell.user_ns, from_line(line), settings["call_seconds"]))
    os._exit(0)  # whatever the submission registered for the end of the process stays undone


if __name__ == "__main__":
    main()
