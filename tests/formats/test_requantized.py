"""`--dense q8_0`: a checkpoint as if its float matrices had been stored as Q8_0."""

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Types
from gguf.quants import quantize

from strata.errors import ModelFileError
from strata.formats import requantized as module
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.formats.gguf import GGUFCheckpoint
from strata.formats.mixes import find_mix
from strata.formats.quants import FORMATS
from strata.formats.requantized import RequantizedCheckpoint, requantized, with_dense
from strata.formats.synthetic import SyntheticCheckpoint


class Stored(Checkpoint):
    """Float32 tensors under the names given; only `read` gives them, as a folder with safetensors does."""

    def __init__(self, **tensors: torch.Tensor):
        self.path, self.architecture, self.metadata = "m", "llama", {}
        self.values = {f"{name}.weight": values for name, values in tensors.items()}
        self.tensors = {n: TensorInfo(n, tuple(v.shape), "F32", v.nbytes) for n, v in self.values.items()}

    def read(self, name, index=None):
        return self.values[name] if index is None else self.values[name][index]

    def read_rows(self, name, rows):
        return self.values[name][rows]


def described(name: str, *shape: int, format: str = "BF16") -> TensorInfo:
    return TensorInfo(name, shape, format, 0)


@pytest.mark.parametrize(
    "name",
    ["output.weight", "blk.3.attn_q.weight", "blk.3.hc_ffn_inject.weight", "blk.8.nextn.eh_proj.weight"],
)
def test_float_matrices_become_q8_0(name):
    assert requantized(described(name, 4, 64), tied=False) == TensorInfo(name, (4, 64), "Q8_0", 4 * 2 * 34)


@pytest.mark.parametrize(
    "name",
    [
        "token_embd.weight",
        "per_layer_token_embd.weight",
        "blk.0.ffn_gate_inp.weight",
        "blk.0.ssm_ba.weight",
        "blk.0.ffn_gate_inp_shexp.weight",
        "blk.0.ffn_gate.7.weight",
        "blk.0.ssm_conv1d.weight",
        "blk.0.indexer.q_proj.weight",
        "blk.0.attn_q.bias",
    ],
)
def test_tables_experts_and_routers_stay(name):
    info = described(name, 64, 64)
    assert requantized(info, tied=False) is info


def test_what_cannot_or_need_not_change_stays():
    for info in (
        described("blk.0.ffn_up_exps.weight", 2, 64, 64),
        described("output_norm.weight", 64),
        described("blk.0.attn_q.weight", 64, 48),
        described("blk.0.attn_q.weight", 64, 64, format="Q4_K"),
        described("blk.0.attn_q.weight", 64, 64, format="F8_E4M3"),
    ):
        assert requantized(info, tied=False) is info


def test_a_tied_embedding_is_the_output_matrix():
    assert requantized(described("token_embd.weight", 64, 64), tied=True).format == "Q8_0"


def test_codes_and_scales_are_ggmls():
    values = torch.randn(700, 1600, generator=torch.Generator().manual_seed(0))
    values[5, 32:64] = 0
    checkpoint = RequantizedCheckpoint(Stored(output=values))
    want = quantize(values.numpy(), Types.Q8_0)
    assert np.array_equal(checkpoint.raw("output.weight"), want)
    decoded = torch.from_numpy(FORMATS["Q8_0"].dequantize(want)).view(700, 1600)
    assert torch.equal(checkpoint.read("output.weight"), decoded)
    assert torch.equal(checkpoint.read("output.weight", 6), decoded[6])
    assert torch.equal(checkpoint.read_rows("output.weight", torch.tensor([699, 0])), decoded[[699, 0]])


@pytest.mark.parametrize("format", ["F32", "F16", "BF16"])
def test_a_file_is_read_as_its_values_are(tmp_path, format, monkeypatch):
    gone = []
    monkeypatch.setattr(module, "let_go", gone.append)
    values = np.random.default_rng(0).standard_normal((33, 64), np.float32)
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    for name in ("output.weight", "blk.0.ffn_gate_inp.weight"):
        writer.add_tensor(name, quantize(values, Types[format]), raw_dtype=Types[format])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = GGUFCheckpoint(tmp_path / "m.gguf")
    checkpoint = with_dense(stored, "q8_0")
    want = quantize(stored.read("output.weight").numpy(), Types.Q8_0)
    assert np.array_equal(checkpoint.raw("output.weight"), want)
    assert np.array_equal(
        checkpoint.raw("blk.0.ffn_gate_inp.weight"), stored.raw("blk.0.ffn_gate_inp.weight")
    )
    assert [view.ctypes.data for view in gone] == [stored.raw("output.weight").ctypes.data]
    assert with_dense(stored, "as_stored") is stored


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e7])
def test_what_q8_0_cannot_hold_is_named(value):
    values = torch.ones(64, 64)
    values[63, 5] = value
    checkpoint = RequantizedCheckpoint(Stored(output=values))
    with pytest.raises(ModelFileError, match=r"output\.weight holds .*; leave out --dense q8_0"):
        checkpoint.raw("output.weight")


@pytest.mark.parametrize("quant", ["q2_0", "ud-q4_k_xl"])
def test_the_planner_counts_what_is_loaded(quant):
    geometry = GEOMETRIES["tiny"]
    checkpoint = SyntheticCheckpoint(geometry, find_mix(geometry, quant))
    planned = ModelDescription.of_checkpoint(checkpoint).requantized()
    loaded = ModelDescription.of_checkpoint(with_dense(checkpoint, "q8_0"))
    for size in ("dense_bytes", "output_bytes", "draft_bytes", "dense_q8_bytes"):
        assert getattr(planned, size) == getattr(loaded, size)
    assert loaded.dense_bytes < ModelDescription.of_checkpoint(checkpoint).dense_bytes


def test_products_are_those_of_a_q8_0_file():
    """Bit for bit: activations are quantised too, as docs/NUMERICS.md says."""
    pytest.importorskip("strata.native._core")
    from strata.formats.quants.integer import integer_decode
    from strata.layers.planes import PlaneWeights
    from strata.ops.quantized_matmul import quantized_matmul

    generator = torch.Generator().manual_seed(0)
    checkpoint = RequantizedCheckpoint(Stored(output=torch.randn(40, 256, generator=generator)))
    x = torch.randn(3, 256, generator=generator)
    weights = PlaneWeights(checkpoint)
    y = weights.ops.matmul(x, weights.matrix(weights.require_matrix("output.weight", 40, 256)))
    want = quantized_matmul(integer_decode("Q8_0", checkpoint.raw("output.weight"), 40, 256), x.numpy())
    assert np.array_equal(y.numpy(), want)
