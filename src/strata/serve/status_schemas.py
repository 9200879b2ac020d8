"""What `/v1/status`, `/v1/experts` and `/v1/requests` answer."""

from typing import Literal

from pydantic import BaseModel

from strata.choices import Dense
from strata.engine.messages import ExpertLayout, LaneUse, MemoryPart
from strata.hardware.usage import MachineUse, ProcessUse
from strata.serve.requests import RequestReport, SpeedReport


class Processes(BaseModel):
    """The two processes; one that has ended is left out."""

    server: ProcessUse | None = None
    engine: ProcessUse | None = None


class CardReport(BaseModel):
    """A graphics card of the machine, as `hardware/description.py` describes it; what it does not tell is
    left out."""

    name: str
    arch: str
    vram_bytes: int
    free_bytes: int
    pcie_generation: int | None = None
    pcie_width: int | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    link_load: float | None = None  # bytes per second that reach it


class Status(BaseModel):
    """The state of the server.

    What is only known of a loaded model is left out before, and what only the engine can tell (the counts
    from `running` on, and `lanes_held`) while it is busy with one long step.
    """

    version: str
    uptime_s: int
    status: Literal["ok", "loading", "dead"]
    reason: str | None = None  # why it is dead
    note: str | None = None
    progress: str | None = None  # of loading
    lanes: int  # requests that can be answered at the same time
    machine: MachineUse
    cards: list[CardReport] = []
    processes: Processes
    requests: list[RequestReport]
    speed: SpeedReport
    model: str | None = None
    architecture: str | None = None
    context_length: int | None = None
    load_s: float | None = None
    threads: int | None = None
    kernels: str | None = None
    dense: Dense | None = None
    memory: list[MemoryPart] | None = None
    experts: ExpertLayout | None = None  # left out for a dense model
    running: int | None = None
    queued: int | None = None
    finished: int | None = None
    cancelled: int | None = None
    failed: int | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    lanes_held: list[LaneUse] | None = None


class ExpertsReport(BaseModel):
    """Where the experts are and how often each was chosen, since the model was loaded and lately.

    `total[i][e]` is the count of expert `e` of layer `layout.layers[i]`. In `recent` a choice weighs half
    after `half_life_tokens` tokens. `held` says which experts a card has in its own memory, `hits` and
    `misses` how many experts the steps of answers found there and did not; they are left out without a card.
    """

    layout: ExpertLayout
    half_life_tokens: int
    total: list[list[int]]
    recent: list[list[float]]
    held: list[list[bool]] | None = None
    hits: int | None = None
    misses: int | None = None


class RequestList(BaseModel):
    """The requests under way, in the order of their arrival."""

    requests: list[RequestReport]


class RequestCancelling(BaseModel):
    """A request that is being ended: its client gets an error with the code `request_cancelled`."""

    id: str
    status: Literal["cancelling"] = "cancelling"
