"""Hugging Face's names of the models that mix delta net and attention, as GGUF's.

The value conventions are those of llama.cpp's converter (MODELS.md section 4.4): norms hold `1 + w`,
`ssm_a` holds `-exp(A_log)`, and but for qwen3next the value heads are in tiled order, so that value
head `h` reads key head `h % key heads`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.hf_dense import Tensors, common_metadata, experts, feed_forward, linear
from strata.formats.hf_recipes import Concat, Map, Part, Plain, Reader, Recipe
from strata.formats.huggingface import HFConfig, Table, Translation

Function = Callable[[torch.Tensor], torch.Tensor]
_MAX_LAYERS = 1 << 16  # the deepest models have a few hundred


def _metadata(architecture: str, config: HFConfig) -> dict[str, Any]:
    """Keys that all of these models have."""
    config.expect("attention_bias", False)
    config.setdefault("partial_rotary_factor", 0.25)  # these models' own default
    metadata = common_metadata(architecture, config)
    num_values = config.count("linear_num_value_heads")
    fields: dict[str, Any] = {
        "ssm.conv_kernel": config.count("linear_conv_kernel_dim"),
        "ssm.state_size": config.count("linear_key_head_dim"),
        "ssm.group_count": config.count("linear_num_key_heads"),
        "ssm.time_step_rank": num_values,
        "ssm.inner_size": config.count("linear_value_head_dim") * num_values,
        "attention.recurrent_layers": _recurrent_layers(config),
    }
    if config.value("num_experts") is not None:
        fields["expert_shared_feed_forward_length"] = config.count("shared_expert_intermediate_size")
        fields["expert_weights_norm"] = bool(config.value("norm_topk_prob", True))
    return metadata | {f"{architecture}.{key}": value for key, value in fields.items()}


def _recurrent_layers(config: HFConfig) -> list[bool]:
    count = config.count("num_hidden_layers")
    types = config.value("layer_types")
    if count > _MAX_LAYERS:  # before a list of that length is made
        raise ModelFileError(f"{config.path}: num_hidden_layers {count} is more than {_MAX_LAYERS}")
    if types is None:
        interval = config.count("full_attention_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(count)]
    # the last two: what transformers 5.24 and 5.17 make of qwen4_exp's full_attention when they save it
    known = ("linear_attention", "full_attention", "indexed_attention", "qwen_sparse_attention")
    if not isinstance(types, list) or len(types) != count or any(kind not in known for kind in types):
        raise ModelFileError(
            f"{config.path}: layer_types must name one of {', '.join(known)} for {count} layers"
        )
    return [kind == "linear_attention" for kind in types]


def _plus_one(reader: Reader, name: str) -> Recipe:
    """A norm weight that the checkpoint keeps centred on zero."""
    return Map(Plain(reader, name), lambda weight: weight + 1)


def _tiled(tensor: torch.Tensor, dim: int, key_heads: int, value_heads: int, begin: int = 0) -> torch.Tensor:
    """Value heads along `dim` from grouped order `(key head, copy)` to tiled `(copy, key head)`."""
    head, rest = tensor.narrow(dim, 0, begin), tensor.narrow(dim, begin, tensor.shape[dim] - begin)
    rest = rest.unflatten(dim, (key_heads, value_heads // key_heads, -1)).transpose(dim, dim + 1)
    return torch.cat([head, rest.flatten(dim, dim + 2)], dim)


def _check_heads(config: HFConfig) -> None:
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    if values % keys:
        raise ModelFileError(
            f"{config.path}: linear_num_value_heads {values} is no multiple of linear_num_key_heads {keys}"
        )


def _squeezed(reader: Reader, name: str, change: Function | None = None) -> Recipe:
    """A depthwise convolution `[channels, 1, kernel]` -> `[channels, kernel]`."""
    plain = Plain(reader, name)
    if len(plain.shape) != 3 or plain.shape[1] != 1:
        raise ModelFileError(
            f"{reader.folder}: tensor {name} has shape {list(plain.shape)}, not [channels, 1, kernel]"
        )
    shape = (plain.shape[0], plain.shape[2])
    return Map(plain, lambda t: change(t.squeeze(1)) if change else t.squeeze(1), shape)


def _delta_net(reader: Reader, block: str, name: str, config: HFConfig) -> Tensors:
    """`linear_attn` with separate projections, its value heads brought to tiled order."""
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    before_values = 2 * keys * config.count("linear_key_head_dim")
    tile = partial(_tiled, dim=0, key_heads=keys, value_heads=values)
    tile_values = partial(tile, begin=before_values)
    tensors = {
        **linear(reader, f"{block}.attn_qkv", f"{name}.in_proj_qkv", tile_values),
        **linear(reader, f"{block}.attn_gate", f"{name}.in_proj_z", tile),
        **linear(reader, f"{block}.ssm_alpha", f"{name}.in_proj_a", tile),
        **linear(reader, f"{block}.ssm_beta", f"{name}.in_proj_b", tile),
        **linear(reader, f"{block}.ssm_out", f"{name}.out_proj", partial(tile, dim=1)),
    }
    tensors[f"{block}.ssm_conv1d.weight"] = _squeezed(reader, f"{name}.conv1d.weight", tile_values)
    tensors[f"{block}.ssm_a"] = Map(Plain(reader, f"{name}.A_log"), lambda a_log: -tile(a_log).exp())
    tensors[f"{block}.ssm_dt.bias"] = Map(Plain(reader, f"{name}.dt_bias"), tile)
    tensors[f"{block}.ssm_norm.weight"] = Plain(reader, f"{name}.norm.weight")
    return tensors


def _fused_delta_net(reader: Reader, block: str, name: str, config: HFConfig) -> Tensors:
    """Qwen3-Next's `linear_attn`: q, k, v and z lie together by key head; value heads stay grouped."""
    keys, values = config.count("linear_num_key_heads"), config.count("linear_num_value_heads")
    key_length = config.count("linear_key_head_dim")
    value_rows = values // keys * config.count("linear_value_head_dim")
    fused = Plain(reader, f"{name}.in_proj_qkvz.weight")
    if fused.shape[0] != 2 * keys * (key_length + value_rows):
        raise ModelFileError(
            f"{reader.folder}: tensor {fused.name} has {fused.shape[0]} rows, "
            f"the configuration asks for {2 * keys * (key_length + value_rows)}"
        )

    def parts(weight: torch.Tensor) -> list[torch.Tensor]:
        by_head = weight.unflatten(0, (keys, -1)).split([key_length, key_length, value_rows, value_rows], 1)
        return [part.flatten(0, 1) for part in by_head]

    width = fused.shape[1]
    return {
        f"{block}.attn_qkv.weight": Map(
            fused, lambda weight: torch.cat(parts(weight)[:3]), (keys * (2 * key_length + value_rows), width)
        ),
        f"{block}.attn_gate.weight": Map(fused, lambda weight: parts(weight)[3], (keys * value_rows, width)),
        **linear(reader, f"{block}.ssm_ba", f"{name}.in_proj_ba"),
        **linear(reader, f"{block}.ssm_out", f"{name}.out_proj"),
        f"{block}.ssm_conv1d.weight": _squeezed(reader, f"{name}.conv1d.weight"),
        f"{block}.ssm_a": Map(Plain(reader, f"{name}.A_log"), lambda a_log: -a_log.exp()),
        f"{block}.ssm_dt.bias": Plain(reader, f"{name}.dt_bias"),
        f"{block}.ssm_norm.weight": Plain(reader, f"{name}.norm.weight"),
    }


