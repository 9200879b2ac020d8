"""Damaged, foreign and misplaced GGUF files: what each error says."""

import os
import re
import struct
from pathlib import Path

import numpy as np
import pytest

from strata.errors import ModelFileError, StrataError, UnsupportedModelError
from strata.formats import gguf_header
from strata.formats.checkpoint import open_checkpoint
from strata.formats.gguf import GGUFCheckpoint
from tests.helpers import gguf_files as raw
from tests.helpers.gguf_files import RawGGUF, Tensor, key, split_gguf, write_gguf

ARCHITECTURE = key("general.architecture", raw.STRING, "llama")
# Two tensors of 100 and 128 bytes: the first is padded to 128, the second needs no padding.
SOUND = RawGGUF(tensors=[Tensor("a", [25]), Tensor("b", [8, 4], offset=128)], data=bytes(256))
BIG = 2**63 - 1


def opening(tmp_path, file: RawGGUF | bytes, name: str = "m.gguf") -> StrataError:
    """The error that opening such a file gives; its text names the file."""
    path = tmp_path / name
    path.write_bytes(file if isinstance(file, bytes) else file.encode())
    with pytest.raises(StrataError) as caught:
        GGUFCheckpoint(path)
    assert str(caught.value).startswith(f"{path}: ")
    return caught.value


def test_the_sound_file_is_sound(tmp_path):
    assert list(GGUFCheckpoint(SOUND.write(tmp_path / "m.gguf")).tensors) == ["a", "b"]


@pytest.mark.parametrize(
    ("file", "kind", "text"),
    [
        (b"", ModelFileError, "is not a GGUF file: it starts with b''"),
        (b"GGU", ModelFileError, "is not a GGUF file"),
        (b"version https://git-lfs", ModelFileError, "Git LFS pointer"),
        (SOUND.but(magic=b"GGML"), ModelFileError, "starts with b'GGML'"),
        (SOUND.but(version=struct.pack("<I", 1)), UnsupportedModelError, "GGUF version 1; Strata reads"),
        (SOUND.but(version=struct.pack("<I", 4)), UnsupportedModelError, "GGUF version 4"),
        (SOUND.but(version=struct.pack(">I", 3)), UnsupportedModelError, "big-endian"),
        (SOUND.encode()[:20], ModelFileError, "key count needs 8 bytes at offset 16, the file has 20"),
    ],
)  # fmt: skip
def test_what_is_not_gguf(tmp_path, file, kind, text):
    error = opening(tmp_path, file)
    assert type(error) is kind and text in str(error)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (SOUND.but(num_keys=2**60), r"announces 1152921504606846976 keys, .* only \d+ bytes are left"),
        (SOUND.but(num_tensors=2**60), r"announces 1152921504606846976 tensors, .* only \d+ bytes are left"),
        (SOUND.but(num_tensors=70_000, data=bytes(3_000_000)), "announces 70000 tensors, more than 65536"),
        (SOUND.but(keys=[ARCHITECTURE, key("", 4, 1)]), "name of key 2 of 2 has 0 bytes"),
        (SOUND.but(keys=[struct.pack("<Q", BIG)]), f"name of key 1 of 1 has {BIG} bytes, not 1 to 1024"),
        (SOUND.but(keys=[key(b"\xff\xfe", 4, 1)]), "key 1 of 1 is not printable text"),
        (SOUND.but(keys=[key(b"a\x1b[2J", 4, 1)]), "key 1 of 1 is not printable text"),
        (SOUND.but(keys=[ARCHITECTURE] * 2), "key 'general.architecture' occurs twice"),
        (SOUND.but(keys=[raw.string("k") + struct.pack("<I", 13)]), "key 'k' has value type 13"),
        (SOUND.but(keys=[raw.string("k") + struct.pack("<IQ", 8, BIG)]), f"key 'k' needs {BIG} bytes"),
        (
            SOUND.but(keys=[raw.string("k") + struct.pack("<IIQ", 9, 4, 2**62)]),
            f"key 'k' with {2**62} elements needs {2**64} bytes",
        ),
        (SOUND.but(keys=[raw.string("k") + struct.pack("<IIQ", 9, 8, 2**62)]), f"elements needs {2**65}"),
        (SOUND.but(keys=[raw.string("k") + struct.pack("<IIQ", 9, 77, 0)]), "key 'k' has value type 77"),
        (SOUND.but(keys=[raw.string("k") + struct.pack("<IIQ", 9, 9, 1)]), "is an array of arrays"),
        (
            SOUND.but(keys=[raw.string("k") + struct.pack("<IIQQ", 9, 8, 2, BIG)]),
            "string 2 of key 'k' with 2 elements",
        ),
        (
            SOUND.but(keys=[raw.string("k") + struct.pack("<IIQQ", 9, 8, 1, BIG)]),
            rf"key 'k' with 1 elements needs {BIG + 8} bytes at offset \d+, the file has \d+ bytes",
        ),
    ],
)  # fmt: skip
def test_damaged_keys(tmp_path, file, text):
    error = opening(tmp_path, file)
    assert type(error) is ModelFileError and re.search(text, str(error)), str(error)


