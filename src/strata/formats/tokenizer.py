"""Text to token ids and back, with the ids that transformers gives, and with markup kept apart from text.

A control token such as `<|im_end|>` is markup. Typed by a user it is nine letters like any others; only text
that Strata or a chat template wrote is read for markup.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from strata.errors import UnsupportedModelError
from strata.formats.checkpoint import Checkpoint
from strata.formats.pretokenizers import SPACE_SYMBOL, byte_letters
from strata.formats.tokenizer_json import read_tokenizer_json
from strata.formats.vocabulary import END_OF_TURN, AddedToken, TokenType, Vocabulary, read_gguf_vocabulary

_LETTER_BYTES = {letter: byte for byte, letter in byte_letters().items()}


class Tokenizer:
    """A model's vocabulary at work. Safe to share between threads.

    Attributes:
        vocab_size: tokens in the vocabulary; the model's matrices may have more rows.
        bos_id, eos_id, eot_id, pad_id: special tokens, None where the model has none.
        stop_ids: the tokens that end an answer.
        add_bos: a prompt begins with `bos_id`.
        chat_template: the file's jinja2 template, if it has one.
        special_tokens: the control and user-defined tokens, text to id.
        control_tokens: the control tokens among them, which a user's text never becomes.
    """

    def __init__(self, vocabulary: Vocabulary):
        self._vocabulary = vocabulary
        self._ids_by_text = {token.content: token for token in vocabulary.added}
        self._added = _finder(vocabulary.added)
        self._user_defined = _finder([token for token in vocabulary.added if not token.control])
        self.vocab_size = len(vocabulary.tokens)
        self.bos_id, self.eos_id = vocabulary.bos_id, vocabulary.eos_id
        self.pad_id = vocabulary.pad_id
        self.add_bos = vocabulary.add_bos
        self.chat_template = vocabulary.chat_template
        self.special_tokens = {token.content: token.id for token in vocabulary.added}
        self.control_tokens = frozenset(token.content for token in vocabulary.added if token.control)
        ends = [self.special_tokens[text] for text in END_OF_TURN if text in self.control_tokens]
        self.eot_id = vocabulary.eot_id if vocabulary.eot_id is not None else next(iter(ends), None)
        named = (self.eos_id, self.eot_id, *vocabulary.stop_ids, *ends)
        self.stop_ids = frozenset(i for i in named if i is not None)

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint) -> "Tokenizer":
        """Build the tokenizer of a checkpoint.

        Raises:
            UnsupportedModelError: it has none, or one of a kind that Strata does not read.
            ModelFileError: its tokenizer is damaged.
        """
        if (tokenizer := load_tokenizer(checkpoint)) is None:
            raise UnsupportedModelError(
                f"{checkpoint.path}: has no tokenizer; it can be run on token ids only, not on text"
            )
        return tokenizer

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text, without BOS.

        Args:
            text: any text; lone surrogates become U+FFFD.
            special: read control tokens as markup. User-defined tokens are found either way.
        """
        return self.encode_rendered([text]) if special else self._encode_text(text, at_start=True)

    def encode_plain(self, text: str) -> list[int]:
        """The ids of text that goes on from other text, without any control or user-defined token."""
        return self._encode_words(text, at_start=False)

    def encode_rendered(self, pieces: Sequence[str]) -> list[int]:
        """The ids of a rendered chat template, without BOS unless the template wrote it.

        The text is the pieces joined. A control token is markup where it lies within one piece, and text
        where it spans two; otherwise the borders leave no trace in the ids.
        """
        ids: list[int] = []
        plain: list[str] = []
        for piece in pieces:
            end = 0
            for match in self._added.finditer(piece) if self._added else ():
                token = self._ids_by_text[match[match.lastgroup or 0]]
                if token.control:
                    plain.append(piece[end : match.start()])
                    ids += self._encode_text("".join(plain), at_start=not ids)
                    ids.append(token.id)
                    plain, end = [], match.end()
            plain.append(piece[end:])
        return ids + self._encode_text("".join(plain), at_start=not ids)

    def token_bytes(self, token_id: int, *, special: bool = False) -> bytes:
        """The bytes that a token adds to an answer; a character may be spread over several tokens.

        Control, unknown and unused tokens add none, nor do ids beyond the vocabulary (padding rows of the
        model); with `special`, the former give their name.
        """
        if not 0 <= token_id < self.vocab_size:
            return b""
        token, kind = self._vocabulary.tokens[token_id], self._vocabulary.types[token_id]
        if kind in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED):
            return token.encode("utf-8", "replace") if special else b""
        if kind is TokenType.BYTE:
            return bytes([int(token[3:5], 16)])
        if kind is TokenType.NORMAL and self._vocabulary.byte_level:
            letters = [_LETTER_BYTES.get(letter, -1) for letter in token]
            if -1 not in letters:
                return bytes(letters)
        elif kind is TokenType.NORMAL:
            token = token.replace(SPACE_SYMBOL, " ")
        return token.encode("utf-8", "replace")

    def decode_bytes(self, ids: Iterable[int], *, special: bool = False) -> bytes:
        """The bytes of the tokens, joined. SentencePiece's space before the first word is kept."""
        return b"".join(self.token_bytes(token_id, special=special) for token_id in ids)

    def _encode_text(self, text: str, at_start: bool) -> list[int]:
        """The ids of text without markup, user-defined tokens found."""
        if not self._user_defined:
            return self._encode_words(text, at_start)
        ids: list[int] = []
        end = 0
        for match in self._user_defined.finditer(text):
            ids += self._encode_words(text[end : match.start()], at_start and end == 0)
            ids.append(self._ids_by_text[match[match.lastgroup or 0]].id)
            end = match.end()
        return ids + self._encode_words(text[end:], at_start and end == 0)

    def _encode_words(self, text: str, at_start: bool) -> list[int]:
        if not text:
            return []
        model = self._vocabulary.model
        if not at_start and self._vocabulary.continuation is not None:
            model = self._vocabulary.continuation
        try:
            text.encode()
        except UnicodeEncodeError:  # a lone surrogate, which JSON can spell and UTF-8 cannot
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        # A batch of one: `encode` keeps Python's lock, and a long prompt would stall every other request.
        return model.encode_batch_fast([text], add_special_tokens=False)[0].ids


