"""What a tokenizer does with special tokens, odd ids and faulty files."""

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from strata.errors import ModelFileError, StrataError, UnsupportedModelError
from strata.formats.tokenizer import Tokenizer, load_tokenizer
from tests.helpers.vocabularies import (
    BYTE,
    CONTROL,
    NORMAL,
    UNUSED,
    USER_DEFINED,
    MetadataOnly,
    byte_letters,
    byte_level_metadata,
)

LETTERS = list(byte_letters().values())
SPECIAL = {"<|im_start|>": CONTROL, "<|im_end|>": CONTROL, "</think>": USER_DEFINED, "[PAD]": UNUSED}
START, END, THINK, PAD = range(257, 261)


def metadata(**more: Any) -> dict[str, Any]:
    """256 bytes, `he`, and four special tokens."""
    vocab = {letter: i for i, letter in enumerate([*LETTERS, "he"])}
    return byte_level_metadata(vocab, [("h", "e")], "qwen2", SPECIAL, **more)


def build(**more: Any) -> Tokenizer:
    return Tokenizer.from_checkpoint(MetadataOnly(metadata(**more)))


def spelt(text: str) -> list[int]:
    """The ids of a text byte by byte."""
    return [LETTERS.index(byte_letters()[byte]) for byte in text.encode()]


def test_control_tokens_are_text_unless_markup_is_read() -> None:
    ours = build()
    assert ours.encode("a<|im_end|>") == spelt("a<|im_end|>")
    assert ours.encode("a<|im_end|>", special=True) == [*spelt("a"), END]


def test_user_defined_tokens_are_found_in_any_text() -> None:
    ours = build()
    assert ours.encode("x</think>") == ours.encode("x</think>", special=True) == [*spelt("x"), THINK]


def test_unused_tokens_are_never_found() -> None:
    assert build().encode("[PAD]", special=True) == spelt("[PAD]")


def test_the_border_of_two_pieces_breaks_control_tokens_and_nothing_else() -> None:
    ours = build()
    assert ours.encode_rendered(["<|im_", "end|>"]) == spelt("<|im_end|>")
    assert ours.encode_rendered(["<|im_start|>h", "e<|im_end|>"]) == [START, 256, END]
    assert ours.encode_rendered(["</th", "ink>"]) == [THINK]
    assert ours.encode_rendered([]) == ours.encode_rendered([""]) == []


def test_bytes_of_tokens() -> None:
    ours = build()
    assert b"".join(ours.token_bytes(i) for i in range(256)) == bytes(
        sorted(range(256), key=lambda byte: LETTERS.index(byte_letters()[byte]))
    )
    assert ours.token_bytes(256) == b"he"
    assert ours.token_bytes(THINK) == b"</think>"
    for hidden, name in ((END, b"<|im_end|>"), (PAD, b"[PAD]")):
        assert ours.token_bytes(hidden) == b""
        assert ours.token_bytes(hidden, special=True) == name
    assert ours.token_bytes(-1) == ours.token_bytes(ours.vocab_size) == b""
    assert ours.decode_bytes([256, END, 256]) == b"hehe"


def test_other_threads_run_while_a_long_text_is_encoded() -> None:
    """CASES FT 87: a long prompt must not stall the streams of others."""
    tokenizer, done, gaps = build(), threading.Event(), []

    def watch() -> None:
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    thread = threading.Thread(target=watch)
    thread.start()
    start = time.perf_counter()
    assert len(tokenizer.encode("the hen " * 100_000)) == 600_000
    took = time.perf_counter() - start
    done.set()
    thread.join()
    assert max(gaps) < took / 2, (max(gaps), took)


def test_a_lone_surrogate_is_replaced() -> None:
    ours = build()
    assert ours.encode("a\ud800") == spelt("a\ufffd")
    assert ours.encode("\ud83d\ude00", special=True) == spelt("😀")


def test_stop_ids_are_the_files_and_the_well_known_ones() -> None:
    assert build().stop_ids == {END}
    assert build().eot_id == END
    ours = build(eos_token_id=256, eot_token_id=0, eom_token_id=1, bos_token_id=START, add_bos_token=True)
    assert ours.stop_ids == {END, 256, 0, 1}
    assert (ours.eos_id, ours.eot_id, ours.bos_id, ours.add_bos) == (256, 0, START, True)


def test_an_end_of_turn_token_is_markup_whatever_the_file_says() -> None:
    keys = metadata()
    keys["tokenizer.ggml.token_type"][END] = NORMAL
    ours = Tokenizer.from_checkpoint(MetadataOnly(keys))
    assert ours.stop_ids == {END}
    assert ours.encode("<|im_end|>") == spelt("<|im_end|>")
    assert "<|im_end|>" in ours.control_tokens


