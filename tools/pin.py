"""Write constraints.txt from what is installed: `make pins` resolves everything afresh and calls this.

Run it on the oldest Python the book supports (3.11), so that every pin has a release for it.
"""

import re
from importlib import metadata
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
HEADER = """\
# Exact versions of everything that the extras of pyproject.toml install, for Python 3.11 to 3.13.
# Written by `make pins`; the library's own dependencies stay loose, in pyproject.toml.
"""
# pip comes with Python, and the CUDA packages come with torch, which pins them itself.
LEFT_OUT = re.compile(r"pip|unseen-lib|nvidia-.*|cuda-.*|triton")


def pins() -> list[str]:
    """One line `name==version` for each installed distribution, sorted by name."""
    found = {}
    for distribution in metadata.distributions():
        name = re.sub(r"[-_.]+", "-", distribution.metadata["Name"]).lower()
        # A local label such as `+cpu` names a build, not a version.
        found[name] = distribution.version.split("+")[0]
    return [f"{name}=={found[name]}" for name in sorted(found) if not LEFT_OUT.fullmatch(name)]


if __name__ == "__main__":
    lines = pins()
    CONSTRAINTS.write_text(HEADER + "\n".join(lines) + "\n", encoding="utf-8")
    print(f"{CONSTRAINTS.name}: {len(lines)} pins")