@pytest.mark.parametrize("value", [0, 24, 33])
def test_alignment_is_a_power_of_two(tmp_path, value):
    file = SOUND.but(keys=[ARCHITECTURE, key("general.alignment", raw.UINT32, value)])
    assert f"general.alignment is {value}, not a power of two" in str(opening(tmp_path, file))


def test_alignment_of_another_type(tmp_path):
    file = SOUND.but(keys=[ARCHITECTURE, key("general.alignment", raw.FLOAT32, 32.0)])
    assert "general.alignment is 32.0" in str(opening(tmp_path, file))


@pytest.mark.parametrize("alignment", [1, 8, 64, 4096])
def test_other_alignments_work(tmp_path, alignment):
    keys = [ARCHITECTURE, key("general.alignment", raw.UINT32, alignment)]
    second = -(-100 // alignment) * alignment
    tensors = [Tensor("a", [25]), Tensor("b", [2], offset=second)]
    data = bytes(second) + np.array([3, 4], "<f4").tobytes()
    path = RawGGUF(keys, tensors, data, alignment=alignment).write(tmp_path / "m.gguf")
    assert GGUFCheckpoint(path).read("b").tolist() == [3, 4]


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ([Tensor("a", [])], "tensor a has 0 dimensions, not 1 to 4"),
        ([Tensor("a", [1] * 5)], "tensor a has 5 dimensions, not 1 to 4"),
        ([Tensor("a", [0])], r"tensor a has dimensions \[0\]"),
        ([Tensor("a", [2**62, 4])], rf"tensor a has dimensions \[4, {2**62}\], whose product"),
        ([Tensor("a", [2**32, 2**32, 2**32, 2**32])], "whose product is not between 1 and"),
        ([Tensor("a", [2**63])], "whose product is not between 1 and"),
        ([Tensor("a", [25]), Tensor("a", [8, 4], offset=128)], "tensor a occurs twice"),
        ([Tensor("a", [25]), Tensor("b", [8, 4], offset=100)], "tensor b is at offset 100, where 128 is"),
        ([Tensor("a", [25]), Tensor("b", [8, 4], offset=96)], "tensor b is at offset 96, where 128 is"),
        ([Tensor("a", [25]), Tensor("b", [8, 4], offset=160)], "tensor b is at offset 160, where 128 is"),
        ([Tensor("a", [25], offset=2**64 - 32)], f"tensor a is at offset {2**64 - 32}, where 0 is expected"),
        ([Tensor("a", [33], type_id=8)], "tensor a has rows of 33 values, no multiple of Q8_0's block of 32"),
        ([Tensor("a", [65])], r"truncated: tensor a takes 260 bytes and ends at byte \d+, the file has \d+"),
        ([Tensor("a", [2**61])], f"is truncated: tensor a takes {2**63} bytes"),
        ([Tensor("a", [56])], r"too long: its 1 tensors end at byte \d+, which makes \d+ bytes, the file"),
    ],
)  # fmt: skip
def test_damaged_tensors(tmp_path, tensors, text):
    error = opening(tmp_path, SOUND.but(tensors=tensors))
    assert type(error) is ModelFileError and re.search(text, str(error)), str(error)


