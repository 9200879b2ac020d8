"""The scripted model, `scripted:FILE.jsonl`: recites prepared answers to test servers and agents with.

Each line of the file is the JSON list of what one request gets, item by item:

- a string, or a list of byte values (0 to 255): one token of these bytes; a token that spells a special
  token, such as "</think>", is that token;
- `{"sleep": seconds}`: the next token comes that much later;
- `{"crash": true}`: the engine process aborts.

After its last item a line gives the end-of-turn token. A request's seed, when given, picks the line
(modulo their number); requests without one take the lines in order, the first again after the last.
A request that goes on from an answer that was broken off goes on with its line: so an answer is one line also
where the server divides it, as a thinking budget does. What the server has written itself, a "</think>" and
the white space behind it, is not said again.
Under a grammar the model says what it may of its line, byte by byte where it must; where its next byte is not
allowed, the rest of the line is left out, and it says what soon brings the grammar to its end.
Every token has log-probability 0 and is its own only alternative. Chat template and special tokens are
Qwen's.
"""

import itertools
import os
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from strata.engine.grammar import TokenMask
from strata.engine.messages import SamplingParams, Token
from strata.engine.prefix import common_prefix
from strata.errors import ModelFileError
from strata.formats.pretokenizers import PreTokenizer, byte_letters, byte_level_bpe
from strata.formats.tokenizer import Tokenizer
from strata.formats.vocabulary import AddedToken, TokenType, Vocabulary

PREFIX = "scripted:"
CONTEXT_LENGTH = 262_144
_ITEMS = 'write a string, a list of byte values, {"sleep": seconds} or {"crash": true}'
MAX_BEGUN = 32  # answers that may be gone on from
PROMPT_PART = 256  # tokens of a prompt that are read at a time, about as a model would
POLL_S = 0.005  # how long a sleeping lane may keep the others waiting

CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
)
CLOSE = b"</think>"
_CLOSERS = (b'"}]', b'}]"', b'\n"}]')  # what ends a string, JSON, or a value between tags
USER_DEFINED = ("<think>", "</think>", "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Crash:
    pass


Item = bytes | Sleep | Crash


class ScriptedVocabulary(Tokenizer):
    """Ids 0 to 255 are bytes, then come Qwen's special tokens, then the script's pieces.

    Prompts become bytes and special tokens only.
    """

    def __init__(self, pieces: Iterable[bytes]):
        letters = byte_letters()
        special = [*CONTROL, *USER_DEFINED]
        known = {bytes([i]) for i in range(256)} | {text.encode() for text in special}
        new = [piece for piece in dict.fromkeys(pieces) if piece not in known]
        tokens = [letters[i] for i in range(256)] + special
        self._ids = {bytes([i]): i for i in range(256)} | {t.encode(): 256 + i for i, t in enumerate(special)}
        self._ids |= {piece: len(tokens) + i for i, piece in enumerate(new)}
        letters_only = byte_level_bpe({letters[i]: i for i in range(256)}, [], PreTokenizer(None))
        types = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] * len(CONTROL)
        types += [TokenType.USER_DEFINED] * len(USER_DEFINED) + [TokenType.NORMAL] * len(new)
        super().__init__(
            Vocabulary(
                source="script",
                tokens=tokens + ["".join(letters[byte] for byte in piece) for piece in new],
                types=types,
                model=letters_only,
                byte_level=True,
                added=[AddedToken(text, self.id_of(text.encode()), text in CONTROL) for text in special],
                eos_id=self.id_of(b"<|im_end|>"),
                eot_id=self.id_of(b"<|im_end|>"),
                pad_id=self.id_of(b"<|endoftext|>"),
                chat_template=files("strata.data").joinpath("scripted.jinja").read_text("utf-8"),
            )
        )

    def id_of(self, piece: bytes) -> int:
        """The id of a piece of the script, a byte or a special token."""
        return self._ids[piece]