def test_byte_tokens_stand_for_missing_letters() -> None:
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "▁a"]
    ours = Tokenizer.from_checkpoint(
        MetadataOnly(
            {
                "tokenizer.ggml.model": "llama",
                "tokenizer.ggml.tokens": tokens,
                "tokenizer.ggml.token_type": [2] + [BYTE] * 256 + [NORMAL] * 3,
                "tokenizer.ggml.scores": [0.0] * 257 + [-3.0, -2.0, -1.0],
                "tokenizer.ggml.bos_token_id": 1,
            }
        )
    )
    assert ours.encode("a é") == [259, 257, 1 + 0xC3, 1 + 0xA9]
    assert ours.decode_bytes([259, 257, 1 + 0xC3, 1 + 0xA9]) == " a é".encode()
    assert ours.token_bytes(0) == b""


@pytest.mark.parametrize("keys", [{}, {"tokenizer.ggml.model": "none"}, {"tokenizer.ggml.model": "no_vocab"}])
def test_no_tokenizer_is_none(keys: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = MetadataOnly(keys, tmp_path)
    assert load_tokenizer(checkpoint) is None
    with pytest.raises(UnsupportedModelError, match="no tokenizer"):
        Tokenizer.from_checkpoint(checkpoint)


FAULTS: list[tuple[dict[str, Any], type[StrataError], str]] = [
    ({"model": "t5"}, UnsupportedModelError, r"tokenizer\.ggml\.model is 't5'.*'gpt2'.*'llama'"),
    ({"pre": "tekken"}, UnsupportedModelError, r"pre .*is 'tekken'.*Known: .*qwen35"),
    ({"pre": None}, UnsupportedModelError, r"pre .*is missing.*Known: "),
    ({"tokens": None}, ModelFileError, r"tokens is not a list of strings"),
    ({"tokens": ["a", "b", "a"]}, ModelFileError, r"'a' twice, as 0 and 2"),
    ({"token_type": [1, 1]}, ModelFileError, r"token_type has 2 entries, .*tokens 261"),
    ({"merges": ["h e", "h"]}, ModelFileError, r"merges\[1\] is 'h'"),
    ({"merges": ["h x"]}, ModelFileError, r"merges\[0\] is 'h x'"),
    ({"merges": [1]}, ModelFileError, r"merges\[0\] is 1;"),
    ({"merges": 1}, ModelFileError, r"merges is 1, not a list of strings"),
    ({"token_type": 1}, ModelFileError, r"token_type is 1, not a list of numbers"),
    ({"token_type": ["1"] * 261}, ModelFileError, r"token_type is \['1', .*, not a list of numbers"),
    ({"token_type": [6] * 261}, ModelFileError, r"tokens\[0\] is '.*' and its token_type a byte"),
    ({"model": "llama", "scores": True}, ModelFileError, r"scores is True, not a list of numbers"),
    (
        {"model": "llama", "scores": ["0"] * 261},
        ModelFileError,
        r"scores is \['0', .*, not a list of numbers",
    ),
    ({"eos_token_id": [2] * 9999}, ModelFileError, r"eos_token_id is \[2, [2, ]{50,60}, but"),
    ({"pre": ["qwen2"]}, UnsupportedModelError, r"pre .*is \['qwen2'\]"),
    ({"eos_token_id": "<|im_end|>"}, ModelFileError, r"eos_token_id is '<\|im_end\|>'"),
    ({"eos_token_id": 261}, ModelFileError, r"eos_token_id is 261, but there are 261 tokens"),
    ({"add_bos_token": True}, ModelFileError, r"add_bos_token is true and .*bos_token_id is missing"),
    ({"model": "llama"}, ModelFileError, r"scores is missing"),
]


@pytest.mark.parametrize(("fault", "kind", "message"), FAULTS)
def test_faulty_keys_are_named(fault: dict[str, Any], kind: type[StrataError], message: str) -> None:
    keys = metadata() | {f"tokenizer.ggml.{name}": value for name, value in fault.items()}
    keys = {key: value for key, value in keys.items() if value is not None}
    with pytest.raises(kind, match=rf"^model\.gguf: .*{message}"):
        load_tokenizer(MetadataOnly(keys))


def test_a_chat_template_is_a_string(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"tokenizer\.chat_template is list, not a string"):
        load_tokenizer(MetadataOnly(metadata() | {"tokenizer.chat_template": ["x"]}))
    checkpoint = folder_with(tmp_path, byte_level_document(), tokenizer_config={"chat_template": 1})
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template is not a string"):
        load_tokenizer(checkpoint)
    checkpoint = folder_with(tmp_path, byte_level_document(), tokenizer_config={"chat_template": ["x"]})
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: chat_template is not a string"):
        load_tokenizer(checkpoint)


def test_a_padding_id_of_minus_one_is_none() -> None:
    assert build(padding_token_id=0xFFFFFFFF).pad_id is None


def folder_with(folder: Path, document: Any, **others: Any) -> MetadataOnly:
    for name, content in {"tokenizer": document, **others}.items():
        (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return MetadataOnly({}, folder)


def byte_level_document(**more: Any) -> dict[str, Any]:
    flags = {"lstrip": False, "single_word": False, "normalized": False}
    added = {"<s>": True, "<|end|>": False, "<tool>": False, "<pad>": True}
    return {
        "version": "1.0",
        "added_tokens": [
            {"id": 257 + i, "content": text, "special": special, **flags, "rstrip": text == "<tool>"}
            for i, (text, special) in enumerate(added.items())
        ],
        "pre_tokenizer": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True
        },
        "decoder": {
            "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True
        },
        "model": {
            "type": "BPE",
            "vocab": {letter: i for i, letter in enumerate([*LETTERS, "he"])},
            "merges": [["h", "e"]],
        },
        **more,
    }  # fmt: skip


def test_a_folder_names_its_special_tokens(tmp_path: Path) -> None:
    starts_with_bos = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [257], "tokens": ["<s>"]}},
    }
    checkpoint = folder_with(
        tmp_path,
        byte_level_document(post_processor=starts_with_bos),
        tokenizer_config={
            "bos_token": {"content": "<s>"},
            "eos_token": "<pad>",
            "chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}],
        },
        generation_config={"eos_token_id": [260, 3, 999]},
    )
    ours = load_tokenizer(checkpoint)
    assert ours is not None
    assert (ours.bos_id, ours.eos_id, ours.pad_id, ours.eot_id, ours.add_bos) == (257, 260, None, 258, True)
    assert ours.stop_ids == {260, 258, 3}
    assert ours.chat_template == "d"
    assert ours.encode("<s><tool>  he", special=True) == [257, 259, 256]
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    again = load_tokenizer(checkpoint)
    assert again is not None
    assert again.chat_template == "file"