def _attention(reader: Reader, block: str, name: str) -> Tensors:
    """Gated attention: q and its gate stay interleaved by head."""
    tensors: Tensors = {}
    for gguf, part in (("attn_q", "q"), ("attn_k", "k"), ("attn_v", "v"), ("attn_output", "o")):
        tensors |= linear(reader, f"{block}.{gguf}", f"{name}.{part}_proj")
    for part in ("q", "k"):
        tensors[f"{block}.attn_{part}_norm.weight"] = _plus_one(reader, f"{name}.{part}_norm.weight")
    return tensors


def _indexer(reader: Reader, block: str, name: str, config: HFConfig) -> Tensors:
    num_query_rows = config.count("indexer_n_heads") * config.count("indexer_head_dim")
    fused = Plain(reader, f"{name}.index_qk_proj.weight")
    return {
        f"{block}.indexer.q_proj.weight": Part(fused, 0, 0, num_query_rows),
        f"{block}.indexer.k_proj.weight": Part(fused, 0, num_query_rows, fused.shape[0]),
        f"{block}.indexer.q_norm.weight": _plus_one(reader, f"{name}.q_layernorm.weight"),
        f"{block}.indexer.k_norm.weight": _plus_one(reader, f"{name}.k_layernorm.weight"),
    }