@dataclass(slots=True, eq=False)
class Recital:
    """A line on its way.

    Args:
        tokens: the prompt, as far as it is read, and what was said.
        prompt_size: tokens of the prompt.
        line: its items, or what an earlier recital left of them.
        number: which line that is.
        begins: of each item that has been said, how many tokens there were before it.
        ended: the end-of-turn token was said.
    """

    tokens: list[int]
    prompt_size: int
    line: list[Item]
    number: int = 0
    begins: list[int] = field(default_factory=list)
    ended: bool = False

    @property
    def item(self) -> Item | None:
        """What comes next; None at the line's end."""
        said = len(self.begins)
        return self.line[said] if said < len(self.line) else None

    def pass_on(self) -> None:
        """The item is being said."""
        self.begins.append(len(self.tokens))


class Script:
    """A script's lines, and which of them comes next."""

    def __init__(self, path: Path, lines: list[list[Item]]):
        self.path = path
        self.lines = lines
        items = itertools.chain.from_iterable(lines)
        self.vocabulary = ScriptedVocabulary(item for item in items if isinstance(item, bytes))
        self._in_order = itertools.cycle(range(len(lines)))
        self._begun: deque[Recital] = deque(maxlen=MAX_BEGUN)

    def recital(self, prompt: list[int], seed: int | None, tokens: list[int]) -> Recital:
        """The line for a request: that of the answer from which it goes on, else one from its beginning.

        Args:
            prompt: token ids.
            seed: of the request.
            tokens: those of the prompt that are read; the lane adds to them.
        """
        picked = None if seed is None else seed % len(self.lines)
        begun = (one for one in reversed(self._begun) if picked in (None, one.number))
        earlier = next((one for one in begun if self._written(one, prompt)), None)
        if earlier is None:
            number = next(self._in_order) if picked is None else picked
            line = self.lines[number]
        else:
            number = earlier.number
            self._begun.remove(earlier)
            line = self._rest_of(earlier, prompt)
        recital = Recital(tokens, len(prompt), line, number)
        self._begun.append(recital)
        return recital

    def _written(self, earlier: Recital, prompt: list[int]) -> list[int]:
        """What the server has added to an answer that was broken off; nothing if the prompt is another's."""
        common = common_prefix(earlier.tokens, prompt)
        written = prompt[common:] if common > earlier.prompt_size else []
        turn, close = self.vocabulary.id_of(b"<|im_start|>"), self.vocabulary.id_of(CLOSE)
        return [] if turn in written or (earlier.ended and close not in written) else written

    def _rest_of(self, earlier: Recital, prompt: list[int]) -> list[Item]:
        """What is left of a line where the server went on; what it did not wait for is said again."""
        line = earlier.line[bisect_left(earlier.begins, common_prefix(earlier.tokens, prompt)) :]
        if self.vocabulary.id_of(CLOSE) in self._written(earlier, prompt) and CLOSE in line:
            line = line[line.index(CLOSE) + 1 :]
        return list(itertools.dropwhile(lambda item: isinstance(item, bytes) and not item.strip(), line))

    def new_lane(self) -> "ScriptedLane":
        return ScriptedLane(self)


