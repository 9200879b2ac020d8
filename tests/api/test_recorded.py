"""Requests that agents sent to this server, and what they need of the answers.

Recorded from Claude Code 2.1.197, Codex CLI 0.171.0 and opencode 1.18.33, each of which did a task with a
scripted model: read and edited a file, met a command that failed, started another agent. Their texts are cut
out: "(306 characters)" and "…" stand for them. Ids, dates and folders are changed, most tools left out.
"""

import json
from pathlib import Path

import httpx
import openai
import pytest
from api.conftest import SEEDS
from api.test_anthropic import events_of
from api.test_responses import checked_events
from helpers.api_server import ApiServer

DATA = Path(__file__).parents[1] / "data" / "requests"
CLAUDE_HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,mid-conversation-system-2026-04-07,effort-2025-11-24",
    "authorization": "Bearer none",
}


def recorded(name: str, line: str) -> dict:
    """A recorded request, which gets a line of the script."""
    body = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    return body | {"seed": SEEDS[line]}


def post_to_messages(server: ApiServer, body: dict) -> list[dict]:
    url = f"{server.url}/v1/messages?beta=true"  # CASES #55
    answer = httpx.post(url, json=body, headers=CLAUDE_HEADERS, trust_env=False, timeout=60)
    assert answer.status_code == 200, answer.text
    return events_of(answer.text)


def test_claude_code_goes_on_with_its_work(server: ApiServer) -> None:
    body = recorded("claude_code", "rest of thinking")
    frames = post_to_messages(server, body)
    starts = [frame["content_block"]["type"] for frame in frames if frame["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    ends = [frame["delta"]["stop_reason"] for frame in frames if frame["type"] == "message_delta"]
    assert ends == ["tool_use"]
    assert httpx.head(server.url, trust_env=False).status_code == 200  # its first question
    count = {name: body[name] for name in ("model", "messages", "system", "tools", "thinking")}
    url = f"{server.url}/v1/messages/count_tokens?beta=true"
    counted = httpx.post(url, json=count, headers=CLAUDE_HEADERS, trust_env=False).json()
    assert counted == {"input_tokens": frames[0]["message"]["usage"]["input_tokens"]}


def test_claude_code_gets_a_title(server: ApiServer) -> None:
    """CASES #278: what it asks beside its work is answered at once, and in the form that it wants."""
    frames = post_to_messages(server, recorded("claude_code_title", "hello"))
    deltas = [frame["delta"] for frame in frames if frame["type"] == "content_block_delta"]
    assert {delta["type"] for delta in deltas} == {"text_delta"}
    assert json.loads("".join(delta["text"] for delta in deltas)).keys() == {"title"}


def test_claude_code_reads_a_picture(server: ApiServer) -> None:
    """The model is told that it cannot see it, and the session goes on."""
    body = recorded("claude_code", "hello")
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}}
    body["messages"][-1]["content"][0]["content"] = [picture]
    assert post_to_messages(server, body)[-1]["type"] == "message_stop"


def test_codex_goes_on_with_its_work(server: ApiServer) -> None:
    """Namespaces, a custom tool, sealed thinking, a hosted tool."""
    body = recorded("codex", "rest of thinking")
    events = checked_events(server, body)
    assert events[-1]["type"] == "response.completed"
    output = events[-1]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call"]
    assert output[0]["summary"][0]["text"] == "I look."
    assert output[0]["encrypted_content"].startswith("strata:")
    # And what it sends next, with the answer in its history.
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw=="}
    result = {"type": "function_call_output", "call_id": output[2]["call_id"], "output": [picture]}
    again = checked_events(server, body | {"input": [*body["input"], *output, result]})
    sizes = [run[-1]["response"]["usage"]["input_tokens"] for run in (events, again)]
    assert sizes[1] > sizes[0]


def test_codex_shortens_its_history(server: ApiServer) -> None:
    """It asks for a summary without tools; providers other than OpenAI get no compaction endpoint."""
    events = checked_events(server, recorded("codex_compact", "thinking"))
    assert events[-1]["response"]["output"][-1]["content"][0]["text"]


@pytest.mark.parametrize(("line", "reason"), [("two calls", "tool_calls"), ("hello", "stop")])
def test_opencode_goes_on_with_its_work(client: openai.OpenAI, line: str, reason: str) -> None:
    body = recorded("opencode", line)
    seed = {"seed": body.pop("seed")}
    chunks = list(client.chat.completions.create(**body, extra_body=seed))
    reasons = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert reasons == [reason]
    assert chunks[-1].usage.prompt_tokens > 0
