"""llama.cpp's endpoints, metrics and status of a running server."""

from collections.abc import Iterator

import httpx
import openai
import pytest
from api.conftest import SEEDS
from helpers.api_server import ApiServer
from prometheus_client.parser import text_string_to_metric_families

ASK = [{"role": "user", "content": "Say it."}]


@pytest.fixture(scope="module")
def http(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        yield client


def test_tokens_go_there_and_back(http: httpx.Client) -> None:
    ids = http.post("/tokenize", json={"content": "ß<|im_end|>"}).json()["tokens"]
    assert len(ids) == 3
    assert http.post("/detokenize", json={"tokens": ids}).json() == {"content": "ß<|im_end|>"}
    plain = http.post("/tokenize", json={"content": "<|im_end|>", "parse_special": False}).json()["tokens"]
    assert len(plain) == len("<|im_end|>")
    pieces = http.post("/tokenize", json={"content": "aß", "with_pieces": True}).json()["tokens"]
    assert [piece["piece"] for piece in pieces] == ["a", [0xC3], [0x9F]]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/tokenize", {"content": 5}, "content: "),
        ("/tokenize", {"content": "a", "text": "a"}, "text: unknown field"),
        ("/detokenize", {"tokens": [1 << 40]}, "outside the vocabulary"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]: "),
        ("/apply-template", {"messages": []}, "messages: "),
        ("/slots/first?action=save", {}, "slot: "),
        ("/slots/0?action=fly", {}, "none of save, restore, erase"),
    ],
)
def test_bad_requests_are_refused(http: httpx.Client, path: str, body: dict, words: str) -> None:
    answer = http.post(path, json=body)
    assert answer.status_code == 400
    assert words in answer.json()["error"]["message"]


def test_prompt_of_a_chat_request(http: httpx.Client) -> None:
    prompt = http.post("/apply-template", json={"messages": ASK}).json()["prompt"]
    assert "<|im_start|>user\nSay it.<|im_end|>" in prompt
    ids = http.post("/tokenize", json={"content": prompt}).json()["tokens"]
    chat = {"model": "parrot", "messages": ASK, "seed": SEEDS["hello"]}
    assert http.post("/v1/chat/completions", json=chat).json()["usage"]["prompt_tokens"] == len(ids)


def test_props_and_slots(http: httpx.Client) -> None:
    props = http.get("/props").json()
    assert (props["model_alias"], props["total_slots"]) == ("parrot", 2)
    assert props["default_generation_settings"]["params"]["temperature"] == 1.0
    assert props["dense"] == "as_stored"
    assert props["eos_token"] == "<|im_end|>"
    assert "<|im_start|>" in props["chat_template"]
    slots = http.get("/slots").json()
    assert [slot["id"] for slot in slots] == [0, 1]
    assert {slot["n_ctx"] for slot in slots} == {props["default_generation_settings"]["n_ctx"]}


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/slots/0?action=save", "'save' needs session files, which are still to come"),
        ("/slots/1?action=restore", "'restore' needs session files"),
        ("/slots/1?action=erase", "'erase' needs session files"),
        ("/props", "settings are given with each request"),
        ("/v1/load", "/v1/load: loading another model into a running server is still to come"),
        ("/v1/unload", "/v1/unload: unloading the model of a running server is still to come"),
        (
            "/v1/vram",
            "/v1/vram: changing the share of the graphics card in a running server is still to come",
        ),
        ("/v1/embeddings", "models that make embeddings are not served"),
    ],
)
def test_what_is_still_to_come_says_so(http: httpx.Client, path: str, words: str) -> None:
    answer = http.post(path, json={"filename": "a.bin"})
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (501, "not_implemented")
    assert error["type"] == "not_supported_error"
    assert words in error["message"]
    assert answer.headers["x-should-retry"] == "false"


def samples(http: httpx.Client) -> dict[str, float]:
    answer = http.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    found = {}
    for sample in (sample for family in families for sample in family.samples):
        assert sample.labels["model_name"] == "parrot"
        labels = {"finished_reason", "le"} & sample.labels.keys()
        found[sample.name + "".join(f" {sample.labels[name]}" for name in labels)] = sample.value
    return found


def test_metrics_count_a_request(http: httpx.Client, client: openai.OpenAI) -> None:
    chat = {"model": "parrot", "messages": [{"role": "user", "content": "Count."}], "seed": SEEDS["hello"]}
    client.chat.completions.create(**chat)
    before = samples(http)
    usage = client.chat.completions.create(**chat).usage
    after = samples(http)
    grown = {name: value - before.get(name, 0) for name, value in after.items()}
    assert grown["vllm:request_success_total stop"] == 1
    assert grown["vllm:prompt_tokens_total"] == usage.prompt_tokens
    assert grown["vllm:prefix_cache_hits_total"] == usage.prompt_tokens_details.cached_tokens > 0
    assert grown["vllm:e2e_request_latency_seconds_count"] == 1
    assert grown["vllm:request_generation_tokens_sum"] == usage.completion_tokens
    assert after["vllm:num_requests_running"] == 0


def test_answers_are_timed(client: openai.OpenAI) -> None:
    fields = {"model": "parrot", "messages": ASK, "seed": SEEDS["hello"]}
    whole = client.chat.completions.create(**fields)
    *earlier, last = client.chat.completions.create(**fields, stream=True)
    assert not any(hasattr(chunk, "timings") for chunk in earlier)
    for answer in (whole, last):
        times = answer.timings
        assert times["predicted_n"] == whole.usage.completion_tokens
        assert times["cache_n"] + times["prompt_n"] == whole.usage.prompt_tokens
        assert times["predicted_ms"] >= 0 and times["prompt_per_second"] > 0
    assert not hasattr(client.chat.completions.create(**fields, n=2), "timings")


def test_status_and_health(http: httpx.Client) -> None:
    status = http.get("/v1/status").json()
    assert (status["status"], status["model"], status["lanes"]) == ("ok", "parrot", 2)
    assert status["uptime_s"] >= 0
    head = http.head("/health")
    assert (head.status_code, head.content) == (200, b"")
