"""What a process that runs a submission may do: how much memory, time and disk, and which files.

`confine` is called once, in that process, before any of the submission runs. Limits hold on any POSIX system.
Files are kept apart by Landlock, a part of Linux since 5.13 that needs no rights and no program: the process
and all it starts may write in the working copy alone, and read nothing but Python and its libraries. Where
there is no Landlock, an audit hook still refuses what Python opens; code that means harm can get around that.
"""

from __future__ import annotations

import ctypes
import math
import os
import resource
import sys
import sysconfig
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

# Numbers of the kernel's interface: linux/landlock.h and the table of system calls, the same on all machines.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH, _NO_NEW_PRIVS, _CAPABILITIES = 1, 38, 0x20080522
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_SIGNAL_SCOPE = 2  # it may signal no process outside
_TCP = 3  # bind and connect

_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc", "/proc", "/sys", "/opt", "/nix", "/run/current-system")


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32)]


def landlock_version() -> int:
    """Which Landlock this kernel offers; 0 if none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(ctypes.CDLL(None, use_errno=True).syscall(_CREATE_RULESET, None, 0, 1)))


def confine(
    work: Path, readable: Iterable[Path], hidden: Iterable[Path], *, memory: int, cpu: int, disk: int
) -> None:
    """Limit this process, and all it will start, for good.

    Parameters
    ----------
    work : Path
        The only folder it may write in.
    readable : iterable of Path
        What it may read beside Python, its libraries and the system's.
    hidden : iterable of Path
        What it may not read, whatever else is in the folder around it.
    memory, disk : int
        Bytes: of address space, and of the largest file.
    cpu : int
        Seconds, of each process; of this one from now on, since what it has imported took some already.
    """
    for what, limit in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, math.ceil(time.process_time()) + cpu),
        (resource.RLIMIT_FSIZE, disk),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        with suppress(ValueError):  # macOS has no limit on address space
            resource.setrlimit(what, (limit, limit))
    hidden = [folder.resolve() for folder in hidden]
    folders = {folder.resolve() for folder in (*readable, *_python_folders(), *map(Path, _SYSTEM))}
    _restrict_files(work, [f for f in folders if not any(one.is_relative_to(f) for one in hidden)])


def report_forbidden(work: Path, folders: Iterable[Path], report: Callable[[str], None]) -> None:
    """Refuse whatever Python is asked to open, list or change in ``folders``, and report each folder once.

    Only the folder: the rest of a path is the submission's own text, and could carry out what it was asked.
    """
    forbidden, own = [str(folder.resolve()) for folder in folders], str(work.resolve())
    seen: set[str] = set()

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if not event.startswith(("open", "os.", "shutil.")):
            return
        for argument in arguments[:2]:
            if not isinstance(argument, str | bytes | os.PathLike):
                continue
            path = os.path.realpath(os.fsdecode(argument))
            for folder in forbidden:
                if _inside(path, folder) and not _inside(path, own):
                    if folder not in seen:
                        seen.add(folder)
                        report(folder)
                    raise PermissionError(f"{folder} is not for submissions")

    sys.addaudithook(hook)


def _inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder + os.sep)


def _python_folders() -> list[Path]:
    names = {*sysconfig.get_paths().values(), sys.prefix, sys.base_prefix, sys.exec_prefix}
    return [Path(name) for name in {*names, *(entry for entry in sys.path if entry)}]


def _restrict_files(work: Path, readable: Iterable[Path]) -> None:
    version = landlock_version()
    if not version:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # Each version of Landlock knows more rights to handle: moving files, truncating, device controls.
    everything = (1 << (13, 14, 15, 15, 16)[min(version, 5) - 1]) - 1
    ruleset = _Ruleset(everything, _TCP if version >= 4 else 0, _SIGNAL_SCOPE if version >= 6 else 0)
    size = 24 if version >= 6 else 16 if version >= 4 else 8
    rules = libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0)
    allowed = [(work, everything), (Path("/dev"), _READ | _WRITE_FILE)]
    for folder, rights in [*allowed, *((folder, _READ) for folder in readable)]:
        if not folder.exists():
            continue
        parent = os.open(folder, os.O_PATH)
        if not folder.is_dir():
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE
        rule = _Beneath(rights, parent)
        libc.syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        os.close(parent)
    # Of root's rights nothing is left, for some of them reach through Landlock to the grader's own process.
    no_rights = (ctypes.c_uint32 * 6)()
    libc.capset((ctypes.c_uint32 * 2)(_CAPABILITIES, 0), no_rights)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    if libc.syscall(_RESTRICT_SELF, rules, 0):
        raise OSError(ctypes.get_errno(), "Landlock is there but could not be switched on")
    os.close(rules)
