"""Looks at the server: shared between pages, and a gap between them is no line in a chart."""

import asyncio

import numpy as np
import pytest

from strata.engine.messages import ExpertLayout
from strata.hardware.usage import MachineUse, ProcessUse
from strata.serve.requests import SpeedReport
from strata.serve.status import Experts
from strata.serve.status_schemas import Processes, Status
from strata.web import sampling
from strata.web.sampling import GAP_S, HISTORY_S, PERIOD_S, Sampler


class World:
    """A server of which each look sees one more second of work, and one that is counted."""

    def __init__(self, patch: pytest.MonkeyPatch):
        self.now, self.num_looks, self.pid = 100.0, 0, 7
        patch.setattr(sampling, "report", self.report)
        patch.setattr(sampling, "experts_of", self.experts_of)
        patch.setattr(sampling.time, "monotonic", lambda: self.now)

    async def report(self, backend: object) -> Status:
        await asyncio.sleep(0)
        self.num_looks += 1
        return Status(
            version="1",
            uptime_s=1,
            status="ok",
            lanes=1,
            machine=MachineUse(2, self.now * 1.5, 8, 4),
            processes=Processes(engine=ProcessUse(self.pid, self.now % 1000 / 2, 1, 1)),
            requests=[],
            speed=SpeedReport(window_s=5, prompt_tokens_per_s=0, tokens_per_s=0),
            experts=ExpertLayout([0], 2, 1, "RAM"),
            lanes_held=[],
        )

    async def experts_of(self, backend: object) -> Experts:
        zeros = np.zeros((1, 2))
        return Experts(ExpertLayout([0], 2, 1, "RAM"), zeros, zeros, 9)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_pages_share_a_look(world: World) -> None:
    async def go() -> None:
        sampler = Sampler(None)
        first, second = await asyncio.gather(sampler.sample(), sampler.sample())
        assert first is second and world.num_looks == 1
        world.now += PERIOD_S
        assert first.experts is not None
        assert (await sampler.sample()).experts is not None
        assert [look.experts is None for look in sampler.history] == [True, False]  # older ones are not kept

    asyncio.run(go())


def test_loads_are_growth_between_looks(world: World) -> None:
    async def go() -> None:
        sampler = Sampler(None)
        first = await sampler.sample()
        assert (first.engine_cores, first.machine_share) == (None, None)
        world.now += 2
        second = await sampler.sample()
        assert (second.engine_cores, second.machine_share) == (pytest.approx(0.5), pytest.approx(0.75))
        world.now, world.pid = world.now + 1, 8  # another engine has taken its place
        assert (await sampler.sample()).engine_cores is None

    asyncio.run(go())


def test_what_is_old_is_forgotten(world: World) -> None:
    async def go() -> None:
        sampler = Sampler(None)
        for _ in range(HISTORY_S + 20):
            await sampler.sample()
            world.now += 1
        assert len(sampler.history) == HISTORY_S + 1
        world.now += GAP_S  # no page was open
        await sampler.sample()
        assert len(sampler.history) == 1

    asyncio.run(go())
