"""A GGUF is untrusted: opening any bytes gives a checkpoint or a StrataError, soon and in little memory."""

import os
import random
import struct
import time
import tracemalloc
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from strata.errors import StrataError
from strata.formats import gguf_header
from strata.formats.gguf import GGUFCheckpoint
from tests.helpers import gguf_files as raw
from tests.helpers.gguf_files import RawGGUF, Tensor, key

NUM_MUTATIONS = 10_000
# Numbers that break parsers: around zero, powers of two, signs, and what overflows when multiplied.
SPECIAL = [
    0,
    1,
    2,
    7,
    8,
    9,
    31,
    32,
    33,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**32,
    2**61,
    2**63 - 1,
    2**63,
]
SPECIAL += [2**64 - 1, 2**64 - 32]


def sound_file() -> tuple[bytes, int]:
    """The header of a file with every kind of value and several tensor types, and the file's size."""
    keys = [
        key("general.architecture", raw.STRING, "llama"),
        key("general.alignment", raw.UINT32, 32),
        key("llama.block_count", raw.UINT32, 2),
        key("llama.rope.freq_base", raw.FLOAT32, 1e4),
        key("tokenizer.ggml.add_bos_token", raw.BOOL, True),
        key("tokenizer.ggml.tokens", raw.ARRAY, (raw.STRING, [f"token {i}" for i in range(60)])),
        key("tokenizer.ggml.scores", raw.ARRAY, (raw.FLOAT32, [0.5] * 60)),
        key("llama.layers", raw.ARRAY, (raw.BOOL, [True, False])),
        key("llama.multipliers", raw.ARRAY, (raw.UINT64, [2**63, 1])),
        key("split.no", raw.UINT16, 0),
        key("split.count", raw.UINT16, 1),
        key("split.tensors.count", raw.INT32, 4),
    ]
    tensors = [
        Tensor("token_embd.weight", [64, 60], type_id=8, offset=0),  # Q8_0: 4080 bytes, padded to 4096
        Tensor("blk.0.ffn_up_exps.weight", [256, 4, 2], type_id=12, offset=4096),  # Q4_K: 1152 bytes
        Tensor("output_norm.weight", [64], offset=5248),
        # 64 KiB more, so that twice the file's size is more than Python's own needs.
        Tensor("output.weight", [256, 64], offset=5504),
    ]
    header = RawGGUF(keys, tensors).encode()
    return header, len(header) + 5504 + 65536


def mutate(rng: random.Random, header: bytes) -> bytes:
    """One to four changes: bits, numbers, runs, repeats."""
    data = bytearray(header)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        at = rng.randrange(len(data))
        kind = rng.randrange(7)
        if kind == 0:
            data[at] = rng.randrange(256)
        elif kind == 1:
            data[at : at + 8] = struct.pack("<Q", rng.choice(SPECIAL))
        elif kind == 2:
            data[at : at + 4] = struct.pack("<I", rng.choice(SPECIAL) & 0xFFFFFFFF)
        elif kind == 3:
            del data[at : at + rng.randrange(1, 24)]
        elif kind == 4:
            data[at:at] = data[at : at + rng.randrange(1, 64)]
        elif kind == 5:
            data[at] ^= 1 << rng.randrange(8)
        else:
            data[at : at + 8] = struct.pack("<Q", rng.randrange(100_000))
    return bytes(data)


def write(path: Path, header: bytes, size: int) -> None:
    """A file of `size` bytes that starts with `header`; the rest is a hole of zeros."""
    path.write_bytes(header)
    os.truncate(path, size)


def opened(path: Path) -> GGUFCheckpoint | None:
    """Open a file and decode its metadata; None where it was refused."""
    try:
        checkpoint = GGUFCheckpoint(path)
    except StrataError as error:
        assert str(error).startswith(str(path))
        return None
    for value in checkpoint.metadata.values():
        assert isinstance(value, str | int | float | list)
    return checkpoint


def touch_tensors(checkpoint: GGUFCheckpoint | None, decode: bool = True) -> None:
    """Reach the first and the last byte of each tensor, and decode a slice of it."""
    if checkpoint is None:
        return
    for name, info in checkpoint.tensors.items():
        data = checkpoint.raw(name)
        assert data.nbytes == info.num_bytes
        assert 0 <= data.flat[0] <= 255 and 0 <= data.flat[-1] <= 255
        if decode:
            assert checkpoint.read(name, 0).shape == info.shape[1:]


def test_mutated_headers(tmp_path, monkeypatch):
    # Small files may exceed their size twice up to this floor; without it the rule holds for any size.
    monkeypatch.setattr(gguf_header, "MIN_METADATA_BUDGET", 0)
    header, size = sound_file()
    path = tmp_path / "m.gguf"
    write(path, header, size)
    assert opened(path) is not None  # what is mutated is sound
    rng = random.Random(20261130)
    accepted, slowest, highest = 0, 0.0, 0.0
    for i in range(NUM_MUTATIONS):
        length = size if rng.random() < 0.9 else rng.randrange(size)
        write(path, mutate(rng, header), length)
        start = time.process_time()
        tracemalloc.start()
        checkpoint = opened(path)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        touch_tensors(checkpoint, decode=i % 10 == 0)
        slowest = max(slowest, time.process_time() - start)
        accepted += checkpoint is not None
        if length == size:  # in a shorter file, Python's own objects outweigh the file's
            highest = max(highest, peak / size)
    assert 0 < accepted < NUM_MUTATIONS / 2
    assert highest < 2
    assert slowest < 2


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=400))
def test_any_bytes_after_the_magic(tmp_path, data):
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF\x03\0\0\0" + data)
    touch_tensors(opened(path))


NUMBERS = st.one_of(st.sampled_from(SPECIAL), st.integers(0, 2**64 - 1), st.integers(0, 300))


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tensors=st.lists(
        st.builds(
            Tensor,
            name=st.binary(min_size=1, max_size=5),
            dimensions=st.lists(NUMBERS, max_size=5),
            type_id=st.integers(0, 45),
            offset=NUMBERS,
        ),
        max_size=4,
    ),
    num_tensors=st.one_of(st.none(), NUMBERS),
    num_keys=st.one_of(st.none(), NUMBERS),
    alignment=NUMBERS,
    size=st.integers(0, 5000),
)
def test_any_tensor_list(tmp_path, tensors, num_tensors, num_keys, alignment, size):
    keys = [key("general.architecture", raw.STRING, "llama"), key("general.alignment", raw.UINT64, alignment)]
    file = RawGGUF(keys, tensors, bytes(size), num_keys=num_keys, num_tensors=num_tensors)
    touch_tensors(opened(file.write(tmp_path / "m.gguf")))
