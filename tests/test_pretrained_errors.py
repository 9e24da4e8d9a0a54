"""What can be wrong with a model that someone names: one sentence each, status 2, nothing written."""

import json
import shutil
import struct
import sys

import pytest

from unseen_lib import __main__ as cli
from unseen_lib.errors import PretrainedError
from unseen_lib.pretrained.audit import audit

GATED = {"X-Error-Code": "GatedRepo"}
TOKEN = "hf_thisIsNoRealTokenButMustNotBeSeen"


@pytest.fixture
def copy(published, tmp_path):
    """A model of one's own to spoil: ``copy("sharded")`` gives its folder."""

    def copied(name):
        shutil.copytree(published / "tiny" / name, tmp_path / "spoiled" / name)
        return tmp_path / "spoiled" / name

    return copied


def complaint(capsys, *arguments):
    """What the command line says of it, after checking that it says it well."""
    assert cli.main(["audit", *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("unseen: ") and err.count("\n") == 1
    assert "Traceback" not in err and TOKEN not in err
    assert ":" in err.removeprefix("unseen: ")  # what is the matter: what to do
    return err


# -------------------------------------------------------------------------------------------------- the hub
def test_no_token_for_a_model_behind_a_license(served, capsys):
    served.files_refused["tiny/single"] = (401, GATED)
    said = complaint(capsys, "tiny/single")
    assert "tiny/single is behind a license: accept it" in said and "HF_TOKEN" in said


def test_a_license_that_was_not_accepted(served, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served.files_refused["tiny/single"] = (403, GATED)
    assert "that the owner of this token has not accepted: accept it" in complaint(capsys, "tiny/single")


@pytest.mark.parametrize("headers", [{"X-Error-Message": "Invalid credentials in Authorization header"}, {}])
def test_a_bad_token(served, capsys, monkeypatch, headers):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served.refused["tiny/single"] = (401, headers)
    assert "does not accept this token for tiny/single: make a new one" in complaint(capsys, "tiny/single")


def test_a_token_that_may_not_read_this(served, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    served.refused["tiny/single"] = (403, {})
    assert "HTTP status 403" in complaint(capsys, "tiny/single")


def test_a_name_that_does_not_exist(served, capsys):
    assert "the hub has no model tiny/nothing" in complaint(capsys, "tiny/nothing")


def test_a_revision_that_does_not_exist(served, capsys):
    assert "names a revision that the model does not have" in complaint(capsys, "tiny/single@v9")


@pytest.mark.parametrize("name", ["gemma", "a/b/c", "./missing/folder/here", "a b/c", "~/nothing-at-all"])
def test_a_name_that_cannot_be_one(served, capsys, name):
    assert "neither a folder nor a GGUF file here" in complaint(capsys, name)


@pytest.mark.parametrize("name", ["a..b/c", "-a/b", "a/b.git", "a/" + "b" * 200])
def test_a_name_that_the_hub_forbids(served, capsys, name):
    assert name in complaint(capsys, "--", name)


def test_no_network(served, capsys, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert "the hub cannot be reached" in complaint(capsys, "tiny/single")


def test_offline_on_purpose(served, capsys, monkeypatch):
    from huggingface_hub import constants
    from huggingface_hub.utils import close_session

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    close_session()
    try:
        assert "HF_HUB_OFFLINE forbids" in complaint(capsys, "tiny/single")
    finally:
        close_session()


def test_a_hub_in_trouble(served, capsys):
    served.refused["tiny/single"] = (500, {})
    assert "HTTP status 500 for tiny/single: try again later" in complaint(capsys, "tiny/single")


def test_a_server_that_gives_fewer_bytes_than_asked(published, served, capsys, monkeypatch):
    from huggingface_hub import HfFileSystem

    whole = HfFileSystem.cat_file
    monkeypatch.setattr(HfFileSystem, "cat_file", lambda *args, **how: whole(*args, **how)[:-1])
    assert "of model.safetensors in tiny/single came as 131,071 bytes" in complaint(capsys, "tiny/single")


@pytest.mark.parametrize("module", ["huggingface_hub", "gguf"])
def test_a_missing_extra_says_how_to_install_it(tmp_path, monkeypatch, capsys, module):
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "x.gguf").write_bytes(b"GGUF")
    name = "tiny/single" if module == "huggingface_hub" else tmp_path / "x.gguf"
    assert f"{module} is missing: install it with `pip install 'unseen_lib[pretrained]'`" in complaint(
        capsys, name
    )


# ------------------------------------------------------------------------------------------------ the files
def test_no_safetensors(copy, capsys):
    folder = copy("single")
    (folder / "model.safetensors").unlink()
    assert "has no safetensors: choose" in complaint(capsys, folder)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    assert "has only pickled weights (pytorch_model.bin), which are not opened" in complaint(capsys, folder)


def test_no_config(copy, capsys):
    folder = copy("single")
    (folder / "config.json").unlink()
    assert "has no config.json" in complaint(capsys, folder)


@pytest.mark.parametrize("text", ["", "{", "version https://git-lfs.github.com/spec/v1", "[]"])
@pytest.mark.parametrize(
    "file", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json"]
)
def test_a_damaged_file_of_json(copy, capsys, file, text):
    folder = copy("sharded")
    (folder / file).write_text(text)
    assert file in complaint(capsys, folder)


@pytest.mark.parametrize("kept", [0, 5, 8, 100, -1])
def test_a_truncated_shard(copy, capsys, kept):
    folder = copy("sharded")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"]["model.embed_tokens.weight"]
    data = shard.read_bytes()
    shard.write_bytes(data[:kept])
    said = complaint(capsys, folder)
    assert shard.name in said and "download it again" in said
    assert ("is truncated" in said) == (kept == -1)


@pytest.mark.parametrize(
    "header",
    [
        b"\xff" * 8,
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 14) + b'{"a.weight":1}',
        struct.pack("<Q", 4) + b"\xff\xfe\xfd\xfc",
    ],
)
def test_a_file_that_is_not_safetensors(copy, capsys, header):
    folder = copy("single")
    (folder / "model.safetensors").write_bytes(header + bytes(100))
    assert "is not a whole safetensors file" in complaint(capsys, folder)


def test_offsets_that_do_not_fit_the_shape(copy, capsys):
    folder = copy("single")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data.replace(b'"shape":[2048,64]', b'"shape":[2049,64]'))
    assert "numbers of F32 take" in complaint(capsys, folder)


def test_an_index_naming_a_missing_shard(copy, capsys):
    folder = copy("sharded")
    missing = sorted(folder.glob("model-*.safetensors"))[0]
    missing.unlink()
    assert f"names {missing.name}, which is not there" in complaint(capsys, folder)


def test_an_index_that_is_of_another_model(copy, capsys):
    folder = copy("sharded")
    index = folder / "model.safetensors.index.json"
    data = json.loads(index.read_text())
    embedding = data["weight_map"]["model.embed_tokens.weight"]
    other = next(shard for shard in data["weight_map"].values() if shard != embedding)
    data["weight_map"]["model.embed_tokens.weight"] = other
    index.write_text(json.dumps(data))
    assert "and it is not: these files are of two versions" in complaint(capsys, folder)


def test_shards_without_an_index(copy, capsys):
    folder = copy("sharded")
    (folder / "model.safetensors.index.json").unlink()
    assert "but no model.safetensors.index.json" in complaint(capsys, folder)


def test_a_quantized_table(copy, capsys):
    folder = copy("single")
    data = (folder / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header["model.embed_tokens.weight"] |= {"dtype": "U32", "shape": [2048, 64]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    assert "model.embed_tokens.weight" in (said := complaint(capsys, folder))
    assert "quantized (U32), which is not read here" in said


def test_a_model_without_an_embedding_of_that_shape(copy, capsys):
    folder = copy("single")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"vocab_size": 9999}))
    assert "has no embedding of 9999 × 64" in complaint(capsys, folder)


def test_a_file_that_is_no_model(tmp_path, capsys):
    (tmp_path / "weights.bin").write_bytes(b"\x80\x04N.")
    assert "is a file that the audit does not read" in complaint(capsys, tmp_path / "weights.bin")


@pytest.mark.parametrize("content", [b"", b"GGUF", b"no such thing at all", b"GGUF\x03\0\0\0" + b"\x09" * 40])
def test_a_damaged_gguf(tmp_path, capsys, content):
    (tmp_path / "x.gguf").write_bytes(content)
    assert "is not a whole GGUF file" in complaint(capsys, tmp_path / "x.gguf")


def test_a_truncated_gguf(tmp_path, capsys, smollm2):
    with open(smollm2, "rb") as file:
        (tmp_path / "x.gguf").write_bytes(file.read(3_000_000))
    assert "is not a whole GGUF file" in complaint(capsys, tmp_path / "x.gguf")


def test_a_gguf_in_a_type_that_cannot_be_unpacked(tmp_path, capsys):
    import gguf
    import numpy as np

    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.zeros((64, 32), dtype=np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    said = complaint(capsys, tmp_path / "x.gguf", "--tokens", "1-9")
    assert "is quantized as I8, which gguf does not unpack" in said


# -------------------------------------------------------------------------------------------- the tokens
def test_a_tokenizer_without_unused_tokens(smollm2, capsys):
    said = complaint(capsys, smollm2)
    assert "has no unused tokens among its 49,152, beside its 17 special ones: name the tokens" in said


def test_no_tokenizer_at_all(copy, capsys):
    folder = copy("single")
    for file in folder.glob("tokenizer*"):
        file.unlink()
    assert "so its unused tokens cannot be found: name tokens by their ids" in complaint(capsys, folder)
    assert cli.main(["audit", str(folder), "--tokens", "6-104"]) == 1
    capsys.readouterr()
    assert "cannot be looked up, as no tokenizer is known" in complaint(
        capsys, folder, "--tokens", "<unused0>"
    )


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["2048"], "token id 2048 is out of range: the embedding has rows 0 to 2047"),
        (["6-9999999999"], "token id 2048 is out of range"),
        (["-1"], "token id -1 is out of range"),
        (["two words"], "the text 'two words' is no token of this tokenizer: name the token by its id"),
        (["7"], "one token only: name two or more"),
        (["9-6"], "no tokens were named"),
        (["0-2047"], "only 0 ordinary rows are left"),
    ],
)
def test_tokens_that_do_not_fit(published, capsys, tokens, message):
    assert message in complaint(capsys, published / "tiny" / "single", "--tokens", *tokens)


