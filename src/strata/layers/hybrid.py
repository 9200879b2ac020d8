"""What the models that mix delta net and attention share: which layer is which, experts, blocks."""

from strata.errors import ModelFileError
from strata.layers.feed_forward import FeedForward
from strata.layers.moe import Experts, require_softmax_router
from strata.layers.weights import Weights
from strata.models.config import Keys, ModelConfig


def recurrent_layers(keys: Keys, config: ModelConfig) -> list[bool]:
    """True for each decoder layer that is a delta net, False for attention."""
    key = "attention.recurrent_layers"
    if key not in keys:
        interval = keys.count("full_attention_interval", 4)
        return [(layer + 1) % interval != 0 for layer in range(config.block_count)]
    recurrent = keys.list(key)
    if len(recurrent) < config.block_count:
        raise ModelFileError(
            f"{keys.checkpoint.path}: metadata key {keys.prefix}{key} has {len(recurrent)} entries "
            f"for {config.block_count} layers"
        )
    return [bool(value) for value in recurrent[: config.block_count]]


def feed_forward(weights: Weights, prefix: str, config: ModelConfig) -> Experts | FeedForward:
    """The layer's experts with their shared expert, or a dense layer where it has no router."""
    keys = Keys(weights.checkpoint)
    router = weights.checkpoint.tensors.get(f"{prefix}.ffn_gate_inp.weight")
    if router is None and (not config.expert_count or f"{prefix}.ffn_gate.weight" in weights):
        return FeedForward(weights, prefix, config.embedding_length, keys.count("feed_forward_length"))
    require_softmax_router(weights)
    # files with some experts cut out may keep the key of the full model: the router says how many there are
    expert_count = config.expert_count or (router.shape[0] if router is not None else 0)
    expert_used_count = keys.count("expert_used_count")
    if expert_used_count > expert_count:
        raise ModelFileError(
            f"{weights.checkpoint.path}: {keys.prefix}expert_used_count {expert_used_count} exceeds the "
            f"{expert_count} experts of {prefix}"
        )
    length = keys.count("expert_feed_forward_length")
    return Experts(
        weights,
        prefix,
        config.embedding_length,
        length,
        expert_count,
        expert_used_count,
        shared_length=keys.count("expert_shared_feed_forward_length", length),
        normalize=keys.flag("expert_weights_norm", True),
    )
