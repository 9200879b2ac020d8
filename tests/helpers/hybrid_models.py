"""Tiny random hybrid models of transformers, their GGUF as llama.cpp wants it, how ours must agree."""

import itertools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from strata.models import Model
from tests.helpers.gguf_files import write_gguf
from tests.helpers.hf_models import TOLERANCE, relative_error

VOCAB = 96
EOS = 5

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 4,  # three delta nets, one attention
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,  # 3 to 1, as in Flash-Next: grouped and tiled order differ
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "max_position_embeddings": 4096,
    "eos_token_id": EOS,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 3,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 24,
}
QWEN4: dict[str, Any] = {
    **EXPERTS,
    "hc_lowrank": 8,
    "ple_layer_ids": [2],
    "ple_embed_dim": 24,
    "heads_per_ngram": 2,
    "ngram_vocab_size_base": 101,
    "split_ngram_parts": 4,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 16,
    "indexer_budget": 16,  # 4 blocks: the selection cuts from position 19 on
    "indexer_compress_ratio": 4,
    "output_gate_type": "sigmoid",
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}

# Cuts of a sequence: at convolution windows, index blocks, delta-net chunks, and where nothing ends.
PIECES: dict[str, Sequence[int]] = {
    "one piece": [],
    "convolution windows": [1, 3, 6, 10, 15],
    "before and behind a chunk": [63, 64, 65, 129, 130],
    "chunks": [64, 128],
    "odd": [7, 8, 21, 66, 90, 127],
}


def tiny_hybrid(
    config_class: str, model_class: str, seed: int = 0, **fields: Any
) -> transformers.PreTrainedModel:
    """A float32 model of `SIZES` and `fields`, every parameter random (`randomize`)."""
    config = getattr(transformers, config_class)(**SIZES | fields)
    model = getattr(transformers, model_class)(config).float().eval()
    randomize(model, seed)
    return model


