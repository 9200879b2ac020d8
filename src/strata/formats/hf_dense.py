"""Hugging Face's names of the dense models and of those with plain mixtures of experts, as GGUF's.

The metadata keys and value conventions are those of llama.cpp's converter; the helpers serve the
hybrid models' tables (`hf_hybrid`) too.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.hf_recipes import Map, Part, Plain, Reader, Recipe, Stack, Values
from strata.formats.huggingface import HFConfig, Table, Translation

Tensors = dict[str, Recipe]


def common_metadata(architecture: str, config: HFConfig) -> dict[str, Any]:
    """The keys that every architecture has, experts included."""
    config.expect("hidden_act", "silu")
    heads = config.count("num_attention_heads")
    head_dim = config.count("head_dim", max(1, config.count("hidden_size") // heads))
    fields = {
        "block_count": config.count("num_hidden_layers"),
        "context_length": config.count("max_position_embeddings"),
        "embedding_length": config.count("hidden_size"),
        "vocab_size": config.count("vocab_size"),
        "attention.head_count": heads,
        "attention.head_count_kv": config.count("num_key_value_heads", heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.number("rms_norm_eps"),
        **rope_metadata(config, head_dim),
    }
    if config.value("intermediate_size") is not None:
        fields["feed_forward_length"] = config.count("intermediate_size")
    if num_experts := expert_count(config):
        fields["expert_count"] = num_experts
        fields["expert_used_count"] = config.count("num_experts_per_tok")
    if config.value("moe_intermediate_size") is not None:
        fields["expert_feed_forward_length"] = config.count("moe_intermediate_size")
    return {f"{architecture}.{key}": value for key, value in fields.items()}


def expert_count(config: HFConfig) -> int:
    """Experts of a layer by either of the field's names; 0 for a dense model."""
    for field in ("num_experts", "num_local_experts"):
        if config.value(field) is not None:
            return config.count(field)
    return 0


def rope_parameters(config: HFConfig) -> HFConfig:
    """`rope_parameters` of transformers 5, or the `rope_theta` and `rope_scaling` of before."""
    parameters = config.value("rope_parameters", config.value("rope_scaling", {}))
    if not isinstance(parameters, dict):
        raise ModelFileError(f"{config.path}: rope_parameters must be an object, not {parameters!r}")
    return HFConfig(config.path, {"rope_theta": config.number("rope_theta", 10000.0), **parameters})


def rope_metadata(config: HFConfig, head_dim: int) -> dict[str, Any]:
    """`rope.*` keys without the architecture; Llama 3.1's scaling is a tensor (`rope_factors`) instead."""
    rope = rope_parameters(config)
    rotated = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    if not 0 < rotated <= 1:
        raise ModelFileError(f"{config.path}: partial_rotary_factor must lie between 0 and 1, not {rotated}")
    keys: dict[str, Any] = {
        "rope.dimension_count": int(head_dim * rotated),
        "rope.freq_base": rope.number("rope_theta"),
    }
    kind = rope.value("rope_type", rope.value("type", "default"))
    if kind in ("default", "llama3"):
        return keys
    if kind not in ("linear", "yarn"):
        raise UnsupportedModelError(
            f"{config.path}: rope_type is {kind!r}; Strata has default, linear, llama3 and yarn"
        )
    keys |= {"rope.scaling.type": kind, "rope.scaling.factor": rope.number("factor")}
    if kind == "yarn":
        rope.expect("truncate", True)
        original = rope.count("original_max_position_embeddings", config.count("max_position_embeddings"))
        keys |= {
            "rope.scaling.original_context_length": original,
            "rope.scaling.yarn_beta_fast": rope.number("beta_fast", 32.0),
            "rope.scaling.yarn_beta_slow": rope.number("beta_slow", 1.0),
            "rope.scaling.attn_factor": _yarn_attn_factor(rope),
        }
    return keys


def _yarn_attn_factor(rope: HFConfig) -> float:
    """The key `attn_factor`, which multiplies YaRN's own `1 + 0.1 ln(factor)`."""
    log = 0.1 * math.log(max(rope.number("factor"), 1.0))
    if rope.value("attention_factor") is not None:
        factor = rope.number("attention_factor")
    elif rope.value("mscale") and rope.value("mscale_all_dim"):
        factor = (rope.number("mscale") * log + 1) / (rope.number("mscale_all_dim") * log + 1)
    else:
        return 1.0
    return factor / (log + 1)


