"""The experts of a layer for the rows of a prompt's chunk: docs/NUMERICS.md, the bits of `experts.py`."""

import torch

from strata.ops.triton.expert_records import ExpertShape
from strata.ops.triton.experts import quantize_hidden
from strata.ops.triton.grouped_matmul import grouped_matmul
from strata.ops.triton.planes import ACTIVATION_BLOCK, TILE_ROWS
from strata.ops.triton.quantized_matmul import codebook
from strata.ops.triton.sorted_rows import sort_rows
from strata.ops.triton.unpack import PlaneMatrices
from strata.ops.triton.unpacked_matmul import at_once


def compute_prompt_experts(
    shape: ExpertShape,
    addresses: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor,
    ids: torch.Tensor,
    host_entry: torch.Tensor,
    factors: torch.Tensor | None = None,
    unpacked: torch.Tensor | None = None,
) -> torch.Tensor:
    """`expert(x[row])` of every entry that this card computes; for `combine_experts`.

    Takes 4 * entries * max(2 * ff, width) bytes for the result, in whose place the products of gate and up
    were before, and a byte for each of their activations; entries = rows * slots.

    Args:
        addresses: int64 `[experts]`, of each expert's record in memory that the card reads, aligned to 64.
        codes, scales: `quantize_activations` of x, `[rows, width]`.
        ids: int32 or int64 `[rows, slots]`; an unused row has -1 in all slots.
        host_entry: int32 `[rows, slots]`; negative where this card computes the entry.
        factors: of `experts.compute_experts`.
        unpacked: of `grouped_matmul`.

    Returns:
        float32 `[rows * slots, width]`; entries computed elsewhere hold anything.
    """
    rows, slots = ids.shape
    entries, device = rows * slots, codes.device

    def matrices(format: str, num_out: int, num_in: int, at: int) -> PlaneMatrices:
        return PlaneMatrices(format, num_out, num_in, addresses, at, codebook(format, device))

    gate = matrices(shape.gate, shape.ff, shape.width, 0)
    gate_up = [gate, matrices(shape.up, shape.ff, shape.width, shape.up_at)]
    if shape.gate == shape.up and shape.ff % TILE_ROWS == 0:
        # Up's rows are behind gate's in the same planes: one matrix, if it is not too large to be unpacked.
        both = matrices(shape.gate, 2 * shape.ff, shape.width, 0)
        if unpacked is None or at_once(both, unpacked) or not at_once(gate, unpacked):
            gate_up = [both]
    down = matrices(shape.down, shape.width, shape.ff, shape.down_at)
    room = 0 if unpacked is None else min(at_once(each, unpacked) for each in (*gate_up, down))
    sorted_rows = sort_rows(ids, addresses.numel(), room, host_entry)
    # Gate's and up's products are quantised before `down` is multiplied: its products take their place.
    memory = torch.empty(entries * max(2 * shape.ff, shape.width), dtype=torch.float32, device=device)
    hidden = memory[: entries * 2 * shape.ff].view(entries, 2 * shape.ff)
    for column, part in zip((0, shape.ff), gate_up, strict=False):
        grouped_matmul(part, sorted_rows, slots, codes, scales, hidden, column, unpacked)
    hidden_codes = torch.empty(entries, shape.ff, dtype=torch.int8, device=device)
    hidden_scales = torch.empty(entries, -(-shape.ff // ACTIVATION_BLOCK), dtype=torch.float32, device=device)
    quantize_hidden(shape, ids, host_entry, hidden[:, None], hidden_codes, hidden_scales, factors)
    y = memory[: entries * shape.width].view(entries, shape.width)
    grouped_matmul(down, sorted_rows, 1, hidden_codes, hidden_scales, y, 0, unpacked)
    return y
