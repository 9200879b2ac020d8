"""The n-gram memory of `qwen4_exp`: which rows a token reads, and what of them it adds to the streams.

MODELS.md sections 2.7 and 2.8; `layers/ngram.py`. The table is too large for a card: its rows, and the
products of theirs that are `key` and `value` here, come from elsewhere.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.triton.arithmetic import sigmoid, silu
from strata.ops.triton.convolution import TILE, advance, convolve_rows, load_rows, load_taps
from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.lanes import MAX_PENDING, lane_block, lane_rows

BLOCK = 128  # channels that a program convolves


@dataclass(frozen=True, slots=True)
class NgramHash:
    """What `ops/ngram_hash.py` takes, int64 on the card.

    Args:
        multipliers: `[size]`.
        head_sizes, head_offsets: `[(size - 1) * heads_per_ngram]`.
        eos: token that hides itself and all before it.
    """

    multipliers: torch.Tensor
    head_sizes: torch.Tensor
    head_offsets: torch.Tensor
    eos: int


@dataclass(frozen=True, slots=True)
class NgramWeights:
    """A layer's weights, float32.

    Args:
        norm_key, norm_query, norm_conv: `[streams * width]`.
        conv: `[streams * width, kernel]`.
        dilation: distance of two taps, the size of the n-grams.
        streams: of the residual.
        epsilon: of the norms.
    """

    norm_key: torch.Tensor
    norm_query: torch.Tensor
    norm_conv: torch.Tensor
    conv: torch.Tensor
    dilation: int
    streams: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class NgramState:
    """What is remembered of each lane.

    Args:
        window: int64 `[lanes, size - 1]`, the tokens before; `eos` where a sequence begins.
        pending_tokens: int64 `[lanes, MAX_PENDING]`.
        past: float32 `[lanes, (kernel - 1) * dilation, channels]`, rows before the convolution; zeros first.
        pending: float32 `[lanes, MAX_PENDING, channels]`.
    """

    window: torch.Tensor
    pending_tokens: torch.Tensor
    past: torch.Tensor
    pending: torch.Tensor

    @classmethod
    def new(cls, lanes: int, table: NgramHash, weights: NgramWeights) -> "NgramState":
        device, (channels, kernel) = weights.conv.device, weights.conv.shape
        history = (kernel - 1) * weights.dilation
        return cls(
            torch.full((lanes, table.multipliers.numel() - 1), table.eos, device=device),
            torch.zeros(lanes, MAX_PENDING, dtype=torch.int64, device=device),
            torch.zeros(lanes, history, channels, device=device),
            torch.zeros(lanes, MAX_PENDING, channels, device=device),
        )


@kernel
def _rows(tokens, multipliers, head_sizes, head_offsets, window, pending, lane, accepted, out, num_rows, eos,
          SIZE: tl.constexpr, HEADS: tl.constexpr, HEADS_BLOCK: tl.constexpr, MAX_PENDING: tl.constexpr,
          TILE: tl.constexpr, HISTORY_BLOCK: tl.constexpr, LANE_BLOCK: tl.constexpr,
          COMMIT: tl.constexpr):  # fmt: skip
    """A program is a tile of a lane's rows; HEADS of an n-gram."""
    which, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    first, count = lane_rows(lane, num_rows, which, LANE_BLOCK)
    taken = tl.load(accepted + which)
    begin = tile * TILE
    window += which * (SIZE - 1)
    pending += which * MAX_PENDING
    tokens += first
    head, row = tl.arange(0, HEADS_BLOCK), begin + tl.arange(0, TILE)
    is_row = row < count
    mask = is_row[:, None] & (head < HEADS)[None, :]
    mixed = tl.load(tokens + row, is_row, other=0) * tl.load(multipliers)
    hidden = row < 0  # none
    for back in tl.static_range(1, SIZE):
        at = SIZE - 1 + taken + row - back
        previous = load_rows(
            at, is_row[:, None], taken, window, pending, tokens, tl.arange(0, 1), 1, 1, SIZE - 1
        )
        previous = tl.reshape(previous, [TILE])
        hidden = hidden | (previous == eos)
        mixed = mixed ^ (tl.where(hidden, eos, previous) * tl.load(multipliers + back))
        heads = (back - 1) * HEADS + head
        sizes = tl.load(head_sizes + heads, head < HEADS, other=1)
        numbers = (
            mixed[:, None] % sizes[None, :] + tl.load(head_offsets + heads, head < HEADS, other=0)[None, :]
        )
        tl.store(out + (first + row)[:, None] * ((SIZE - 1) * HEADS) + heads[None, :], numbers, mask)
    if tile == 0:
        column = tl.arange(0, 1)
        advance(taken, count, window, pending, tokens, column, column < 1, 1, 1, SIZE - 1, HISTORY_BLOCK,
                TILE, COMMIT)  # fmt: skip


