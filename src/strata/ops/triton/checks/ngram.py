"""The n-gram memory against the layer's own arithmetic, and windows with rejected rows against one prompt."""

from collections.abc import Iterator

import torch

from strata.ops.convolution import causal_convolution
from strata.ops.ngram_hash import ngram_rows as reference_rows
from strata.ops.rms_norm import rms_norm
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.lanes import MAX_PENDING
from strata.ops.triton.ngram import NgramHash, NgramState, NgramWeights, add_ngram_memory, ngram_rows

STREAMS, WIDTH, EPSILON, DILATION, EOS = 2, 24, 1e-6, 3, 7


class _Memory:
    """Random weights and rows of a small memory, with the real hash's multipliers."""

    def __init__(self, device: torch.device, rows: int):
        generator = torch.Generator().manual_seed(rows)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device)

        channels = STREAMS * WIDTH
        self.table = NgramHash(
            torch.tensor([23703573157769, 20109073645365, 8052911324071], device=device),
            torch.tensor([20000003, 20000023, 20000033, 20000047, 20000059, 20000063], device=device),
            torch.tensor([0, 20000003, 40000026, 60000059, 80000106, 100000165], device=device),
            EOS,
        )
        self.weights = NgramWeights(
            random(channels),
            random(channels),
            random(channels),
            random(channels, 4),
            DILATION,
            STREAMS,
            EPSILON,
        )
        self.tokens = torch.randint(248320, (rows,), generator=generator).to(device)
        self.tokens[rows // 2] = EOS
        self.rows = random(rows, STREAMS, WIDTH), random(rows, channels), random(rows, WIDTH)

    def step(self, state: NgramState, lane: list[int], accepted: list[int], rows: torch.Tensor, commit: bool):
        """Numbers of table rows, and streams, of the memory's rows number `rows`."""
        lane, accepted = (torch.tensor(x, dtype=torch.int32, device=rows.device) for x in (lane, accepted))
        numbers = ngram_rows(self.tokens[rows], self.table, state, lane, accepted, commit)
        parts = (part[rows] for part in self.rows)
        return numbers, add_ngram_memory(*parts, self.weights, state, lane, accepted, commit)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Numbers, streams, and past, as layers/ngram.py computes them."""
        residual, key, value = (part.cpu() for part in self.rows)
        w, t = self.weights, self.table
        norm_key, norm_query, norm_conv = (
            x.cpu().view(STREAMS, WIDTH) for x in (w.norm_key, w.norm_query, w.norm_conv)
        )
        window = torch.full((2,), EOS)
        numbers = reference_rows(
            self.tokens.cpu(), window, t.multipliers.cpu(), t.head_sizes.cpu(), t.head_offsets.cpu(), EOS
        )
        key = rms_norm(key.view_as(residual), norm_key, EPSILON)
        fit = (key * rms_norm(residual, norm_query, EPSILON)).sum(-1) / WIDTH**0.5
        fit = fit.abs().clamp_min(1e-6).sqrt() * fit.sign()
        gated = fit.sigmoid()[:, :, None] * value[:, None]
        past = torch.zeros(3 * DILATION, STREAMS * WIDTH)
        normalized = rms_norm(gated, norm_conv, EPSILON).flatten(1)
        convolved, past = causal_convolution(normalized, w.conv.cpu(), past, DILATION)
        return numbers, residual + gated + torch.nn.functional.silu(convolved).view_as(residual), past


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    memory = _Memory(device, 19)
    state = NgramState.new(1, memory.table, memory.weights)
    _, streams = memory.step(state, [0] * 19, [0], torch.arange(19, device=device), commit=True)
    _, want, past = memory.reference()
    yield "streams", streams, want
    yield "past", state.past[0], past


def _compare_windows(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Lane 1 reads seven rows by windows of three of which some are rejected; lane 0 has rows of its own."""
    memory = _Memory(device, 12)
    whole, state = (NgramState.new(lanes, memory.table, memory.weights) for lanes in (1, 2))
    want, streams = memory.step(whole, [0] * 7, [0], torch.arange(7, device=device), commit=True)
    yield "rows of the table, prompt", want, memory.reference()[0][:7]
    got, done, taken = [], 0, 0
    for keep in (2, 1, 0, 3, 1):
        rows = torch.tensor([8, done, *[min(done + i, 6) if i < keep else 9 for i in (1, 2)], 11])
        out = memory.step(state, [0, 1, 1, 1, -1], [1, taken], rows.to(device), commit=False)
        got.append([part[1 : 1 + keep] for part in out])
        done, taken = done + keep, keep
    memory.step(state, [-1], [0, taken], torch.tensor([0], device=device), commit=False)
    yield "rows of the table", torch.cat([numbers for numbers, _ in got]), want
    yield "streams", torch.cat([out for _, out in got]), streams
    yield "window", state.window[1], whole.window[0]
    yield "past", state.past[1], whole.past[0]


def _launch(rows: int, commit: bool, lanes: int = 1):
    streams, width, size, heads = 4, 2560, 3, 8
    channels = streams * width

    def whole(*shape: int) -> torch.Tensor:
        return meta(*shape, dtype=torch.int64)

    table = NgramHash(whole(size), whole((size - 1) * heads), whole((size - 1) * heads), 248044)
    weights = NgramWeights(
        meta(channels), meta(channels), meta(channels), meta(channels, 4), size, streams, EPSILON
    )
    state = NgramState(
        whole(lanes, size - 1), whole(lanes, MAX_PENDING), meta(lanes, 3 * size, channels),
        meta(lanes, MAX_PENDING, channels),
    )  # fmt: skip
    lane, accepted = meta(rows, dtype=torch.int32), meta(lanes, dtype=torch.int32)
    ngram_rows(whole(rows), table, state, lane, accepted, commit)
    rows_of = meta(rows, streams, width), meta(rows, channels), meta(rows, width)
    return add_ngram_memory(*rows_of, weights, state, lane, accepted, commit)


CHECKS = [Check("ngram", _compare, 1e-5), Check("ngram, windows", _compare_windows)]
LAUNCHES = [
    Launch("ngram window", lambda: _launch(4, False, 4)),
    Launch("ngram prompt", lambda: _launch(4096, True)),
]
