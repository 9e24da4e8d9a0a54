"""Run every tools/bench_*.py, each in a process of its own, so that none sees another's memory or threads.

Each of them has a `main()` that prints a table. `make bench` calls this.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main() -> int:
    """Run them all; the return value is 1 if one of them failed."""
    failed = []
    for file in sorted((ROOT / "tools").glob("bench_*.py")):
        print(f"\n== {file.stem.removeprefix('bench_')} ==", flush=True)
        call = f"from tools.{file.stem} import main; main()"
        # Two threads that spin while they wait for each other stall on a machine with other work to do.
        environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
        if subprocess.run([sys.executable, "-c", call], cwd=ROOT, env=environment).returncode != 0:
            failed.append(file.name)
    if failed:
        print(f"\nfailed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