@kernel
def _gate(residual, key, value, norm_key, norm_query, norm_conv, gated, normalized, EPSILON: tl.constexpr,
          WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """A program is a stream of a row: gated by how well its key fits, and that normalised."""
    begin_kernel()
    stream, row = tl.program_id(0), tl.program_id(1).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < WIDTH
    cells = (row * tl.num_programs(0) + stream) * WIDTH + column
    weights = stream * WIDTH + column
    k = tl.load(key + cells, mask, other=0.0)
    k = k * tl.rsqrt(tl.sum(k * k, 0) / WIDTH + EPSILON) * tl.load(norm_key + weights, mask, other=0.0)
    q = tl.load(residual + cells, mask, other=0.0)
    q = q * tl.rsqrt(tl.sum(q * q, 0) / WIDTH + EPSILON) * tl.load(norm_query + weights, mask, other=0.0)
    fit = tl.sum(k * q, 0) / (WIDTH**0.5)
    root = tl.sqrt(tl.maximum(tl.abs(fit), 1e-6))
    gate = sigmoid(tl.where(fit < 0, -root, tl.where(fit > 0, root, 0.0)))
    v = gate * tl.load(value + row * WIDTH + column, mask, other=0.0)
    tl.store(gated + cells, v, mask)
    v = v * tl.rsqrt(tl.sum(v * v, 0) / WIDTH + EPSILON) * tl.load(norm_conv + weights, mask, other=0.0)
    tl.store(normalized + cells, v, mask)


@kernel
def _add(residual, gated, normalized, weight, past, pending, lane, accepted, out, num_rows, channels,
         KERNEL: tl.constexpr, DILATION: tl.constexpr, BLOCK: tl.constexpr, MAX_PENDING: tl.constexpr,
         TILE: tl.constexpr, HISTORY_BLOCK: tl.constexpr, LANE_BLOCK: tl.constexpr,
         COMMIT: tl.constexpr):  # fmt: skip
    """A program is BLOCK channels of a lane and a tile of its rows."""
    begin_kernel()
    HISTORY: tl.constexpr = (KERNEL - 1) * DILATION
    which, tile = tl.program_id(1).to(tl.int64), tl.program_id(2)
    first, count = lane_rows(lane, num_rows, which, LANE_BLOCK)
    taken = tl.load(accepted + which)
    begin = tile * TILE
    past += which * HISTORY * channels
    pending += which * MAX_PENDING * channels
    normalized += first * channels
    columns = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = columns < channels
    index = begin + tl.arange(0, TILE)
    is_row = index < count
    taps = load_taps(weight, columns, mask, KERNEL)
    convolved = convolve_rows(HISTORY + taken + index, is_row, taken, past, pending, normalized, taps,
                              columns, mask, channels, channels, KERNEL, DILATION)  # fmt: skip
    cells = (first + index)[:, None] * channels + columns[None, :]
    is_cell = is_row[:, None] & mask[None, :]
    total = tl.load(residual + cells, is_cell, other=0.0) + tl.load(gated + cells, is_cell, other=0.0)
    tl.store(out + cells, total + silu(convolved), is_cell)
    if tile == 0:
        advance(taken, count, past, pending, normalized, columns, mask, channels, channels, HISTORY,
                HISTORY_BLOCK, TILE, COMMIT)  # fmt: skip


def ngram_rows(
    tokens: torch.Tensor,
    table: NgramHash,
    state: NgramState,
    lane: torch.Tensor,
    accepted: torch.Tensor,
    commit: bool,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Row numbers of each token's n-grams; moves `state.window` on.

    Args:
        tokens: int64 `[rows]`.
        table: the hash.
        state: of the layer.
        lane, accepted: int32, see `lanes`.
        commit: the rows stand.
        out: int64 `[rows, (size - 1) * heads_per_ngram]`, in memory that the processor reads, for example.
    """
    num_rows, lanes, size = tokens.numel(), state.window.shape[0], table.multipliers.numel()
    out = tokens.new_empty(num_rows, table.head_sizes.numel()) if out is None else out
    heads = table.head_sizes.numel() // (size - 1)
    _rows[(lanes, max(cdiv(num_rows, TILE), 1))](
        tokens, table.multipliers, table.head_sizes, table.head_offsets, state.window, state.pending_tokens,
        lane, accepted, out, num_rows, table.eos, SIZE=size, HEADS=heads,
        HEADS_BLOCK=triton.next_power_of_2(heads), MAX_PENDING=MAX_PENDING, TILE=TILE,
        HISTORY_BLOCK=triton.next_power_of_2(size - 1), LANE_BLOCK=lane_block(num_rows), COMMIT=commit,
        num_warps=1, enable_fp_fusion=False,
    )  # fmt: skip
    return out


def add_ngram_memory(
    residual: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    weights: NgramWeights,
    state: NgramState,
    lane: torch.Tensor,
    accepted: torch.Tensor,
    commit: bool,
) -> torch.Tensor:
    """The streams with the memory added: gated by how well its key fits the stream, then convolved.

    Args:
        residual: float32 `[rows, streams, width]`, contiguous; it is added to in place.
        key: float32 `[rows, streams * width]`, `ple_key` of the embeddings, contiguous; written over.
        value: float32 `[rows, width]`, `ple_value` of them, contiguous.
        weights, state: of the layer; moves `state.past` on.
        lane, accepted: int32, see `lanes`.
        commit: the rows stand.

    Returns:
        `residual`.
    """
    num_rows, streams, width = residual.shape
    lanes, channels = state.past.shape[0], streams * width
    gated, normalized = key, torch.empty_like(residual)
    block = triton.next_power_of_2(width)
    _gate[(streams, num_rows)](
        residual, key, value, weights.norm_key, weights.norm_query, weights.norm_conv, gated, normalized,
        EPSILON=weights.epsilon, WIDTH=width, BLOCK=block, num_warps=8 if block > 512 else 1,
        **step_launch(),
    )  # fmt: skip
    _add[(cdiv(channels, BLOCK), lanes, max(cdiv(num_rows, TILE), 1))](
        residual, gated, normalized, weights.conv, state.past, state.pending, lane, accepted, residual,
        num_rows, channels, KERNEL=weights.conv.shape[1], DILATION=weights.dilation, BLOCK=BLOCK,
        MAX_PENDING=MAX_PENDING, TILE=TILE, HISTORY_BLOCK=triton.next_power_of_2(state.past.shape[1]),
        LANE_BLOCK=lane_block(num_rows), COMMIT=commit, num_warps=4,
        **step_launch(),
    )  # fmt: skip
    return residual
