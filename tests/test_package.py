"""The wheel: small, complete, and usable from an empty folder."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.slow
def test_the_wheel_is_small_and_carries_its_recorded_runs(tmp_path):
    pip = [sys.executable, "-m", "pip"]
    subprocess.run([*pip, "wheel", "-q", "--no-deps", "-w", str(tmp_path), str(ROOT)], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.stat().st_size <= 2e6
    inside = set(zipfile.ZipFile(wheel).namelist())
    recorded = (ROOT / "unseen_lib" / "recorded").rglob("*.json")
    assert {str(path.relative_to(ROOT)) for path in recorded} <= inside

    installed = tmp_path / "installed"
    subprocess.run([*pip, "install", "-q", "--no-deps", "--target", str(installed), str(wheel)], check=True)
    (tmp_path / "empty").mkdir()
    code = "import unseen_lib.records as r; print(r.__file__); print(len(r.load_grid('main')))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path / "empty",
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    file, count = done.stdout.split()
    assert Path(file).is_relative_to(installed) and int(count) == 160  # 4 policies x 2 x 4 x 5 seeds