def load_tokenizer(checkpoint: Checkpoint) -> Tokenizer | None:
    """The tokenizer of a checkpoint, or None where it has none (`no_vocab`, a folder of weights).

    Raises:
        UnsupportedModelError: it has one of a kind that Strata does not read.
        ModelFileError: it is damaged.
    """
    kind = checkpoint.metadata.get("tokenizer.ggml.model")
    if kind in ("none", "no_vocab"):
        return None
    if kind is not None:
        return Tokenizer(read_gguf_vocabulary(checkpoint.metadata, str(checkpoint.path)))
    folder = Path(checkpoint.path)
    if (folder / "tokenizer.json").is_file():
        return Tokenizer(read_tokenizer_json(folder))
    for other in ("tokenizer.model", "vocab.json", "tiktoken.model"):
        if (folder / other).is_file():
            raise UnsupportedModelError(
                f"{folder}: has {other} and no tokenizer.json; transformers writes one with "
                "AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
    return None


def _finder(added: Iterable[AddedToken]) -> re.Pattern[str] | None:
    """A pattern for the leftmost, and there the longest, of the tokens; each in a group of its own kind."""
    patterns = []
    for token in sorted(added, key=lambda token: len(token.content), reverse=True):
        pattern = re.escape(token.content)
        if token.single_word:
            pattern = rf"(?<!\w){pattern}(?!\w)"
        before, after = r"\s*" if token.lstrip else "", r"\s*" if token.rstrip else ""
        patterns.append((before, pattern, after))
    if not patterns:
        return None
    if not any(before or after for before, _, after in patterns):
        return re.compile("|".join(pattern for _, pattern, _ in patterns))
    return re.compile("|".join(f"{b}(?P<t{i}>{p}){a}" for i, (b, p, a) in enumerate(patterns)))
