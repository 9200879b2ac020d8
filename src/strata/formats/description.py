"""A model as numbers: what the planner must know of it, from names, shapes and keys, without the weights."""

import math
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from strata.errors import ModelFileError
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.geometry import Geometry
from strata.formats.mixes import find_mix, tensors_of
from strata.formats.quants.planes import plane_bytes
from strata.formats.requantized import requantized

_LAYER = re.compile(r"^blk\.(\d+)\.")
_EXPERT = re.compile(r"\.ffn_(?:gate|up|down|gate_up)(?:_exps|\.\d+)\.weight$")
_NGRAM_TABLES = ("per_layer_token_embd.weight", "ple_ngram_embd.weight")
_PROJECTION = re.compile(
    r"^blk\.(\d+)\.(?:attn_(?:q|k|v|qkv|gate)|ssm_(?:in|ba|alpha|beta)|indexer\..*_proj)\.weight$"
)
_FFN_GATE = re.compile(r"\.ffn_up(?:_shexp)?\.weight$")
_STATE_BYTES = 4  # recurrent states are float32


class ModelDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoder. Bytes of matrices are those of their planes in memory.

    Attributes:
        name, architecture: of the file.
        file_bytes: on disk, all tensors.
        context_length: it was made for.
        width: of the residual, all its streams together.
        block_width: of what a block reads and puts out.
        mixer_width: outputs of the projections of an attention or delta net layer, the most of any.
        ffn_width, expert_ff: of dense feed-forward layers, shared experts too, and of an expert; 0: none.
        expert_bytes: of one expert, for each layer that has experts.
        expert_count, experts_used: of such a layer, and by a token; 0 in a dense model.
        dense_bytes: what every token reads: all matrices but experts and tables.
        output_bytes: of these, the output matrix.
        dense_q8_bytes, output_q8_bytes, draft_q8_bytes: the same with `--dense q8_0`.
        table_bytes: token embedding, of which a token reads a row; 0 where it is the output matrix too.
        ngram_bytes, ngram_rows: the n-gram table, and how many of its rows a token reads;
            `ngram_width` values together.
        draft_bytes: an MTP layer's matrices.
        kv_values: keys and values that a token leaves, over all attention layers.
        index_values: likewise keys of the indexer of sparse attention.
        attended: tokens that sparse attention reads at most; 0: all.
        query_values: heads times head length, over all attention layers.
        state_bytes: recurrent state of a sequence.
        dense_weights, expert_weights: that a token is multiplied with; of one expert.
    """

    name: str
    architecture: str
    file_bytes: int
    context_length: int
    width: int
    block_width: int
    mixer_width: int
    ffn_width: int
    expert_ff: int
    layers: int
    expert_bytes: tuple[int, ...]
    expert_count: int
    experts_used: int
    dense_bytes: int
    output_bytes: int
    dense_q8_bytes: int
    output_q8_bytes: int
    draft_q8_bytes: int
    table_bytes: int
    ngram_bytes: int
    ngram_rows: int
    ngram_width: int
    draft_bytes: int
    kv_values: int
    index_values: float
    attended: int
    query_values: int
    state_bytes: int
    dense_weights: int
    expert_weights: int

    @property
    def all_expert_bytes(self) -> int:
        return self.expert_count * sum(self.expert_bytes)

    def requantized(self) -> "ModelDescription":
        """The model with `--dense q8_0`."""
        return msgspec.structs.replace(
            self,
            dense_bytes=self.dense_q8_bytes,
            output_bytes=self.output_q8_bytes,
            draft_bytes=self.draft_q8_bytes,
        )

    @classmethod
    def of_checkpoint(cls, checkpoint: Checkpoint) -> "ModelDescription":
        """Describe an opened file or folder; nothing but its header is read.

        Raises:
            ModelFileError: a key that is needed is missing or no number.
        """
        name = checkpoint.metadata.get("general.name") or checkpoint.path.stem
        keys = _Keys(checkpoint.metadata, checkpoint.architecture, str(checkpoint.path))
        return _describe(str(name), keys, checkpoint.tensors)

    @classmethod
    def of_release(cls, geometry: Geometry, quant: str) -> "ModelDescription":
        """Describe a known model before it is downloaded.

        Raises:
            StrataError: there is no such quantisation of it.
        """
        keys = _Keys(
            {f"{geometry.architecture}.{key}": value for key, value in geometry.metadata().items()},
            geometry.architecture,
            geometry.name,
        )
        return _describe(f"{geometry.name} {quant}", keys, tensors_of(geometry, find_mix(geometry, quant)))


class _Keys:
    """The numbers among a file's keys; `models.config.Keys` looks harder when a model is loaded."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str, where: str):
        self.metadata, self.architecture, self.where = metadata, architecture, where

    def count(self, key: str, default: int | None = None) -> int:
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if isinstance(value, list):  # one for each layer
            value = max(value, default=default)
        if not isinstance(value, int) or not 0 <= value < 2**31:
            raise ModelFileError(f"{self.where}: key {self.architecture}.{key} is no count: {value!r:.60}")
        return value