def test_sizes_to_the_byte(tmp_path):
    # The last tensor is 100 bytes, padded to 128: both ends are right, everything else is not.
    file = RawGGUF(tensors=[Tensor("a", [25])])
    for size in (100, 128):
        assert (
            GGUFCheckpoint(file.but(data=bytes(size)).write(tmp_path / "m.gguf")).tensors["a"].num_bytes
            == 100
        )
    assert "is truncated" in str(opening(tmp_path, file.but(data=bytes(99))))
    assert "is too long" in str(opening(tmp_path, file.but(data=bytes(129))))


def test_every_truncation_is_noticed(tmp_path):
    whole = SOUND.encode()
    for size in range(len(whole)):
        opening(tmp_path, whole[:size])


def test_unknown_types_are_listed_with_their_tensors(tmp_path):
    tensors = [Tensor(f"t{i}", [256], type_id=kind) for i, kind in enumerate([35, 26, 99, 35, 35, 35, 0])]
    error = opening(tmp_path, SOUND.but(tensors=tensors))
    assert type(error) is UnsupportedModelError
    assert "6 tensors" in str(error) and "t0 (type TQ2_0, id 35)" in str(error)
    assert (
        "t1 (type I32, id 26)" in str(error)
        and "t2 (type id 99)" in str(error)
        and "and 1 more" in str(error)
    )


def test_architecture_is_needed(tmp_path):
    for keys in (
        [],
        [key("general.architecture", raw.STRING, "")],
        [key("general.architecture", raw.UINT32, 1)],
    ):
        assert "general.architecture is missing" in str(opening(tmp_path, SOUND.but(keys=keys)))


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ([ARCHITECTURE, key("general.type", raw.STRING, "adapter")], "adapter"),
        (
            [key("general.architecture", raw.STRING, "clip"), key("general.type", raw.STRING, "mmproj")],
            "mmproj",
        ),
        ([key("general.architecture", raw.STRING, "clip")], "mmproj"),
    ],
)
def test_adapters_and_projectors_are_not_models(tmp_path, keys, kind):
    error = opening(tmp_path, SOUND.but(keys=keys))
    assert type(error) is UnsupportedModelError and f"general.type is '{kind}'" in str(error)


def test_metadata_may_not_outgrow_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_header, "MIN_METADATA_BUDGET", 1000)
    zeros = key("k", raw.ARRAY, (raw.UINT8, [0] * 5000))
    error = opening(tmp_path, SOUND.but(keys=[ARCHITECTURE, zeros]))
    assert re.search(r"key 'k' with 5000 elements takes about \d+ bytes in memory", str(error))
    empty = key("k", raw.ARRAY, (raw.STRING, [""] * 5000))
    assert "key 'k' with 5000 elements takes about" in str(
        opening(tmp_path, SOUND.but(keys=[ARCHITECTURE, empty]))
    )


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(ModelFileError, match="is a folder, not a GGUF file"):
        GGUFCheckpoint(tmp_path)
    with pytest.raises(ModelFileError, match=r"absent\.gguf: no such file"):
        GGUFCheckpoint(tmp_path / "absent.gguf")


