"""Conversations: what the model is asked, and what the browser keeps."""

import json

import pytest

from strata.errors import RequestError, StrataError
from strata.serve.chat_schemas import ChatRequest
from strata.web.conversation import TITLE_LENGTH, Call, Conversation, Entry, dump, load
from strata.web.runs import checked
from strata.web.settings import SETTINGS, describe, parse, shown

TOOL = {"type": "function", "function": {"name": "f"}}


def test_request_tells_the_conversation_and_the_settings() -> None:
    conversation = Conversation(settings={"system": "Be brief.", "temperature": 0.5, "stop": ["x"]})
    conversation.say("Weather?")
    call = Call("call-1", "weather", '{"city": "Köln"}', "rain")
    conversation.entries.append(Entry("assistant", "I look.", thinking="Hm.", calls=[call]))
    request = checked(conversation.request("m"))
    assert (request.temperature, request.stop) == (0.5, ["x"])
    assert [message.role for message in request.messages] == ["system", "user", "assistant", "tool"]
    assert request.messages[2].reasoning_content == "Hm."
    assert request.messages[2].tool_calls[0].function.arguments == '{"city": "Köln"}'
    assert (request.messages[3].tool_call_id, request.messages[3].content) == ("call-1", "rain")


def test_an_answer_that_failed_is_not_told() -> None:
    conversation = Conversation()
    conversation.say("Hello")
    conversation.entries.append(Entry("assistant", error="broken"))
    conversation.say("Are you there?")
    assert conversation.request("m")["messages"] == [{"role": "user", "content": "Hello\n\nAre you there?"}]


def test_calls_of_an_answer_that_was_broken_off_are_not_told() -> None:
    calls = [Call("1", "weather", '{"city": "Köln"}', "rain"), Call("2", "weather", '{"ci')]
    entry = Entry("assistant", "I look.", calls=calls, ending="stopped")
    message, result = entry.messages()
    assert [call["id"] for call in message["tool_calls"]] == ["1"] and result["content"] == "rain"
    assert "tool_calls" not in Entry("assistant", "I look.", calls=calls[1:], ending="stopped").messages()[0]
    assert Entry("assistant", calls=calls[1:], ending="length").messages() == []


def test_an_answer_without_an_end_is_told_from_others() -> None:
    assert Entry("assistant", "so far").is_unfinished
    assert not Entry("assistant", "so far", ending="stopped").is_unfinished
    assert not Entry("assistant", error="broken").is_unfinished
    assert not Entry("user", "x").is_unfinished


def test_first_words_are_the_title() -> None:
    conversation = Conversation()
    conversation.say("  How\nare you? " + "x" * 100)
    assert conversation.title.startswith("How are you? xxx")
    assert len(conversation.title) == TITLE_LENGTH
    conversation.say("Later")
    assert conversation.title.startswith("How are you?")


def test_what_the_browser_keeps_comes_back() -> None:
    conversation = Conversation(settings={"seed": 2**63 - 1})
    conversation.say("👩‍👧 \x00 \u2028 </script>")
    assert load(dump(conversation)) == conversation


@pytest.mark.parametrize("text", ["", "[]", '{"entries": 1}', '{"entries": [{"role": "system"}]}'])
def test_what_is_no_conversation_is_refused(text: str) -> None:
    with pytest.raises(StrataError, match="cannot be read"):
        load(text)


def test_settings_are_checked_as_the_api_does() -> None:
    with pytest.raises(RequestError, match="temperature"):
        checked(Conversation(settings={"temperature": "hot"}, entries=[Entry("user", "x")]).request("m"))


def test_every_setting_is_a_field_of_requests_with_its_range_and_default() -> None:
    names = {setting.name for setting in SETTINGS} - {"system"}
    assert names <= ChatRequest.model_fields.keys()
    texts = {setting.name: describe(setting) for setting in SETTINGS}
    assert "0 to 100; default 1.0" in texts["temperature"]
    assert "default no limit" in texts["max_tokens"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("temperature", " 0.5 ", 0.5),
        ("top_k", "40", 40),
        ("seed", "", None),
        ("stop", "a\n\nb c\n", ["a", "b c"]),
        ("logit_bias", '{"42": -100}', {"42": -100}),
        ("system", " x ", "x"),
    ],
)
def test_values_are_read_and_written(name: str, text: str, value: object) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    assert parse(setting, text) == value
    assert parse(setting, shown(setting, value)) == value


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("temperature", "hot", "valid number"),
        ("temperature", "-1", "greater than or equal to 0"),
        ("top_k", "1.5", "valid integer"),
        ("logit_bias", '{"a": 1}', "'a' is not a token id"),
        ("logit_bias", "{", "not JSON"),
        ("tools", '[{"type": "function"}]', "function: is missing"),
        ("tools", json.dumps([TOOL, TOOL]), "^two functions are named 'f'$"),
        ("tools", "[" * 100_000, "not JSON"),
        ("temperature", "nan", "less than or equal to 100"),
    ],
)
def test_wrong_values_are_explained(name: str, text: str, complaint: str) -> None:
    setting = next(setting for setting in SETTINGS if setting.name == name)
    with pytest.raises(ValueError, match=complaint):
        parse(setting, text)
