"""A model's hyper-parameters, read from GGUF metadata and named as its keys are."""

import math
from dataclasses import dataclass
from typing import Any

from strata.errors import ModelFileError
from strata.formats.checkpoint import Checkpoint

_REQUIRED = object()


class Keys:
    """Typed access to the `<architecture>.*` keys of a checkpoint; a bad one is named with its value."""

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.prefix = checkpoint.architecture + "."

    def _get(self, key: str, default: Any, kinds: tuple[type, ...]) -> Any:
        value = self.checkpoint.metadata.get(self.prefix + key)
        if value is None:
            if default is _REQUIRED:
                raise ModelFileError(f"{self.checkpoint.path}: metadata key {self.prefix}{key} is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ModelFileError(
                f"{self.checkpoint.path}: metadata key {self.prefix}{key} has the value {value!r:.60}"
            )
        return value

    def count(self, key: str, default: Any = _REQUIRED) -> int:
        """A positive integer; an array whose entries all agree counts as one (converters write some so)."""
        value = self.checkpoint.metadata.get(self.prefix + key)
        if isinstance(value, list) and value and all(v == value[0] for v in value):
            value = value[0]
        if value is None and default is not _REQUIRED:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
            self._get(key, _REQUIRED, (int,))
            raise ModelFileError(
                f"{self.checkpoint.path}: metadata key {self.prefix}{key} "
                f"must be a positive count, not {value!r:.60}"
            )
        return value

    def count_or_zero(self, key: str) -> int:
        """A count that may be absent or 0."""
        return self.count(key) if self.checkpoint.metadata.get(self.prefix + key) else 0

    def positive(self, key: str, default: Any = _REQUIRED) -> float:
        """A finite number above 0."""
        value = self.number(key, default)
        if not (math.isfinite(value) and value > 0):
            raise ModelFileError(
                f"{self.checkpoint.path}: metadata key {self.prefix}{key} must be positive, not {value}"
            )
        return value

    def number(self, key: str, default: Any = _REQUIRED) -> float:
        return float(self._get(key, default, (int, float)))

    def list(self, key: str, default: Any = _REQUIRED) -> list:
        return list(self._get(key, default, (list, tuple)))

    def flag(self, key: str, default: bool) -> bool:
        value = self.checkpoint.metadata.get(self.prefix + key, default)
        if value not in (False, True):  # 0 and 1 are equal to them
            self._get(key, _REQUIRED, ())
        return bool(value)

    def __contains__(self, key: str) -> bool:
        return self.prefix + key in self.checkpoint.metadata


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What every architecture has. Parts that only some have are read by their layers from `Keys`."""

    architecture: str
    vocab_size: int  # rows of token_embd
    context_length: int
    block_count: int  # decoder layers, draft (nextn) layers not counted
    embedding_length: int
    head_count: int
    head_count_kv: int
    key_length: int
    value_length: int
    rms_epsilon: float
    rope_freq_base: float
    rope_dimension_count: int
    expert_count: int  # 0: dense
    expert_used_count: int

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "ModelConfig":
        keys = Keys(checkpoint)
        embedding = checkpoint.tensors.get("token_embd.weight")
        if embedding is None and any(".nextn." in name for name in checkpoint.tensors):
            raise ModelFileError(
                f"{checkpoint.path}: holds a draft (MTP) layer alone; name the model that it belongs to"
            )
        if embedding is None or len(embedding.shape) != 2:
            raise ModelFileError(f"{checkpoint.path}: tensor token_embd.weight is missing or not a matrix")
        head_count = keys.count("attention.head_count")
        embedding_length = keys.count("embedding_length")
        key_length = keys.count("attention.key_length", None) or embedding_length // head_count
        if not key_length:
            raise ModelFileError(
                f"{checkpoint.path}: {head_count} attention heads do not fit into "
                f"{keys.prefix}embedding_length {embedding_length}, and "
                f"{keys.prefix}attention.key_length is missing"
            )
        expert_count = keys.count_or_zero("expert_count")
        head_count_kv = keys.count("attention.head_count_kv", head_count)
        if head_count % head_count_kv:
            raise ModelFileError(
                f"{checkpoint.path}: {head_count} attention heads cannot share "
                f"{head_count_kv} key-value heads"
            )
        return cls(
            architecture=checkpoint.architecture,
            vocab_size=embedding.shape[0],
            context_length=keys.count("context_length"),
            block_count=_block_count(keys),
            embedding_length=embedding_length,
            head_count=head_count,
            head_count_kv=head_count_kv,
            key_length=key_length,
            value_length=keys.count("attention.value_length", key_length),
            rms_epsilon=keys.positive("attention.layer_norm_rms_epsilon"),
            rope_freq_base=keys.positive("rope.freq_base", 10000.0),
            rope_dimension_count=keys.count("rope.dimension_count", key_length),
            expert_count=expert_count,
            expert_used_count=keys.count("expert_used_count") if expert_count else 0,
        )


def _block_count(keys: Keys) -> int:
    """Decoder layers; checked against the file before anything is made for each of them."""
    blocks, drafts = keys.count("block_count"), keys.count_or_zero("nextn_predict_layers")
    num_tensors = len(keys.checkpoint.tensors)
    if drafts >= blocks or blocks > num_tensors:
        raise ModelFileError(
            f"{keys.checkpoint.path}: {keys.prefix}block_count {blocks} with {drafts} draft layers "
            f"({keys.prefix}nextn_predict_layers) does not fit a file of {num_tensors} tensors"
        )
    return blocks - drafts