def test_missing_parts_are_listed(tmp_path):
    parts = split_gguf(tmp_path, count=4)
    parts[1].unlink()
    parts[3].unlink()
    with pytest.raises(ModelFileError, match="2 of 4 parts are missing") as caught:
        GGUFCheckpoint(parts[2])
    assert parts[1].name in str(caught.value) and parts[3].name in str(caught.value)


def test_many_missing_parts_are_abridged(tmp_path):
    path = write_gguf(tmp_path / "m-00001-of-99999.gguf", {})
    with pytest.raises(ModelFileError, match=r"99998 of 99999 parts are missing.* and 99990 more"):
        GGUFCheckpoint(path)


@pytest.mark.parametrize("name", ["m-00000-of-00002.gguf", "m-00003-of-00002.gguf"])
def test_part_numbers_out_of_range(tmp_path, name):
    assert re.search("is named part [03] of 2", str(opening(tmp_path, SOUND, name)))


def test_renamed_part(tmp_path):
    part = split_gguf(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelFileError, match=r"is one part of 3 \(split.count\)"):
        GGUFCheckpoint(part)


def test_swapped_parts(tmp_path):
    parts = split_gguf(tmp_path)
    parts[1].rename(tmp_path / "x")
    parts[2].rename(parts[1])
    (tmp_path / "x").rename(parts[2])
    with pytest.raises(
        ModelFileError, match=r"00002-of-00003.gguf: is named part 2, its split.no is 2 and not 1"
    ):
        GGUFCheckpoint(parts[0])


def test_parts_of_different_splits(tmp_path):
    parts = split_gguf(tmp_path)
    other = tmp_path / "other"
    other.mkdir()
    split_gguf(other, count=5)[1].rename(parts[1])
    with pytest.raises(ModelFileError, match=r"00002-of-00003.gguf: split.count is 5, its name says 3"):
        GGUFCheckpoint(parts[0])


def split_part(i: int, stated_tensors: int, tensor: str) -> RawGGUF:
    keys = [ARCHITECTURE, key("split.no", raw.UINT16, i), key("split.count", raw.UINT16, 2)]
    keys.append(key("split.tensors.count", raw.INT32, stated_tensors))
    return RawGGUF(keys, [Tensor(tensor, [32])], bytes(128))


def test_split_tensor_count(tmp_path):
    paths = [split_part(i, 3, f"t{i}").write(tmp_path / f"m-0000{i + 1}-of-00002.gguf") for i in range(2)]
    with pytest.raises(ModelFileError, match=r"split.tensors.count is 3, the 2 parts have 2 tensors"):
        GGUFCheckpoint(paths[0])


def test_tensor_in_two_parts(tmp_path):
    paths = [split_part(i, 2, "same").write(tmp_path / f"m-0000{i + 1}-of-00002.gguf") for i in range(2)]
    with pytest.raises(ModelFileError, match=r"00002.gguf: tensor same is also in m-00001-of-00002.gguf"):
        GGUFCheckpoint(paths[1])


def test_truncated_part(tmp_path):
    parts = split_gguf(tmp_path)
    parts[2].write_bytes(parts[2].read_bytes()[:-1])
    with pytest.raises(ModelFileError, match=r"00003-of-00003.gguf: is truncated: tensor t2 takes 128 bytes"):
        GGUFCheckpoint(parts[0])


def test_a_path_that_cannot_be_looked_at_is_named(tmp_path, monkeypatch) -> None:
    with pytest.raises(ModelFileError, match=r"xxx: cannot be opened: .*too long"):
        open_checkpoint(tmp_path / ("x" * 300))
    with pytest.raises(ModelFileError, match=r"no such file or folder"):
        open_checkpoint("a\0b")

    def refuse(path: Path, **options: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(ModelFileError, match=r"m\.gguf: cannot be opened: .*Permission denied"):
        open_checkpoint("m.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="Windows has no pipes with a path")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(ModelFileError, match=r"pipe\.gguf: is a device, pipe or socket"):
        open_checkpoint(tmp_path / "pipe.gguf")
