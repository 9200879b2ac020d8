"""What a monitor asks a running server, and how it ends requests."""

import asyncio
import json
import time
from collections.abc import Iterator

import httpx
import numpy as np
import openai
import pytest
from api.conftest import SEEDS
from helpers.api_server import ApiServer

from strata.engine.client import EngineError
from strata.engine.messages import ExpertLayout, ExpertUse, ModelInfo
from strata.hardware.description import Card
from strata.options import Options
from strata.serve import status
from strata.serve.app import create_app

CHAT = {"model": "parrot", "messages": [{"role": "user", "content": "My secret."}], "seed": SEEDS["slow"]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "parrot", "prompt": "My secret.", "seed": SEEDS["slow"], "max_tokens": -1},
    "/v1/responses": {"model": "parrot", "input": "My secret.", "seed": SEEDS["slow"]},
    "/v1/messages": CHAT | {"max_tokens": 9999},
}


@pytest.fixture(scope="module")
def http(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


def under_way(http: httpx.Client) -> list[dict]:
    return http.get("/v1/requests").json()["requests"]


def until_writing(http: httpx.Client) -> dict:
    """The one request under way, once its answer has begun."""
    deadline = time.monotonic() + 20
    while not (found := [r for r in under_way(http) if r["state"] == "writing" and r["completion_tokens"]]):
        assert time.monotonic() < deadline, under_way(http)
        time.sleep(0.02)
    return found[0]


@pytest.mark.parametrize("path", BODIES)
def test_a_request_is_shown_and_cancelled(http: httpx.Client, path: str) -> None:
    """In a stream, where the error is the last event."""
    with http.stream("POST", path, json=BODIES[path] | {"stream": True}) as stream:
        lines = stream.iter_lines()
        next(lines)
        shown = until_writing(http)
        assert path.endswith(shown["protocol"].replace(" ", "/"))
        assert shown["prompt_tokens_read"] == shown["prompt_tokens"] > 0
        assert shown["age_s"] >= shown["first_token_s"] > 0
        cancelled = http.post(f"/v1/requests/{shown['id']}/cancel")
        assert cancelled.json() == {"id": shown["id"], "status": "cancelling"}
        *_, last = (line for line in lines if line.startswith("data: {"))
    assert "cancelled by who runs this server" in last
    event = json.loads(last.removeprefix("data: "))
    assert event.get("error") or event["response"]["status"] == "failed"
    assert under_way(http) == []


def test_a_client_that_does_not_stream_gets_a_status(server: ApiServer, http: httpx.Client) -> None:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=3) as client:
        background = client.responses.create(
            model="parrot", input="hi", background=True, extra_body={"seed": SEEDS["slow"]}
        )
        http.post(f"/v1/requests/{until_writing(http)['id']}/cancel")
        deadline = time.monotonic() + 20
        while (ended := client.responses.retrieve(background.id)).status in ("queued", "in_progress"):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert (ended.status, "cancelled by who runs" in ended.error.message) == ("failed", True)


def test_a_choice_that_waits_for_a_lane_is_cancelled(http: httpx.Client) -> None:
    """Two lanes, three choices; the error of one ends them all, as any error of a choice does."""
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True, "n": 3}) as stream:
        lines = stream.iter_lines()
        next(lines)
        deadline = time.monotonic() + 20
        while not (waiting := [r["id"] for r in under_way(http) if r["state"] == "queued"]):
            assert time.monotonic() < deadline
        assert http.post(f"/v1/requests/{waiting[0]}/cancel").status_code == 200
        *_, last = (line for line in lines if line.startswith("data: {"))
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "request_cancelled"


def test_nothing_of_the_text_is_shown(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}):
        until_writing(http)
        told = http.get("/v1/status").text + http.get("/v1/requests").text
    assert "request" in told and "secret" not in told


def test_what_is_not_under_way_is_named(http: httpx.Client) -> None:
    answer = http.post("/v1/requests/chatcmpl-gone/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "request_not_found")
    assert "chatcmpl-gone" in answer.json()["error"]["message"]
    answer = http.get("/v1/experts")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "no_experts")


def test_status_measures_processes_and_speed(http: httpx.Client) -> None:
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"stream": True}):
        until_writing(http)
        time.sleep(0.5)
        told = http.get("/v1/status").json()
    assert told["speed"]["tokens_per_s"] > 1
    assert told["speed"]["first_token_s"] > 0
    assert {process["rss_bytes"] > 1 << 20 for process in told["processes"].values()} == {True}
    assert [lane["busy"] for lane in told["lanes_held"]].count(True) == 1
    assert told["requests"][0]["state"] == "writing"
    assert told["running"] == 1


def ask_app(path: str, use: ExpertUse | Exception) -> httpx.Response:
    """A request to an application whose engine has two layers of three experts."""

    async def run() -> httpx.Response:
        app = create_app(Options(model="scripted:m.jsonl"))
        backend = app.state.backend
        layout = ExpertLayout([0, 2], 3, 1, "RAM")
        backend.engine.info = ModelInfo("m", "a", 5, 6, 0.5, [], 2, "none", layout)

        async def ready() -> None: ...

        async def count_experts() -> ExpertUse:
            if isinstance(use, Exception):
                raise use
            return use

        backend.ready, backend.engine.count_experts = ready, count_experts
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get(path)

    return asyncio.run(run())


def test_experts() -> None:
    total, recent = np.arange(6, dtype="<i8"), np.arange(6, dtype="<f4") / 4
    answer = ask_app("/v1/experts", ExpertUse(total.tobytes(), recent.tobytes(), 9)).json()
    assert answer == {
        "layout": {"layers": [0, 2], "experts": 3, "experts_used": 1, "tier": "RAM"},
        "half_life_tokens": 9,
        "total": [[0, 1, 2], [3, 4, 5]],
        "recent": [[0, 0.25, 0.5], [0.75, 1, 1.25]],
    }
    held = np.array([0, 1, 1, 0, 0, 1], dtype=bool)
    use = ExpertUse(total.tobytes(), recent.tobytes(), 9, held.tobytes(), 7, 2)
    assert ask_app("/v1/experts", use).json() == answer | {
        "held": [[False, True, True], [False, False, True]],
        "hits": 7,
        "misses": 2,
    }
    assert ask_app("/v1/experts", EngineError("the engine is dead")).status_code == 500
    assert ask_app("/v1/experts", TimeoutError()).json()["error"]["message"].endswith("ask again")


def test_cards_are_told_of_where_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    use = EngineError("not asked")
    assert ask_app("/v1/status", use).json()["cards"] == []
    card = Card(name="A", arch="gfx1201", vram_bytes=16 << 30, free_bytes=1, temperature_c=50.0, clock_hz=2e9)
    monkeypatch.setattr(status, "find_cards", lambda: (card,))
    assert ask_app("/v1/status", use).json()["cards"] == [
        {"name": "A", "arch": "gfx1201", "vram_bytes": 16 << 30, "free_bytes": 1, "temperature_c": 50.0}
    ]


def test_the_description_is_typed() -> None:
    description = create_app(Options(model="scripted:m.jsonl")).openapi()
    for path in ("/v1/status", "/v1/experts", "/v1/requests"):
        answer = description["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]
        name = answer["schema"]["$ref"].rpartition("/")[2]
        assert description["components"]["schemas"][name]["properties"]
