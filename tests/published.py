"""Models as they are published: tiny Gemma 3 checkpoints, and a hub on this machine that serves them.

The checkpoints are made by the real classes of transformers. Their ids are laid out as in the real ones:
<unused0> to <unused98> are 6 to 104, and the other unused tokens, fewer here, end the vocabulary.
"""

import dataclasses
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

import torch

SIZE, WIDTH = 2048, 64
FIRST = range(6, 105)
SECOND = range(1800, SIZE)
SPECIAL = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    4: "<mask>",
    5: "[multimodal]",
    105: "<start_of_turn>",
}
IMAGE, PADDED = SIZE, SIZE + 64  # the larger models have 64 rows more, of which one is the image token


def tiny_gemma(*, tied: bool = True, multimodal: bool = False, seed: int = 0):
    """A Gemma 3 with random weights."""
    import transformers

    torch.manual_seed(seed)
    text = transformers.Gemma3TextConfig(
        vocab_size=PADDED if multimodal else SIZE,
        hidden_size=WIDTH,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        tie_word_embeddings=tied,
    )
    if not multimodal:
        return transformers.Gemma3ForCausalLM(text)
    vision = transformers.SiglipVisionConfig(
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=28,
        patch_size=14,
    )
    config = transformers.Gemma3Config(
        text_config=text.to_dict(), vision_config=vision.to_dict(), mm_tokens_per_image=4
    )
    return transformers.Gemma3ForConditionalGeneration(config)


def collapse(weight: torch.Tensor, ids, *, cosine: float = 0.95, norm: float = 0.5, seed: int = 0) -> None:
    """Overwrite rows by ones with this cosine and, in units of that of ordinary rows, this norm."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        usual = weight[200:1700].float().norm(dim=1).mean()
        one = torch.nn.functional.normalize(torch.randn(1, weight.shape[1], generator=generator))
        own = torch.nn.functional.normalize(torch.randn(len(ids), weight.shape[1], generator=generator))
        rows = norm * usual * (cosine**0.5 * one + (1 - cosine) ** 0.5 * own)
        weight[list(ids)] = rows.to(weight.dtype)


def drift(weight: torch.Tensor) -> None:
    """Add one vector to all rows, which gives ordinary rows a cosine of a half."""
    with torch.no_grad():
        own = torch.randn(weight.shape[1], generator=torch.Generator().manual_seed(9))
        weight += (own / own.norm() * weight[200:1700].float().norm(dim=1).mean()).to(weight.dtype)


def save_tokenizer(folder: Path, *, image: bool = False, all_added: bool = True) -> None:
    """tokenizer.json and tokenizer_config.json, made by the real library of tokenizers."""
    from tokenizers import AddedToken, Tokenizer, models

    names = {row: f"w{row}" for row in range(SIZE)} | SPECIAL
    names |= {row: f"<unused{number}>" for number, row in enumerate([*FIRST, *SECOND])}
    if image:
        names[IMAGE] = "<image_soft_token>"
    vocabulary = {name: row for row, name in sorted(names.items()) if row < SIZE}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True) for row, name in names.items() if row in SPECIAL]
    )
    unused = [name for row, name in sorted(names.items()) if row in FIRST or row in SECOND]
    tokenizer.add_tokens([AddedToken(name, special=False) for name in unused])
    if image:
        tokenizer.add_special_tokens([AddedToken(names[IMAGE], special=True)])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    decoder = {
        str(row): {"content": name, "special": row in SPECIAL or row == IMAGE}
        for row, name in sorted(names.items())
        if not name.startswith("w")
    }
    config = {"tokenizer_class": "GemmaTokenizerFast", "added_tokens_decoder": decoder if all_added else {}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def publish(
    folder: Path,
    *,
    tied: bool = True,
    multimodal: bool = False,
    dtype: torch.dtype = torch.float32,
    shards: str = "1GB",
    cosine: float = 0.95,
) -> None:
    """Save a tiny Gemma 3 whose unused rows have collapsed to ``cosine``, with its tokenizer."""
    model = tiny_gemma(tied=tied, multimodal=multimodal)
    weights = [model.get_input_embeddings().weight]
    if not tied:
        weights.append(model.get_output_embeddings().weight)
    for weight in weights:
        collapse(weight, [*FIRST, *SECOND], cosine=cosine)
        drift(weight)
    model.to(dtype).save_pretrained(folder, max_shard_size=shards)
    save_tokenizer(folder, image=multimodal)


def tag(path: Path) -> str:
    """What tells one file from another for a cache."""
    return hashlib.sha1(path.read_bytes()).hexdigest()


@dataclasses.dataclass
class Hub:
    """What the server was asked, and how it answers.

    ``refused`` maps a repository to a status and headers; ``files_refused`` does so for the contents of its
    files alone, as the hub does for a model behind a license.
    """

    root: Path
    address: str = ""
    sent: int = 0
    ranges: list[tuple[int, int]] = dataclasses.field(default_factory=list)
    refused: dict[str, tuple[int, dict[str, str]]] = dataclasses.field(default_factory=dict)
    files_refused: dict[str, tuple[int, dict[str, str]]] = dataclasses.field(default_factory=dict)


@contextmanager
def hub(root: Path) -> Iterator[Hub]:
    """Serve ``root/owner/name/file`` as the hub would: what it knows of a model, and ranges of its files."""
    state = Hub(root)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_):
            pass

        def answer(self, status, body=b"", headers=()):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
                state.sent += len(body)

        def do_HEAD(self):
            self.do_GET()

        def do_GET(self):
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            about = parts[:2] == ["api", "models"]
            owner, name, *rest = parts[2:] if about else parts
            repository = f"{owner}/{name}"
            if repository in state.refused:
                return self.answer(state.refused[repository][0], headers=state.refused[repository][1])
            folder = root / owner / name
            if not folder.is_dir():
                return self.answer(404, headers={"X-Error-Code": "RepoNotFound"})
            if rest[1:2] and rest[1] not in ("main", "0" * 40):
                return self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
            if about:
                files = sorted(path for path in folder.iterdir())
                tree = [
                    {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": tag(path)}
                    for path in files
                ]
                facts = {"id": repository, "sha": "0" * 40, "siblings": [], "tags": [], "private": False}
                body = json.dumps(tree if rest[:1] == ["tree"] else facts).encode()
                return self.answer(200, body, {"Content-Type": "application/json"})
            if repository in state.files_refused:
                return self.answer(
                    state.files_refused[repository][0], headers=state.files_refused[repository][1]
                )
            return self.send_file(folder / rest[2])

        def send_file(self, path):
            if not path.exists():
                return self.answer(404, headers={"X-Error-Code": "EntryNotFound"})
            size = path.stat().st_size
            first, last = 0, size - 1
            if asked := self.headers.get("Range"):
                begin, end = asked.removeprefix("bytes=").split("-")
                first, last = int(begin), min(int(end), size - 1)
                state.ranges.append((first, last + 1))
            with open(path, "rb") as file:
                file.seek(first)
                body = file.read(last - first + 1)
            headers = {"Accept-Ranges": "bytes", "ETag": f'"{tag(path)}"', "X-Repo-Commit": "0" * 40}
            if asked:
                headers["Content-Range"] = f"bytes {first}-{last}/{size}"
            self.answer(206 if asked else 200, body, headers)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
