"""What the page *Chat* says of an answer under way."""

from types import SimpleNamespace

import pytest

from strata.engine.messages import LoadProgress
from strata.serve.requests import RequestReport
from strata.web.message import progress_text
from strata.web.thread import welcome_text


def run(state: str = "ready", num_running: int = 1, report: RequestReport | None = None) -> SimpleNamespace:
    """An answer that was asked for three seconds ago, on a server with two lanes."""
    progress = LoadProgress(1, 4, "weights") if state == "loading" else None
    engine = SimpleNamespace(state=state, progress=progress, num_running=num_running)
    backend = SimpleNamespace(engine=engine, is_loaded=True, options=SimpleNamespace(lanes=2))
    return SimpleNamespace(backend=backend, report=report, waited_s=3.2)


def report(state: str, **fields: object) -> RequestReport:
    numbers = {"prompt_tokens": 2000, "prompt_tokens_read": 512, "completion_tokens": 0, "age_s": 1.0}
    return RequestReport(id="web-1", protocol="web app", state=state, **numbers | fields)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (run(), "making the prompt, 3 s"),
        (run(num_running=2, report=report("queued")), "waiting for the engine, 3 s"),
        (
            run(num_running=3, report=report("queued", queued_before=0)),
            "waiting for other requests, next in line, 3 s",
        ),
        (
            run(num_running=5, report=report("queued", queued_before=2)),
            "waiting for other requests, 2 before it, 3 s",
        ),
        (run(report=report("reading")), "reading the prompt: 512 of 2,000 tokens"),
        (run(report=report("writing", completion_tokens=7, tokens_per_s=4.2)), "7 tokens at 4.2/s, 3 s"),
    ],
)
def test_progress(answer: SimpleNamespace, text: str) -> None:
    assert progress_text(answer) == text


def test_an_engine_that_is_started_again_is_told_of() -> None:
    """After a crash requests are queued until the model is back."""
    again = run("loading", num_running=3, report=report("queued"))
    assert progress_text(again) == "loading the model: weights, 3 s"


def test_a_new_conversation_tells_the_server_s_state() -> None:
    assert welcome_text({"status": "ok"}) == "What would you like to know?"
    assert welcome_text({"status": "loading"}) == "loading the model"
    dead = {"status": "dead", "reason": "the engine process was ended by SIGABRT"}
    assert welcome_text(dead) == "the model cannot be asked now: the engine process was ended by SIGABRT"
    dead["note"] = "the next request starts it again"
    assert welcome_text(dead) == f"the engine process was ended by SIGABRT; {dead['note']}"
