"""What a card's memory is given to, with drivers that lie or refuse."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip("triton")

from strata.card import loading
from strata.card.cache import ExpertCache
from strata.card.store import ExpertStore
from strata.hardware.description import Card, Cpu, Hardware, Ram
from tests.card.fakes import FakeCard

RECORDS, EXPERTS = [512, 512, 256], 8
TOTAL = EXPERTS * sum(RECORDS)
HARDWARE = Hardware(
    cpu=Cpu(name="c", cores=8, isa="avx2", memory_bandwidth=40e9),
    ram=Ram(total_bytes=64 << 30, available_bytes=60 << 30),
    cards=(
        Card(
            name="a",
            arch="sm_89",
            vram_bytes=16 << 30,
            free_bytes=15 << 30,
            bandwidth=500e9,
            link_bandwidth=25e9,
            zero_copy_bandwidth=24e9,
            pci_address="0000:0b:00.0",
        ),
    ),
)


class Small(FakeCard):
    """A card that has less than its driver says."""

    def __init__(self, has: int):
        super().__init__()
        self._has = has

    def empty(self, num_bytes: int) -> torch.Tensor:
        if num_bytes > self._has:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return super().empty(num_bytes)


def allocate(monkeypatch: pytest.MonkeyPatch, budget: int, free: int, reserve: int, has: int) -> ExpertCache:
    card = Small(has)
    store = ExpertStore(card, RECORDS, EXPERTS)
    for layer in range(len(RECORDS)):
        store.fill(layer)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda number: (free, 1 << 40))
    cache = ExpertCache(card, store, np.arange(24, dtype=np.float32))
    loading._allocate(cache, budget, 0, reserve)
    return cache


@pytest.mark.parametrize(
    "budget, free, reserve, has, slots",
    [
        (TOTAL, TOTAL + 1000, 1000, TOTAL, 24),  # all
        (TOTAL, TOTAL // 2 + 1000, 1000, TOTAL, 12),  # another program came
        (TOTAL, 500, 1000, TOTAL, 0),  # and took more than the reserve
        (TOTAL, 1 << 30, 0, TOTAL // 2, 12),  # a driver that promises too much
        (TOTAL, 1 << 30, 0, 0, 0),
        (300, 1 << 30, 0, TOTAL, 0),  # less than a slot of each size
        (0, 1 << 30, 0, TOTAL, 0),
    ],
)
def test_slots_take_what_there_is(monkeypatch, budget: int, free: int, reserve: int, has: int, slots: int):
    cache = allocate(monkeypatch, budget, free, reserve, has)
    assert cache.num_bytes <= min(budget, max(0, free - reserve), has)
    assert slots - 2 <= len(cache.residency.slot_size) <= slots
    held = cache.residency.held
    assert held.sum() == (24 if slots == 24 else max(0, len(cache.residency.slot_size) - 2))
    assert held[-1] == (slots > 0), "the most used first"
    cache.refresh()
    cache.launched()
    cache.adapt(np.ones(24), 4)


def model(expert_bytes: tuple[int, ...]) -> SimpleNamespace:
    return SimpleNamespace(expert_bytes=expert_bytes, experts_used=10)


@pytest.mark.parametrize("share, want", [(0.0, 0), (0.5, 80), (1.0, 160)])
def test_a_share_that_is_asked_for_is_the_processors(share: float, want: int):
    take = loading._take(HARDWARE, model((1 << 20,)), share, all_held=True)
    assert (take[0], take[160], len(take)) == (0, want, 161)


@pytest.mark.parametrize("expert_bytes, all_held", [((), False), ((1 << 20,), True)])
def test_where_nothing_is_missed_the_processor_has_no_share(expert_bytes: tuple[int, ...], all_held: bool):
    assert loading._take(HARDWARE, model(expert_bytes), None, all_held) is None


def test_costs_give_the_processor_a_share_that_grows(monkeypatch):
    def num_taken(rows, costs):
        """The processor takes two thirds as long as the link."""
        taken = np.arange(len(rows) + 1)
        return int(np.argmin(np.maximum(2 * taken, 3 * (len(rows) - taken))))

    monkeypatch.setattr(loading, "window_costs", lambda *_: None)
    monkeypatch.setattr(loading, "num_taken", num_taken)
    take = loading._take(HARDWARE, model((1 << 20,)), None, all_held=False)
    assert take[:6] == [0, 1, 1, 2, 2, 3] and all(np.diff(take) >= 0)


class Driver:
    """`torch.cuda` with cards at these PCI buses; of some, what is free is asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, buses: list[int], arch: str = ""):
        self.asked: list[int] = []
        for name, value in {
            "is_available": lambda: bool(buses),
            "device_count": lambda: len(buses),
            "mem_get_info": self.free,
            "get_device_properties": self.properties,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
        self._buses, self._arch = buses, arch

    def free(self, number: int) -> tuple[int, int]:
        self.asked.append(number)
        return 20 << 30, 24 << 30

    def properties(self, number: int) -> SimpleNamespace:
        amd = {"gcnArchName": self._arch} if self._arch else {}
        return SimpleNamespace(
            name="unknown", major=9, minor=0, total_memory=24 << 30, pci_domain_id=0,
            pci_bus_id=self._buses[number], pci_device_id=0, **amd,
        )  # fmt: skip


def test_the_freest_card_is_found_by_its_place(monkeypatch):
    driver = Driver(monkeypatch, [0x0C, 0x0B], "gfx1201:sramecc-")
    number, card = loading.find_card(HARDWARE)
    assert (number, card.name, card.arch, card.free_bytes) == (0, "unknown", "gfx1201", 20 << 30)
    assert driver.asked == [0], "to ask PyTorch takes memory of the card that is asked about"
    assert loading.find_card(HARDWARE, 1) == (1, HARDWARE.cards[0])
    assert loading.find_card(HARDWARE, 2) is None


def test_cards_that_no_driver_describes(monkeypatch):
    Driver(monkeypatch, [1])
    assert loading.find_card(HARDWARE)[1].arch == "sm_90"
    Driver(monkeypatch, [])
    assert loading.find_card(HARDWARE) is None
