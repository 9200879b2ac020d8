"""What the monitor shows: looked at once a second while a page shows it, and never else."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, replace

from strata.engine.client import EngineError
from strata.hardware.usage import ProcessUse
from strata.serve.backend import Backend
from strata.serve.status import Experts, experts_of, report
from strata.serve.status_schemas import Status

PERIOD_S = 1.0  # between two looks
HISTORY_S = 120  # that the charts reach back
GAP_S = 5.0  # after so long without a look, the earlier ones are forgotten: charts would draw a line across


@dataclass(frozen=True, slots=True)
class Sample:
    """One look at the server.

    Args:
        at: seconds of the monotonic clock.
        status: its state.
        experts: their use; None for a model without, while the engine does not answer, and in older looks.
        engine_cores: processors that the engine kept busy since the look before; None for the first.
        machine_share: of all the machine's processors, the share that was busy, 0 to 1; None for the first.
    """

    at: float
    status: Status
    experts: Experts | None
    engine_cores: float | None = None
    machine_share: float | None = None


class Sampler:
    """Looks at one server for all pages together.

    Args:
        backend: of the server.

    Attributes:
        history: the looks of the last `HISTORY_S` seconds, the newest last.
    """

    def __init__(self, backend: Backend):
        self.backend = backend
        self.history: deque[Sample] = deque()
        self._looking = asyncio.Lock()

    async def sample(self) -> Sample:
        """The newest look, which another page may have taken less than `PERIOD_S` ago."""
        async with self._looking:
            # Pages that look at the same time share one; timers are never quite on time.
            if self.history and time.monotonic() - self.history[-1].at < 0.7 * PERIOD_S:
                return self.history[-1]
            status, experts = await report(self.backend), None
            if status.experts is not None and status.lanes_held is not None:
                try:
                    experts = await experts_of(self.backend)
                except EngineError:
                    experts = None  # it has begun a long step, or ended, between the two questions
            self._keep(Sample(time.monotonic(), status, experts))
            return self.history[-1]

    def _keep(self, sample: Sample) -> None:
        if self.history and sample.at - self.history[-1].at > GAP_S:
            self.history.clear()
        while self.history and sample.at - self.history[0].at > HISTORY_S:
            self.history.popleft()
        if self.history:
            sample = _with_loads(sample, self.history[-1])
            self.history[-1] = replace(self.history[-1], experts=None)  # 300 kB, of use no more
        self.history.append(sample)


def _with_loads(sample: Sample, before: Sample) -> Sample:
    """A look with what the processors did since the one before."""
    seconds = sample.at - before.at
    now, then = sample.status, before.status
    work = _work(now.processes.engine, then.processes.engine)
    busy = (now.machine.cpu_busy_s - then.machine.cpu_busy_s) / (seconds * now.machine.cpus)
    cores = None if work is None else work / seconds
    return replace(sample, engine_cores=cores, machine_share=min(max(busy, 0.0), 1.0))


def _work(now: ProcessUse | None, then: ProcessUse | None) -> float | None:
    """Seconds of processor time between two looks; None if it is not the same process."""
    if now is None or then is None or now.pid != then.pid:
        return None
    return now.cpu_s - then.cpu_s
