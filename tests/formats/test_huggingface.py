"""Hugging Face folders: translation, lazy reads, and errors that name what is wrong."""

import copy
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from strata.errors import ModelFileError, StrataError, UnsupportedModelError
from strata.formats.huggingface import SafetensorsCheckpoint
from strata.models import open_checkpoint
from tests.helpers.hf_models import assert_agrees, assert_same_model, save_hf, tiny
from tests.helpers.models import reference_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama in one file."""
    return save_hf(tiny("Llama"), tmp_path / "model")


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text()) | fields
    path.write_text(json.dumps({k: v for k, v in config.items() if v != "absent"}))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def test_metadata_are_the_keys_of_gguf(folder: Path):
    checkpoint = SafetensorsCheckpoint(folder)
    assert checkpoint.architecture == "llama"
    assert checkpoint.metadata["general.name"] == "model"
    assert checkpoint.metadata["llama.attention.head_count_kv"] == 2
    assert checkpoint.metadata["llama.rope.dimension_count"] == 8
    info = checkpoint.tensors["blk.1.ffn_down.weight"]
    assert (info.shape, info.format, info.num_bytes) == ((32, 48), "F32", 32 * 48 * 4)


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "BF16"), (torch.float16, "F16")])
def test_half_precision_is_read_exactly(dtype: torch.dtype, name: str, tmp_path: Path):
    reference = tiny("Llama")
    checkpoint = SafetensorsCheckpoint(save_hf(copy.deepcopy(reference).to(dtype), tmp_path))
    for parameter in reference.parameters():  # .to(dtype) would round the rotary frequencies too
        parameter.data = parameter.data.to(dtype).float()
    assert checkpoint.tensors["blk.0.attn_v.weight"].format == name
    expected = reference.model.layers[0].self_attn.v_proj.weight
    assert torch.equal(checkpoint.read("blk.0.attn_v.weight"), expected)
    assert_agrees(reference_model(checkpoint), reference, length=9, steps=2)


def test_shards_are_found_through_the_index(folder: Path, tmp_path: Path):
    sharded = save_hf(tiny("Llama"), tmp_path / "sharded", max_shard_size="20KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    model = reference_model(sharded)
    assert_same_model(model, reference_model(folder))


def test_a_text_model_inside_a_multimodal_configuration(folder: Path):
    """The nested fields win; what belongs to no text model is for the tables to ignore."""
    plain = reference_model(folder)

    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors["model.language_model." + name.removeprefix("model.")] = tensors.pop(name)

    nested = folder.parent / "nested"
    nested.mkdir()
    (nested / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    text = json.loads((folder / "config.json").read_text())
    (nested / "config.json").write_text(json.dumps({"model_type": "vision", "text_config": text}))
    change_tensors(nested, rename)
    assert_same_model(reference_model(nested), plain)


def test_rope_fields_of_transformers_4(folder: Path):
    """`rope_theta` and `rope_scaling` beside each other, its kind called `type`."""
    change_config(
        folder, rope_parameters="absent", rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0}
    )
    metadata = SafetensorsCheckpoint(folder).metadata
    assert metadata["llama.rope.freq_base"] == 5e5
    assert metadata["llama.rope.scaling.type"] == "linear"
    assert metadata["llama.rope.scaling.factor"] == 2.0


def test_fused_experts_are_split(tmp_path: Path):
    """transformers keeps `gate_up_proj` in memory and some files have it: gate's rows, then up's."""
    reference = tiny("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    folder = save_hf(reference, tmp_path)
    separate = SafetensorsCheckpoint(folder)
    expected = {name: separate.read(name).clone() for name in separate.tensors if "_exps" in name}

    def fuse(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".mlp.experts." in name]:
            del tensors[name]
        state = reference.state_dict()
        tensors |= {name: tensor for name, tensor in state.items() if ".mlp.experts." in name}

    change_tensors(folder, fuse)
    fused = SafetensorsCheckpoint(folder)
    assert len(expected) == 6
    for name, tensor in expected.items():
        assert fused.tensors[name].shape == tuple(tensor.shape)
        assert torch.equal(fused.read(name), tensor)
        assert torch.equal(fused.read(name, 3), tensor[3]) and torch.equal(separate.read(name, 3), tensor[3])


def test_rows_are_the_embedding_of_ids(folder: Path):
    checkpoint = SafetensorsCheckpoint(folder)
    rows = torch.tensor([5, 90, 5, 0])
    table = checkpoint.read("token_embd.weight")
    assert torch.equal(checkpoint.read_rows("token_embd.weight", rows), table[rows])


def anonymous_bytes() -> int:
    """Memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no RssAnon")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_opening_and_reading_a_part_copies_no_more_than_the_part(tmp_path: Path):
    """A 64 MB stack of experts in bfloat16: an expert's 2 MB matrix costs a few MB, not the stack."""
    reference = tiny("Qwen3Moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24)
    folder = save_hf(reference.to(torch.bfloat16), tmp_path)
    width, length, count = 1024, 512, 32

    def enlarge(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".layers.0.mlp.experts." in name]:
            del tensors[name]
        shapes = {"gate_up_proj": (count, 2 * length, width), "down_proj": (count, width, length)}
        for name, shape in shapes.items():
            tensors[f"model.layers.0.mlp.experts.{name}"] = torch.ones(shape, dtype=torch.bfloat16)

    change_tensors(folder, enlarge)
    before = anonymous_bytes()
    checkpoint = SafetensorsCheckpoint(folder)
    up = checkpoint.read("blk.0.ffn_up_exps.weight", 17)
    assert up.shape == (length, width)
    assert (folder / "model.safetensors").stat().st_size > 64 << 20
    assert anonymous_bytes() - before < 24 << 20


def remove(name: str) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.pop(name)


def add(name: str, tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], object]:
    return lambda tensors: tensors.update({name: tensor})


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            remove("model.layers.1.mlp.up_proj.weight"),
            ModelFileError,
            r"model\.layers\.1\.mlp\.up_proj\.weight",
        ),
        (remove("lm_head.weight"), ModelFileError, r"lm_head\.weight is missing"),
        (
            add("model.odd.weight", torch.ones(2)),
            UnsupportedModelError,
            r"1 tensors .* llama: model\.odd\.weight",
        ),
        (
            add("model.norm.weight", torch.ones(32).to(torch.float8_e4m3fn)),
            UnsupportedModelError,
            r"model\.norm\.weight is stored as F8_E4M3",
        ),
        (add("model.norm.weight", torch.ones(32, dtype=torch.int8)), UnsupportedModelError, "stored as I8"),
        (
            add("model.norm.weight", torch.ones(31)),
            ModelFileError,
            r"output_norm\.weight has shape \[31\].*\[32\]",
        ),
    ],
)
def test_a_tensor_at_fault_is_named(
    change: Callable[[dict[str, torch.Tensor]], object], error: type[StrataError], message: str, folder: Path
):
    change_tensors(folder, change)
    with pytest.raises(error, match=message):
        reference_model(folder)


