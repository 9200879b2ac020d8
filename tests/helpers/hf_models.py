"""Tiny random transformers models, as safetensors and as GGUF, and how ours must agree with them.

The GGUF is written from the model's state by llama.cpp's conventions and gguf's own table of names, so
that it checks our translation of safetensors and is not made by it.
"""

import itertools
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from strata.models import Model
from tests.helpers.gguf_files import write_gguf

VOCAB = 96
TOLERANCE = 1e-4  # relative, float32 against float32

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}


def tiny(name: str, seed: int = 0, **fields: Any) -> transformers.PreTrainedModel:
    """A float32 `{name}ForCausalLM` of `SIZES` and `fields`, every parameter random, norms included."""
    torch.manual_seed(seed)
    config = getattr(transformers, f"{name}Config")(**SIZES | fields)
    model = getattr(transformers, f"{name}ForCausalLM")(config).float().eval()
    for parameter_name, parameter in model.named_parameters():
        norm = "norm" in parameter_name
        torch.nn.init.normal_(parameter, 1.0 if norm else 0.0, 0.3 if norm else 0.15)
    return model


def save_hf(model: transformers.PreTrainedModel, folder: Path, **options: Any) -> Path:
    """Save as transformers does; `options` as of `save_pretrained`."""
    model.save_pretrained(folder, **options)
    return folder


def save_gguf(model: transformers.PreTrainedModel, path: Path, architecture: str, **keys: Any) -> Path:
    """Write a dense or plain MoE model as float32 GGUF; `keys` (dots as `__`) are added to the metadata."""
    config = model.config
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.dimension_count": head_dim,
        "rope.freq_base": float(config.rope_parameters["rope_theta"]),
    }
    if hasattr(config, "num_experts_per_tok"):
        metadata["expert_count"] = config.num_local_experts
        metadata["expert_used_count"] = config.num_experts_per_tok
    metadata |= {key.replace("__", "."): value for key, value in keys.items()}
    return write_gguf(
        path,
        gguf_tensors(model, architecture),
        {f"{architecture}.{key}": value for key, value in metadata.items()},
        architecture,
    )


def gguf_tensors(model: transformers.PreTrainedModel, architecture: str) -> dict[str, np.ndarray]:
    """The model's state by GGUF's names, in the order of rows that llama.cpp wants."""
    config = model.config
    arch = next(arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors = {}
    for name, tensor in model.state_dict().items():
        array = tensor.numpy()
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(gate_up|down)_proj", name):
            block = f"blk.{match[1]}"
            if match[2] == "down":
                tensors[f"{block}.ffn_down_exps.weight"] = array
            else:
                gate, up = np.split(array, 2, axis=1)
                tensors |= {f"{block}.ffn_gate_exps.weight": gate, f"{block}.ffn_up_exps.weight": up}
            continue
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if architecture == "llama" and (match := re.search(r"\.([qk])_proj\.", name)):
            heads = config.num_attention_heads if match[1] == "q" else config.num_key_value_heads
            rows = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
            array = rows.swapaxes(1, 2).reshape(array.shape)
        tensors[names.get_name(name, try_suffixes=(".weight", ".bias"))] = array
    return tensors


def relative_error(ours: torch.Tensor, reference: torch.Tensor) -> float:
    """Largest difference over the largest value."""
    return ((ours - reference).abs().max() / reference.abs().max()).item()


def prompt(length: int, seed: int = 1) -> list[int]:
    return torch.randint(0, VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@torch.no_grad()
def assert_agrees(
    model: Model, reference: transformers.PreTrainedModel, length: int, steps: int = 64
) -> None:
    """Prefill of `length` tokens and each of `steps` greedy steps give the reference's logits.

    Also: the prompt in chunks gives the logits of the prompt in one piece.
    """
    tokens = prompt(length)
    output = reference(torch.tensor([tokens]), use_cache=True)
    state = model.new_state()
    logits = model.forward(tokens, state, all_logits=True)
    assert logits.shape == (length, VOCAB) and logits.dtype == torch.float32
    assert relative_error(logits, output.logits[0]) < TOLERANCE

    chunked = model.new_state()
    bounds = sorted({0, 1, length // 3, length - 1, length})
    pieces = [model.forward(tokens[a:b], chunked, all_logits=True) for a, b in itertools.pairwise(bounds)]
    assert relative_error(torch.cat(pieces), logits) < TOLERANCE

    for step in range(steps):
        token = int(output.logits[0, -1].argmax())
        output = reference(torch.tensor([[token]]), past_key_values=output.past_key_values, use_cache=True)
        ours = model.forward([token], state)
        assert relative_error(ours, output.logits[0]) < TOLERANCE, f"step {step}"
    assert state.position == length + steps


def assert_same_model(model: Model, other: Model) -> None:
    """Both give the same logits: only the metadata's float32 (epsilon, rotary base) may round differently."""
    tokens = prompt(37)
    logits = model.forward(tokens, model.new_state(), all_logits=True)
    assert relative_error(logits, other.forward(tokens, other.new_state(), all_logits=True)) < 1e-5
