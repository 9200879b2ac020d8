"""One answer: tokens in, deltas out, each with the log-probabilities of its tokens."""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from strata.engine.messages import Token
from strata.serve.deltas import Delta, Reason, joined
from strata.serve.loops import LoopGuard
from strata.serve.router import Router


@dataclass(frozen=True, slots=True)
class TokenText:
    """A token of the answer's content with its log-probabilities, and where it begins in the content."""

    token: Token
    offset: int  # in characters


@dataclass(frozen=True, slots=True)
class Piece:
    """What may be sent now. The tokens are those whose text, as far as it is shown, has been sent with it."""

    deltas: Sequence[Delta] = ()
    tokens: Sequence[TokenText] = ()

    def __bool__(self) -> bool:
        return bool(self.deltas or self.tokens)


class Answer:
    """Turns the tokens of one request into pieces.

    Bytes that are not UTF-8 become U+FFFD, never an error. Tokens are reported with the text that they make:
    they wait while it is withheld, and only those that have a part in the content are reported.

    Args:
        token_bytes: the bytes of a token id.
        router: divides the text.
        think_ids: the tokens that open and close a think block, if they are such.
        guard: watches for loops; None for no guard.
        everywhere: it watches the whole answer, not the thinking alone.

    Attributes:
        ids: the tokens taken, up to the one that ended the answer.
        num_thinking: those of them that are thinking.
        looped: the guard has found a loop.
    """

    def __init__(
        self,
        token_bytes: Callable[[int], bytes],
        router: Router,
        think_ids: tuple[int | None, int | None] = (None, None),
        guard: LoopGuard | None = None,
        everywhere: bool = False,
    ):
        self.router = router
        self.ids: list[int] = []
        self.num_thinking = 0
        self._everywhere = everywhere
        self.looped = False
        self._token_bytes, self._guard = token_bytes, guard
        self._open_id, self._close_id = think_ids
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_characters = 0
        self._waiting: list[tuple[Token, int]] = []  # with the character that each begins

    @property
    def stopped(self) -> bool:
        """The answer is over, whatever the model goes on to write."""
        return self.router.done

    @property
    def num_tokens(self) -> int:
        """Tokens taken."""
        return len(self.ids)

    def take(self, tokens: Sequence[Token]) -> Piece:
        """Add tokens; those after the answer's end, or after a loop was found, are left out."""
        deltas: list[Delta] = []
        for token in tokens:
            if self.stopped or self.looped:
                break
            deltas += self._take(token)
        return Piece(joined(deltas), self._settled(self.stopped))

    def inject(self, ids: Sequence[int]) -> list[Delta]:
        """Add tokens that the server wrote into the answer; the guard begins anew behind them."""
        self.looped = False
        deltas = [delta for token_id in ids for delta in self._take(Token(token_id))]
        if self._guard is not None:
            self._guard.reset()
        return joined(deltas)

    def finish(self, reason: Reason) -> Piece:
        """What was withheld, once no token will follow."""
        deltas = self.router.push(self._decode(b"", final=True))
        deltas += self.router.finish(reason)
        return Piece(joined(deltas), self._settled(final=True))

    def _take(self, token: Token) -> list[Delta]:
        self.ids.append(token.id)
        if token.logprob is not None:
            self._waiting.append((token, self._num_characters))
        text = self._decode(self._token_bytes(token.id))
        deltas = self.router.push(text, token.id == self._open_id, token.id == self._close_id)
        self.num_thinking += self.router.thinking
        if self._guard is not None and (self.router.thinking or self._everywhere):
            self.looped = self._guard.push(token.id)
        return deltas

    def _decode(self, raw: bytes, final: bool = False) -> str:
        text = self._decoder.decode(raw, final)
        self._num_characters += len(text)
        return text

    def _settled(self, final: bool) -> list[TokenText]:
        """Take the waiting tokens of which all is known; those with a part in the content are returned.

        A token that makes no character of its own, as the first bytes of one, stands for the character that
        a later token completes; at the end of the answer there may be none.
        """
        if not self._waiting:
            return []
        settled = self._num_characters if final else self.router.settled
        ends = [begin for _, begin in self._waiting[1:]] + [self._num_characters]
        num_settled, reported = 0, []
        for (token, begin), following in zip(self._waiting, ends, strict=True):
            end = max(following, begin + 1)
            if end > settled and not final:
                break
            num_settled += 1
            if self._in_content(begin, end):
                reported.append(TokenText(token, self._offset(begin)))
        del self._waiting[:num_settled]
        return reported

    def _in_content(self, begin: int, end: int) -> bool:
        content = self.router.content
        if begin == self._num_characters:  # bytes without a character, behind everything
            return not self.stopped and bool(content) and content[-1][1] == begin
        return any(start < end and begin < stop for start, stop in content)

    def _offset(self, begin: int) -> int:
        return sum(min(stop, begin) - start for start, stop in self.router.content if start < begin)