@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        (
            {"model_type": "gpt_bigcode"},
            UnsupportedModelError,
            "model_type 'gpt_bigcode' is not supported.*qwen3",
        ),
        ({"model_type": "absent"}, ModelFileError, "config.json: field model_type is missing"),
        ({"model_type": ["llama"]}, UnsupportedModelError, r"model_type \['llama'\]"),
        ({"hidden_size": "absent"}, ModelFileError, "field hidden_size is missing"),
        ({"hidden_size": "32"}, ModelFileError, "hidden_size must be a positive count, not '32'"),
        ({"num_hidden_layers": -1}, ModelFileError, "num_hidden_layers must be a positive count, not -1"),
        ({"num_hidden_layers": 10**6}, ModelFileError, r"model\.layers\.2\..* is missing"),
        ({"rms_norm_eps": "small"}, ModelFileError, "rms_norm_eps must be a number, not 'small'"),
        (
            {"hidden_act": "gelu"},
            UnsupportedModelError,
            "hidden_act is 'gelu'; for llama Strata has only 'silu'",
        ),
        ({"head_dim": 9}, ModelFileError, "odd length"),
        ({"rope_parameters": 3}, ModelFileError, "rope_parameters must be an object, not 3"),
        ({"rope_parameters": {"rope_type": "dynamic"}}, UnsupportedModelError, "rope_type is 'dynamic'"),
        ({"rope_parameters": {"rope_type": "linear"}}, ModelFileError, "field factor is missing"),
        ({"quantization_config": {"quant_method": "fp8"}}, UnsupportedModelError, "quantised with 'fp8'"),
        ({"model_type": "mixtral"}, ModelFileError, r"tensor model\.layers\.0\..*gate\.weight is missing"),
        *(
            (
                {"partial_rotary_factor": factor},
                ModelFileError,
                "partial_rotary_factor must lie between 0 and 1",
            )
            for factor in (-1, 2**31, 2**63, 1e308)
        ),
        ({"rope_parameters": LLAMA3 | {"factor": 0}}, ModelFileError, "factor must be positive, not 0.0"),
        (
            {"rope_parameters": LLAMA3 | {"low_freq_factor": 4.0}},
            ModelFileError,
            "low_freq_factor 4.0 is not below high_freq_factor 4.0",
        ),
    ],
)
def test_a_field_at_fault_is_named(
    fields: dict[str, Any], error: type[StrataError], message: str, folder: Path
):
    change_config(folder, **fields)
    with pytest.raises(error, match=message):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(tmp_path: Path):
    folder = save_hf(tiny("Llama"), tmp_path, max_shard_size="20KB")
    first = sorted(folder.glob("*.safetensors"))[0]
    first.unlink()
    with pytest.raises(ModelFileError, match=f"1 of [0-9]+ safetensors files are missing: {first.name}"):
        open_checkpoint(folder)


