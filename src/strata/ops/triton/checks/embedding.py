"""Rows of tables against the decoders of their formats."""

from collections.abc import Iterator

import numpy as np
import torch

from strata.formats.quants import FORMATS
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.embedding import FLOATS, QUANTS, EmbeddingTable, embed

ROWS, WIDTH = 3, 512
IDS = [2, 0, 99]  # the last is outside of the table: its last row


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    ids = torch.tensor(IDS, dtype=torch.int32, device=device)
    for name in QUANTS:
        quant = FORMATS[name]
        blocks = rng.integers(0, 256, (ROWS * WIDTH // quant.block_size, quant.block_bytes), np.uint8)
        halves = blocks.view(quant.layout)
        for field in {"d", "dmin", "m"} & set(quant.layout.names):
            halves[field] = rng.standard_normal(halves[field].shape).astype(np.float16)  # no NaNs
        want = torch.from_numpy(quant.dequantize(blocks)).view(ROWS, WIDTH)
        raw = torch.from_numpy(blocks).view(ROWS, -1).to(device)
        table = EmbeddingTable.of(name, raw, WIDTH, device)
        yield name, embed(ids, table), want[[2, 0, 2]]
    for name, dtype in FLOATS.items():
        values = torch.from_numpy(rng.standard_normal((ROWS, WIDTH))).to(dtype)
        table = EmbeddingTable.of(name, values.to(device), WIDTH, device)
        yield name, embed(ids, table), values.float()[[2, 0, 2]]


def _launch(format: str):
    vocabulary, width = 248320, 2560
    if format in FLOATS:
        blocks = meta(vocabulary, width, dtype=FLOATS[format])
    else:
        quant = FORMATS[format]
        blocks = meta(vocabulary, width // quant.block_size * quant.block_bytes, dtype=torch.uint8)
    return embed(
        meta(4, dtype=torch.int32), EmbeddingTable(format, blocks, width, meta(16, dtype=torch.int8))
    )


CHECKS = [Check("embedding", _compare)]
LAUNCHES = [
    Launch(f"embedding {format}", lambda format=format: _launch(format)) for format in (*QUANTS, *FLOATS)
]
