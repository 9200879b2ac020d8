"""One answer: tokens in, pieces of text out, each with the log-probabilities of its tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.engine.messages import Token
from strata.serve.reasoning import ReasoningSplitter, Split
from strata.serve.textstream import TextStream


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token of the answer with its log-probabilities, and where it begins in the answer's text."""

    token: Token
    offset: int  # in characters


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be sent now. The tokens are those whose text, as far as it is shown, has been sent with it."""

    content: str = ""
    reasoning: str = ""
    tokens: Sequence[TokenText] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.reasoning or self.tokens)


class Answer:
    """Turns the tokens of one request into pieces.

    Tokens are reported with the text that they make: they wait while it is withheld, those of thinking are
    left out, and so are those that lie wholly in a stop string.

    Args:
        token_bytes: the bytes of a token id.
        stops: the stop strings.
        splitter: divides thinking from the answer; None where all text is answer.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        stops: Sequence[str],
        splitter: ReasoningSplitter | None = None,
    ):
        self._text = TextStream(token_bytes, stops)
        self._splitter = splitter
        self._num_released = 0  # characters out of `_text`
        self._waiting: list[tuple[Token, int]] = []  # with the character that each begins
        self._num_tokens = 0

    @property
    def stopped(self) -> bool:
        """A stop string has ended the answer."""
        return self._text.stopped is not None

    @property
    def num_tokens(self) -> int:
        """Tokens taken, up to the one that ended a stop string."""
        return self._num_tokens

    def take(self, tokens: Sequence[Token]) -> Piece:
        """Add tokens; those after a stop string are left out."""
        released = ""
        for token in tokens:
            if self.stopped:
                break
            self._num_tokens += 1
            if token.logprob is not None:
                self._waiting.append((token, self._num_released + self._text.held))
            text = self._text.push(token.id)
            self._num_released += len(text)
            released += text
        split = self._splitter.push(released) if self._splitter else Split(content=released)
        return self._piece(split, final=False)

    def finish(self) -> Piece:
        """What was withheld, once no token will follow."""
        text = self._text.finish()
        self._num_released += len(text)
        if self._splitter is None:
            return self._piece(Split(content=text), final=True)
        last, rest = self._splitter.push(text), self._splitter.finish()
        return self._piece(Split(last.reasoning + rest.reasoning, last.content + rest.content), final=True)

    def _piece(self, split: Split, final: bool) -> Piece:
        start, sent = 0, self._num_released
        if self._splitter:
            start, sent = self._splitter.content_start, self._splitter.content_end
        tokens = []
        for token, begin, end in self._settled(sent, final):
            thought = start is None or (end is not None and end <= start)
            if not thought:
                tokens.append(TokenText(token, max(begin - start, 0)))
        return Piece(split.content, split.reasoning, tokens)

    def _settled(self, sent: int, final: bool) -> list[tuple[Token, int, int | None]]:
        """Take the waiting tokens whose text ends before character `sent`, each with its begin and end.

        A token that makes no character of its own, as the first bytes of one, ends with that character, which
        a later token completes; at the end of the answer there may be none.
        """
        settled, ends, end = [], [], None
        following = self._num_released + self._text.held
        for _, begin in reversed(self._waiting):
            if following > begin:
                end = following
            elif end is not None:
                end = begin + 1
            ends.append(end)
            following = begin
        num_settled = 0
        for (token, begin), end in zip(self._waiting, reversed(ends), strict=True):
            if self.stopped and end is not None:
                end = min(end, self._num_released)
            if not final and (end is None or end > sent):
                break
            num_settled += 1
            if not (self.stopped and begin >= self._num_released):  # else it lies in the stop string
                settled.append((token, begin, end))
        del self._waiting[:num_settled]
        return settled
