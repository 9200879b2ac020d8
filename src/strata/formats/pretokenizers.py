"""The `tokenizers` models behind a GGUF vocabulary: byte-level BPE by name of the rule, SentencePiece BPE.

GGUF stores no `tokenizer.json`; it names the rule that cuts text into words (`tokenizer.ggml.pre`), and
every reader carries the rules. The names are those of llama.cpp (`src/llama-vocab.cpp`). The rules are those
of the `tokenizer.json` files the names stand for, as transformers has them (`tokenization_qwen2.py`,
`tokenization_qwen3_5.py`, `tokenization_gpt2.py`), with the normalisation that llama.cpp leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

SPACE_SYMBOL = "▁"  # U+2581, SentencePiece's visible space

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
# Qwen3.5 lets combining marks belong to the word they mark.
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}"
)
_LLAMA3 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
)


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """How a byte-level BPE vocabulary wants its text prepared.

    Args:
        splitter: makes the rule that cuts words, before bytes are mapped to letters.
        gpt2_words: cut by GPT-2's own rule afterwards (`ByteLevel(use_regex=True)`).
        nfc: compose characters first (Unicode normal form C).
        ignore_merges: a word that is a token stays one token even if no merges lead to it.
        add_bos: what a file without `tokenizer.ggml.add_bos_token` means.
    """

    splitter: Callable[[], pre_tokenizers.PreTokenizer] | None
    gpt2_words: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False


def _split(pattern: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    return lambda: pre_tokenizers.Split(Regex(pattern), behavior="isolated")


_RULES = {
    "qwen2": PreTokenizer(_split(_QWEN2), nfc=True),
    "qwen35": PreTokenizer(_split(_QWEN35), nfc=True),
    "llama-bpe": PreTokenizer(_split(_LLAMA3), ignore_merges=True, add_bos=True),
    "smollm": PreTokenizer(lambda: pre_tokenizers.Digits(individual_digits=True), gpt2_words=True),
    "gpt-2": PreTokenizer(None, gpt2_words=True),
}
# llama.cpp gives these names the same rule.
_ALIASES = {
    "deepseek-r1-qwen": "qwen2",
    "llama3": "llama-bpe",
    "llama-v3": "llama-bpe",
    "starcoder": "smollm",
    "refact": "smollm",
    "phi-2": "gpt-2",
}
PRE_TOKENIZERS: Mapping[str, PreTokenizer] = _RULES | {
    alias: _RULES[name] for alias, name in _ALIASES.items()
}


@cache
def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary (GPT-2's `bytes_to_unicode`).

    Printable Latin-1 stands for itself; the other 68 bytes take the code points from U+0100 up, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printable)
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def byte_level_bpe(
    vocab: Mapping[str, int], merges: Sequence[tuple[str, str]], rule: PreTokenizer
) -> Tokenizer:
    """A byte-level BPE tokenizer without added tokens; the caller cuts those out first."""
    model = BPE(vocab=dict(vocab), merges=list(merges), ignore_merges=rule.ignore_merges)
    tokenizer = Tokenizer(model)
    if rule.nfc:
        tokenizer.normalizer = normalizers.NFC()
    to_letters = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=rule.gpt2_words)
    tokenizer.pre_tokenizer = (
        pre_tokenizers.Sequence([rule.splitter(), to_letters]) if rule.splitter else to_letters
    )
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def sentencepiece_bpe(
    vocab: Mapping[str, int],
    scores: Mapping[str, float],
    unknown: str | None,
    space_prefix: bool,
) -> Tokenizer:
    """A SentencePiece BPE tokenizer: pairs merge in the order of the joined token's score, unknown letters
    become byte tokens.

    Args:
        vocab: every token that text may become, byte tokens `<0x00>`..`<0xFF>` included.
        scores: the tokens that a merge may make, with their scores; the highest merges first.
        unknown: the token for a letter without byte tokens, which must be in `vocab`.
        space_prefix: put a space before the text (SentencePiece's `add_dummy_prefix`), even where it has one.
    """
    model = BPE(
        vocab=dict(vocab),
        merges=_merges_by_score(vocab, scores),
        unk_token=unknown,
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    visible = normalizers.Replace(" ", SPACE_SYMBOL)
    tokenizer.normalizer = (
        normalizers.Sequence([normalizers.Prepend(SPACE_SYMBOL), visible]) if space_prefix else visible
    )
    return tokenizer


def _merges_by_score(vocab: Mapping[str, int], scores: Mapping[str, float]) -> list[tuple[str, str]]:
    """Every pair of tokens that joins to a scored token, best score first.

    SentencePiece joins whichever neighbours make the best-scored token; BPE wants the pairs written out.
    """
    pairs: list[tuple[float, int, str, str]] = []
    for token, score in scores.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in scores and right in scores:
                pairs.append((-score, vocab[token], left, right))
    pairs.sort(key=lambda pair: pair[:2])
    return [(left, right) for _, _, left, right in pairs]
