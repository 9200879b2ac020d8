"""`qwen3next` against transformers, from safetensors and from GGUF, and what it refuses."""

from pathlib import Path

import numpy as np
import pytest

from strata.errors import ModelFileError, UnsupportedModelError
from strata.models import open_checkpoint
from tests.helpers.gguf_files import write_gguf
from tests.helpers.hf_models import assert_agrees, assert_same_model, save_hf
from tests.helpers.hybrid_models import (
    EXPERTS,
    assert_agrees_everywhere,
    assert_rewinds,
    hybrid_tensors,
    save_hybrid_gguf,
    tiny_hybrid,
)
from tests.helpers.models import reference_model


@pytest.fixture(scope="module")
def reference():
    return tiny_hybrid("Qwen3NextConfig", "Qwen3NextForCausalLM", **EXPERTS)


@pytest.fixture(scope="module")
def model(reference, tmp_path_factory: pytest.TempPathFactory):
    return reference_model(save_hf(reference, tmp_path_factory.mktemp("hf")))


def test_agrees_with_transformers(model, reference):
    assert_agrees_everywhere(model, reference)


def test_decodes_as_transformers_with_its_cache(model, reference):
    assert_agrees(model, reference, length=5)


def test_rewinds(model):
    assert_rewinds(model)


def test_gguf_is_the_same_model(model, reference, tmp_path: Path):
    path = save_hybrid_gguf(reference, tmp_path / "model.gguf", "qwen3next")
    assert_same_model(reference_model(path), model)


def test_gguf_of_2025_with_fused_projections(model, reference, tmp_path: Path):
    """Early files keep transformers' `in_proj_qkvz` as `ssm_in`."""
    tensors = hybrid_tensors(reference, "qwen3next")
    for layer in range(3):
        del tensors[f"blk.{layer}.attn_qkv.weight"], tensors[f"blk.{layer}.attn_gate.weight"]
        fused = reference.model.layers[layer].linear_attn.in_proj_qkvz.weight
        tensors[f"blk.{layer}.ssm_in.weight"] = fused.detach().numpy()
    split = open_checkpoint(save_hybrid_gguf(reference, tmp_path / "split.gguf", "qwen3next"))
    keys = {key: value for key, value in split.metadata.items() if key.startswith("qwen3next.")}
    path = write_gguf(tmp_path / "fused.gguf", tensors, keys, "qwen3next")
    assert_same_model(reference_model(path), model)


def test_a_dense_layer_among_experts(tmp_path: Path):
    reference = tiny_hybrid("Qwen3NextConfig", "Qwen3NextForCausalLM", mlp_only_layers=[1], **EXPERTS)
    model = reference_model(save_hf(reference, tmp_path))
    assert_agrees(model, reference, length=20, steps=4)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        ({"expert_gating_func": 2}, UnsupportedModelError, "qwen3next.expert_gating_func is 2"),
        ({"expert_weights_scale": 2.5}, UnsupportedModelError, "qwen3next.expert_weights_scale is 2.5"),
        ({"expert_used_count": 9}, ModelFileError, "expert_used_count 9 exceeds the 8 experts"),
        ({"attention__recurrent_layers": [True] * 3}, ModelFileError, "has 3 entries for 4 layers"),
        ({"ssm__group_count": 4}, ModelFileError, "multiples of ssm.time_step_rank and ssm.group_count 4"),
        # without the list of layers one is made, so their number is checked first
        ({"block_count": 2**31 - 1}, ModelFileError, "block_count 2147483647 .* does not fit"),
        (
            {"attention__key_length": None, "attention__head_count": 64, "rope__dimension_count": None},
            ModelFileError,
            "64 attention heads do not fit into qwen3next.embedding_length 32",
        ),
        ({"ssm__state_size": None}, ModelFileError, "qwen3next.ssm.state_size is missing"),
        ({"ssm__conv_kernel": 3}, ModelFileError, r"ssm_conv1d.weight has shape \[160, 4\]"),
    ],
)
def test_refuses_keys_it_would_not_obey(reference, tmp_path: Path, keys, error, message):
    path = save_hybrid_gguf(reference, tmp_path / "model.gguf", "qwen3next", **keys)
    with pytest.raises(error, match=message):
        reference_model(path)


def test_names_a_missing_tensor(reference, tmp_path: Path):
    tensors: dict[str, np.ndarray] = hybrid_tensors(reference, "qwen3next")
    del tensors["blk.2.ssm_ba.weight"]
    whole = open_checkpoint(save_hybrid_gguf(reference, tmp_path / "whole.gguf", "qwen3next"))
    keys = {key: value for key, value in whole.metadata.items() if key.startswith("qwen3next.")}
    path = write_gguf(tmp_path / "model.gguf", tensors, keys, "qwen3next")
    with pytest.raises(ModelFileError, match=r"tensor blk\.2\.ssm_ba\.weight is missing"):
        reference_model(path)