def _feed_forward(reader: Reader, block: str, name: str, config: HFConfig) -> Tensors:
    """Router, experts and shared expert; a dense layer where there is no router."""
    if f"{name}.gate.weight" not in reader:
        return feed_forward(reader, block, name)
    shared_gate = Plain(reader, f"{name}.shared_expert_gate.weight")
    if len(shared_gate.shape) != 2 or shared_gate.shape[0] != 1:
        raise ModelFileError(
            f"{reader.folder}: tensor {shared_gate.name} has shape {list(shared_gate.shape)}, not [1, width]"
        )
    return {
        f"{block}.ffn_gate_inp.weight": Plain(reader, f"{name}.gate.weight"),
        **experts(reader, block, f"{name}.experts", config.count("num_experts")),
        **feed_forward(reader, block, f"{name}.shared_expert", "_shexp"),
        f"{block}.ffn_gate_inp_shexp.weight": Map(shared_gate, torch.flatten, shared_gate.shape[-1:]),
    }


def _globals(config: HFConfig, reader: Reader) -> Tensors:
    tensors: Tensors = {"token_embd.weight": Plain(reader, f"{reader.prefix}embed_tokens.weight")}
    if config.value("tie_word_embeddings", False):
        reader.ignore("lm_head.weight")  # some files repeat the embedding
    else:
        tensors["output.weight"] = Plain(reader, "lm_head.weight")
    reader.ignore("model.visual.")
    return tensors


def _announce_draft(metadata: dict[str, Any], architecture: str) -> str:
    """Count the draft layer among the blocks, as GGUF does; returns its prefix."""
    block = f"blk.{metadata[f'{architecture}.block_count']}"
    metadata[f"{architecture}.block_count"] += 1
    metadata[f"{architecture}.nextn_predict_layers"] = 1
    return block


def _pre_norm_block(reader: Reader, block: str, name: str, config: HFConfig, mixer: Tensors) -> Tensors:
    return {
        f"{block}.attn_norm.weight": _plus_one(reader, f"{name}.input_layernorm.weight"),
        **mixer,
        f"{block}.post_attention_norm.weight": _plus_one(reader, f"{name}.post_attention_layernorm.weight"),
        **_feed_forward(reader, block, f"{name}.mlp", config),
    }


def _pre_norm(
    architecture: str, delta_net: Callable[..., Tensors], config: HFConfig, reader: Reader
) -> Translation:
    """Qwen3-Next, Qwen3.5 and Qwen3.5 with experts."""
    _check_heads(config)
    metadata = _metadata(architecture, config)
    tensors = _globals(config, reader)
    tensors["output_norm.weight"] = _plus_one(reader, f"{reader.prefix}norm.weight")
    for layer, recurrent in enumerate(metadata[f"{architecture}.attention.recurrent_layers"]):
        name, block = f"{reader.prefix}layers.{layer}", f"blk.{layer}"
        if recurrent:
            mixer = delta_net(reader, block, f"{name}.linear_attn", config)
        else:
            mixer = _attention(reader, block, f"{name}.self_attn")
        tensors |= _pre_norm_block(reader, block, name, config, mixer)
    if "mtp.fc.weight" in reader:
        block, name = _announce_draft(metadata, architecture), "mtp.layers.0"
        tensors |= _pre_norm_block(
            reader, block, name, config, _attention(reader, block, f"{name}.self_attn")
        )
        tensors[f"{block}.nextn.eh_proj.weight"] = Plain(reader, "mtp.fc.weight")
        tensors[f"{block}.nextn.enorm.weight"] = _plus_one(reader, "mtp.pre_fc_norm_embedding.weight")
        tensors[f"{block}.nextn.hnorm.weight"] = _plus_one(reader, "mtp.pre_fc_norm_hidden.weight")
        tensors[f"{block}.nextn.shared_head_norm.weight"] = _plus_one(reader, "mtp.norm.weight")
    return architecture, metadata, tensors


