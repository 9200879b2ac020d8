"""Experts against a loop written out, in each layout that a file may have."""

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import pytest
import torch

from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.layers.moe import Experts
from strata.layers.planes import PlaneWeights
from strata.layers.weights import DecodedWeights, Weights

WIDTH, LENGTH, COUNT, USED = 6, 4, 5, 2


class InMemory(Checkpoint):
    """Tensors of a dictionary; remembers what was read."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]):
        self.path, self.architecture, self.metadata = Path("memory"), "test", {}
        self.data = tensors
        self.tensors = {n: TensorInfo(n, tuple(t.shape), "F32", 4 * t.numel()) for n, t in tensors.items()}
        self.reads: list[tuple[str, int | None]] = []

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        self.reads.append((name, index))
        return self.data[name] if index is None else self.data[name][index]

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        return self.data[name][rows]


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


GATE, UP, DOWN = random(COUNT, LENGTH, WIDTH), random(COUNT, LENGTH, WIDTH) * 2, random(COUNT, WIDTH, LENGTH)
ROUTER = {"blk.0.ffn_gate_inp.weight": random(COUNT, WIDTH)}
LAYOUTS = {
    "stacked": {
        "blk.0.ffn_gate_exps.weight": GATE,
        "blk.0.ffn_up_exps.weight": UP,
        "blk.0.ffn_down_exps.weight": DOWN,
    },
    "fused": {
        "blk.0.ffn_gate_up_exps.weight": torch.cat([GATE, UP], 1),
        "blk.0.ffn_down_exps.weight": DOWN,
    },
    "a tensor each": {
        f"blk.0.{name}.{i}.weight": stack[i]
        for name, stack in (("ffn_gate", GATE), ("ffn_up", UP), ("ffn_down", DOWN))
        for i in range(COUNT)
    },
}


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return down @ (torch.nn.functional.silu(gate @ x) * (up @ x))


def by_hand(x: torch.Tensor) -> torch.Tensor:
    """Token by token: softmax, the best two, their outputs weighed."""
    rows = []
    for token in x:
        best = (ROUTER["blk.0.ffn_gate_inp.weight"] @ token).softmax(0).topk(USED)
        shares = best.values / best.values.sum()
        chosen = best.indices.tolist()
        rows.append(
            sum(w * swiglu(token, GATE[e], UP[e], DOWN[e]) for w, e in zip(shares, chosen, strict=True))
        )
    return torch.stack(rows)


@pytest.fixture(params=["decoded", "planes"])
def load(request: pytest.FixtureRequest) -> Callable[[Checkpoint], Weights]:
    return PlaneWeights if request.param == "planes" else partial(DecodedWeights, cache_bytes=1 << 20)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("num_tokens", [1, 17])
def test_every_layout_gives_the_sum_by_hand(load, layout: str, num_tokens: int):
    weights = load(InMemory(ROUTER | LAYOUTS[layout]))
    experts = Experts(weights, "blk.0", WIDTH, LENGTH, COUNT, USED)
    assert weights.unused() == []
    x = random(num_tokens, WIDTH)
    torch.testing.assert_close(experts(x), by_hand(x), rtol=1e-5, atol=1e-5)


def test_factors_beside_the_matrices_are_applied(load):
    """NVFP4 files: one factor for all experts of a stack, or one each; the input's is not needed."""
    factors = {
        "blk.0.ffn_up_exps.scale": torch.tensor([2.0, 0.5, 3.0, 1.0, 0.25]),
        "blk.0.ffn_down_exps.scale": torch.tensor([4.0]),
        "blk.0.ffn_down_exps.input_scale": torch.ones(COUNT),
    }
    stacks = LAYOUTS["stacked"]
    scaled = stacks | {
        "blk.0.ffn_up_exps.weight": UP / factors["blk.0.ffn_up_exps.scale"][:, None, None],
        "blk.0.ffn_down_exps.weight": DOWN / 4,
    }
    weights = load(InMemory(ROUTER | scaled | factors))
    experts = Experts(weights, "blk.0", WIDTH, LENGTH, COUNT, USED)
    assert weights.unused() == []
    x = random(17, WIDTH)
    for _ in range(2):  # the second time from the cache
        torch.testing.assert_close(experts(x), by_hand(x), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights.read("blk.0.ffn_up_exps.weight"), UP)


def test_only_chosen_experts_are_read():
    checkpoint = InMemory(ROUTER | LAYOUTS["stacked"])
    experts = Experts(DecodedWeights(checkpoint, cache_bytes=0), "blk.0", WIDTH, LENGTH, COUNT, USED)
    x = random(1, WIDTH)
    chosen = (x @ ROUTER["blk.0.ffn_gate_inp.weight"].T).topk(USED).indices[0].tolist()
    experts(x)
    assert sorted(i for name, i in checkpoint.reads if name == "blk.0.ffn_up_exps.weight") == sorted(chosen)
    assert all(index is not None for name, index in checkpoint.reads if "_exps" in name)


def test_a_shared_expert_is_added_behind_its_gate(load):
    shared = {
        "blk.0.ffn_gate_inp_shexp.weight": random(WIDTH),
        "blk.0.ffn_gate_shexp.weight": random(3, WIDTH),
        "blk.0.ffn_up_shexp.weight": random(3, WIDTH) * 3,
        "blk.0.ffn_down_shexp.weight": random(WIDTH, 3),
    }
    weights = load(InMemory(ROUTER | LAYOUTS["stacked"] | shared))
    experts = Experts(weights, "blk.0", WIDTH, LENGTH, COUNT, USED, shared_length=3)
    assert weights.unused() == []
    x = random(4, WIDTH)
    gate, *matrices = shared.values()
    expected = torch.stack([(gate @ token).sigmoid() * swiglu(token, *matrices) for token in x])
    torch.testing.assert_close(experts(x), by_hand(x) + expected, rtol=1e-5, atol=1e-5)


def test_what_is_chosen_is_counted(load):
    experts = Experts(load(InMemory(ROUTER | LAYOUTS["stacked"])), "blk.0", WIDTH, LENGTH, COUNT, USED)
    x = random(17, WIDTH)
    chosen = (x @ ROUTER["blk.0.ffn_gate_inp.weight"].T).topk(USED).indices
    experts(x[:16])
    experts(x[16:])
    experts.counts.settle()
    assert torch.equal(experts.counts.total, torch.bincount(chosen.flatten(), minlength=COUNT))
