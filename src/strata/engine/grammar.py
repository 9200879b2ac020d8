"""Answers that follow a grammar: of each token, whether it may come next.

llguidance computes the masks. It knows the model's tokens as bytes; special tokens are none to it, so that an
answer under a grammar holds none but the one that ends it. Grammars are compiled beside the engine's steps: a
thread asks `engine/grammar_check.py`, then compiles for the model's vocabulary, and keeps what it compiled.
"""

import json
import subprocess
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property

import numpy as np
from llguidance import LLMatcher, LLTokenizer

from strata.engine.grammar_check import LIMIT_S, LIMITS
from strata.engine.messages import Grammar
from strata.errors import RequestError
from strata.formats.tokenizer import Tokenizer

MAX_TEXT = 256 << 10  # characters of a grammar
KEPT = 64  # compiled grammars
_START_S = 30.0  # for the checking process to start, on a busy machine


class TokenMask:
    """Where one answer stands in its grammar.

    Args:
        matcher: at the grammar's beginning; this mask owns it.
        vocab_size: length of the model's logits.
        end_id: the token that ends answers.
        escape_id: a token that the answer may begin with instead, and then goes on without a grammar.
    """

    def __init__(self, matcher: LLMatcher, vocab_size: int, end_id: int, escape_id: int | None = None):
        self.end_id = end_id
        self._matcher, self._vocab_size, self._escape_id = matcher, vocab_size, escape_id
        self._free = False

    @property
    def ended(self) -> bool:
        """The grammar allows nothing but the end."""
        return not self._free and self._matcher.is_stopped() and not self._matcher.is_error()

    def allowed(self) -> np.ndarray | None:
        """Bool `[vocab_size]`: the tokens that may come next; None for any.

        Raises:
            RequestError: the grammar cannot be followed further.
        """
        words = self.words()
        if words is None:
            return None
        return np.unpackbits(words.view(np.uint8), bitorder="little")[: self._vocab_size].astype(bool)

    def words(self) -> np.ndarray | None:
        """As `allowed`, int32 `[ceil(vocab_size / 32)]`: bits of the tokens, lowest first."""
        if self._free:
            return None
        found = np.frombuffer(self._matcher.compute_bitmask(), np.uint32)
        self._check()
        words = np.zeros(-(-self._vocab_size // 32), np.uint32)
        words[: len(found)] = found[: len(words)]
        if rest := self._vocab_size % 32:
            words[-1] &= (1 << rest) - 1
        if self._escape_id is not None:
            words[self._escape_id // 32] |= 1 << self._escape_id % 32
        return words.view(np.int32)

    def accept(self, token_id: int) -> None:
        """The answer goes on with this token."""
        if token_id == self._escape_id:
            self._free = True
        self._escape_id = None
        if not self._free:
            self._matcher.consume_token(token_id)
            self._check()

    def _check(self) -> None:
        if error := self._matcher.get_error():
            reason = error.replace("<non-verbose/>", "").strip()
            raise RequestError(f"the answer cannot follow the grammar any further: {reason}", "grammar")


class GrammarCompiler:
    """Compiles grammars for one model.

    Args:
        load: the model's tokenizer, or None where it has none; called once, in a thread.
        vocab_size: length of its logits.
    """

    def __init__(self, load: Callable[[], Tokenizer | None], vocab_size: int):
        self._load, self._vocab_size = load, vocab_size
        self._thread = ThreadPoolExecutor(1, "grammar")
        self._compiled: OrderedDict[tuple[str, str], LLMatcher] = OrderedDict()
        self._checker = Checker()

    def compile(self, grammar: Grammar) -> "Future[TokenMask]":
        """The mask of an answer; the future may raise RequestError."""
        return self._thread.submit(self._compile, grammar)

    def _compile(self, grammar: Grammar) -> TokenMask:
        key = (grammar.kind, grammar.text)
        matcher = self._compiled.get(key)
        if matcher is None:
            if len(grammar.text) > MAX_TEXT:
                raise RequestError(f"has {len(grammar.text)} characters, at most {MAX_TEXT}", "grammar")
            if self._vocabulary is None:
                raise RequestError("the model has no tokenizer or no token that ends an answer", "grammar")
            for i, schema in enumerate(grammar.schemas):
                self._checker.check("json_schema", schema, f"grammar.schemas[{i}]")
            source = self._checker.check(grammar.kind, grammar.text)
            matcher = LLMatcher(self._vocabulary, source, log_level=0, limits=LIMITS)
            if error := matcher.get_error():
                raise RequestError(error, "grammar")
            self._compiled[key] = matcher
            if len(self._compiled) > KEPT:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(key)
        assert self._vocabulary is not None
        end_id = self._vocabulary.eos_token
        return TokenMask(matcher.deep_copy(), self._vocab_size, end_id, grammar.escape_id)

    @cached_property
    def _vocabulary(self) -> LLTokenizer | None:
        tokenizer = self._load()
        return vocabulary_of(tokenizer) if tokenizer is not None and tokenizer.stop_ids else None


class _Vocabulary:
    """A tokenizer in the form that llguidance reads."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokenizer: Tokenizer):
        ids = range(tokenizer.vocab_size)
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.stop_ids)
        self.tokens = [tokenizer.token_bytes(i, special=True) for i in ids]
        silent = (i for i in ids if not tokenizer.token_bytes(i))
        self.special_token_ids = sorted({*silent, *tokenizer.special_tokens.values(), *tokenizer.stop_ids})

    def __call__(self, text: str) -> list[int]:
        """The ids of text that the grammar leaves no choice about."""
        return self._tokenizer.encode_plain(text)


def vocabulary_of(tokenizer: Tokenizer) -> LLTokenizer:
    """llguidance's form of a vocabulary."""
    return LLTokenizer(_Vocabulary(tokenizer), eos_token=sorted(tokenizer.stop_ids))


class Checker:
    """The checking process; started when it is needed, and again after it has ended itself."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def check(self, kind: str, text: str, field: str = "grammar") -> str:
        """The grammar in llguidance's form; raises RequestError for one that cannot be used."""
        process = self._process
        if process is None or process.poll() is not None:
            process = self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "strata.engine.grammar_check"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
        assert process.stdin is not None and process.stdout is not None
        timer = threading.Timer(LIMIT_S + _START_S, process.kill)
        timer.start()
        try:
            print(json.dumps([kind, text]), file=process.stdin, flush=True)
            answer = process.stdout.readline()
        except OSError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            process.kill()
            process.wait()
            raise RequestError("is too complex: to compile it takes too much time or memory", field)
        source, error = json.loads(answer)
        if error:
            raise RequestError(error, field)
        return source
