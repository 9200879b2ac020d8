"""The gated delta net between its projections, for windows and for prompts (see `ops/gated_delta_net.py`).

Three launches: convolution, SiLU, normalised queries and keys, gates; the delta rule; the gated norm. The
delta rule is the recurrence itself for prompts too: it costs a prompt little beside its experts, and a token
gets the same bits wherever a prompt is cut and whichever step computes it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from strata.ops.gated_delta_net import L2_EPSILON
from strata.ops.triton.arithmetic import sigmoid, silu, softplus
from strata.ops.triton.capability import loads_together
from strata.ops.triton.convolution import TILE, convolve_rows, load_advance, load_taps, store_advance
from strata.ops.triton.dependent_launch import launch_dependents, prefetch, step_launch, wait_for_earlier
from strata.ops.triton.kernel import cdiv, kernel
from strata.ops.triton.lanes import MAX_PENDING, lane_block, lane_rows
from strata.ops.triton.quantize import quantize_blocks

# A warp keeps the state of some values of a head. It lies in memory in tiles of [8 values, 16 keys], keys
# innermost, so that four lanes share the sum over keys of a value, and loads are whole.
TILE_VALUES, TILE_KEYS = 8, 16
AHEAD = 8  # rows of a prompt that are asked for before they are loaded


@dataclass(frozen=True, slots=True)
class DeltaNetWeights:
    """What a layer has between its projections.

    Args:
        conv: float32 `[channels, kernel]`.
        ssm_a: float32 `[heads]`, `-exp(A_log)`.
        ssm_dt: float32 `[heads]`, added to alpha.
        norm: float32 `[value_dim]`.
        epsilon: of the norm.
        key_heads: heads of queries and keys.
        tiled: value head `h` reads key head `h % key_heads`, not `h // (heads / key_heads)`.
        sigmoid_gate: gate by `sigmoid(z)`, not `silu(z)`.
    """

    conv: torch.Tensor
    ssm_a: torch.Tensor
    ssm_dt: torch.Tensor
    norm: torch.Tensor
    epsilon: float
    key_heads: int
    tiled: bool
    sigmoid_gate: bool


@dataclass(frozen=True, slots=True)
class DeltaNetState:
    """What a layer remembers of each lane, all float32; zeros where a sequence begins.

    Args:
        memory: `[lanes, heads, value_dim / 8, key_dim / 16, 8, 16]`, the matrix of a head in tiles, values
            before keys; dimensions are powers of two from 16.
        past: `[lanes, kernel - 1, channels]`, the rows before the convolution that came before.
        pending: `[lanes, MAX_PENDING, channels]`, those of the rows that may or may not stand.
        pending_gates: `[lanes, MAX_PENDING, 2, heads]`, their write strengths and decays.
    """

    memory: torch.Tensor
    past: torch.Tensor
    pending: torch.Tensor
    pending_gates: torch.Tensor

    @classmethod
    def zeros(
        cls, lanes: int, weights: DeltaNetWeights, key_dim: int, device: torch.device | str
    ) -> "DeltaNetState":
        heads, value_dim = weights.ssm_a.numel(), weights.norm.numel()
        channels, kernel = weights.conv.shape
        tiles = value_dim // TILE_VALUES, key_dim // TILE_KEYS
        return cls(
            torch.zeros(lanes, heads, *tiles, TILE_VALUES, TILE_KEYS, device=device),
            torch.zeros(lanes, kernel - 1, channels, device=device),
            torch.zeros(lanes, MAX_PENDING, channels, device=device),
            torch.zeros(lanes, MAX_PENDING, 2, heads, device=device),
        )

    def matrices(self, lane: int) -> torch.Tensor:
        """The memory of a lane as the reference has it, float32 `[heads, key_dim, value_dim]`."""
        tiles = self.memory[lane]
        heads, values, keys = tiles.shape[:3]
        matrices = tiles.permute(0, 2, 4, 1, 3)
        return matrices.reshape(heads, keys * TILE_KEYS, values * TILE_VALUES)


@kernel
def _convolve(qkv, beta, alpha, weight, ssm_a, ssm_dt, past, pending, pending_gates, lane, accepted,
              convolved, before, gates, gates_before, num_rows, qkv_stride, beta_stride, alpha_stride,
              EPSILON: tl.constexpr, KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
              VALUE_DIM: tl.constexpr, KERNEL: tl.constexpr, MAX_PENDING: tl.constexpr, TILE: tl.constexpr,
              LANE_BLOCK: tl.constexpr, HEADS_BLOCK: tl.constexpr, COLUMNS: tl.constexpr,
              HISTORY_BLOCK: tl.constexpr, COMMIT: tl.constexpr):  # fmt: skip
    """A program is a head of queries, keys or values, or all gates; a lane; and a tile of its rows."""
    launch_dependents()
    head, which, tile = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    # Each program a part of all: not quite what it reads itself, where keys and values differ in length.
    PARTS: tl.constexpr = 2 * KEY_HEADS + HEADS
    LENGTH: tl.constexpr = (2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM) // PARTS
    part = tl.minimum(head, PARTS - 1)
    prefetch(past + (which * PARTS + part) * (LENGTH * (KERNEL - 1)), LENGTH * (KERNEL - 1))
    is_value = head >= 2 * KEY_HEADS
    offset = tl.where(is_value, 2 * KEY_HEADS * (KEY_DIM - VALUE_DIM) + head * VALUE_DIM, head * KEY_DIM)
    column = tl.arange(0, COLUMNS)
    dim = tl.where(is_value, VALUE_DIM, KEY_DIM)
    columns, is_column = offset + column, column < dim
    # No step writes weights: they are asked for before whose rows there are.
    taps = load_taps(weight, columns, column < tl.where(head < PARTS, dim, 0), KERNEL)
    wait_for_earlier()
    first, count = lane_rows(lane, num_rows, which, LANE_BLOCK)
    taken = tl.load(accepted + which)
    begin = tile * TILE
    if (begin < count) | ((tile == 0) & (taken > 0)):
        end = tl.minimum(begin + TILE, count)
        start = tl.where(tile == 0, -taken, begin)  # pending rows have negative numbers
        if head == 2 * KEY_HEADS + HEADS:
            _gates(beta + first * beta_stride, alpha + first * alpha_stride, ssm_a, ssm_dt,
                   pending_gates + which * (MAX_PENDING * 2 * HEADS), gates + first * (2 * HEADS),
                   gates_before + which * (MAX_PENDING * 2 * HEADS), begin, end, begin - start,
                   beta_stride, alpha_stride, HEADS, HEADS_BLOCK, TILE, COMMIT)  # fmt: skip
        else:
            CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
            past += which * ((KERNEL - 1) * CHANNELS)
            pending += which * (MAX_PENDING * CHANNELS)
            qkv += first * qkv_stride
            # Before anything is stored, for a load behind it would be waited for by itself.
            is_moved = column < tl.where(tile == 0, dim, 0)
            moved = load_advance(taken, count, past, pending, qkv, columns, is_moved, CHANNELS, qkv_stride,
                                 KERNEL - 1, HISTORY_BLOCK, TILE, COMMIT)  # fmt: skip
            for at in range(start, end, TILE):
                index = at + tl.arange(0, TILE)
                is_row = index < end
                y = silu(convolve_rows(KERNEL - 1 + taken + index, is_row, taken, past, pending, qkv, taps,
                                       columns, is_column, CHANNELS, qkv_stride, KERNEL, 1))  # fmt: skip
                if not is_value:
                    y = y * tl.rsqrt(tl.sum(y * y, 1) + EPSILON)[:, None]
                    if head < KEY_HEADS:
                        y = y * (KEY_DIM**-0.5)
                # Two stores, as `load_rows` has loads.
                row = convolved + (first + index) * CHANNELS
                is_cell = (is_row & (index >= 0))[:, None] & is_column[None, :]
                tl.store(row[:, None] + columns[None, :], y, is_cell)
                row = before + (which * MAX_PENDING + taken + index) * CHANNELS
                is_cell = (is_row & (index < 0))[:, None] & is_column[None, :]
                tl.store(row[:, None] + columns[None, :], y, is_cell)
            if tile == 0:
                store_advance(moved, count, past, pending, columns, is_column, CHANNELS, KERNEL - 1,
                              HISTORY_BLOCK, TILE, COMMIT)  # fmt: skip


@triton.jit
def _gates(beta, alpha, ssm_a, ssm_dt, pending_gates, gates, gates_before, begin, end, old,
           beta_stride, alpha_stride, HEADS: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
           COMMIT: tl.constexpr):  # fmt: skip
    """Write strengths and decays of a tile; those of pending rows move on to `gates_before`."""
    head, row = tl.arange(0, BLOCK), tl.arange(0, TILE)
    is_head = head < HEADS
    index = (begin + row)[:, None]
    mask = (index < end) & is_head[None, :]
    is_old = (row < old)[:, None] & is_head[None, :]
    cells = row[:, None] * (2 * HEADS) + head[None, :]
    old_strength = tl.load(pending_gates + cells, is_old, other=0.0)
    old_decay = tl.load(pending_gates + cells + HEADS, is_old, other=0.0)
    a, dt = tl.load(ssm_a + head, is_head, other=0.0), tl.load(ssm_dt + head, is_head, other=0.0)
    strength = sigmoid(tl.load(beta + index * beta_stride + head[None, :], mask, other=0.0))
    alpha_dt = tl.load(alpha + index * alpha_stride + head[None, :], mask, other=0.0) + dt[None, :]
    decay = tl.exp(a[None, :] * softplus(alpha_dt))
    tl.debug_barrier()  # all threads have read what is now overwritten
    tl.store(gates_before + cells, old_strength, is_old)
    tl.store(gates_before + cells + HEADS, old_decay, is_old)
    at = index * (2 * HEADS) + head[None, :]
    tl.store(gates + at, strength, mask)
    tl.store(gates + at + HEADS, decay, mask)
    if not COMMIT:
        tl.store(pending_gates + at, strength, mask)
        tl.store(pending_gates + at + HEADS, decay, mask)


@triton.jit
def _row_at(index, first, taken, now, before, SIZE: tl.constexpr):
    """Address of a row of the step, or, of negative numbers, of a pending row that stands."""
    return tl.where(index < 0, before + (taken + index) * SIZE, now + (first + index) * SIZE)


@triton.jit
def _load_tiles(at, STRIDE: tl.constexpr, TILES: tl.constexpr):
    """A tuple of tiles, STRIDE apart."""
    tiles = ()
    for tile in tl.static_range(TILES):
        tiles = tiles + (tl.load(at + tile * STRIDE),)  # noqa: RUF005 - Triton unpacks no tuple
    return tiles


@triton.jit
def _store_tiles(at, tiles, STRIDE: tl.constexpr):
    """Store a tuple of tiles, STRIDE apart."""
    for tile in tl.static_range(len(tiles)):
        tl.store(at + tile * STRIDE, tiles[tile])


@triton.jit
def _sum_over_keys(state, x):
    """Sums `[values]` of products of tiles `[values, keys]`: tiles ascending, then over a tile."""
    total = state[0] * x[0]
    for tile in tl.static_range(1, len(state)):
        total += state[tile] * x[tile]
    return tl.sum(total, 1)


@triton.jit
def _write(state, k, update, decay):
    """The state, decayed, with `update` `[values]` written at `k`."""
    written = ()
    for tile in tl.static_range(len(state)):
        update_here = tl.broadcast_to(update[:, None], k[tile].shape)
        written = written + (tl.fma(k[tile], update_here, state[tile] * decay),)  # noqa: RUF005
    return written


@kernel
def _delta_rule(convolved, before, gates, gates_before, memory, lane, accepted, out, num_rows,
                KEY_HEADS: tl.constexpr, HEADS: tl.constexpr, KEY_DIM: tl.constexpr,
                VALUE_DIM: tl.constexpr, VALUES: tl.constexpr, KEYS: tl.constexpr,
                MAX_PENDING: tl.constexpr, LANE_BLOCK: tl.constexpr, TILED: tl.constexpr,
                AHEAD: tl.constexpr, COMMIT: tl.constexpr):  # fmt: skip
    """A program is VALUES of a head of a lane; its state is KEY_DIM / KEYS tiles `[VALUES, KEYS]`.

    Triton spreads lanes over keys and then over values: a lane has a value, and shares its keys with three
    others. (Of a tile of three dimensions some of its versions spread lanes over the second.) Queries and
    keys are loaded in that shape too, the same for all values.
    """
    launch_dependents()
    CHANNELS: tl.constexpr = 2 * KEY_HEADS * KEY_DIM + HEADS * VALUE_DIM
    part, head, which = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    if tl.num_programs(2) == 1:  # else most lanes may have no rows
        prefetch(memory + (head * (VALUE_DIM // VALUES) + part) * (KEY_DIM * VALUES), KEY_DIM * VALUES)
    wait_for_earlier()
    first, count = lane_rows(lane, num_rows, which, LANE_BLOCK)
    taken = tl.load(accepted + which)
    if count + taken > 0:
        key_head = head % KEY_HEADS if TILED else head // (HEADS // KEY_HEADS)
        value, key = tl.arange(0, VALUES), tl.arange(0, KEYS)
        cells = memory + ((which * HEADS + head) * (VALUE_DIM // VALUES) + part) * (KEY_DIM * VALUES)
        cells += value[:, None] * KEYS + key[None, :]
        q_at = key_head * KEY_DIM + value[:, None] * 0 + key[None, :]
        k_at = q_at + KEY_HEADS * KEY_DIM
        at = head * VALUE_DIM + part * VALUES + value
        v_at = 2 * KEY_HEADS * KEY_DIM + at
        before += which * (MAX_PENDING * CHANNELS)
        gates_before += which * (MAX_PENDING * 2 * HEADS)
        state = _load_tiles(cells, VALUES * KEYS, KEY_DIM // KEYS)
        # what the next row needs is loaded while this one is computed
        row = _row_at(-taken, first, taken, convolved, before, CHANNELS)
        gate = _row_at(-taken, first, taken, gates, gates_before, 2 * HEADS) + head
        q_next = _load_tiles(row + q_at, KEYS, KEY_DIM // KEYS)
        k_next = _load_tiles(row + k_at, KEYS, KEY_DIM // KEYS)
        v_next, strength_next, decay_next = tl.load(row + v_at), tl.load(gate), tl.load(gate + HEADS)
        # Two rows at a time, what was loaded for a row stays in its registers; no window has a use for it.
        for index in tl.range(-taken, count, loop_unroll_factor=2 if COMMIT else 1):
            if not COMMIT and index == 0:
                _store_tiles(cells, state, VALUES * KEYS)
            q, k, v, strength, decay = q_next, k_next, v_next, strength_next, decay_next
            if COMMIT:  # a prompt's rows do not fit into L2: some are still to come from memory
                row = _row_at(tl.minimum(index + AHEAD, count - 1), first, taken, convolved, before, CHANNELS)
                prefetch(row + key_head * KEY_DIM, KEY_DIM)
                prefetch(row + (KEY_HEADS + key_head) * KEY_DIM, KEY_DIM)
                prefetch(row + 2 * KEY_HEADS * KEY_DIM + head * VALUE_DIM + part * VALUES, VALUES)
            following = tl.minimum(index + 1, count - 1)
            row = _row_at(following, first, taken, convolved, before, CHANNELS)
            gate = _row_at(following, first, taken, gates, gates_before, 2 * HEADS) + head
            q_next = _load_tiles(row + q_at, KEYS, KEY_DIM // KEYS)
            k_next = _load_tiles(row + k_at, KEYS, KEY_DIM // KEYS)
            v_next, strength_next, decay_next = tl.load(row + v_at), tl.load(gate), tl.load(gate + HEADS)
            update = strength * (v - decay * _sum_over_keys(state, k))
            state = _write(state, k, update, decay)
            read = _sum_over_keys(state, q)
            tl.store(out + (first + index) * (HEADS * VALUE_DIM) + at, read, at < (index >= 0) * 0x7FFFFFFF)
        if COMMIT or count == 0:
            _store_tiles(cells, state, VALUES * KEYS)


@kernel
def _gated_norm(x, z, norm, out, codes, scales, z_stride, EPSILON: tl.constexpr, HEADS: tl.constexpr,
                VALUE_DIM: tl.constexpr, SIGMOID: tl.constexpr, QUANTIZE: tl.constexpr):  # fmt: skip
    """A program is a head of a row: normalised, gated, and quantised where its length is a block's."""
    launch_dependents()
    prefetch(norm, VALUE_DIM)
    wait_for_earlier()
    row, head = tl.program_id(1).to(tl.int64), tl.program_id(0)
    value = tl.arange(0, VALUE_DIM)
    cells = (row * HEADS + head) * VALUE_DIM + value
    y = tl.load(x + cells)
    y = y * tl.rsqrt(tl.sum(y * y, 0) / VALUE_DIM + EPSILON) * tl.load(norm + value)
    gate = tl.load(z + row * z_stride + head * VALUE_DIM + value)
    y = y * (sigmoid(gate) if SIGMOID else silu(gate))
    tl.store(out + cells, y)
    if QUANTIZE:
        code, scale = quantize_blocks(tl.reshape(y, [1, VALUE_DIM]))
        tl.store(codes + tl.reshape(cells, [1, VALUE_DIM]), code)
        tl.store(scales + row * HEADS + head + tl.zeros([1, 1], tl.int32), scale)


