"""Rows of a published model, found and read without loading it, beside the rows of the loaded model."""

import json
import struct

import pytest
import torch

from tests.conftest import PUBLISHED
from tests.published import PADDED, SIZE, WIDTH, tiny_gemma
from unseen_lib.pretrained.files import open_folder
from unseen_lib.pretrained.tables import BLOCK, Table, blocks, find_tables, rows, tables_of_model


def loaded(path, name):
    import transformers

    kind = transformers.Gemma3ForCausalLM
    if "multimodal" in name:
        kind = transformers.Gemma3ForConditionalGeneration
    return kind.from_pretrained(path / "tiny" / name, dtype="auto")


@pytest.mark.parametrize("far", [False, True], ids=["local", "served"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_are_those_of_the_loaded_model(published, served, name, far):
    model = loaded(published, name)
    tables = find_tables(open_folder(f"tiny/{name}" if far else published / "tiny" / name))
    weights = {"embedding": model.get_input_embeddings().weight}
    if "untied" in name:
        weights["unembedding"] = model.get_output_embeddings().weight
    else:
        assert tables.unembedding is None
    ids = [7, 6, 1999, 8, 300, 7, SIZE - 1]
    for side, weight in weights.items():
        table = getattr(tables, side)
        assert (table.size, table.width) == weight.shape == (PADDED if "multi" in name else SIZE, WIDTH)
        assert table.dtype == ("BF16" if "bf16" in name or name == "multimodal" else "F32")
        assert torch.equal(rows(table, ids), weight.detach()[ids].float())
        whole = torch.cat([part for _, part in blocks(table)])
        assert torch.equal(whole, weight.detach().float())


def test_neighbors_are_read_in_one_go_and_nothing_between_runs_is():
    asked = []

    def read(start, stop):
        asked.append((start, stop))
        return torch.arange(start, stop).float()[:, None].expand(-1, 3)

    table = Table("t", 100, 3, "F32", read, row_bytes=12)
    ids = [9, 3, 50, 4, 5, 9]
    assert rows(table, ids)[:, 0].tolist() == ids
    assert asked == [(3, 6), (9, 10), (50, 51)]
    asked.clear()
    rows(Table("t", 100, 3, "F32", read, row_bytes=BLOCK // 2), range(10))
    assert all(stop - start <= 2 for start, stop in asked)  # never more than a block in memory


def test_only_the_rows_and_one_header_leave_the_server(published, served):
    folder = open_folder("tiny/sharded-bf16")
    tables = find_tables(folder)
    before = folder.meter.weights
    served.ranges.clear()
    rows(tables.embedding, range(6, 105))
    assert len(served.ranges) == 1
    assert sum(stop - start for start, stop in served.ranges) == 99 * WIDTH * 2
    assert folder.meter.weights - before == 99 * WIDTH * 2
    files = sum(size for name, size in folder.sizes.items() if name.endswith(".safetensors"))
    assert tables.stored == files


def save(path, tensors, config, dtype="F32", metadata=None):
    """A safetensors file with an independent writer, zeros everywhere."""
    path.mkdir(exist_ok=True)
    header, offset = {"__metadata__": metadata or {"format": "pt"}}, 0
    for name, shape in tensors.items():
        size = 4
        for length in shape:
            size *= length
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))
    (path / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("tensors", "config", "embedding", "unembedding"),
    [
        (
            {"wte.weight": [50, 8], "wpe.weight": [64, 8], "h.0.attn.c_proj.weight": [8, 8]},
            {"vocab_size": 50, "n_embd": 8},
            "wte.weight",
            None,
        ),
        (
            {"gpt_neox.embed_in.weight": [56, 8], "embed_out.weight": [56, 8]},
            {"vocab_size": 50, "hidden_size": 8, "tie_word_embeddings": False},
            "gpt_neox.embed_in.weight",
            "embed_out.weight",
        ),
        (
            {
                "bert.embeddings.word_embeddings.weight": [50, 8],
                "bert.embeddings.position_embeddings.weight": [64, 8],
                "bert.encoder.layer.0.output.dense.weight": [8, 64],
                "cls.predictions.decoder.weight": [50, 8],
            },
            {"vocab_size": 50, "hidden_size": 8, "tie_word_embeddings": True},
            "bert.embeddings.word_embeddings.weight",
            None,
        ),
        (
            {
                "shared.weight": [50, 8],
                "encoder.block.0.layer.0.wo.weight": [8, 64],
                "lm_head.weight": [50, 8],
            },
            {"vocab_size": 50, "d_model": 8},
            "shared.weight",
            "lm_head.weight",
        ),
        (
            {
                "language_model.model.embed_tokens.weight": [58, 8],
                "vision_tower.head.out_proj.weight": [6, 6],
            },
            {"text_config": {"hidden_size": 8}, "vision_config": {"hidden_size": 6}},
            "language_model.model.embed_tokens.weight",
            None,
        ),
        (
            {
                "model.language_model.embed_tokens.weight": [50, 8],
                "model.language_model.embed_tokens_per_layer.weight": [50, 32],
            },
            {"text_config": {"hidden_size": 8, "vocab_size": 50}},
            "model.language_model.embed_tokens.weight",
            None,
        ),
    ],
    ids=["gpt2", "neox", "bert", "t5", "config without its defaults", "gemma3n"],
)
def test_the_table_is_found_by_shape_and_role_in_models_never_heard_of(
    tmp_path, tensors, config, embedding, unembedding
):
    save(tmp_path / "model", tensors, config)
    tables = find_tables(open_folder(tmp_path / "model"))
    assert tables.embedding.name == embedding
    assert (tables.unembedding and tables.unembedding.name) == unembedding


def test_a_loaded_model_gives_its_own_rows():
    for tied in (True, False):
        model = tiny_gemma(tied=tied).to(torch.bfloat16)
        tables = tables_of_model(model)
        weight = model.get_input_embeddings().weight.detach()
        assert torch.equal(rows(tables.embedding, [3, 700]), weight[[3, 700]].float())
        assert (tables.unembedding is None) == tied
        if not tied:
            weight = model.get_output_embeddings().weight.detach()
            assert torch.equal(rows(tables.unembedding, [3]), weight[[3]].float())


def test_a_gguf_gives_the_rows_that_gguf_unpacks(smollm2):
    from gguf import GGUFReader, dequantize

    from unseen_lib.pretrained.tables import open_gguf

    tables, names, kinds = open_gguf(smollm2)
    assert (tables.embedding.size, tables.embedding.width) == (49152, 576)
    assert (
        tables.unembedding is None
        and names[:2] == ["<|endoftext|>", "<|im_start|>"]
        and kinds[16:18] == [3, 1]
    )
    (tensor,) = (tensor for tensor in GGUFReader(smollm2).tensors if tensor.name == "token_embd.weight")
    expected = torch.from_numpy(dequantize(tensor.data, tensor.tensor_type)).view(49152, 576)
    ids = [0, 16, 40_000, 17]
    assert torch.equal(rows(tables.embedding, ids), expected[ids])
    assert tables.meter.weights == tables.embedding.row_bytes * 4
