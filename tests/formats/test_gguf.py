"""Reading GGUF: values, tensors, slices, rows and splits, compared with gguf's own writer."""

import time
import tracemalloc

import gguf
import numpy as np
import pytest
import torch

from strata.errors import ModelFileError
from strata.formats.checkpoint import open_checkpoint
from strata.formats.gguf import GGUFCheckpoint
from strata.formats.quants import FORMATS
from tests.helpers import gguf_files as raw
from tests.helpers.gguf_files import RawGGUF, Tensor, key, split_gguf, write_gguf

ARCHITECTURE = key("general.architecture", raw.STRING, "llama")


def test_metadata_of_every_kind(tmp_path):
    metadata = {
        "llama.block_count": 7,
        "llama.rope.freq_base": 1e6,
        "tokenizer.ggml.add_bos_token": True,
        "general.name": "naïve 模型 🙂",
        "tokenizer.ggml.tokens": ["a", "", "ключ", "\U0001f600"],
        "tokenizer.ggml.scores": [0.5, -1.25],
        "llama.attention.recurrent_layers": [True, False, True],
        "llama.rope.dimension_sections": [11, 11, 10, 0],
    }
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", {}, metadata))
    assert checkpoint.architecture == "llama"
    assert {k: checkpoint.metadata[k] for k in metadata} == metadata
    assert {k: type(checkpoint.metadata[k]) for k in metadata} == {k: type(v) for k, v in metadata.items()}
    assert set(checkpoint.metadata) == {"general.architecture", *metadata}
    assert checkpoint.metadata.get("absent") is None
    assert "absent" not in checkpoint.metadata


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (raw.UINT8, 255), (raw.INT8, -128), (raw.UINT16, 65535), (raw.INT16, -32768), (raw.UINT32, 2**32 - 1),
        (raw.INT32, -(2**31)), (raw.UINT64, 2**64 - 1), (raw.INT64, -(2**63)), (raw.FLOAT32, 0.25),
        (raw.FLOAT64, 0.1), (raw.BOOL, True), (raw.STRING, "x"),
    ],
)  # fmt: skip
def test_each_value_type_alone_and_in_an_array(tmp_path, kind, value):
    keys = [ARCHITECTURE, key("one", kind, value), key("many", raw.ARRAY, (kind, [value] * 3))]
    metadata = GGUFCheckpoint(RawGGUF(keys).write(tmp_path / "m.gguf")).metadata
    assert metadata["one"] == value and type(metadata["one"]) is type(value)
    assert metadata["many"] == [value] * 3 and type(metadata["many"][0]) is type(value)


def test_damaged_text_is_replaced(tmp_path):
    keys = [
        ARCHITECTURE,
        key("s", raw.STRING, b"a\xffb"),
        key("l", raw.ARRAY, (raw.STRING, [b"\xe4\xbd", b"ok"])),
    ]
    metadata = GGUFCheckpoint(RawGGUF(keys).write(tmp_path / "m.gguf")).metadata
    assert metadata["s"] == "a\ufffdb"
    assert metadata["l"] == ["\ufffd", "ok"]


@pytest.mark.parametrize("version", [2, 3])
def test_versions(tmp_path, version):
    file = RawGGUF(tensors=[Tensor("t", [2])], data=np.array([1, 2], "<f4").tobytes())
    path = file.but(version=version.to_bytes(4, "little")).write(tmp_path / "m.gguf")
    assert GGUFCheckpoint(path).read("t").tolist() == [1, 2]


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0", "MXFP4"])
def test_tensors_slices_and_rows(tmp_path, kind):
    rng = np.random.default_rng(0)
    stack = rng.standard_normal((3, 5, 64)).astype(np.float32)
    table = rng.standard_normal((9, 32)).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", {"stack": (stack, kind), "table": (table, kind)})
    checkpoint = open_checkpoint(path)
    info = checkpoint.tensors["stack"]
    fmt = FORMATS[kind]
    assert (info.name, info.shape, info.format) == ("stack", (3, 5, 64), kind)
    assert info.num_bytes == 3 * 5 * 64 // fmt.block_size * fmt.block_bytes

    quant = gguf.GGMLQuantizationType[kind]
    expected = torch.from_numpy(gguf.quants.dequantize(gguf.quants.quantize(stack, quant), quant).copy())
    whole = checkpoint.read("stack")
    assert whole.dtype == torch.float32 and torch.equal(whole, expected)
    assert torch.equal(checkpoint.read("stack", 1), expected[1])

    rows = torch.tensor([8, 0, 3, 3])
    assert torch.equal(checkpoint.read_rows("table", rows), checkpoint.read("table")[rows])
    assert checkpoint.read_rows("table", torch.tensor([], dtype=torch.int64)).shape == (0, 32)


def test_reads_are_private_copies(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"t": np.ones((2, 4))})
    checkpoint = GGUFCheckpoint(path)
    checkpoint.read("t").zero_()
    assert checkpoint.read("t").sum() == 8