def gated_delta_net(
    qkv: torch.Tensor,
    z: torch.Tensor,
    beta: torch.Tensor,
    alpha: torch.Tensor,
    weights: DeltaNetWeights,
    state: DeltaNetState,
    lane: torch.Tensor,
    accepted: torch.Tensor,
    commit: bool,
    quantized: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Short convolution, normalised queries and keys, gated delta rule, gated norm.

    Args:
        qkv: float32 `[rows, channels]`, queries and keys of all key heads, then values of all heads.
        z: float32 `[rows, heads * value_dim]`, what gates the output.
        beta, alpha: float32 `[rows, heads]`, before sigmoid and softplus. Rows of all four may lie apart.
        weights: of the layer.
        state: of the layer; pending rows that stand are applied to it first.
        lane, accepted: int32, see `lanes`.
        commit: the rows stand, as a prompt's do. Otherwise at most MAX_PENDING of a lane are left pending.
        quantized: int8 codes and float32 scales of the result, to fill in; where value_dim is 128.

    Returns:
        float32 `[rows, heads * value_dim]`; rows of no lane hold nothing of use.
    """
    num_rows, heads, value_dim = qkv.shape[0], weights.ssm_a.numel(), weights.norm.numel()
    lanes, key_dim = state.memory.shape[0], state.memory.shape[3] * TILE_KEYS
    if quantized is not None and value_dim != 128:
        raise ValueError(f"a head of {value_dim} values is no block of 128 activations")
    convolved, gates = qkv.new_empty(qkv.shape), qkv.new_empty(num_rows, 2, heads)
    before, gates_before = torch.empty_like(state.pending), torch.empty_like(state.pending_gates)
    kernel = weights.conv.shape[1]
    shape = {"KEY_HEADS": weights.key_heads, "HEADS": heads, "KEY_DIM": key_dim, "VALUE_DIM": value_dim}
    steps = {"MAX_PENDING": MAX_PENDING, "LANE_BLOCK": lane_block(num_rows), "COMMIT": commit}
    _convolve[(2 * weights.key_heads + heads + 1, lanes, max(cdiv(num_rows, TILE), 1))](
        qkv, beta, alpha, weights.conv, weights.ssm_a, weights.ssm_dt, state.past, state.pending,
        state.pending_gates, lane, accepted, convolved, before, gates, gates_before, num_rows,
        qkv.stride(0), beta.stride(0), alpha.stride(0), EPSILON=L2_EPSILON, **shape, **steps,
        KERNEL=kernel, TILE=TILE, HEADS_BLOCK=triton.next_power_of_2(heads),
        COLUMNS=max(key_dim, value_dim), HISTORY_BLOCK=triton.next_power_of_2(kernel - 1), num_warps=4,
        **step_launch(),
    )  # fmt: skip
    read = qkv.new_empty(num_rows, heads * value_dim)
    options = loads_together(224) if commit else {}
    _delta_rule[(value_dim // TILE_VALUES, heads, lanes)](
        convolved, before, gates, gates_before, state.memory, lane, accepted, read, num_rows, **shape,
        **steps, VALUES=TILE_VALUES, KEYS=TILE_KEYS, TILED=weights.tiled, AHEAD=AHEAD, num_warps=1, **options,
        **step_launch(),
    )  # fmt: skip
    codes, scales = quantized or (read, read)
    _gated_norm[(heads, num_rows)](
        read, z, weights.norm, read, codes, scales, z.stride(0), EPSILON=weights.epsilon, HEADS=heads,
        VALUE_DIM=value_dim, SIGMOID=weights.sigmoid_gate, QUANTIZE=quantized is not None,
        num_warps=1, **step_launch(),
    )  # fmt: skip
    return read
