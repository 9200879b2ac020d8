"""Log-probabilities in the two shapes of the OpenAI API."""

from collections.abc import Callable, Sequence

from strata.serve.answer import TokenText

LOWEST = -9999.0  # OpenAI's stand-in for minus infinity, which JSON cannot say


class ChatLogprobs:
    """`choice.logprobs` of `/v1/chat/completions`.

    Args:
        token_text: the bytes of a token id, special ones by name.
    """

    def __init__(self, token_text: Callable[[int], bytes]):
        self._token_text = token_text
        self._content: list[dict] = []

    def add(self, tokens: Sequence[TokenText]) -> None:
        """Add the next tokens."""
        for item in tokens:
            assert item.token.logprob is not None
            top = [self._entry(*alternative) for alternative in item.token.top]
            entry = self._entry(item.token.id, item.token.logprob)
            self._content.append(entry | {"top_logprobs": top})

    def take(self) -> dict:
        """What was added since the last call."""
        content, self._content = self._content, []
        return {"content": content, "refusal": None}

    def _entry(self, token_id: int, logprob: float) -> dict:
        raw = self._token_text(token_id)
        return {"token": raw.decode(errors="replace"), "logprob": max(logprob, LOWEST), "bytes": list(raw)}


class CompletionLogprobs:
    """`choice.logprobs` of `/v1/completions`: lists side by side.

    A token that is no text by itself is written `bytes:\\xe2\\x82`, as OpenAI does.

    Args:
        token_text: the bytes of a token id, special ones by name.
    """

    def __init__(self, token_text: Callable[[int], bytes]):
        self._token_text = token_text
        self._tokens: list[TokenText] = []

    def add(self, tokens: Sequence[TokenText]) -> None:
        """Add the next tokens."""
        self._tokens += tokens

    def take(self) -> dict:
        """What was added since the last call."""
        items, self._tokens = self._tokens, []
        return {
            "tokens": [self._name(item.token.id) for item in items],
            "token_logprobs": [max(item.token.logprob or 0.0, LOWEST) for item in items],
            "top_logprobs": [self._top(item) for item in items],
            "text_offset": [item.offset for item in items],
        }

    def _top(self, item: TokenText) -> dict[str, float]:
        """The alternatives, and the token itself where it is none of them."""
        pairs = [*item.token.top, (item.token.id, item.token.logprob or 0.0)]
        return {self._name(token_id): max(logprob, LOWEST) for token_id, logprob in pairs}

    def _name(self, token_id: int) -> str:
        raw = self._token_text(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
