"""A vocabulary as a model file has it: the tokens, their types, and the model that cuts text into them.

Token types and their defaults follow llama.cpp (`src/llama-vocab.cpp`, `llama_vocab::impl::load`) and
the `tokenizer.ggml.*` keys of the GGUF specification.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.pretokenizers import PRE_TOKENIZERS, byte_level_bpe, sentencepiece_bpe


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`, the values of SentencePiece's `ModelProto.SentencePiece.Type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3  # markup: never made from a user's text, not shown in output
    USER_DEFINED = 4  # cut out of any text before words are, shown in output
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class AddedToken:
    """A token that is found in the text as it stands, before words are cut.

    Args:
        content: the text to find.
        id: its token.
        control: found only where markup is read.
        lstrip, rstrip: takes the white space before or after it along.
        single_word: only where no word character stands on either side.
    """

    content: str
    id: int
    control: bool
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Everything a `Tokenizer` is made of.

    Args:
        source: the file, for messages.
        tokens: the tokens' text by id, as the file spells it.
        types: their types by id.
        model: cuts text that holds no added token.
        byte_level: tokens are spelt in GPT-2's byte letters; otherwise in SentencePiece's way.
        added: the tokens to find before `model` runs.
        continuation: `model` for text after an added token, where that differs.
        bos_id, eos_id, eot_id, pad_id: special tokens, where the file names them.
        stop_ids: further tokens that end an answer by the file's word.
        add_bos: a prompt begins with `bos_id`.
        chat_template: jinja2 source.
    """

    source: str
    tokens: Sequence[str]
    types: Sequence[TokenType]
    model: tokenizers.Tokenizer
    byte_level: bool
    added: Sequence[AddedToken]
    continuation: tokenizers.Tokenizer | None = None
    bos_id: int | None = None
    eos_id: int | None = None
    eot_id: int | None = None
    pad_id: int | None = None
    stop_ids: Sequence[int] = ()
    add_bos: bool = False
    chat_template: str | None = None


BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")  # how a vocabulary with byte fallback spells a byte

# Tokens that end a turn, whatever the file calls them: files are common whose `eos_token_id` ends a document
# while the chat template ends turns with one of these (MODELS.md 4.2). In order of preference as `eot_id`.
END_OF_TURN = (
    "<|im_end|>",
    "<|eot_id|>",
    "<end_of_turn>",
    "<|end|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_utterance>",
)


def read_gguf_vocabulary(metadata: Mapping[str, Any], source: str) -> Vocabulary:
    """Build the vocabulary that a GGUF file's metadata describes.

    Args:
        metadata: the file's keys; `tokenizer.ggml.model` must be among them.
        source: the file, for messages.

    Raises:
        UnsupportedModelError: the kind of vocabulary or the pre-tokenizer is not one that Strata has.
        ModelFileError: the keys contradict each other.
    """
    kind = metadata["tokenizer.ggml.model"]
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"{source}: tokenizer.ggml.model is {kind!r:.60}; Strata reads 'gpt2' (byte-level BPE) "
            "and 'llama' (SentencePiece BPE)"
        )
    template = metadata.get("tokenizer.chat_template")
    if not isinstance(template, str | None):
        raise ModelFileError(f"{source}: tokenizer.chat_template is {type(template).__name__}, not a string")
    tokens = _tokens(metadata, source)
    types = _types(metadata, tokens, source)
    parts = (_byte_level if kind == "gpt2" else _sentencepiece)(metadata, tokens, types, source)
    return Vocabulary(
        source=source,
        tokens=tokens,
        types=types,
        added=[
            AddedToken(tokens[i], i, control=type_ is not TokenType.USER_DEFINED)
            for i, type_ in enumerate(types)
            if type_ in (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
        ],
        eot_id=_special(metadata, "eot", tokens, source),
        stop_ids=[i for i in [_special(metadata, "eom", tokens, source)] if i is not None],
        chat_template=template,
        **parts,
    )


def _tokens(metadata: Mapping[str, Any], source: str) -> list[str]:
    tokens = metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, list) or not tokens or not all(isinstance(token, str) for token in tokens):
        raise ModelFileError(f"{source}: tokenizer.ggml.tokens is not a list of strings")
    # An empty token can be found nowhere; llama.cpp gives it the same name.
    tokens = [token or f"[EMPTY_{i}]" for i, token in enumerate(tokens)]
    if len(set(tokens)) != len(tokens):
        ids: dict[str, int] = {}
        for i, token in enumerate(tokens):
            if ids.setdefault(token, i) != i:
                raise ModelFileError(
                    f"{source}: tokenizer.ggml.tokens has {token!r} twice, as {ids[token]} and {i}"
                )
    return tokens


def _types(metadata: Mapping[str, Any], tokens: list[str], source: str) -> list[TokenType]:
    numbers = _list(metadata, "token_type", (int,), len(tokens), source)
    known = {int(type_): type_ for type_ in TokenType}
    types = [known.get(n, TokenType.UNUSED) for n in numbers] if numbers else [TokenType.NORMAL] * len(tokens)
    ends = set(END_OF_TURN)
    for i, token in enumerate(tokens):
        if token in ends:
            types[i] = TokenType.CONTROL
        if types[i] is TokenType.BYTE and not BYTE_TOKEN.fullmatch(token):
            raise ModelFileError(
                f"{source}: tokenizer.ggml.tokens[{i}] is {token!r:.60} and its token_type a byte, "
                "which is spelt <0x00> to <0xFF>"
            )
    return types