def _hyper_connection(reader: Reader, gguf: str, name: str, inject: bool = True) -> Tensors:
    tensors: Tensors = {
        f"{gguf}_norm.weight": _plus_one(reader, f"{name}.hc_norm.weight"),
        f"{gguf}_down.weight": Plain(reader, f"{name}.input_mix_weight_down.weight"),
        f"{gguf}_up.weight": Plain(reader, f"{name}.input_mix_weight_up.weight"),
    }
    if inject:
        tensors[f"{gguf}_inject.weight"] = Plain(reader, f"{name}.block_inject_weight.weight")
    return tensors


def _hyper_block(reader: Reader, block: str, name: str, config: HFConfig, recurrent: bool) -> Tensors:
    if recurrent:
        mixer = _delta_net(reader, block, f"{name}.linear_attn", config)
    else:
        mixer = _attention(reader, block, f"{name}.self_attn")
        mixer |= _indexer(reader, block, f"{name}.self_attn.indexer", config)
    return {
        **_hyper_connection(reader, f"{block}.hc_attn", f"{name}.attn_hyper_connection"),
        **mixer,
        **_hyper_connection(reader, f"{block}.hc_ffn", f"{name}.mlp_hyper_connection"),
        **_feed_forward(reader, block, f"{name}.mlp", config),
    }


def _ngram_memory(reader: Reader, block: str, name: str) -> Tensors:
    tensors: Tensors = {}
    for part in ("key", "value"):
        tensors |= linear(reader, f"{block}.ple_{part}", f"{name}.{part}_proj")
    for part in ("key", "query", "conv"):
        tensors[f"{block}.ple_norm_{part}.weight"] = _plus_one(reader, f"{name}.norm_{part}.weight")
    tensors[f"{block}.ple_conv1d.weight"] = _squeezed(reader, f"{name}.conv1d.weight")
    table = f"{name}.ple_embedding.ngram_embedding"
    if f"{table}.weight" in reader:
        tensors["per_layer_token_embd.weight"] = Plain(reader, f"{table}.weight")
        return tensors
    shards = []
    while f"{table}.shard_{len(shards)}.weight" in reader:
        shards.append(Plain(reader, f"{table}.shard_{len(shards)}.weight"))
    if not shards:
        raise ModelFileError(f"{reader.folder}: tensor {table}.shard_0.weight is missing")
    tensors["per_layer_token_embd.weight"] = Concat(shards)
    return tensors


def _ngram_metadata(
    config: HFConfig, reader: Reader, name: str, layer: int, row_length: int
) -> dict[str, Any]:
    """`ple.*` keys; the hash's constants are int64 buffers of the checkpoint."""
    eos = config["eos_token_id"]
    fields: dict[str, Any] = {
        "ple.layers": [layer],
        "ple.ngram_size": config.count("ngram_size"),
        "ple.heads_per_ngram": config.count("heads_per_ngram"),
        "ple.conv_kernel": config.count("ple_conv_kernel_size"),
        "ple.eos_token_id": eos[0] if isinstance(eos, list) and eos else eos,
        "embedding_length_per_layer_input": row_length,
    }
    for key, buffer in (
        ("layer_multipliers", "layer_multipliers"),
        ("head_offsets", "ngram_heads_offsets"),
        ("head_vocab_sizes", "ngram_heads_vocab_sizes"),
    ):
        tensor = f"{name}.ple_embedding.{buffer}"
        if tensor not in reader:
            raise ModelFileError(f"{reader.folder}: tensor {tensor} is missing")
        reader.ignore(tensor)  # read here, not as a tensor
        fields[f"ple.{key}"] = reader.view(tensor).tolist()
    return fields


