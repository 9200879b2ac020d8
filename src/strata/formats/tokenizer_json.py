"""The vocabulary of a Hugging Face folder: `tokenizer.json` and the configurations beside it."""

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tokenizers

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.vocabulary import BYTE_TOKEN, END_OF_TURN, AddedToken, TokenType, Vocabulary

_MAX_TOKENS = 1 << 24  # far beyond any vocabulary; keeps a wrong id from taking all memory


def read_tokenizer_json(folder: Path) -> Vocabulary:
    """Build the vocabulary of a folder with a `tokenizer.json`.

    Raises:
        ModelFileError: a file is damaged or they contradict each other.
        UnsupportedModelError: the vocabulary is no byte-level or SentencePiece BPE.
    """
    path = folder / "tokenizer.json"
    document = _read_json(path)
    config = _read_json(folder / "tokenizer_config.json", optional=True)
    model = document.get("model")
    if not isinstance(model, dict):
        raise ModelFileError(f"{path}: model is {model!r:.60}, not an object")
    if model.get("type") != "BPE":
        raise UnsupportedModelError(f"{path}: model.type is {model.get('type')!r}; Strata reads 'BPE'")
    added = _added_tokens(document, path)
    tokens, types = _tokens(model, added, path)
    ids = {token.content: token.id for token in added} | model["vocab"]
    # Strata finds added tokens itself, as only it knows which text is a user's, and adds BOS itself.
    bare = document | {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    whole = _build(bare, path)  # the library checks the parts that are looked into below
    bos_id = _named(config, "bos_token", ids, folder)
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        add_bos = _begins_with_bos(document.get("post_processor"), config, path)
    return Vocabulary(
        source=str(path),
        tokens=tokens,
        types=types,
        model=whole,
        byte_level=_is_byte_level(document, path),
        added=added,
        continuation=_continuation(bare, path),
        bos_id=bos_id,
        eos_id=_named(config, "eos_token", ids, folder),
        pad_id=_named(config, "pad_token", ids, folder),
        stop_ids=_generation_stops(folder, len(tokens)),
        add_bos=bool(add_bos) and bos_id is not None,
        chat_template=_chat_template(folder, config),
    )


def _read_json(path: Path, optional: bool = False) -> dict[str, Any]:
    if optional and not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFileError(f"{path}: cannot be read as JSON: {error}") from error
    if not isinstance(document, dict):
        raise ModelFileError(f"{path}: is not a JSON object")
    return document


def _added_tokens(document: Mapping[str, Any], path: Path) -> list[AddedToken]:
    try:
        added = [
            AddedToken(
                content=entry["content"],
                id=entry["id"],
                control=entry["special"] or entry["content"] in END_OF_TURN,
                lstrip=entry["lstrip"],
                rstrip=entry["rstrip"],
                single_word=entry["single_word"],
            )
            for entry in document.get("added_tokens") or ()
            if entry["content"]
        ]
    except (KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: an entry of added_tokens lacks {error}") from error
    for token in added:
        if not isinstance(token.content, str) or type(token.id) is not int or token.id < 0:
            raise ModelFileError(
                f"{path}: an entry of added_tokens has the content {token.content!r:.60} "
                f"and the id {token.id!r:.60}, not a string and a number"
            )
    return added


def _tokens(
    model: Mapping[str, Any], added: list[AddedToken], path: Path
) -> tuple[list[str], list[TokenType]]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(isinstance(i, int) and i >= 0 for i in vocab.values()):
        raise ModelFileError(f"{path}: model.vocab is not an object of ids")
    count = 1 + max([*vocab.values(), *(token.id for token in added)], default=-1)
    if count > _MAX_TOKENS:
        raise ModelFileError(f"{path}: has ids up to {count - 1} for {len(vocab)} tokens")
    tokens, types = [""] * count, [TokenType.UNUSED] * count
    for token, i in vocab.items():
        is_byte = model.get("byte_fallback") and BYTE_TOKEN.fullmatch(token)
        tokens[i], types[i] = token, TokenType.BYTE if is_byte else TokenType.NORMAL
    for token in added:
        tokens[token.id] = token.content
        types[token.id] = TokenType.CONTROL if token.control else TokenType.USER_DEFINED
    return tokens, types


def _build(document: Mapping[str, Any], path: Path) -> tokenizers.Tokenizer:
    try:
        return tokenizers.Tokenizer.from_str(json.dumps(document, ensure_ascii=False))
    except Exception as error:  # the library raises bare Exception
        raise ModelFileError(f"{path}: the tokenizers library refuses it: {error}") from error


def _is_byte_level(document: Mapping[str, Any], path: Path) -> bool:
    decoder = document.get("decoder") or {}
    if not isinstance(decoder, dict):
        raise ModelFileError(f"{path}: decoder is {decoder!r:.60}, not an object")
    kinds = {part.get("type") for part in decoder.get("decoders", [decoder])}
    if "ByteLevel" in kinds:
        return True
    if kinds & {"ByteFallback", "Metaspace"}:
        return False
    raise UnsupportedModelError(
        f"{path}: decoder is {decoder.get('type')!r}; Strata reads byte-level and SentencePiece vocabularies"
    )


def _continuation(bare: Mapping[str, Any], path: Path) -> tokenizers.Tokenizer | None:
    """The same model without the space before the first word, where only the text's first word gets one."""
    document = copy.copy(bare) | {"pre_tokenizer": copy.deepcopy(bare.get("pre_tokenizer"))}
    whole = document["pre_tokenizer"] or {}
    firsts = [p for p in whole.get("pretokenizers", [whole]) if p.get("prepend_scheme") == "first"]
    for part in firsts:
        part["prepend_scheme"] = "never"
    return _build(document, path) if firsts else None


def _text(value: Any) -> str | None:
    """A special token of `tokenizer_config.json`: a string, or an object with the string as `content`."""
    return value.get("content") if isinstance(value, dict) else value


def _named(config: Mapping[str, Any], name: str, ids: Mapping[str, int], folder: Path) -> int | None:
    text = _text(config.get(name))
    if not isinstance(text, str | None):
        raise ModelFileError(f"{folder / 'tokenizer_config.json'}: {name} is {text!r:.60}, not a string")
    return ids.get(text) if text is not None else None


def _begins_with_bos(processor: Any, config: Mapping[str, Any], path: Path) -> bool:
    """Whether the post-processor's template for one text begins with the BOS token."""
    if not processor:
        return False
    try:
        parts = processor.get("processors", [processor])
        singles = [part["single"] for part in parts if part.get("type") == "TemplateProcessing"]
        first = singles[0][0] if singles and singles[0] else {}
        return first.get("SpecialToken", {}).get("id", "") == _text(config.get("bos_token"))
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelFileError(f"{path}: post_processor is none that tokenizers has: {error}") from error


def _generation_stops(folder: Path, count: int) -> list[int]:
    stops = _read_json(folder / "generation_config.json", optional=True).get("eos_token_id")
    stops = stops if isinstance(stops, list) else [stops]
    return [i for i in stops if isinstance(i, int) and 0 <= i < count]


def _chat_template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja`, or the config's template, of several the one called `default`."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ModelFileError(f"{path}: cannot be read: {error}") from error
    template = config.get("chat_template")
    if isinstance(template, list) and all(isinstance(entry, dict) for entry in template):
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if not isinstance(template, str | None):
        raise ModelFileError(f"{folder / 'tokenizer_config.json'}: chat_template is not a string")
    return template