def test_an_index_that_lies_is_refused(tmp_path: Path):
    folder = save_hf(tiny("Llama"), tmp_path, max_shard_size="20KB")
    index = folder / "model.safetensors.index.json"
    fields = json.loads(index.read_text())
    files = sorted(set(fields["weight_map"].values()))
    norm = fields["weight_map"]["model.norm.weight"]
    fields["weight_map"]["model.norm.weight"] = next(file for file in files if file != norm)
    index.write_text(json.dumps(fields))
    with pytest.raises(ModelFileError, match=r"model\.norm\.weight is missing; the index places it there"):
        open_checkpoint(folder)
    fields["weight_map"]["model.norm.weight"] = "../elsewhere.safetensors"
    index.write_text(json.dumps(fields))
    with pytest.raises(ModelFileError, match=r"'\.\./elsewhere\.safetensors' is not the name of a file"):
        open_checkpoint(folder)


def test_a_tensor_in_two_files_is_refused(folder: Path):
    save_file({"model.norm.weight": torch.ones(32)}, folder / "mtp.safetensors")
    with pytest.raises(ModelFileError, match=r"mtp\.safetensors: tensor model\.norm\.weight is in another"):
        open_checkpoint(folder)


def test_files_beside_the_model_are_left_alone(folder: Path):
    """Only an index says otherwise; transformers, too, opens `model.safetensors` alone."""
    tensors = open_checkpoint(folder).tensors
    save_file({"model.norm.weight": torch.ones(32), "logits": torch.ones(3)}, folder / "io.safetensors")
    assert open_checkpoint(folder).tensors == tensors
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    with pytest.raises(ModelFileError, match=r"tensor model\.norm\.weight is in another file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("size", [0, 7, 100, 3000, -1])
def test_a_damaged_file_is_named(size: int, folder: Path):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(ModelFileError, match=r"model\.safetensors: not a sound safetensors file"):
        open_checkpoint(folder)


@pytest.mark.parametrize("text", ["", "{", "[1]", "\xff", "[" * 100_000])
def test_a_damaged_configuration_is_named(text: str, folder: Path):
    (folder / "config.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(ModelFileError, match=r"config\.json: (cannot be read as JSON|holds no JSON object)"):
        open_checkpoint(folder)


def test_a_folder_without_tensors_is_named(folder: Path):
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"holds no \.safetensors file"):
        open_checkpoint(folder)


def test_experts_that_nothing_counts_are_named(tmp_path: Path):
    folder = save_hf(tiny("Mixtral", num_local_experts=4), tmp_path)
    change_config(folder, num_local_experts="absent")
    with pytest.raises(ModelFileError, match="no num_experts or num_local_experts"):
        open_checkpoint(folder)
