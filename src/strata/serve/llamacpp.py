"""The endpoints that tools for llama.cpp's server expect, as its README describes them, and `/metrics`."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import Field

from strata import __version__
from strata.errors import RequestError
from strata.formats.tokenizer import Tokenizer
from strata.serve.body import body_as
from strata.serve.chat_schemas import ChatRequest
from strata.serve.errors import as_response, envelope
from strata.serve.fields import Strict
from strata.serve.openai import backend_of
from strata.serve.schemas import UNLIMITED, CompletionRequest

MAX_TEXT = 4 << 20  # characters that are encoded in one request
# Names of llama.cpp for the defaults of ours.
_SETTINGS = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repeat_penalty": "repetition_penalty",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "ignore_eos": "ignore_eos",
}
_SLOT_ACTIONS = ("save", "restore", "erase")
router = APIRouter()


class TokenizeRequest(Strict):
    """`POST /tokenize`."""

    content: Annotated[str, Field(max_length=MAX_TEXT)]
    add_special: bool = False  # BOS, where the model wants it
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Strict):
    """`POST /detokenize`."""

    tokens: Annotated[list[Annotated[int, Field(ge=0)]], Field(max_length=MAX_TEXT)]


class TemplateRequest(ChatRequest):
    """`POST /apply-template`: a chat request, of which only the prompt is made."""

    model: str = ""


@router.post("/tokenize")
async def tokenize(
    request: Request, body: Annotated[TokenizeRequest, Depends(body_as(TokenizeRequest))]
) -> dict[str, list]:
    """Token ids of a text, with the text of each if that is asked for."""
    backend = backend_of(request)
    await backend.ready()
    tokenizer = backend.text_tokenizer("content")
    ids = await asyncio.to_thread(tokenizer.encode, body.content, special=body.parse_special)
    if body.add_special and tokenizer.add_bos and tokenizer.bos_id is not None:
        ids = [tokenizer.bos_id, *ids]
    return {"tokens": [_piece(tokenizer, i) for i in ids] if body.with_pieces else ids}


def _piece(tokenizer: Tokenizer, token_id: int) -> dict[str, Any]:
    """A token and its text; the bytes of one that is no text by itself."""
    raw = tokenizer.token_bytes(token_id, special=True)
    try:
        return {"id": token_id, "piece": raw.decode()}
    except UnicodeDecodeError:
        return {"id": token_id, "piece": list(raw)}


@router.post("/detokenize")
async def detokenize(
    request: Request, body: Annotated[DetokenizeRequest, Depends(body_as(DetokenizeRequest))]
) -> dict[str, str]:
    """The text of token ids."""
    backend = backend_of(request)
    await backend.ready()
    tokenizer = backend.text_tokenizer("tokens")
    wrong = next((i for i in body.tokens if i >= tokenizer.vocab_size), None)
    if wrong is not None:
        raise RequestError(
            f"tokens: id {wrong} is outside the vocabulary of {tokenizer.vocab_size}", "tokens"
        )
    raw = await asyncio.to_thread(tokenizer.decode_bytes, body.tokens, special=True)
    return {"content": raw.decode(errors="replace")}


@router.post("/apply-template")
async def apply_template(
    request: Request, body: Annotated[TemplateRequest, Depends(body_as(TemplateRequest))]
) -> dict[str, str]:
    """The prompt that the model's template makes of a chat request."""
    backend = backend_of(request)
    await backend.ready(body.model or None)
    return {"prompt": await backend.chat_text(body.turn())}


@router.get("/props")
async def props(request: Request) -> dict[str, Any]:
    """What the server runs, and the defaults of its requests."""
    backend = backend_of(request)
    await backend.ready()
    assert backend.engine.info is not None
    fields = CompletionRequest.model_fields
    params = {name: fields[ours].default for name, ours in _SETTINGS.items()}
    settings = {"n_ctx": backend.engine.info.context_length, "params": params | {"n_predict": UNLIMITED}}
    return {
        "default_generation_settings": settings,
        "total_slots": backend.options.lanes,
        "model_alias": backend.name,
        "model_path": backend.options.model,
        "dense": backend.engine.info.dense,
        "modalities": {"vision": False, "audio": False},
        "build_info": f"strata-{__version__}",
    } | backend.special_texts()


@router.post("/props", include_in_schema=False)
async def change_props() -> None:
    """llama.cpp changes nothing here either unless it is started so."""
    raise RequestError(
        "/props: cannot be changed; settings are given with each request", None, "not_implemented"
    )


@router.get("/slots")
async def slots(request: Request, fail_on_no_slot: bool = False) -> Any:
    """The lanes, those at work first. Requests choose none: each takes the one that suits it best."""
    backend = backend_of(request)
    await backend.ready()
    assert backend.engine.info is not None
    totals = await backend.totals()
    lanes, running = backend.options.lanes, totals.running if totals else backend.engine.num_running
    if fail_on_no_slot and running >= lanes:
        return as_response(503, envelope(503, f"all {lanes} lanes are at work"), request.url.path)
    context = backend.engine.info.context_length
    return [{"id": i, "n_ctx": context, "is_processing": i < running} for i in range(lanes)]


@router.post("/slots/{slot}", include_in_schema=False)
async def slot_action(slot: int, action: str = "") -> None:
    """Waits for session files; erasing is llama.cpp's third action on what they hold."""
    if action not in _SLOT_ACTIONS:
        raise RequestError(f"action: {action!r} is none of {', '.join(_SLOT_ACTIONS)}", "action")
    raise RequestError(
        f"action: {action!r} needs session files, which are still to come; each lane keeps the state of its "
        "last conversation by itself",
        "action",
        "not_implemented",
    )


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """What Prometheus collects; names are vLLM's where it has one."""
    backend = backend_of(request)
    text = backend.metrics.exposition(await backend.totals())
    return Response(text, media_type=None, headers={"Content-Type": CONTENT_TYPE_LATEST})