class ScriptedLane:
    """A lane (see `engine/lane.py`) that recites; it "reads" and reuses prompts as a model would."""

    def __init__(self, script: Script):
        self.script = script
        self.tokens: list[int] = []  # of the last prompt and answer
        self._prompt: list[int] = []
        self._recital = Recital(self.tokens, 0, [])
        self._wake: float | None = None  # when the item that sleeps is over
        self._logprobs: int | None = None
        self._mask: TokenMask | None = None
        self._rest = b""  # of a piece that is said byte by byte
        self._lost = False  # the line leads on no more

    def match(self, prompt: list[int]) -> int:
        return min(common_prefix(self.tokens, prompt), len(prompt) - 1)

    def begin(self, prompt: list[int], sampling: SamplingParams, mask: TokenMask | None = None) -> int:
        self._prompt = prompt
        self.tokens = prompt[: self.match(prompt)]
        self._recital = self.script.recital(prompt, sampling.seed, self.tokens)
        self._wake, self._logprobs = None, sampling.logprobs
        self._mask, self._rest, self._lost = mask, b"", False
        return len(self.tokens)

    def prefill(self) -> int:
        start = len(self.tokens)
        self.tokens += self._prompt[start : start + PROMPT_PART]
        return len(self.tokens)

    def prepare(self) -> None:
        """Nothing to prepare."""

    def decode(self) -> list[Token]:
        if self._rest:
            byte, self._rest = self._rest[0], self._rest[1:]
            return [self._say(byte)]
        item = None if self._lost else self._recital.item
        match item:
            case Sleep(seconds) if self._wake is None:
                self._wake = time.monotonic() + seconds
                return []
            case Sleep():
                if (left := self._wake - time.monotonic()) > 0:
                    time.sleep(min(left, POLL_S))
                else:
                    self._wake = None
                    self._recital.pass_on()
                return []
            case Crash():
                os.abort()
            case None:
                self._recital.ended = True
                token_id = self.script.vocabulary.eos_id
            case piece:
                self._recital.pass_on()
                token_id = self.script.vocabulary.id_of(piece)
        return [self._say(token_id)]

    def _say(self, token_id: int) -> Token:
        if self._mask is not None:
            token_id = self._masked(self._mask, token_id)
        self.tokens.append(token_id)
        if self._logprobs is None:
            return Token(token_id)
        return Token(token_id, 0.0, [(token_id, 0.0)][: self._logprobs])

    def _masked(self, mask: TokenMask, token_id: int) -> int:
        """The token to say instead of one that may not be allowed."""
        allowed = mask.allowed()
        if allowed is not None and not allowed[token_id]:
            piece = self.script.vocabulary.token_bytes(token_id)
            if not piece or not allowed[piece[0]]:
                self._lost, self._rest = True, b""
                token_id = _ending(allowed, mask.end_id, len(self.tokens))
            else:
                token_id, self._rest = piece[0], piece[1:]
        mask.accept(token_id)
        return token_id

    def reset(self) -> None:
        self.tokens = []

    def holds(self) -> tuple[int, int, int]:
        return len(self.tokens), 0, 0


def _ending(allowed: np.ndarray, end_id: int, position: int) -> int:
    """An allowed token that leads to the end: that itself, else what closes something, else the first."""
    for token_id in (end_id, *_CLOSERS[position % len(_CLOSERS)]):
        if allowed[token_id]:
            return token_id
    ids = np.flatnonzero(allowed)
    visible = ids[ids > ord(" ")]
    return int(visible[0] if len(visible) else ids[0])


def load_script(model: str) -> Script:
    """Read the script that `model`, `scripted:FILE.jsonl`, names.

    Raises:
        ModelFileError: the file is missing, empty, or has a wrong line; names the line and the item.
    """
    path = Path(model.removeprefix(PREFIX)).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path}: cannot be read: {error}") from error
    lines = []
    for number, raw in enumerate(text.split("\n"), 1):
        if raw.strip():
            where = f"{path}:{number}"
            try:
                items = msgspec.json.decode(raw)
            except msgspec.DecodeError as error:
                raise ModelFileError(f"{where}: is not JSON: {error}") from error
            if not isinstance(items, list):
                raise ModelFileError(f"{where}: is not a list of tokens")
            lines.append([_item(item, f"{where}: item {i}") for i, item in enumerate(items, 1)])
    if not lines:
        raise ModelFileError(f"{path}: holds no line; a script has one JSON list of tokens per line")
    return Script(path, lines)


def _item(item: Any, where: str) -> Item:
    match item:
        case "" | []:
            raise ModelFileError(f"{where}: a token without bytes")
        case str():
            return item.encode()
        case list():
            for byte in item:
                if type(byte) is not int or not 0 <= byte <= 255:
                    raise ModelFileError(f"{where}: {byte!r} is not a byte value, 0 to 255")
            return bytes(item)
        case {"sleep": float() | int() as seconds} if len(item) == 1 and seconds >= 0:
            return Sleep(float(seconds))
        case {"crash": True} if len(item) == 1:
            return Crash()
    raise ModelFileError(f"{where}: {item!r} is no token; {_ITEMS}")
