"""`/v1/status`, and by name what waits for a part of Strata that is still to come."""

import time
from typing import Any

from fastapi import APIRouter, Request

from strata import __version__
from strata.errors import RequestError
from strata.serve.openai import backend_of

_WAITING = {
    "load": "another model cannot be loaded yet; start the server with it",
    "unload": "the model cannot be unloaded yet; stop the server",
    "vram": "the share of the graphics card cannot be changed yet",
    "embeddings": "the models served here write text, and none makes embeddings",
}
router = APIRouter(prefix="/v1")


@router.get("/status")
async def status(request: Request) -> dict[str, Any]:
    """The engine's state and counts, and how the server is set."""
    backend = backend_of(request)
    head = {"version": __version__, "uptime_s": round(time.time() - backend.created)}
    return head | {"lanes": backend.options.lanes} | await backend.health()


async def _not_served(request: Request) -> None:
    path = request.url.path
    reason = _WAITING[path.rpartition("/")[2]]
    raise RequestError(f"{path}: {reason}", None, "not_implemented")


for _name in _WAITING:
    router.add_api_route(f"/{_name}", _not_served, methods=["GET", "POST"])
