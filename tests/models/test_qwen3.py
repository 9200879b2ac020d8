"""`qwen3` and `qwen3moe` against transformers, from safetensors and from GGUF."""

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.hf_models import assert_agrees, save_gguf, save_hf, tiny
from tests.helpers.models import reference_model

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 24}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "dense": ("Qwen3", {"head_dim": 16}),
    "tied": ("Qwen3", {"head_dim": 8, "tie_word_embeddings": True, "num_key_value_heads": 1}),
    "biases": ("Qwen3", {"head_dim": 12, "attention_bias": True}),
    "experts": ("Qwen3Moe", {"head_dim": 16, "norm_topk_prob": True, **EXPERTS}),
    "experts as they are": ("Qwen3Moe", {"head_dim": 16, "norm_topk_prob": False, **EXPERTS}),
    "experts tied": ("Qwen3Moe", {"norm_topk_prob": True, "tie_word_embeddings": True, **EXPERTS}),
}


@pytest.mark.parametrize("case", MODELS)
def test_agrees_with_transformers(case: str, tmp_path: Path):
    name, fields = MODELS[case]
    reference = tiny(name, **fields)
    architecture, keys = "qwen3", {}
    if name == "Qwen3Moe":
        architecture = "qwen3moe"
        keys = {
            "expert_feed_forward_length": fields["moe_intermediate_size"],
            "expert_weights_norm": fields["norm_topk_prob"],
        }
    from_safetensors = reference_model(save_hf(reference, tmp_path / "hf"))
    path = save_gguf(reference, tmp_path / "model.gguf", architecture, **keys)
    from_gguf = reference_model(path)
    assert_agrees(from_safetensors, reference, length=37)
    assert_agrees(from_gguf, reference, length=37)


def test_a_dense_layer_among_experts(tmp_path: Path):
    """Only transformers has such models: llama.cpp's `qwen3moe` knows no dense layer."""
    reference = tiny("Qwen3Moe", norm_topk_prob=True, mlp_only_layers=[0], **EXPERTS)
    model = reference_model(save_hf(reference, tmp_path))
    assert_agrees(model, reference, length=20, steps=4)


def test_long_prompt_with_yarn(tmp_path: Path):
    """Qwen3's own recipe for long contexts, at positions far past the trained ones."""
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 256}
    reference = tiny("Qwen3", head_dim=32, rope_parameters=rope)
    path = save_gguf(
        reference,
        tmp_path / "model.gguf",
        "qwen3",
        rope__scaling__type="yarn",
        rope__scaling__factor=4.0,
        rope__scaling__original_context_length=256,
    )
    assert_agrees(reference_model(path), reference, length=1100, steps=2)
    save_hf(reference, tmp_path / "hf")
    assert_agrees(reference_model(tmp_path / "hf"), reference, length=1100, steps=2)
