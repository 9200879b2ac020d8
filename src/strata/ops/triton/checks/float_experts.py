"""Experts of floats against the numeric contract, in bits."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.formats.quants.planes import PLANES, TILE_ROWS
from strata.ops.float_matmul import FloatMatrix
from strata.ops.quantized_experts import Expert, quantized_experts
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.expert_records import ExpertShape
from strata.ops.triton.experts import combine_experts
from strata.ops.triton.float_experts import compute_float_experts

_TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn}


def _made_up(format: str, num_out: int, num_in: int, seed: int) -> tuple[np.ndarray, FloatMatrix]:
    """The planes of a matrix, and what they mean."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(num_out, num_in, generator=generator).to(_TYPES[format])
    tiles = -(-num_out // TILE_ROWS)
    padded = torch.zeros(tiles * TILE_ROWS, num_in, dtype=weights.dtype)
    padded[:num_out] = weights
    stored = padded.view(tiles, TILE_ROWS, num_in).transpose(1, 2).contiguous().view(torch.uint8)
    planes = np.zeros((tiles, PLANES[format].tile_bytes(num_in)), dtype=np.uint8)
    stored = stored.reshape(tiles, -1).numpy()
    planes[:, : stored.shape[1]] = stored
    if format != "F8_E4M3":
        return planes, FloatMatrix(weights.float().numpy())
    scales = torch.rand(tiles * TILE_ROWS, -(-num_in // 128), generator=generator).numpy()
    by_tile = scales.reshape(tiles, TILE_ROWS, -1).transpose(0, 2, 1).reshape(tiles, -1)
    planes[:, stored.shape[1] : stored.shape[1] + by_tile.shape[1] * 4] = by_tile.copy().view(np.uint8)
    return planes, FloatMatrix(weights.float().numpy(), scales[:num_out])


def _compare(format: str, device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Two experts, one for each of two rows; lengths that are no multiples of anything."""
    shape = ExpertShape(width=140 if format == "F8_E4M3" else 21, ff=5, gate=format, up=format, down=format)
    records = np.zeros((2, shape.record_bytes), dtype=np.uint8)
    experts = []
    width, ff = shape.width, shape.ff
    parts = ((ff, width, 0), (ff, width, shape.up_at), (width, ff, shape.down_at))
    for e, record in enumerate(records):
        matrices = []
        for i, (num_out, num_in, at) in enumerate(parts):
            planes, matrix = _made_up(format, num_out, num_in, 3 * e + i)
            record[at : at + planes.size] = planes.reshape(-1)
            matrices.append(matrix)
        experts.append(Expert(*matrices))
    generator = torch.Generator().manual_seed(0)
    x, weights = torch.randn(2, shape.width, generator=generator) / 4, torch.tensor([[0.7], [1.3]])
    ids, host_entry = torch.tensor([[1], [0]]), torch.full((2, 1), -1, dtype=torch.int32)
    memory = torch.from_numpy(records).to(device)
    addresses = (memory.data_ptr() + torch.arange(2) * shape.record_bytes).to(device)
    here = [t.to(device) for t in (ids, host_entry)]
    y = compute_float_experts(shape, addresses, x.to(device), *here)
    got = combine_experts(*here, weights.to(device), y, y)
    yield format, got, torch.from_numpy(quantized_experts(experts, x.numpy(), ids.numpy(), weights.numpy()))


def _check(format: str) -> Check:
    return Check(f"float experts {format}", lambda device: _compare(format, device))


def _launch(format: str) -> torch.Tensor:
    shape = ExpertShape(2048, 512, format, format, format)
    ids, host_entry = meta(1, 8, dtype=torch.int64), meta(1, 8, dtype=torch.int32)
    return compute_float_experts(shape, meta(128, dtype=torch.int64), meta(1, 2048), ids, host_entry)


def _float_launch(format: str) -> Launch:
    return Launch(f"float experts {format}", lambda: _launch(format))


CHECKS = [_check(format) for format in _TYPES]
LAUNCHES = [_float_launch(format) for format in _TYPES]
