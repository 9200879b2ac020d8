"""What `bench/freetoken_child.py` asks of FreeToken, a stub here, and what it makes of the answers."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch

IDS = torch.arange(8 * 3 * 2, dtype=torch.int32).view(8, 3, 2)  # [positions, layers, used]
SLOW, QUICK = 1.0, 0.25  # seconds of a token: before the cache has settled, and then


class Clock:
    now = 0.0

    def perf_counter(self) -> float:
        return self.now


class Cache:
    def __init__(self, slots: int):
        self.slots, self.collect_stats, self.resets = slots, False, 0

    def reset_stats(self) -> None:
        self.resets += 1

    def decode_miss_stats(self) -> dict[str, float]:
        assert self.collect_stats
        return {"miss_rate": 0.25}


class LLM:
    """Answers a prompt with one token in two seconds, and further ones as `SLOW` and `QUICK` say."""

    clock = Clock()
    made: Callable[[object], None]

    def __init__(self, **config: object):
        self.config, self.prompts, self.rebuilt = config, [], []
        self.made(self)
        self.engine = SimpleNamespace(moe_offload_cache=Cache(config["moe_cache_size"]))

    def rebuild_cache(self, moe_cache_size: int) -> None:
        self.rebuilt.append((moe_cache_size, self.engine.moe_offload_cache.collect_stats))

    def offline_send_result(self, reply: list[object]) -> None:
        pass

    def generate(self, prompts: list[list[int]], params: SimpleNamespace) -> None:
        self.prompts += prompts
        for token in range(params.max_tokens):
            self.clock.now += 2.0 if token == 0 else SLOW if token < 4 else QUICK
            self.offline_send_result([Message()])


class Message:
    pass


class OffloadMoELayer:
    def __init__(self, layer_id: int):
        self.layer_id = layer_id

    def _decode_routed(self, hidden: object, weights: object, ids: torch.Tensor) -> list[list[int]]:
        used = ids.tolist()
        ids.fill_(-1)  # as the engine writes slots there
        return used

    _prefill_routed = _decode_routed


@pytest.fixture
def child(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script, imported beside stubs of what it takes from FreeToken."""
    banks = SimpleNamespace(_dummy_fill=lambda role, tensor: tensor.fill_(1))
    parts = {
        "core": {"SamplingParams": SimpleNamespace, "get_global_ctx": lambda: context},
        "layers.moe": {"OffloadMoELayer": type("OffloadMoELayer", (OffloadMoELayer,), {})},
        "llm": {"LLM": LLM},
        "message": {"DetokenizeMsg": Message},
        "mm.config": {"ENCODER_KINDS": ("vision",), "MultimodalConfig": SimpleNamespace},
        "moe": {"expert_banks": banks},
    }  # fmt: skip
    for name, contents in parts.items():
        module = ModuleType(f"freetoken.{name}")
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, f"freetoken.{name}", module)
    for name in ("freetoken", "freetoken.layers", "freetoken.mm"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.delitem(sys.modules, "freetoken_child", raising=False)
    import freetoken_child

    monkeypatch.setattr(freetoken_child, "time", LLM.clock)
    yield freetoken_child
    sys.modules.pop("freetoken_child", None)


context = SimpleNamespace(batch=SimpleNamespace(positions=torch.tensor([5], dtype=torch.int32)))


def test_layers_use_the_traces_experts_by_position(child, monkeypatch):
    child.Routes(IDS.clone()).force()
    layers = [child.OffloadMoELayer(layer) for layer in range(3)]
    chosen = torch.zeros(1, 2, dtype=torch.int32)
    for _ in range(2):  # what the engine writes into them does not stay
        assert [layer._decode_routed(0, 0, chosen) for layer in layers] == IDS[5:6].transpose(0, 1).tolist()
    monkeypatch.setattr(context.batch, "positions", torch.arange(4, dtype=torch.int32))
    prompt = [layer._prefill_routed(0, 0, torch.zeros(4, 2, dtype=torch.int32)) for layer in layers]
    assert prompt == IDS[:4].transpose(0, 1).tolist()


def test_banks_of_codes_are_filled_with_pieces_and_others_as_ever(child, monkeypatch):
    monkeypatch.setattr(child, "PIECE", 1000)
    fill = child.fill_with_pieces(child.expert_banks._dummy_fill)
    codes, scales = torch.zeros(3, 700, dtype=torch.uint8), torch.zeros(8, dtype=torch.uint8)
    fill("gate_up", codes)
    fill("gate_up_scale", scales)
    assert torch.equal(codes.view(-1)[:1000], codes.view(-1)[1000:2000])
    assert len(codes.view(-1)[2000:].unique()) > 50
    assert scales.tolist() == [1] * 8


# Only `hybrid` takes time to count hits, and so has runs for that.
REBUILT = {"offload": [(9, True), (7, True)], "hybrid": [(9, False), (9, True), (7, False), (7, True)]}


@pytest.mark.parametrize("strategy", REBUILT)
def test_a_run_measures_each_number_of_slots(child, monkeypatch, tmp_path: Path, strategy: str):
    ended = []
    monkeypatch.setattr(child.os, "_exit", ended.append)
    np.save(tmp_path / "routes.npy", IDS.numpy().astype(np.int16))
    request = {
        "model": "folder", "routes": str(tmp_path / "routes.npy"), "strategy": strategy, "context": 64,
        "experts": 4, "vocab": 1000, "prompts": [8, 16], "tokens": 12, "settled": 4, "slots": [9, 7],
    }  # fmt: skip
    (tmp_path / "request.json").write_text(json.dumps(request))
    monkeypatch.setattr(sys, "argv", ["", str(tmp_path / "request.json"), str(tmp_path / "results.jsonl")])
    made = []
    monkeypatch.setattr(LLM, "made", made.append, raising=False)
    child.main()
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert ended == [0] and [result["slots"] for result in results] == [9, 7]
    assert results[0]["prompt_16"] == 16 / 2.0
    assert results[0]["decode_8"] == 1 / QUICK, "tokens before the cache has settled were counted"
    assert results[1]["hit_rate"] == 0.75
    (llm,) = made
    assert llm.rebuilt == REBUILT[strategy]
    assert llm.config["moe_prefill_overlap"] and llm.config["moe_strategy"] == strategy
    assert len({tuple(prompt) for prompt in llm.prompts}) == len(llm.prompts), "a prompt was kept"
