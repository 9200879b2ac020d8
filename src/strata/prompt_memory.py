"""What a chunk of a prompt takes of a card's memory while it is read: a formula beside `strata.card.prompts`.

A test rehearses real models and compares (`tests/card/test_prompt_memory.py`).
"""

from strata.formats.description import ModelDescription

MIB = 1 << 20
# Pieces of up to so many tokens use too few experts for it to pay that any are copied ahead (by trying on an
# H200), and take the host longer to launch than the card to compute: they are graphs, with their own memory.
SHORT = 512
# For weights as bytes, of as many matrices at a time as there is room for: with half, products of experts for
# 4,096 tokens took up to 7 % longer by themselves, with twice as many launches.
_UNPACKED_OF_ROW, _LEAST_UNPACKED = 64 << 10, 128 * MIB
# Pieces of one block of memory are taken and given back in no order, which leaves gaps: a fifth in replays of
# torch's allocator with what 4,096 and 2,048 rows of Flash-Next ask for (without the one block, 0.8).
GAPS = 1.2
_FLOAT, _PARTS = 4, 6  # bytes of a value; of its three bfloat16 parts, of which float products are made


def chunk_bytes(model: ModelDescription, chunk: int, part: int) -> int:
    """Bytes for chunks of `chunk` tokens, of which `part` pass a layer at once."""
    return unpacked_bytes(part) + activation_bytes(model, chunk, part)


def short_bytes(model: ModelDescription) -> int:
    """Bytes for the graphs of short pieces."""
    return activation_bytes(model, SHORT, SHORT)


def unpacked_bytes(part: int) -> int:
    """Room to unpack weights where `part` tokens pass a layer at once."""
    return max(_LEAST_UNPACKED, part * _UNPACKED_OF_ROW)


def activation_bytes(model: ModelDescription, chunk: int, part: int) -> int:
    """Size of a block of memory that has room for all tensors of a chunk."""
    return int(GAPS * (chunk * _held(model) + part * _computed(model)))


def _held(model: ModelDescription) -> int:
    """Bytes of a token from layer to layer: the residual, the output not yet added to it, n-gram rows."""
    return _FLOAT * (model.width + model.block_width + model.ngram_width)


def _computed(model: ModelDescription) -> int:
    """Bytes of a token in a layer: a block's input, also quantised, and the most of what its parts take."""
    width, used = model.block_width, model.experts_used
    gate_up = 2 * model.expert_ff
    # The norm of a plain residual stands beside the sum it is of; hyper-connections split the streams.
    read = _PARTS * model.width if model.width > width else 2 * _FLOAT * width
    beside = 0 if model.width > width else 2 * _FLOAT * width
    outputs = 2 + (model.ffn_width > 0)  # the experts' sum, a shared expert's, and both together
    parts = (
        read + _FLOAT * width,
        (2 * _FLOAT * 2 + 1) * model.mixer_width // 2,  # projections; convolved and read, or queries, results
        (3 * _FLOAT + 1 + _PARTS) * model.ffn_width + _FLOAT * width,  # gate, up, their product and its parts
        used * (_FLOAT * max(gate_up, width) + model.expert_ff + 24) + outputs * _FLOAT * width,
    )
    return (_FLOAT + 1) * width + beside + max(parts)
