"""Vocabularies in the form of GGUF metadata: Qwen's own, and small ones trained on the spot."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as spm_proto
from tokenizers import Tokenizer, trainers

from tests.helpers.texts import TEXTS

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


@dataclass(frozen=True)
class MetadataOnly:
    """The part of a checkpoint that a tokenizer is read from."""

    metadata: Mapping[str, Any]
    path: Path = Path("model.gguf")


def byte_letters() -> dict[int, str]:
    """GPT-2's letters for bytes, from its description rather than from Strata's code."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in kept}
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + len(letters) - len(kept))
    return letters


def byte_level_metadata(
    vocab: Mapping[str, int],
    merges: Sequence[tuple[str, str]],
    pre: str,
    special: Mapping[str, int],
    **more: Any,
) -> dict[str, Any]:
    """GGUF metadata of a byte-level vocabulary.

    Args:
        vocab: token to id, without gaps.
        merges: as in `tokenizer.json`.
        pre: `tokenizer.ggml.pre`.
        special: added tokens, text to type; they take the ids after the vocabulary.
        more: further keys, without `tokenizer.ggml.`.
    """
    tokens = [*sorted(vocab, key=vocab.__getitem__), *special]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [NORMAL] * len(vocab) + list(special.values()),
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }


def merges_of_ranks(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """Merges that do what a tiktoken vocabulary does: any two tokens may join, lowest ranks first.

    A GGUF names one pair per token; naming all of them is the same rule and takes no search.
    """
    return [
        (token[:cut], token[cut:])
        for token in sorted(ranks, key=ranks.__getitem__)
        for cut in range(1, len(token))
        if token[:cut] in ranks and token[cut:] in ranks
    ]


def train_byte_level(tokenizer: Tokenizer, size: int = 700) -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Train a BPE tokenizer on the test texts in place; returns its vocabulary and merges."""
    trainer = trainers.BpeTrainer(
        vocab_size=size, initial_alphabet=list(byte_letters().values()), show_progress=False
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return model["vocab"], [tuple(merge) for merge in model["merges"]]


def train_sentencepiece(folder: Path, **options: Any) -> Path:
    """Train a SentencePiece BPE model with byte tokens on the test texts; returns its `tokenizer.model`."""
    sentences = [line for text in TEXTS * 3 for line in text.replace("\0", "").splitlines() if line.strip()]
    model = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences),
        model_writer=model,
        model_type="bpe",
        vocab_size=700,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
        character_coverage=0.98,
        minloglevel=2,
        **options,
    )
    path = folder / "tokenizer.model"
    path.write_bytes(model.getvalue())
    return path


def sentencepiece_metadata(path: Path, **more: Any) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece model, as llama.cpp's converter writes it."""
    proto = spm_proto.ModelProto()
    proto.ParseFromString(path.read_bytes())
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [
            piece.piece.replace("▁", " ") if piece.type == USER_DEFINED else piece.piece
            for piece in proto.pieces
        ],
        "tokenizer.ggml.scores": [piece.score for piece in proto.pieces],
        "tokenizer.ggml.token_type": [piece.type for piece in proto.pieces],
        "tokenizer.ggml.add_space_prefix": proto.normalizer_spec.add_dummy_prefix,
        **{f"tokenizer.ggml.{name}": value for name, value in more.items()},
    }
