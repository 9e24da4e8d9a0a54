"""Run notebooks as a stranger would: each alone in an empty folder, with a Python that lacks the library.

    python tools/try_notebooks.py PYTHON FOLDER       every notebook of FOLDER, with PYTHON's own Jupyter

PYTHON is that of Colab's runtime image, or of an environment that stands in for it; it needs ipykernel and
nbclient. Prints a line a notebook, and fails if one fails, or if another package than the library has
changed. What a chapter needs and nothing there provides may be added. Uses the standard library alone, so
that it runs inside that image too.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

LIBRARY = "unseen_lib"
EXECUTE = "from nbclient.cli import main; main()"
COLORS = re.compile(r"\x1b\[[0-9;]*m")


def packages(python: str) -> set[str]:
    """Every package that ``python`` sees, with its version."""
    code = (
        "from importlib.metadata import distributions\n"
        "print(*{f'{d.metadata[\"Name\"]}=={d.version}' for d in distributions()})"
    )
    return set(
        subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    )


def remove_library(python: str) -> None:
    command = [python, "-m", "pip", "--disable-pip-version-check", "uninstall", "--quiet", "--yes", LIBRARY]
    subprocess.run(command, check=True, capture_output=True)


def run_alone(python: str, notebook: Path, kept: Path | None = None) -> str:
    """Run one notebook in an empty folder; the answer is "" or the error. ``kept`` gets the outputs."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / notebook.name
        shutil.copyfile(notebook, copy)
        # -P: this folder, where nothing lies, is not on the path either.
        command = [python, "-P", "-c", EXECUTE, "--inplace", "--timeout=900", str(copy)]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if kept is not None and done.returncode == 0:
            shutil.copyfile(copy, kept / notebook.name)
    if done.returncode == 0:
        return ""
    lines = [line for line in COLORS.sub("", done.stderr).strip().splitlines() if line.strip()]
    return lines[-1] if lines else f"exit status {done.returncode}"


def try_all(python: str, notebooks: list[Path], kept: Path | None = None, *, together: int = 1) -> int:
    """Run each, the first of them without the library; the answer is how many things went wrong.

    ``together`` is how many run at a time, once the first has installed the library.
    """
    if any(name.startswith(f"{LIBRARY}==") for name in packages(python)):
        remove_library(python)
    before = packages(python)

    def report(notebook: Path) -> bool:
        began = time.perf_counter()
        error = run_alone(python, notebook, kept)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3  # of any so far
        print(f"{notebook.name:28} {seconds:6.0f} s  peak so far {peak:6.0f} MB  {error or 'ok'}", flush=True)
        return bool(error)

    wrong = int(report(notebooks[0]))
    with ThreadPoolExecutor(together) as pool:
        wrong += sum(pool.map(report, notebooks[1:]))
    after = {name for name in packages(python) if not name.startswith(f"{LIBRARY}==")}
    for what, names in (("added", after - before), ("changed or gone", before - after)):
        print(f"packages {what}: {', '.join(sorted(names)) or 'none'}", flush=True)
    return wrong + len(before - after)


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("usage: python tools/try_notebooks.py PYTHON FOLDER [KEEP]")
    found = sorted(Path(sys.argv[2]).glob("*.ipynb"))
    if not found:
        sys.exit(f"{sys.argv[2]} holds no notebook: make colab writes them to _build/colab")
    keep = Path(sys.argv[3]) if len(sys.argv) > 3 else None
    sys.exit(1 if try_all(sys.argv[1], found, keep) else 0)
