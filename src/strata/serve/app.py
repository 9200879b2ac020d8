"""The web application: endpoints, guard and errors around one backend."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from strata import __version__
from strata.options import Options
from strata.serve import anthropic, errors, llamacpp, openai, responses, status
from strata.serve.backend import Backend
from strata.serve.cors import CorsApp
from strata.serve.guard import Guard, check_exposure, has_key
from strata.serve.keys import read_keys
from strata.serve.openapi import document
from strata.serve.responses_store import ResponseStore

ENDPOINTS = {
    "GET /health": "state of the engine",
    "GET /openapi.json": "what each endpoint takes and answers",
    "GET /v1/models": "the model served",
    "POST /v1/chat/completions": "OpenAI chat completions, streaming or not",
    "POST /v1/completions": "OpenAI completions, streaming or not",
    "POST /v1/responses": "OpenAI responses, streaming or not",
    "GET /v1/responses/ID": "one that is kept; DELETE forgets it, POST .../cancel ends its work",
    "POST /v1/messages": "Anthropic messages, streaming or not",
    "POST /v1/messages/count_tokens": "the tokens of their prompt",
    "GET /v1/status": "state of the engine and the server",
    "GET /v1/experts": "how often each expert was chosen",
    "GET /v1/requests": "those under way; POST .../ID/cancel ends one",
    "GET /metrics": "for Prometheus",
    "GET /props": "the model and the defaults of requests",
    "GET /slots": "the lanes",
    "POST /tokenize": "text to token ids",
    "POST /detokenize": "token ids to text",
    "POST /apply-template": "the prompt of a chat request",
}


def create_app(settings: Options) -> CorsApp:
    """The application that serves one model; its start begins to load, its shutdown ends the engine.

    Args:
        settings: those of `strata serve`, with the model as a path or `scripted:FILE`.

    Raises:
        StrataError: the address lets other machines in and there is no key, or keys cannot be read.
    """
    check_exposure(settings)
    keys = read_keys(settings)
    backend = Backend(settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        backend.start()
        try:
            yield
        finally:
            await backend.stop()

    # No pages of documentation: they would load scripts from elsewhere.
    app = CorsApp(
        title="Strata",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.openapi = lambda: document(app)
    app.settings = settings
    app.state.backend = backend
    app.state.keys = keys
    app.state.responses = ResponseStore()
    app.state.before_stop = []  # awaited when the server stops, while its connections still last
    for protocol in (openai, responses, anthropic, llamacpp, status):
        app.include_router(protocol.router)
    app.add_middleware(Guard, options=settings, keys=keys)
    errors.install(app)

    @app.head("/", include_in_schema=False)
    @app.get("/")
    async def index() -> dict:
        """What there is."""
        return {"name": "Strata", "version": __version__, "endpoints": ENDPOINTS}

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(request: Request) -> JSONResponse:
        """200 if requests are answered now, else 503; details only for who has the key."""
        state = await backend.health()
        status = 200 if state["status"] == "ok" else 503
        if not has_key(request.headers, keys):
            state = {"status": state["status"]}
        return JSONResponse(state, status)

    return app
