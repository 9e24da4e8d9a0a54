"""How big the library's wheel is, and how much memory a run of the cpu scale takes.

Run it as ``python -m tools.bench_size``.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from unseen_lib.experiments import measurement, preset
from unseen_lib.training import train

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print both, with what they may be at most."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", folder, str(ROOT)]
        subprocess.run(command, check=True)
        (wheel,) = Path(folder).glob("*.whl")
        print(f"wheel, recorded runs included        {wheel.stat().st_size / 1e6:6.2f} MB (at most 2)")
    config = preset("cpu", names=2048, steps=20)
    run = train(config, measure=measurement(config), measure_every=10, progress=False)
    assert run.peak_memory_mb is not None, "this system does not tell how much memory a process took"
    print(f"peak memory of a run at cpu scale    {run.peak_memory_mb / 1e3:6.2f} GB (at most 2)")


if __name__ == "__main__":
    main()
