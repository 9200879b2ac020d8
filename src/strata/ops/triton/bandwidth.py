"""How fast a card's memory and its link are, by trying."""

import statistics
from collections.abc import Callable

import torch
import triton.language as tl

from strata.ops.triton.kernel import kernel

_TRIES = 5
_BLOCK = 4096  # bytes a program reads at a time


@kernel
def _read_kernel(source, sink, blocks_each, BLOCK: tl.constexpr):
    """Read `blocks_each` blocks of 16-byte vectors; the sum is stored so that no load is dropped."""
    first = tl.program_id(0).to(tl.int64) * blocks_each * BLOCK
    total = tl.zeros((BLOCK,), tl.int32)
    for i in range(blocks_each):
        total += tl.load(source + first + i * BLOCK + tl.arange(0, BLOCK))
    tl.atomic_add(sink, tl.sum(total), sem="relaxed")


def read_in_place(source: torch.Tensor, sink: torch.Tensor, programs: int = 512) -> None:
    """Read memory with a kernel, which adds what is there to `sink`.

    Args:
        source: int32 `[n]`, on the card or pinned; n a multiple of 1024 * programs.
        sink: int32 `[1]` on the card; sums wrap around.
        programs: that read at the same time.
    """
    block = _BLOCK // 4
    blocks, rest = divmod(source.numel(), block * programs)
    if rest:
        raise ValueError(f"{source.numel()} numbers are no multiple of {block * programs}")
    _read_kernel[(programs,)](source, sink, blocks, BLOCK=block, num_warps=4, enable_fp_fusion=False)


def card_bandwidths(device: torch.device, num_bytes: int = 256 << 20) -> dict[str, float]:
    """Bytes per second: `bandwidth`, `link_bandwidth`, `zero_copy_bandwidth` of `hardware.description.Card`.

    Args:
        device: the card.
        num_bytes: of pinned memory that is sent and read; a copy on the card takes four times as much, twice.
    """
    pinned = torch.ones(num_bytes // 4, dtype=torch.int32, pin_memory=True)
    here = torch.empty(num_bytes // 4, dtype=torch.int32, device=device)
    sink = torch.zeros(1, dtype=torch.int32, device=device)
    big = torch.empty(num_bytes, dtype=torch.int32, device=device)
    other = torch.empty_like(big)
    return {
        "bandwidth": 8 * num_bytes / _seconds(lambda: other.copy_(big), device),
        "link_bandwidth": num_bytes / _seconds(lambda: here.copy_(pinned, non_blocking=True), device),
        "zero_copy_bandwidth": num_bytes / _seconds(lambda: read_in_place(pinned, sink), device),
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Of a try that is neither the best nor the worst; the first, which compiles, does not count."""
    work()
    times = []
    for _ in range(_TRIES):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.device(device):
            begin.record()
            work()
            end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3)
    return statistics.median(times)
