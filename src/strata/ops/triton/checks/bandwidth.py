"""The probe reads everything once, also in place from pinned memory."""

from collections.abc import Iterator

import torch

from strata.ops.triton.bandwidth import read_in_place
from strata.ops.triton.catalog import Check, Launch, meta


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    source = torch.randint(-(2**20), 2**20, (2 * 4 * 1024,), dtype=torch.int32)
    want = source.sum(dtype=torch.int32).reshape(1)
    pinned = source.pin_memory() if device.type == "cuda" else source
    for case, memory in (("on the card", source.to(device)), ("in place", pinned)):
        sink = torch.zeros(1, dtype=torch.int32, device=device)
        read_in_place(memory, sink, programs=4)
        yield case, sink, want


CHECKS = [Check("bandwidth", _compare)]
LAUNCHES = [
    Launch("bandwidth", lambda: read_in_place(meta(1 << 26, dtype=torch.int32), meta(1, dtype=torch.int32)))
]