def _list(
    metadata: Mapping[str, Any], name: str, kinds: tuple[type, ...], count: int, source: str
) -> list[Any] | None:
    """The array `tokenizer.ggml.<name>`, one entry per token, or None where the file has none."""
    values = metadata.get(f"tokenizer.ggml.{name}")
    if values is None:
        return None
    if not isinstance(values, list) or not all(isinstance(value, kinds) for value in values):
        raise ModelFileError(f"{source}: tokenizer.ggml.{name} is {values!r:.60}, not a list of numbers")
    if len(values) != count:
        raise ModelFileError(
            f"{source}: tokenizer.ggml.{name} has {len(values)} entries, tokenizer.ggml.tokens {count}"
        )
    return values


def _special(
    metadata: Mapping[str, Any], name: str, tokens: Sequence[str], source: str, default: int | None = None
) -> int | None:
    """The id in `tokenizer.ggml.<name>_token_id`, or the default where the file has none."""
    key = f"tokenizer.ggml.{name}_token_id"
    if (value := metadata.get(key)) is None:
        return default if default is not None and default < len(tokens) else None
    if isinstance(value, int) and 0 <= value < len(tokens):
        return value
    if name == "padding":  # some converters write -1 for "none"
        return None
    raise ModelFileError(f"{source}: {key} is {value!r:.60}, but there are {len(tokens)} tokens")


def _byte_level(
    metadata: Mapping[str, Any], tokens: list[str], types: list[TokenType], source: str
) -> dict[str, Any]:
    pre = metadata.get("tokenizer.ggml.pre")
    rule = PRE_TOKENIZERS.get(pre) if isinstance(pre, str) else None
    if rule is None:
        found = f"is {pre!r:.60}, which Strata does not have" if pre else "is missing"
        raise UnsupportedModelError(
            f"{source}: tokenizer.ggml.pre (how text is cut into words) {found}; a guess would make wrong "
            f"tokens without an error. Known: {', '.join(sorted(PRE_TOKENIZERS))}. A newer conversion of the "
            "model may name it"
        )
    hidden = (TokenType.CONTROL, TokenType.UNKNOWN)
    vocab = {token: i for i, token in enumerate(tokens) if types[i] not in hidden}
    merges = _merges(metadata, vocab, source)
    bos_id = _special(metadata, "bos", tokens, source)
    return {
        "model": byte_level_bpe(vocab, merges, rule),
        "byte_level": True,
        "bos_id": bos_id,
        "eos_id": _special(metadata, "eos", tokens, source),
        "pad_id": _special(metadata, "padding", tokens, source),
        "add_bos": _add_bos(metadata, rule.add_bos, bos_id, source),
    }


def _merges(metadata: Mapping[str, Any], vocab: Mapping[str, int], source: str) -> list[tuple[str, str]]:
    stated = metadata.get("tokenizer.ggml.merges") or []
    if not isinstance(stated, list):
        raise ModelFileError(f"{source}: tokenizer.ggml.merges is {stated!r:.60}, not a list of strings")
    merges = []
    for i, merge in enumerate(stated):
        # A token may begin with a space, so the parting space is sought from the second letter on.
        cut = merge.find(" ", 1) if isinstance(merge, str) else -1
        left, right = (merge[:cut], merge[cut + 1 :]) if cut > 0 else ("", "")
        if cut < 0 or left not in vocab or right not in vocab or left + right not in vocab:
            raise ModelFileError(
                f"{source}: tokenizer.ggml.merges[{i}] is {merge!r}; it does not join two tokens to a third"
            )
        merges.append((left, right))
    return merges


def _sentencepiece(
    metadata: Mapping[str, Any], tokens: list[str], types: list[TokenType], source: str
) -> dict[str, Any]:
    scores = _list(metadata, "scores", (int, float), len(tokens), source)
    if scores is None:
        raise ModelFileError(f"{source}: tokenizer.ggml.scores is missing; without it no text can be cut")
    textual = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
    unknown_id = _special(metadata, "unknown", tokens, source, default=0)
    unknown = tokens[unknown_id] if unknown_id is not None else None
    vocab = {t: i for i, t in enumerate(tokens) if types[i] in (*textual, TokenType.BYTE) or t == unknown}
    scored = {t: scores[i] for i, t in enumerate(tokens) if types[i] in textual}
    bos_id = _special(metadata, "bos", tokens, source, default=1)
    space_prefix = metadata.get("tokenizer.ggml.add_space_prefix", True)
    return {
        "model": sentencepiece_bpe(vocab, scored, unknown, space_prefix),
        "byte_level": False,
        "bos_id": bos_id,
        "eos_id": _special(metadata, "eos", tokens, source, default=2),
        "pad_id": _special(metadata, "padding", tokens, source),
        "add_bos": _add_bos(metadata, True, bos_id, source),
    }


def _add_bos(metadata: Mapping[str, Any], default: bool, bos_id: int | None, source: str) -> bool:
    stated = metadata.get("tokenizer.ggml.add_bos_token")
    if stated and bos_id is None:
        raise ModelFileError(
            f"{source}: tokenizer.ggml.add_bos_token is true and tokenizer.ggml.bos_token_id is missing"
        )
    return bool(default if stated is None else stated) and bos_id is not None