@torch.no_grad()
def randomize(module: torch.nn.Module, seed: int) -> None:
    """Random parameters that keep activations in range; transformers leaves norms and kernels at zero."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in module.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if name.endswith("A_log"):
            noise = torch.empty(parameter.shape).uniform_(-0.7, 2.0, generator=generator)
        elif name.endswith("dt_bias"):
            noise = noise - 2
        elif name.endswith("linear_attn.norm.weight"):
            noise = 1 + 0.2 * noise  # the one norm that is not centred on zero
        elif "norm" in name and parameter.ndim == 1:
            noise = 0.2 * noise
        elif "conv1d" in name:
            noise = 0.5 * noise
        elif "embed" not in name:
            noise = 1.5 * noise / math.sqrt(parameter.shape[-1])
        parameter.copy_(noise)


def prompt(length: int, seed: int = 1) -> list[int]:
    """Random ids with the end of text at the start of, inside and at the end of n-gram windows."""
    tokens = torch.randint(EOS + 1, VOCAB, (length,), generator=torch.Generator().manual_seed(seed))
    for position in (4, 23, 24, 64, 66, 130):
        if position < length:
            tokens[position] = EOS
    return tokens.tolist()


@torch.no_grad()
def reference_logits(reference: transformers.PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    """float32 `[n, vocab]` from one pass without a cache."""
    return reference(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def forward_in_pieces(model: Model, tokens: list[int], cuts: Sequence[int]) -> torch.Tensor:
    """All logits of `tokens` handed over in pieces that end at `cuts`."""
    state = model.new_state()
    bounds = sorted({0, *cuts, len(tokens)})
    return torch.cat(
        [
            model.forward(tokens[begin:end], state, all_logits=True)
            for begin, end in itertools.pairwise(bounds)
        ]
    )


def assert_agrees_everywhere(
    model: Model, reference: transformers.PreTrainedModel, length: int = 131
) -> None:
    """Prefill in several cuts, prefill with 64 decode steps behind it, decoding from the first token on.

    The reference sees the whole sequence at once: logits do not depend on later tokens, so each row
    serves as the reference of every prefill that ends there and of the decode step that comes to it.
    """
    tokens = prompt(length + 64)
    expected = reference_logits(reference, tokens)
    pieces = PIECES | {"prefill, then decode": range(length, length + 64), "decode": range(length + 64)}
    for name, cuts in pieces.items():
        assert relative_error(forward_in_pieces(model, tokens, cuts), expected) < TOLERANCE, name


def assert_rewinds(model: Model) -> None:
    """A checkpoint brings the state back to the bit, wherever it was taken."""
    tokens, other = prompt(150), prompt(90, seed=2)
    for length in (1, 63, 64, 70, 131):
        state = model.new_state()
        model.forward(tokens[:length], state)
        checkpoint = state.checkpoint()
        expected = model.forward(tokens[length:], state)
        for rest in (other, other[:2], tokens[length:]):
            state.rewind(checkpoint)
            assert state.position == length
            model.forward(rest, state)
        state.rewind(checkpoint)
        assert torch.equal(model.forward(tokens[length:], state), expected), length


def save_hybrid_gguf(model: transformers.PreTrainedModel, path: Path, architecture: str, **keys: Any) -> Path:
    """Write qwen3next, qwen35 or qwen35moe as float32 GGUF; `keys` (dots as `__`) go to the metadata."""
    config = model.config
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": int(config.head_dim * config.rope_parameters["partial_rotary_factor"]),
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
        "rope.dimension_sections": [2, 1, 1, 0],
        "full_attention_interval": 4,
        "ssm.conv_kernel": config.linear_conv_kernel_dim,
        "ssm.state_size": config.linear_key_head_dim,
        "ssm.group_count": config.linear_num_key_heads,
        "ssm.time_step_rank": config.linear_num_value_heads,
        "ssm.inner_size": config.linear_num_value_heads * config.linear_value_head_dim,
    }
    if architecture == "qwen35":
        metadata["feed_forward_length"] = config.intermediate_size
    else:
        metadata["expert_count"] = config.num_experts
        metadata["expert_used_count"] = config.num_experts_per_tok
        metadata["expert_feed_forward_length"] = config.moe_intermediate_size
        metadata["expert_shared_feed_forward_length"] = config.shared_expert_intermediate_size
    metadata |= {key.replace("__", "."): value for key, value in keys.items()}
    metadata = {f"{architecture}.{key}": value for key, value in metadata.items() if value is not None}
    return write_gguf(path, hybrid_tensors(model, architecture), metadata, architecture)


def hybrid_tensors(model: transformers.PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The model's state by GGUF's names, in the order and with the values that llama.cpp wants."""
    config = model.config
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    order = value_row_order(config) if architecture != "qwen3next" else None
    tensors = {}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        block = f"blk.{match[1]}" if (match := re.match(r"model\.layers\.(\d+)\.", name)) else ""
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if name.endswith("experts.gate_up_proj"):
            gate, up = np.split(array, 2, axis=1)
            tensors |= {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
        elif name.endswith("experts.down_proj"):
            tensors[f"{block}.ffn_down_exps.weight"] = array
        elif name.endswith("in_proj_qkvz.weight"):
            qkv, z = split_fused_rows(array, config)
            tensors |= {f"{block}.attn_qkv.weight": qkv, f"{block}.attn_gate.weight": z}
        else:
            if name.endswith("norm.weight") and not name.endswith("linear_attn.norm.weight"):
                array = 1 + array
            if ".linear_attn." in name:
                array = delta_net_values(name, array, order)
            gguf_name = names.get_name(
                name.replace(".dt_bias", ".dt_proj.bias"), try_suffixes=(".weight", ".bias")
            )
            tensors[gguf_name] = array.reshape(-1) if name.endswith("shared_expert_gate.weight") else array
    return tensors


def value_row_order(config: Any) -> np.ndarray:
    """Old row of each new value row as GGUF tiles the heads: new head `j * keys + g` was `g * ratio + j`."""
    keys, values, length = (
        config.linear_num_key_heads,
        config.linear_num_value_heads,
        config.linear_value_head_dim,
    )
    heads = [g * (values // keys) + j for j in range(values // keys) for g in range(keys)]
    return np.concatenate([np.arange(head * length, (head + 1) * length) for head in heads])


def delta_net_values(name: str, array: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    """A delta-net tensor with value heads reordered by `order`, `A` in place of its logarithm, conv 2-D."""
    part = name.split("linear_attn.")[1]
    if part == "A_log":
        array = -np.exp(array)
    if part == "conv1d.weight":
        array = array[:, 0]
    if order is None:
        return array
    if part in ("in_proj_qkv.weight", "conv1d.weight"):
        begin = len(array) - len(order)
        return np.concatenate([array[:begin], array[begin:][order]])
    if part == "in_proj_z.weight":
        return array[order]
    if part == "out_proj.weight":
        return array[:, order]
    if part in ("A_log", "dt_bias", "in_proj_a.weight", "in_proj_b.weight"):
        length = len(order) // len(array)
        return array[order[::length] // length]
    return array


def split_fused_rows(array: np.ndarray, config: Any) -> tuple[np.ndarray, np.ndarray]:
    """Qwen3-Next's rows `[q k v z]` of each key head -> all q, all k, all v; and all z."""
    keys, length = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // keys * config.linear_value_head_dim
    by_head = array.reshape(keys, 2 * length + 2 * values, -1)
    ends = np.cumsum([length, length, values])
    q, k, v, z = (part.reshape(-1, array.shape[1]) for part in np.split(by_head, ends, axis=1))
    return np.concatenate([q, k, v]), z