def _qwen4_metadata(config: HFConfig) -> dict[str, Any]:
    """`_metadata` and the keys that only qwen4exp has, but for those of the n-gram memory."""
    config.expect("indexer_kv_heads", 1)
    gate = config.value("output_gate_type", config.value("hidden_act"))
    if gate != "sigmoid":
        raise UnsupportedModelError(
            f"{config.path}: output_gate_type is {gate!r}; for qwen4_exp Strata has only 'sigmoid'"
        )
    metadata = _metadata("qwen4exp", config)
    ratio = config.count("indexer_compress_ratio")
    recurrent = metadata["qwen4exp.attention.recurrent_layers"]
    fields = {
        "hyper_connection.count": config.count("hc_count"),
        "hyper_connection.low_rank": config.count("hc_lowrank"),
        "attention.indexer.head_count": config.count("indexer_n_heads"),
        "attention.indexer.key_length": config.count("indexer_head_dim"),
        "attention.indexer.top_k": config.count("indexer_budget"),
        "attention.compress_ratios": [0 if is_recurrent else ratio for is_recurrent in recurrent],
    }
    return metadata | {f"qwen4exp.{key}": value for key, value in fields.items()}


def _qwen4(config: HFConfig, reader: Reader) -> Translation:
    """Qwen4-Exp; `ple_layer_ids` counts layers from 1, GGUF from 0."""
    _check_heads(config)
    metadata = _qwen4_metadata(config)
    tensors = _globals(config, reader)
    tensors |= _hyper_connection(reader, "output_hc", f"{reader.prefix}hyper_connection_mixer", inject=False)
    for layer, recurrent in enumerate(metadata["qwen4exp.attention.recurrent_layers"]):
        tensors |= _hyper_block(reader, f"blk.{layer}", f"{reader.prefix}layers.{layer}", config, recurrent)
    ple_layers = config.value("ple_layer_ids", [])
    if not isinstance(ple_layers, list) or any(type(number) is not int for number in ple_layers):
        raise ModelFileError(f"{config.path}: ple_layer_ids must be a list of layers, not {ple_layers!r:.60}")
    if len(ple_layers) > 1:
        raise UnsupportedModelError(
            f"{config.path}: ple_layer_ids names {len(ple_layers)} layers; Strata has one"
        )
    for layer in (number - 1 for number in ple_layers):
        name = f"{reader.prefix}layers.{layer}.ple"
        tensors |= _ngram_memory(reader, f"blk.{layer}", name)
        row_length = tensors["per_layer_token_embd.weight"].shape[1]
        fields = _ngram_metadata(config, reader, name, layer, row_length)
        metadata |= {f"qwen4exp.{key}": value for key, value in fields.items()}
    if "mtp.fc_embedding.weight" in reader:
        block = _announce_draft(metadata, "qwen4exp")
        tensors |= _hyper_block(reader, block, "mtp.layers.0", config, recurrent=False)
        tensors |= _hyper_connection(
            reader, f"{block}.nextn.hc_head", "mtp.hyper_connection_mixer", inject=False
        )
        halves = [Plain(reader, f"mtp.fc_{part}.weight") for part in ("embedding", "hidden")]
        tensors[f"{block}.nextn.eh_proj.weight"] = Concat(halves, dim=1)
        tensors[f"{block}.nextn.enorm.weight"] = _plus_one(reader, "mtp.pre_fc_norm_embedding.weight")
        tensors[f"{block}.nextn.hnorm.weight"] = _plus_one(reader, "mtp.pre_fc_norm_hidden.weight")
    return "qwen4exp", metadata, tensors


_qwen3_next = partial(_pre_norm, "qwen3next", _fused_delta_net)
_qwen3_5 = partial(_pre_norm, "qwen35", _delta_net)
_qwen3_5_moe = partial(_pre_norm, "qwen35moe", _delta_net)

TABLES: dict[str, Table] = {
    "qwen3_next": _qwen3_next,
    "qwen3_5": _qwen3_5,
    "qwen3_5_text": _qwen3_5,
    "qwen3_5_moe": _qwen3_5_moe,
    "qwen3_5_moe_text": _qwen3_5_moe,
    "qwen4_exp": _qwen4,
    "qwen4_exp_text": _qwen4,
}
