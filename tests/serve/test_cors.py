"""Cross-origin requests: off by default, and on every answer where they are allowed."""

import asyncio
from collections.abc import AsyncGenerator

import httpx
import pytest
from pydantic import ValidationError
from serve.test_app import HELLO, send

from strata.options import Options
from strata.serve.app import create_app
from strata.serve.sse import EventStream

SITE = "https://site.example"
PREFLIGHT = {
    "Origin": SITE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization, content-type",
}
ALLOWED = {"cors_origins": f"http://localhost:3000, {SITE}", "api_key": "key"}
ALLOW = "access-control-allow-origin"


def test_off_by_default() -> None:
    preflight = send("OPTIONS", "/v1/chat/completions", headers=PREFLIGHT)
    assert preflight.status_code == 403
    assert ALLOW not in preflight.headers
    assert ALLOW not in send("GET", "/", headers={"Origin": SITE}).headers


def test_preflight_comes_before_the_key() -> None:
    answer = send("OPTIONS", "/v1/messages", app_options=ALLOWED, headers=PREFLIGHT)
    assert (answer.status_code, answer.headers[ALLOW]) == (200, SITE)
    assert "authorization" in answer.headers["access-control-allow-headers"]
    local = send(
        "OPTIONS",
        "/v1/models",
        app_options=ALLOWED,
        headers=PREFLIGHT | {"Access-Control-Request-Private-Network": "true"},
    )
    assert local.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {}, 200),
        ("GET", "/v1/models", {}, 401),
        ("GET", "/nowhere", {"X-Api-Key": "key"}, 404),
        ("POST", "/v1/embeddings", {"X-Api-Key": "key"}, 501),
        ("POST", "/v1/chat/completions", {"X-Api-Key": "key", "Content-Type": "text/plain"}, 415),
    ],
)
def test_headers_are_on_errors_too(method: str, path: str, headers: dict, status: int) -> None:
    """CASES 64: without them a page cannot even read what was wrong."""
    answer = send(method, path, app_options=ALLOWED, headers=headers | {"Origin": SITE})
    assert (answer.status_code, answer.headers[ALLOW]) == (status, SITE)
    assert answer.headers["access-control-expose-headers"] == "*"


def test_headers_are_on_unexpected_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(self: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr("strata.serve.backend.Backend.ready", fails)
    headers = {"X-Api-Key": "key", "Origin": SITE}
    answer = send("POST", "/v1/chat/completions", app_options=ALLOWED, headers=headers, json=HELLO)
    assert (answer.status_code, answer.headers[ALLOW]) == (500, SITE)


def test_headers_are_on_streams() -> None:
    async def events() -> AsyncGenerator[bytes, None]:
        yield b"data: 1\n\n"

    app = create_app(Options(model="scripted:m.jsonl", cors_origins=SITE))
    app.add_api_route("/stream", lambda: EventStream(None, events()))

    async def run() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/stream", headers={"Origin": SITE})

    answer = asyncio.run(run())
    assert answer.headers[ALLOW] == SITE
    assert answer.text.endswith("data: 1\n\n")


def test_other_sites_are_not_let_in() -> None:
    other = {"Origin": "https://other.example"}
    assert ALLOW not in send("GET", "/", app_options=ALLOWED, headers=other).headers
    assert send("OPTIONS", "/", app_options=ALLOWED, headers=PREFLIGHT | other).status_code == 400
    everyone = {"cors_origins": "*"}
    assert send("GET", "/", app_options=everyone, headers=other).headers[ALLOW] == "*"


@pytest.mark.parametrize("origins", ["", "site.example", "https://a.example/", "*, https://a.example"])
def test_what_is_no_origin_is_refused(origins: str) -> None:
    with pytest.raises(ValidationError):
        Options(cors_origins=origins)