def rope_factors(config: HFConfig, head_dim: int) -> Tensors:
    """`rope_freqs.weight`: Llama 3.1's scaling as divisors of the frequencies, `[head_dim / 2]`.

    Pairs that turn more than `high_freq_factor` times within the original context keep their frequency,
    those that turn less than `low_freq_factor` times are slowed by `factor`, those between are mixed.
    """
    rope = rope_parameters(config)
    if rope.value("rope_type", rope.value("type")) != "llama3":
        return {}
    base, factor = rope.positive("rope_theta"), rope.positive("factor")
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise ModelFileError(f"{config.path}: low_freq_factor {low} is not below high_freq_factor {high}")
    inv_freq = base ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    turns = rope.number("original_max_position_embeddings") * inv_freq / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return {"rope_freqs.weight": Values(1 / ((1 - kept) / factor + kept))}


def globals_(config: HFConfig, reader: Reader, norm: str = "norm.weight") -> Tensors:
    """Embedding, final norm, and the output matrix unless it is tied to the embedding."""
    tensors: Tensors = {
        "token_embd.weight": Plain(reader, f"{reader.prefix}embed_tokens.weight"),
        "output_norm.weight": Plain(reader, reader.prefix + norm),
    }
    if config.value("tie_word_embeddings", False):
        reader.ignore("lm_head.weight")  # some files repeat the embedding
    else:
        tensors["output.weight"] = Plain(reader, "lm_head.weight")
    return tensors