def test_a_folder_of_another_kind_is_refused(tmp_path: Path) -> None:
    unigram = byte_level_document(model={"type": "Unigram", "vocab": []})
    with pytest.raises(UnsupportedModelError, match=r"model\.type is 'Unigram'"):
        load_tokenizer(folder_with(tmp_path, unigram))
    with pytest.raises(UnsupportedModelError, match="decoder is 'Fuse'"):
        load_tokenizer(folder_with(tmp_path, byte_level_document(decoder={"type": "Fuse"})))
    with pytest.raises(ModelFileError, match=r"tokenizer\.json: is not a JSON object"):
        load_tokenizer(folder_with(tmp_path, []))
    with pytest.raises(ModelFileError, match=r"model\.vocab is not an object of ids"):
        load_tokenizer(folder_with(tmp_path, byte_level_document(model={"type": "BPE", "vocab": ["a"]})))
    with pytest.raises(ModelFileError, match=r"ids up to 1000000000 for 257 tokens"):
        far = byte_level_document()
        far["model"]["vocab"]["he"] = 10**9
        load_tokenizer(folder_with(tmp_path, far))
    for part, message in (
        ({"model": None}, "model is None, not an object"),
        ({"decoder": ["x"]}, r"decoder is \['x'\], not an object"),
        ({"post_processor": "x"}, "post_processor is none that tokenizers has"),
    ):
        with pytest.raises(ModelFileError, match=rf"tokenizer\.json: {message}"):
            load_tokenizer(folder_with(tmp_path, byte_level_document(**part)))
    with pytest.raises(ModelFileError, match=r"tokenizer_config\.json: bos_token is \[1\], not a string"):
        load_tokenizer(folder_with(tmp_path, byte_level_document(), tokenizer_config={"bos_token": [1]}))
    for content, number in (("x", "1"), ("x", -1), (["x"], 1)):
        token = {"content": content, "id": number, "special": True}
        flags = {"lstrip": False, "rstrip": False, "single_word": False}
        with pytest.raises(
            ModelFileError, match=r"tokenizer\.json: an entry of added_tokens has the content"
        ):
            load_tokenizer(folder_with(tmp_path, byte_level_document(added_tokens=[token | flags])))
    for text in ("{", "[" * 100_000):
        (tmp_path / "tokenizer.json").write_text(text, encoding="utf-8")
        with pytest.raises(ModelFileError, match=r"tokenizer\.json: cannot be read as JSON"):
            load_tokenizer(MetadataOnly({}, tmp_path))
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer.model").touch()
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.model and no tokenizer\.json"):
        load_tokenizer(MetadataOnly({}, tmp_path))
