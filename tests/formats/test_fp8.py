"""Checkpoints with F8_E4M3 matrices and a scale for each 128 x 128 block."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.huggingface import SafetensorsCheckpoint
from strata.layers.planes import PlaneWeights
from strata.models import load_model
from tests.helpers.hf_models import TOLERANCE, relative_error, save_hf, tiny
from tests.helpers.models import native_model, reference_model

FP8 = {
    "quant_method": "fp8",
    "fmt": "e4m3",
    "activation_scheme": "dynamic",
    "weight_block_size": [128, 128],
}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 136}
TOKENS = [(37 * i) % 90 + 6 for i in range(12)]


def blocks(matrix: torch.Tensor) -> list[tuple[tuple[int, int], torch.Tensor]]:
    """The 128 x 128 blocks of a matrix, as views."""
    rows, columns = (range(0, n, 128) for n in matrix.shape)
    return [((r // 128, c // 128), matrix[r : r + 128, c : c + 128]) for r in rows for c in columns]


def quantise(tensors: dict[str, torch.Tensor], scale_type: torch.dtype) -> dict[str, torch.Tensor]:
    """Replace the matrices of all projections; returns what they have become, as float32."""
    decoded = dict(tensors)
    for name in [name for name in tensors if "_proj." in name]:
        scales = torch.zeros([-(-n // 128) for n in tensors[name].shape], dtype=scale_type)
        codes = torch.zeros_like(tensors[name])
        decoded[name] = torch.zeros_like(codes)
        for (index, block), (_, code), (_, value) in zip(
            blocks(tensors[name]), blocks(codes), blocks(decoded[name]), strict=True
        ):
            scales[index] = block.abs().max() / 448
            code[:] = (block / scales[index].float()).to(torch.float8_e4m3fn).float()
            value[:] = code * scales[index].float()
        tensors[name], tensors[f"{name}_scale_inv"] = codes.to(torch.float8_e4m3fn), scales
    return decoded


def fp8_folder(folder: Path, scale_type: torch.dtype = torch.float32) -> tuple[Path, Path]:
    """A tiny mixture of experts as fp8, and the same numbers as float32."""
    model = tiny("Qwen3Moe", hidden_size=160, head_dim=40, **MOE)
    plain, fp8 = save_hf(model, folder / "plain"), save_hf(model, folder / "fp8")
    tensors = {name: tensor.clone() for name, tensor in load_file(fp8 / "model.safetensors").items()}
    save_file(quantise(tensors, scale_type), plain / "model.safetensors")
    save_file(tensors, fp8 / "model.safetensors")
    change_config(fp8, quantization_config=FP8)
    return fp8, plain


def change_config(folder: Path, **fields: Any) -> None:
    config = json.loads((folder / "config.json").read_text()) | fields
    (folder / "config.json").write_text(json.dumps(config))


@torch.inference_mode()
def logits(model) -> torch.Tensor:
    return model.forward(TOKENS, model.new_state(), all_logits=True)


@pytest.mark.parametrize("scale_type", [torch.float32, torch.bfloat16])
def test_every_tensor_is_codes_times_scales(scale_type: torch.dtype, tmp_path: Path):
    fp8, plain = map(SafetensorsCheckpoint, fp8_folder(tmp_path, scale_type))
    formats = {name: info.format for name, info in fp8.tensors.items()}
    assert formats["blk.0.attn_q.weight"] == formats["blk.1.ffn_down_exps.weight"] == "F8_E4M3"
    assert formats["blk.0.ffn_gate_inp.weight"] == "F32"
    for name in fp8.tensors:
        assert torch.equal(fp8.read(name), plain.read(name)), name
    name, rows = "blk.0.attn_q.weight", torch.tensor([3, 129, 130])
    assert torch.equal(fp8.read_rows(name, rows), plain.read(name)[rows])
    assert torch.equal(fp8.read(name, 129), plain.read(name)[129])


def test_models_compute_with_fp8(tmp_path: Path):
    """1e-4 relative between native and reference: only the order of sums differs."""
    fp8, plain = fp8_folder(tmp_path)
    expected = logits(reference_model(plain))
    assert torch.equal(logits(reference_model(fp8)), expected)
    assert relative_error(logits(native_model(fp8)), expected) < TOLERANCE


def test_fp8_stays_small_in_memory(tmp_path: Path):
    fp8, plain = fp8_folder(tmp_path)
    sizes = []
    for folder in (fp8, plain):
        weights = PlaneWeights(SafetensorsCheckpoint(folder))
        load_model(weights)
        sizes.append(weights.matrix_bytes())
    assert sizes[0] < 0.5 * sizes[1]


def test_what_is_missing_or_different_is_named(tmp_path: Path):
    fp8, _ = fp8_folder(tmp_path)
    change_config(fp8, quantization_config=FP8 | {"weight_block_size": [64, 64]})
    with pytest.raises(UnsupportedModelError, match=r"'fp8' in blocks of \[64, 64\]"):
        SafetensorsCheckpoint(fp8)
    change_config(fp8, quantization_config=FP8)
    tensors = load_file(fp8 / "model.safetensors")
    name = "model.layers.1.self_attn.v_proj.weight_scale_inv"
    scales = tensors.pop(name)
    save_file(tensors, fp8 / "model.safetensors")
    with pytest.raises(ModelFileError, match=rf"tensor {name} is missing"):
        SafetensorsCheckpoint(fp8)
    save_file(tensors | {name: scales[:, :1].contiguous()}, fp8 / "model.safetensors")
    with pytest.raises(ModelFileError, match=r"v_proj.weight is .* scales \[1, 1\], expected \[1, 2\]"):
        SafetensorsCheckpoint(fp8)