def test_weights_that_are_not_numbers(copy, capsys):
    folder = copy("single")
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-2048 * 64 * 4 :] = b"\xff" * (2048 * 64 * 4)
    header = json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])
    start = 8 + struct.unpack("<Q", data[:8])[0]
    first, last = header["model.embed_tokens.weight"]["data_offsets"]
    data[start + first : start + last] = b"\xff" * (last - first)
    (folder / "model.safetensors").write_bytes(data)
    assert "not finite: the weights are damaged" in complaint(capsys, folder)


def test_ordinary_rows_that_are_all_the_same(copy, capsys):
    folder = copy("single")
    data = bytearray((folder / "model.safetensors").read_bytes())
    start = 8 + struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8:start])
    first, last = header["model.embed_tokens.weight"]["data_offsets"]
    data[start + first : start + last] = bytes(last - first)
    (folder / "model.safetensors").write_bytes(data)
    assert "of this model are all the same" in complaint(capsys, folder)


def test_too_small_a_sample(published):
    with pytest.raises(PretrainedError, match="sample=1 is too small"):
        audit(published / "tiny" / "single", sample=1)


# ------------------------------------------------------------------------------------ what must never happen
def test_nothing_in_the_folder_is_run_or_unpickled(copy, capsys):
    folder = copy("single")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "trap.Model", "AutoConfig": "trap.Config"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "trap.py").write_text(f"open({str(folder / 'sprung')!r}, 'w')\n")
    (folder / "pytorch_model.bin").write_bytes(
        b"cos\nsystem\n(S'touch " + str(folder).encode() + b"/sprung'\ntR."
    )
    assert cli.main(["audit", str(folder)]) == 1
    assert not (folder / "sprung").exists()


@pytest.mark.parametrize("place", ["rows.bmp", "rows", "none/there/../../../../proc/rows.png"])
def test_a_figure_that_cannot_be_written_fails_before_the_audit(
    published, tmp_path, capsys, monkeypatch, place
):
    monkeypatch.chdir(tmp_path)
    where = "/proc/rows.png" if "proc" in place else place
    complaint(capsys, published / "tiny" / "single", "--plot", where)
    assert list(tmp_path.iterdir()) == []
