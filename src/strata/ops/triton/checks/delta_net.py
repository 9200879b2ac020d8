"""The gated delta net: against the reference, and windows with rejected rows against one prompt."""

from collections.abc import Iterator

import torch

from strata.ops import gated_delta_net as reference
from strata.ops.triton.catalog import Check, Launch, meta
from strata.ops.triton.delta_net import DeltaNetState, DeltaNetWeights, gated_delta_net
from strata.ops.triton.lanes import MAX_PENDING

KEY_HEADS, HEADS = 1, 2


class _Layer:
    """Random weights and rows of a small layer."""

    def __init__(self, device: torch.device, rows: int, dim: int, tiled: bool, sigmoid_gate: bool):
        generator = torch.Generator().manual_seed(rows)

        def random(*shape: int) -> torch.Tensor:
            return torch.randn(shape, generator=generator).to(device)

        channels = (2 * KEY_HEADS + HEADS) * dim
        ssm_a, ssm_dt = -random(HEADS).exp(), random(HEADS)
        norm = 1 + 0.1 * random(dim)
        self.dim = dim
        self.weights = DeltaNetWeights(
            random(channels, 4), ssm_a, ssm_dt, norm, 1e-6, KEY_HEADS, tiled, sigmoid_gate
        )
        self.rows = (
            random(rows, channels),
            random(rows, HEADS * dim),
            random(rows, HEADS),
            random(rows, HEADS),
        )

    def new_state(self, lanes: int) -> DeltaNetState:
        return DeltaNetState.zeros(lanes, self.weights, self.dim, self.rows[0].device)

    def step(
        self, state: DeltaNetState, lane: list[int], accepted: list[int], rows: torch.Tensor, commit: bool
    ):
        """Rows number `rows` of the layer, as a step."""
        device = rows.device
        lane, accepted = (torch.tensor(x, dtype=torch.int32, device=device) for x in (lane, accepted))
        parts = (part[rows] for part in self.rows)
        return gated_delta_net(*parts, self.weights, state, lane, accepted, commit)

    def reference(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Outputs of all rows, past and memory after them."""
        w = self.weights
        rows = [part.cpu() for part in self.rows]
        state = self.new_state(1)
        conv, ssm_a, ssm_dt, norm = (x.cpu() for x in (w.conv, w.ssm_a, w.ssm_dt, w.norm))
        past, memory = state.past[0].cpu(), state.matrices(0).cpu()
        return reference.gated_delta_net(
            *rows, conv, ssm_a, ssm_dt, norm, w.epsilon, past, memory, 0, w.tiled, w.sigmoid_gate
        )


def _compare(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    for rows, dim, tiled, sigmoid_gate in ((18, 16, False, False), (1, 128, True, True)):
        layer = _Layer(device, rows, dim, tiled, sigmoid_gate)
        state = layer.new_state(1)
        out = layer.step(state, [0] * rows, [0], torch.arange(rows, device=device), commit=True)
        want, past, memory = layer.reference()
        name = f"{rows} rows, heads of {dim}"
        yield name, out, want
        yield f"{name}, past", state.past[0], past
        yield f"{name}, memory", state.matrices(0), memory


def _compare_windows(device: torch.device) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
    """Lane 1 reads five rows by windows of three of which some are rejected; lane 0 has rows of its own."""
    layer = _Layer(device, 18, 16, True, True)
    whole, state = layer.new_state(1), layer.new_state(2)
    order = torch.arange(5, device=device)
    want = layer.step(whole, [0] * 5, [0], order, commit=True)
    junk, got, done, taken = 10, [], 0, 0
    for keep in (2, 0, 3):
        rows = torch.tensor([junk, junk + 1, done, *[min(done + i, 4) if i < keep else 9 for i in (1, 2)], 7])
        junk += 2
        out = layer.step(state, [0, 0, 1, 1, 1, -1], [1, taken], rows.to(device), commit=False)
        got.append(out[2 : 2 + keep])
        done, taken = done + keep, keep
    layer.step(state, [-1], [0, taken], torch.tensor([0], device=device), commit=False)
    yield "outputs", torch.cat(got), want
    yield "memory", state.memory[1], whole.memory[0]
    yield "past", state.past[1], whole.past[0]


def _launch(rows: int, commit: bool, lanes: int = 1, heads: int = 48, tiled: bool = True):
    key_heads, dim = 16, 128
    channels = (2 * key_heads + heads) * dim
    weights = DeltaNetWeights(
        meta(channels, 4), meta(heads), meta(heads), meta(dim), 1e-6, key_heads, tiled, tiled
    )
    state = DeltaNetState(
        meta(lanes, heads, dim // 8, dim // 16, 8, 16), meta(lanes, 3, channels),
        meta(lanes, MAX_PENDING, channels), meta(lanes, MAX_PENDING, 2, heads),
    )  # fmt: skip
    rows_of = (meta(rows, width) for width in (channels, heads * dim, heads, heads))
    lane, accepted = meta(rows, dtype=torch.int32), meta(lanes, dtype=torch.int32)
    quantized = meta(rows, heads * dim, dtype=torch.int8), meta(rows, heads)
    return gated_delta_net(*rows_of, weights, state, lane, accepted, commit, quantized)


CHECKS = [Check("delta_net", _compare, 2e-5), Check("delta_net, windows", _compare_windows)]
LAUNCHES = [
    Launch("delta_net window", lambda: _launch(4, False, 4)),
    Launch("delta_net window qwen3next", lambda: _launch(4, False, 4, heads=32, tiled=False)),
    Launch("delta_net prompt", lambda: _launch(4096, True)),
]
