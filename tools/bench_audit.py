"""How long an audit takes, how much memory, and how much it reads of a model that lies far away.

A local table of the size of Gemma 3 1B is read whole; of a file of the size of Gemma 3 27B, sparse here and
served by this machine, some rows of each group. Run it as ``python -m tools.bench_audit``.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from unseen_lib.pretrained.audit import audit

ROOT = Path(__file__).parents[1]
UNUSED = (*range(6, 105), *range(256_001, 262_144))


def main() -> None:
    """Print both, with what they may take at most."""
    with tempfile.TemporaryDirectory() as folder:
        _make(Path(folder) / "tiny" / "local", rows=262_144, width=1152, filler=0, every=1)
        _make(Path(folder) / "tiny" / "served", rows=262_208, width=5376, filler=51_200_000_000, every=16)
        # Processes of their own: the memory of one that audits is not that of making files and serving them.
        _run("local", f"{folder}/tiny/local")
        server = subprocess.Popen(_call("serve", folder), cwd=ROOT, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            _run("served", "tiny/served", HF_ENDPOINT=server.stdout.readline().strip())
        finally:
            server.terminate()
            server.wait()


def _call(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "tools.bench_audit", *arguments]


def _run(*arguments: str, **environment: str) -> None:
    subprocess.run(_call(*arguments), check=True, cwd=ROOT, env=os.environ | environment)


def _measure(job: str, model: str) -> None:
    started, used = time.perf_counter(), time.process_time()
    found = audit(model)
    seconds, used = time.perf_counter() - started, time.process_time() - used
    if job == "local":
        print(
            f"local table, 262,144 × 1,152 bf16, every row{seconds:8.1f} s (at most 10; {used:.1f} s of CPU)"
        )
    else:
        share, read = found.bytes_read / found.bytes_stored, found.bytes_read / 1e6
        name = f"served file of {found.bytes_stored / 1e9:.0f} GB, rows of each group"
        print(f"{name:<44}{seconds:8.1f} s (at most 3; {used:.1f} s of CPU)")
        print(f"   read of it                               {read:8.2f} MB, {share:.3%} (at most 1 %)")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"   peak memory of the process               {peak:8.2f} GB (below 1)")


def _serve(folder: str) -> None:
    from tests.published import hub

    with hub(Path(folder)) as server:
        print(server.address, flush=True)
        signal.pause()


def _make(folder: Path, *, rows: int, width: int, filler: int, every: int) -> None:
    """A model whose table has random rows in one block of 4096 of ``every`` so many, and holes elsewhere."""
    folder.mkdir(parents=True)
    table = rows * width * 2
    header = {
        "language_model.model.embed_tokens.weight": {
            "dtype": "BF16",
            "shape": [rows, width],
            "data_offsets": [0, table],
        },
        "language_model.model.layers.weight": {
            "dtype": "BF16",
            "shape": [filler // 2],
            "data_offsets": [table, table + filler],
        },
    }
    text = json.dumps(header).encode()
    start = 8 + len(text)
    generator = torch.Generator().manual_seed(0)
    block = torch.randn(4096, width, generator=generator).bfloat16().view(torch.int16).numpy().tobytes()
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for first in range(0, rows, 4096 * every):
            file.seek(start + first * width * 2)
            file.write(block[: min(rows - first, 4096) * width * 2])
        file.truncate(start + table + filler)
    (folder / "config.json").write_text(
        json.dumps({"text_config": {"hidden_size": width, "vocab_size": rows}})
    )
    decoder = {str(row): {"content": f"<unused{n}>", "special": False} for n, row in enumerate(UNUSED)}
    vocabulary = {f"w{row}": row for row in range(262_144)}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    (folder / "tokenizer.json").write_text(
        json.dumps(
            {
                "model": {
                    "vocab": {name: row for name, row in vocabulary.items() if str(row) not in decoder}
                },
                "added_tokens": [{"id": int(row), **entry} for row, entry in decoder.items()],
            }
        )
    )


if __name__ == "__main__":
    match sys.argv[1:]:
        case []:
            main()
        case ["serve", folder]:
            _serve(folder)
        case [job, model]:
            _measure(job, model)
