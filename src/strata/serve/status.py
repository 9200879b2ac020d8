"""What a monitor needs; and by name what waits for a part of Strata that is still to come."""

import asyncio
import time
from dataclasses import dataclass

import msgspec
import numpy as np
from fastapi import APIRouter, Request, Response

from strata import __version__
from strata.engine.client import EngineError
from strata.engine.messages import ExpertLayout, MemoryPart, ModelInfo, Pong
from strata.errors import RequestError
from strata.hardware.cards import find_cards
from strata.hardware.usage import machine_use, process_use
from strata.serve.backend import PING_S, Backend
from strata.serve.openai import backend_of
from strata.serve.status_schemas import (
    CardReport,
    ExpertsReport,
    Processes,
    RequestCancelling,
    RequestList,
    Status,
)

_NOT_SERVED = {
    "load": "loading another model into a running server is still to come; start the server with it",
    "unload": "unloading the model of a running server is still to come; stop the server",
    "vram": "changing the share of the graphics card in a running server is still to come",
    "embeddings": "models that make embeddings are not served; those served here write text",
}
router = APIRouter(prefix="/v1")


async def report(backend: Backend) -> Status:
    """The state of a server and its machine, now."""
    state = backend.state()
    pong = await backend.pong() if state["status"] == "ok" else None
    info = backend.engine.info if state["status"] == "ok" else None
    told = {} if pong is None else msgspec.structs.asdict(pong.totals) | {"lanes_held": pong.lanes}
    known = {} if info is None else {"experts": info.experts, "memory": _memory(info, pong)}
    cards = await asyncio.to_thread(find_cards)  # drivers may take their time
    return Status(
        version=__version__,
        uptime_s=round(time.time() - backend.created),
        lanes=backend.options.lanes,
        machine=machine_use(),
        cards=[CardReport(**msgspec.structs.asdict(card)) for card in cards],
        processes=Processes(server=process_use(), engine=process_use(backend.engine.pid)),
        requests=backend.requests.reports(),
        speed=backend.requests.speed(),
        **(state | told | known),
    )


def _memory(info: ModelInfo, pong: Pong | None) -> list[MemoryPart]:
    """What the model takes, and what lanes hold if the engine told it."""
    lanes = [] if pong is None else pong.lanes
    held = {
        "conversations": sum(lane.state_bytes for lane in lanes),
        "checkpoints": sum(lane.checkpoint_bytes for lane in lanes),
    }
    return info.memory + [MemoryPart(purpose, "RAM", size) for purpose, size in held.items() if size]


@dataclass(frozen=True, slots=True)
class Experts:
    """The experts of a model.

    Args:
        layout: where they are.
        total: int64 `[layers, experts]`, how often each was chosen since the model was loaded.
        recent: float32 `[layers, experts]`, a choice weighs half after `half_life_tokens` tokens.
        half_life_tokens: of `recent`.
        held: bool `[layers, experts]`, those in a card's own memory; None without a card.
        hits, misses: experts that decode steps asked for, those that were there and those that were not.
    """

    layout: ExpertLayout
    total: np.ndarray
    recent: np.ndarray
    half_life_tokens: int
    held: np.ndarray | None = None
    hits: int = 0
    misses: int = 0


async def experts_of(backend: Backend) -> Experts:
    """The experts as they are used now.

    Raises:
        RequestError: the model has no experts.
        EngineError: the engine is not ready, or does not answer in time.
    """
    layout = backend.engine.info.experts if backend.engine.info else None
    if layout is None:
        raise RequestError(f"the model {backend.name} has no experts", None, "no_experts")
    try:
        use = await asyncio.wait_for(backend.engine.count_experts(), PING_S)
    except TimeoutError as error:
        raise EngineError("the engine is busy with one long step; ask again") from error
    shape = len(layout.layers), layout.experts
    total, recent = np.frombuffer(use.total, "<i8"), np.frombuffer(use.recent, "<f4")
    held = np.frombuffer(use.held, bool).reshape(shape) if use.held else None
    counts = total.reshape(shape), recent.reshape(shape)
    return Experts(layout, *counts, use.half_life_tokens, held, use.hits, use.misses)


@router.get("/status", response_model_exclude_none=True)
async def status(request: Request) -> Status:
    """The state of the server, of its engine and of the machine."""
    return await report(backend_of(request))


@router.get("/experts", response_model=ExpertsReport)
async def experts(request: Request) -> Response:
    """Where the experts are and how often each was chosen."""
    backend = backend_of(request)
    await backend.ready()
    known = await experts_of(backend)
    fields = {
        "layout": known.layout,
        "half_life_tokens": known.half_life_tokens,
        "total": known.total.tolist(),
        "recent": known.recent.tolist(),
    }
    if known.held is not None:
        fields |= {"held": known.held.tolist(), "hits": known.hits, "misses": known.misses}
    # Not through pydantic, which takes ten times as long for the 50 thousand numbers of a large model.
    return Response(msgspec.json.encode(fields), media_type="application/json")


@router.get("/requests", response_model_exclude_none=True)
async def requests(request: Request) -> RequestList:
    """The requests under way."""
    return RequestList(requests=backend_of(request).requests.reports())


# Safe from pages of other sites though it has no body: ids cannot be guessed, nor read by such a page.
@router.post("/requests/{id}/cancel")
async def cancel(request: Request, id: str) -> RequestCancelling:
    """End a request under way; its client gets an error that says so."""
    await backend_of(request).cancel(id)
    return RequestCancelling(id=id)


async def _not_served(request: Request) -> None:
    path = request.url.path
    reason = _NOT_SERVED[path.rpartition("/")[2]]
    raise RequestError(f"{path}: {reason}", None, "not_implemented")


for _name in _NOT_SERVED:
    router.add_api_route(f"/{_name}", _not_served, methods=["GET", "POST"], include_in_schema=False)