def _describe(name: str, keys: _Keys, tensors: Mapping[str, TensorInfo]) -> ModelDescription:
    layers = keys.count("block_count") - keys.count("nextn_predict_layers", 0)
    tied = "output.weight" not in tensors
    dense, experts, draft, table, ngram = _sorted(tensors, layers, tied)
    count = keys.count("expert_count", 0) or _router_rows(tensors)
    if not experts:
        count = 0
    output = tensors["token_embd.weight" if tied else "output.weight"]

    def q8_bytes(some: list[TensorInfo]) -> int:
        return sum(_tensor_bytes(requantized(tensor, tied)) for tensor in some)

    return ModelDescription(
        name=name,
        architecture=keys.architecture,
        file_bytes=sum(tensor.num_bytes for tensor in tensors.values()),
        context_length=keys.count("context_length"),
        width=keys.count("embedding_length") * keys.count("hyper_connection.count", 1),
        block_width=keys.count("embedding_length"),
        mixer_width=_mixer_width(tensors, layers),
        ffn_width=max((t.shape[0] for t in dense if _FFN_GATE.search(t.name)), default=0),
        expert_ff=_expert_ff(experts),
        layers=layers,
        expert_bytes=tuple(sum(map(_tensor_bytes, experts[k])) // max(count, 1) for k in sorted(experts)),
        expert_count=count,
        experts_used=keys.count("expert_used_count") if count else 0,
        dense_bytes=sum(map(_tensor_bytes, dense)),
        output_bytes=_tensor_bytes(output),
        dense_q8_bytes=q8_bytes(dense),
        output_q8_bytes=q8_bytes([output]),
        draft_q8_bytes=q8_bytes(draft),
        table_bytes=table,
        ngram_bytes=ngram,
        ngram_rows=_ngram_rows(keys) if ngram else 0,
        ngram_width=_ngram_rows(keys) * _ngram_length(tensors) if ngram else 0,
        draft_bytes=sum(map(_tensor_bytes, draft)),
        **_sequence_sizes(keys, tensors, layers),
        dense_weights=sum(math.prod(tensor.shape) for tensor in dense if _is_matrix(tensor)),
        expert_weights=sum(math.prod(t.shape) for t in experts.get(min(experts, default=0), ()))
        // max(count, 1),
    )


def _sorted(
    tensors: Mapping[str, TensorInfo], layers: int, tied: bool
) -> tuple[list[TensorInfo], dict[int, list[TensorInfo]], list[TensorInfo], int, int]:
    """Dense tensors, experts by layer, those of a draft layer, and bytes of embedding and n-gram table."""
    dense: list[TensorInfo] = []
    draft: list[TensorInfo] = []
    experts: dict[int, list[TensorInfo]] = {}
    table = ngram = 0
    for tensor in tensors.values():
        match = _LAYER.match(tensor.name)
        layer = int(match[1]) if match else -1
        if tensor.name in _NGRAM_TABLES:
            ngram += tensor.num_bytes
        elif tensor.name == "token_embd.weight" and not tied:
            table += tensor.num_bytes
        elif layer >= layers:
            draft.append(tensor)
        elif _EXPERT.search(tensor.name):
            experts.setdefault(layer, []).append(tensor)
        else:
            dense.append(tensor)
    return dense, experts, draft, table, ngram


def _router_rows(tensors: Mapping[str, TensorInfo]) -> int:
    return next((t.shape[0] for t in tensors.values() if t.name.endswith(".ffn_gate_inp.weight")), 0)


def _ngram_rows(keys: _Keys) -> int:
    return (keys.count("ple.ngram_size", 3) - 1) * keys.count("ple.heads_per_ngram", 8)


def _ngram_length(tensors: Mapping[str, TensorInfo]) -> int:
    return next(tensors[name].shape[-1] for name in _NGRAM_TABLES if name in tensors)


def _mixer_width(tensors: Mapping[str, TensorInfo], layers: int) -> int:
    widths = [0] * layers
    for tensor in tensors.values():
        match = _PROJECTION.match(tensor.name)
        if match and int(match[1]) < layers:
            widths[int(match[1])] += tensor.shape[0]
    return max(widths, default=0)


def _expert_ff(experts: Mapping[int, list[TensorInfo]]) -> int:
    """Columns of the experts' `down`."""
    downs = (t.shape[-1] for layer in experts.values() for t in layer if ".ffn_down" in t.name)
    return max(downs, default=0)


def _sequence_sizes(keys: _Keys, tensors: Mapping[str, TensorInfo], layers: int) -> dict[str, Any]:
    """What a sequence takes: keys, values and states, counted from the tensors that make them."""
    heads = keys.count("attention.head_count")
    kv_heads = keys.count("attention.head_count_kv", heads)
    key_length = keys.count("attention.key_length", keys.count("embedding_length") // heads)
    value_length = keys.count("attention.value_length", key_length)
    attention = sum(f"blk.{layer}.attn_output.weight" in tensors for layer in range(layers))
    recurrent = [tensors.get(f"blk.{layer}.ssm_conv1d.weight") for layer in range(layers)]
    state = 0
    for convolution in filter(None, recurrent):
        channels, kernel = convolution.shape
        inner = keys.count("ssm.inner_size")
        state += inner * keys.count("ssm.state_size") + channels * (kernel - 1)
    ngram = next((t for t in tensors.values() if t.name.endswith(".ple_conv1d.weight")), None)
    if ngram is not None:
        state += ngram.shape[0] * (ngram.shape[1] - 1) * keys.count("ple.ngram_size", 3)
    top_k = keys.count("attention.indexer.top_k", 0)
    block = keys.count("attention.compress_ratios", 1) or 1
    index_length = keys.count("attention.indexer.key_length", 0)
    return {
        "kv_values": attention * kv_heads * (key_length + value_length),
        "index_values": attention * index_length / block,
        "attended": top_k and top_k + block - 1,
        "query_values": attention * heads * key_length,
        "state_bytes": _STATE_BYTES * state,
    }


def _tensor_bytes(tensor: TensorInfo) -> int:
    """In memory: planes of matrices, float32 of the rest."""
    if not _is_matrix(tensor):
        return 4 * math.prod(tensor.shape)
    return math.prod(tensor.shape[:-2]) * plane_bytes(tensor.format, *tensor.shape[-2:])


def _is_matrix(tensor: TensorInfo) -> bool:
    return len(tensor.shape) > 1 and "conv1d" not in tensor.name