def test_raw_bytes_are_a_read_only_view(tmp_path):
    data = np.arange(2 * 3 * 34, dtype=np.uint8).reshape(2, 3, 34)
    path = write_gguf(tmp_path / "m.gguf", {"q": (data, "Q8_0"), "v": np.array([1.5, 2.5])})
    checkpoint = GGUFCheckpoint(path)
    view = checkpoint.raw("q")
    assert view.dtype == np.uint8 and not view.flags.owndata and not view.flags.writeable
    np.testing.assert_array_equal(view, data)
    np.testing.assert_array_equal(checkpoint.raw("q", 1), data[1])
    assert checkpoint.raw("v", 1).view("<f4") == 2.5
    assert checkpoint.read("v", 1).item() == 2.5 and checkpoint.read("v", 1).shape == ()


def test_wrong_names_slices_and_rows(tmp_path):
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", {"t": np.ones((2, 4)), "v": np.ones(4)}))
    with pytest.raises(ModelFileError, match=r"m\.gguf: has no tensor absent"):
        checkpoint.read("absent")
    for index in (-1, 2):
        with pytest.raises(IndexError, match=f"slice {index} of tensor t, whose first dimension is 2"):
            checkpoint.read("t", index)
    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"row {row} of tensor t, which has 2 rows"):
            checkpoint.read_rows("t", torch.tensor([0, row]))
    with pytest.raises(ValueError, match=r"tensor v has shape \[4\]"):
        checkpoint.read_rows("v", torch.tensor([0]))


def test_rows_leave_the_rest_of_the_table_alone(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"table": np.ones((40_000, 64), np.float32)})
    checkpoint = GGUFCheckpoint(path)
    tracemalloc.start()
    checkpoint.read_rows("table", torch.arange(0, 40_000, 4000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000  # the table has 10 million bytes


def test_q2_0(tmp_path):
    # gguf's writer does not know type 42. One row of two blocks, d = 2 and 0.25, all codes 3 and all 0.
    blocks = [np.array([d], "<f2").tobytes() + bytes([code] * 16) for d, code in ((2, 0xFF), (0.25, 0x00))]
    file = RawGGUF(tensors=[Tensor("t", [128, 1], type_id=42)], data=b"".join(blocks))
    checkpoint = GGUFCheckpoint(file.write(tmp_path / "m.gguf"))
    assert checkpoint.tensors["t"].format == "Q2_0"
    assert checkpoint.read("t").tolist() == [[4.0] * 64 + [-0.25] * 64]


def test_large_vocabulary_is_quick(tmp_path):
    words = [f"▁token{i}" for i in range(250_000)]
    keys = [ARCHITECTURE, key("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, words))]
    keys.append(key("tokenizer.ggml.merges", raw.ARRAY, (raw.STRING, words)))
    keys.append(key("tokenizer.ggml.token_type", raw.ARRAY, (raw.INT32, [1] * 250_000)))
    path = RawGGUF(keys).write(tmp_path / "m.gguf")
    start = time.process_time()
    metadata = GGUFCheckpoint(path).metadata
    opened = time.process_time()
    assert metadata["tokenizer.ggml.tokens"] == words
    assert metadata["tokenizer.ggml.merges"][-1] == words[-1]
    assert sum(metadata["tokenizer.ggml.token_type"]) == 250_000
    assert opened - start < 1
    assert time.process_time() - start < 2
    assert metadata["tokenizer.ggml.tokens"] is metadata["tokenizer.ggml.tokens"]  # decoded once


@pytest.mark.parametrize("given", [0, 1, 2])
def test_split_from_any_part(tmp_path, given):
    parts = split_gguf(tmp_path)
    checkpoint = GGUFCheckpoint(parts[given])
    assert checkpoint.files == parts
    assert checkpoint.architecture == "llama"
    assert checkpoint.metadata["split.no"] == 0
    for i in range(3):
        assert checkpoint.read(f"t{i}").tolist() == [i] * 32


def test_metadata_alone_needs_no_weights(tmp_path):
    parts = split_gguf(tmp_path)
    parts[1].write_bytes(b"no GGUF at all")
    checkpoint = GGUFCheckpoint(parts[2], tensors=False)
    assert checkpoint.architecture == "llama" and not checkpoint.tensors
    with pytest.raises(ModelFileError, match="is not a GGUF file"):
        GGUFCheckpoint(parts[2])


def test_single_file_named_as_a_split_of_one(tmp_path):
    path = write_gguf(tmp_path / "m-00001-of-00001.gguf", {"t": np.ones(4)})
    assert GGUFCheckpoint(path).files == [path]


def test_opening_copies_no_weights(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", {"t": np.ones((1000, 1000))})
    tracemalloc.start()
    checkpoint = GGUFCheckpoint(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert checkpoint.tensors["t"].num_bytes == 4_000_000
    assert peak < 100_000
