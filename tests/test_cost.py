"""Costs of missed experts beside what an H200 measured."""

import numpy as np
import pytest

from strata.cost import HIGH, rates_of, window_costs
from strata.experts.split import finish_times
from strata.formats.description import ModelDescription
from strata.formats.geometry import GEOMETRIES
from strata.hardware.description import Card, Cpu, Hardware, Ram

GIB = 1 << 30
FLASH = ModelDescription.of_release(GEOMETRIES["qwen3.8-flash-next"], "iq3_xxs")


@pytest.mark.parametrize(("misses", "measured"), [(0, 19.9e-6), (1, 56e-6), (2, 90e-6), (4, 159e-6)])
def test_a_layer_that_fetches_takes_what_an_h200_did(misses: int, measured: float):
    card = Card(
        name="", arch="sm_90", vram_bytes=141 * GIB, free_bytes=141 * GIB, bandwidth=2.77e12,
        link_bandwidth=55e9, zero_copy_bandwidth=51e9,
    )  # fmt: skip
    cpu = Cpu(name="", cores=16, isa="amx", memory_bandwidth=79e9)
    ram = Ram(total_bytes=128 * GIB, available_bytes=128 * GIB)
    rates = rates_of(Hardware(cpu=cpu, ram=ram, cards=(card,)), card, HIGH)
    costs = window_costs(FLASH, rates, FLASH.experts_used - misses)
    times = finish_times(np.ones(misses), costs)
    assert times[0] == pytest.approx(measured, rel=0.06)
    assert (times.argmin() > 0) == (misses > 0)  # the processor works beside the held experts