def linear(
    reader: Reader, gguf: str, name: str, change: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Tensors:
    """Matrix `name` and, where there is one, its bias; `change` reorders the rows of both."""
    tensors: Tensors = {}
    for part in ("weight", "bias"):
        if part == "weight" or f"{name}.bias" in reader:
            plain = Plain(reader, f"{name}.{part}")
            tensors[f"{gguf}.{part}"] = plain if change is None else Map(plain, change)
    return tensors


def interleave_heads(matrix: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows of q or k, from rotary pairs `(i, i + dim / 2)` to the neighbours that GGUF's `llama` pairs."""
    halves = matrix.unflatten(0, (num_heads, 2, -1))
    return halves.transpose(1, 2).reshape(matrix.shape)


def feed_forward(reader: Reader, block: str, name: str, suffix: str = "") -> Tensors:
    """A SwiGLU layer; `suffix` `_shexp` for a shared expert."""
    tensors: Tensors = {}
    for part in ("gate", "up", "down"):
        tensors |= linear(reader, f"{block}.ffn_{part}{suffix}", f"{name}.{part}_proj")
    return tensors


def experts(
    reader: Reader, block: str, name: str, count: int, parts: dict[str, str] | None = None
) -> Tensors:
    """Stacked experts of a layer, from one matrix per expert or from fused `gate_up_proj`, `down_proj`.

    Args:
        reader: the checkpoint.
        block: `blk.N`.
        name: HF's name of the experts, `...mlp.experts`.
        count: number of experts.
        parts: an expert's matrices as HF calls them, by `gate`, `up` and `down`.
    """
    if not count:
        raise ModelFileError(
            f"{reader.folder}: {name} holds experts, and config.json has no num_experts or num_local_experts"
        )
    parts = parts or {part: f"{part}_proj" for part in ("gate", "up", "down")}
    if f"{name}.gate_up_proj" not in reader:
        return {
            f"{block}.ffn_{part}_exps.weight": Stack(
                [Plain(reader, f"{name}.{expert}.{matrix}.weight") for expert in range(count)]
            )
            for part, matrix in parts.items()
        }
    fused = Plain(reader, f"{name}.gate_up_proj")  # [experts, gate rows then up rows, width]
    if len(fused.shape) != 3 or fused.shape[1] % 2:
        raise ModelFileError(f"{reader.folder}: tensor {fused.name} has the odd shape {list(fused.shape)}")
    length = fused.shape[1] // 2
    return {
        f"{block}.ffn_gate_exps.weight": Part(fused, 1, 0, length),
        f"{block}.ffn_up_exps.weight": Part(fused, 1, length, 2 * length),
        f"{block}.ffn_down_exps.weight": Plain(reader, f"{name}.down_proj"),
    }


def _attention(reader: Reader, block: str, name: str, interleave: tuple[int, int] | None = None) -> Tensors:
    """q, k, v and output; `interleave` gives the numbers of query and key heads whose rows to reorder."""
    reorder_q = reorder_k = None
    if interleave is not None:
        reorder_q = partial(interleave_heads, num_heads=interleave[0])
        reorder_k = partial(interleave_heads, num_heads=interleave[1])
    return {
        **linear(reader, f"{block}.attn_q", f"{name}.q_proj", reorder_q),
        **linear(reader, f"{block}.attn_k", f"{name}.k_proj", reorder_k),
        **linear(reader, f"{block}.attn_v", f"{name}.v_proj"),
        **linear(reader, f"{block}.attn_output", f"{name}.o_proj"),
    }


def _norms(reader: Reader, block: str, name: str) -> Tensors:
    return {
        f"{block}.attn_norm.weight": Plain(reader, f"{name}.input_layernorm.weight"),
        f"{block}.ffn_norm.weight": Plain(reader, f"{name}.post_attention_layernorm.weight"),
    }


def _llama(config: HFConfig, reader: Reader) -> Translation:
    """Llama, Mistral and Mixtral, all of which GGUF calls `llama`."""
    metadata = common_metadata("llama", config)
    if config.value("sliding_window") is not None:
        metadata["llama.attention.sliding_window"] = config.count("sliding_window")
    heads = metadata["llama.attention.head_count"], metadata["llama.attention.head_count_kv"]
    if metadata["llama.attention.key_length"] % 2:
        raise ModelFileError(f"{config.path}: a head of an odd length has no rotary pairs")
    tensors = globals_(config, reader) | rope_factors(config, metadata["llama.rope.dimension_count"])
    for layer in range(metadata["llama.block_count"]):
        name, block = f"{reader.prefix}layers.{layer}", f"blk.{layer}"
        tensors |= _norms(reader, block, name)
        tensors |= _attention(reader, block, f"{name}.self_attn", heads)
        if config["model_type"] == "mixtral":
            # transformers' own module is called mlp; its files say block_sparse_moe
            moe = f"{name}.{'mlp' if f'{name}.mlp.gate.weight' in reader else 'block_sparse_moe'}"
            tensors[f"{block}.ffn_gate_inp.weight"] = Plain(reader, f"{moe}.gate.weight")
            parts = {"gate": "w1", "up": "w3", "down": "w2"}
            tensors |= experts(reader, block, f"{moe}.experts", expert_count(config), parts)
        else:
            tensors |= feed_forward(reader, block, f"{name}.mlp")
    return "llama", metadata, tensors


def _qwen3(config: HFConfig, reader: Reader) -> Translation:
    """Qwen3 and its mixture of experts, whose layers may be dense here and there."""
    architecture = "qwen3moe" if config["model_type"] == "qwen3_moe" else "qwen3"
    metadata = common_metadata(architecture, config)
    config.expect("use_sliding_window", False)
    if architecture == "qwen3moe":
        metadata["qwen3moe.expert_weights_norm"] = bool(config.value("norm_topk_prob", False))
    tensors = globals_(config, reader)
    for layer in range(metadata[f"{architecture}.block_count"]):
        name, block = f"{reader.prefix}layers.{layer}", f"blk.{layer}"
        tensors |= _norms(reader, block, name)
        tensors |= _attention(reader, block, f"{name}.self_attn")
        for norm in ("q_norm", "k_norm"):
            tensors[f"{block}.attn_{norm}.weight"] = Plain(reader, f"{name}.self_attn.{norm}.weight")
        if architecture == "qwen3moe" and f"{name}.mlp.gate.weight" in reader:
            tensors[f"{block}.ffn_gate_inp.weight"] = Plain(reader, f"{name}.mlp.gate.weight")
            tensors |= experts(reader, block, f"{name}.mlp.experts", expert_count(config))
        else:
            tensors |= feed_forward(reader, block, f"{name}.mlp")
    return architecture, metadata, tensors


TABLES: dict[str, Table] = {
    "llama": _llama,
    "mistral": _llama,
    "mixtral": _llama,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3,
}
