"""Text completions, models, and errors through the official client."""

import openai
import pytest
from api.conftest import SEEDS
from helpers.api_server import ApiServer


def complete(client: openai.OpenAI, line: str, prompt: object = "Once", **fields):
    return client.completions.create(model="parrot", prompt=prompt, seed=SEEDS[line], **fields)


@pytest.mark.parametrize("prompt", ["Once", [79, 110, 99, 101], [[79, 110, 99, 101]], ["Once"]])
def test_prompt_forms(client: openai.OpenAI, prompt: object) -> None:
    answer = complete(client, "thinking", prompt)
    assert answer.choices[0].text == "<think>\nLet me see.\n</think>\n\nIt is 4."
    assert answer.usage.prompt_tokens == 4
    assert "".join(c.choices[0].text for c in complete(client, "thinking", prompt, stream=True)) == (
        answer.choices[0].text
    )


def test_several_prompts_are_several_choices(client: openai.OpenAI) -> None:
    answer = complete(client, "hello", ["a", "bc", "def"])
    assert [(c.index, c.text) for c in answer.choices] == [(i, "Hello, world!") for i in range(3)]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 15)
    texts = ["", "", ""]
    for chunk in complete(client, "hello", ["a", "bc", "def"], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == ["Hello, world!"] * 3


def test_logprobs_shape(client: openai.OpenAI) -> None:
    """CASES 78, 80, 81: the endpoint's own shape, 0 is valid, and streams have them too."""
    whole = complete(client, "unicode", logprobs=0).choices[0].logprobs
    assert whole.tokens[:2] == ["bytes:\\xe2", "bytes:\\x82\\xac\\xf0"]
    assert whole.tokens[-1] == "ß"
    assert whole.text_offset[-1] == len("€👩‍👧")
    assert set(whole.token_logprobs) == {0.0}
    assert whole.top_logprobs[-1] == {"ß": 0.0}
    streamed = [c.choices[0].logprobs for c in complete(client, "unicode", logprobs=1, stream=True)]
    assert [token for part in streamed if part for token in part.tokens] == whole.tokens
    assert [offset for part in streamed if part for offset in part.text_offset] == whole.text_offset


def test_lines_in_order_without_seed(client: openai.OpenAI) -> None:
    texts = {
        client.completions.create(model="parrot", prompt="x", max_tokens=1).choices[0].text for _ in "ab"
    }
    assert len(texts) == 2


def test_models(client: openai.OpenAI, server: ApiServer) -> None:
    """CASES 297: the aliases are listed and accepted."""
    (model,) = client.models.list().data
    assert model.id == "parrot"
    alias = f"scripted:{server.script}"
    assert alias in model.aliases
    assert client.models.retrieve(alias).id == "parrot"
    answer = client.completions.create(model=alias, prompt="x", seed=SEEDS["hello"])
    assert (answer.model, answer.choices[0].text) == ("parrot", "Hello, world!")


def test_unknown_model(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="'gpt-9' is not served here; served: parrot") as caught:
        client.completions.create(model="gpt-9", prompt="x")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-9")


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_a_prompt(client: openai.OpenAI, stream: bool) -> None:
    """CASES 84, 85, 86: 400 with both numbers, streaming or not."""
    with pytest.raises(openai.BadRequestError, match=r"262144 tokens.*262144 tokens") as caught:
        list(complete(client, "hello", "x" * 262144, stream=stream))
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "prompt")
    assert caught.value.type == "exceed_context_size_error"


def test_of_a_huge_prompt_only_the_beginning_is_read(client: openai.OpenAI) -> None:
    """CASES FT 87: refused with both numbers, long before all of it is encoded."""
    message = "more than 4194304 tokens, and the context of 262144 tokens"
    with pytest.raises(openai.BadRequestError, match=f"prompt: the prompt has {message}") as caught:
        complete(client, "hello", "x" * 20_000_000)
    assert caught.value.code == "context_length_exceeded"


def test_of_a_huge_message_only_the_beginning_is_read(client: openai.OpenAI) -> None:
    """Before the template renders it, which has a bound of its own that says nothing of tokens."""
    messages = [{"role": "user", "content": "x" * 10_000_000}]
    message = "messages: the prompt has more than 4194304 tokens, and the context of 262144 tokens"
    with pytest.raises(openai.BadRequestError, match=message) as caught:
        client.chat.completions.create(model=client.models.list().data[0].id, messages=messages)
    assert caught.value.code == "context_length_exceeded"


def test_ids_outside_the_vocabulary(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(client, "hello", [99999])
    assert caught.value.body["message"].startswith("prompt: token id 99999 is outside the vocabulary")
    with pytest.raises(openai.BadRequestError, match="logit_bias: token id 99999 is outside") as caught:
        complete(client, "hello", logit_bias={"99999": 1})
    assert caught.value.param == "logit_bias"


@pytest.mark.parametrize(
    ("variables", "field", "words"),
    [
        # A template that calls what is no function: one of the many ways in which one may fail.
        ({"namespace": 5}, "messages", "chat template refuses this"),
        ({"messages": []}, "chat_template_kwargs", "'messages' is not a variable"),
    ],
)
def test_template_errors_are_the_clients(
    client: openai.OpenAI, variables: dict, field: str, words: str
) -> None:
    """CASES 26, 365."""
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        client.chat.completions.create(
            model="parrot",
            messages=[{"role": "user", "content": "x"}],
            extra_body={"chat_template_kwargs": variables},
        )
    assert caught.value.param == field
