"""Packing: the fast path writes the bytes of the plain one."""

import mmap
from pathlib import Path

import numpy as np
import pytest

from strata.formats.quants import FORMATS
from strata.native import Matrix, _core
from strata.native.matrix import empty_planes


@pytest.fixture(autouse=True)
def keep_isa():
    before = _core.isa()
    yield
    _core.use_isa(before)


def pack(isa: str, name: str, num_out: int, num_in: int, blocks: np.ndarray) -> np.ndarray:
    _core.use_isa(isa)
    planes = empty_planes(_core.plane_bytes(name, num_out, num_in))
    planes[:] = 0  # a tile's padding is not written
    _core.pack(name, num_out, num_in, blocks, planes)
    return planes


@pytest.mark.parametrize("name", _core.formats())
def test_every_instruction_set_writes_the_same_planes(name):
    block_size, block_bytes = (
        (1, 1) if name == "F8_E4M3" else (FORMATS[name].block_size, FORMATS[name].block_bytes)
    )
    for num_out, blocks_per_row in (
        (37, 1),
        (16, 2),
        (32, 3),
        (7, 5),
    ):  # odd counts: planes end inside cache lines
        num_in = block_size * blocks_per_row
        rng = np.random.default_rng(blocks_per_row)
        blocks = rng.integers(0, 256, num_out * blocks_per_row * block_bytes, dtype=np.uint8)
        want = pack("portable", name, num_out, num_in, blocks)
        for isa in _core.isas():
            np.testing.assert_array_equal(pack(isa, name, num_out, num_in, blocks), want)


def test_threads_share_a_matrix(threads):
    blocks = np.random.default_rng(0).integers(0, 256, 1000 * 144, dtype=np.uint8)
    want = pack("portable", "Q4_K", 1000, 256, blocks)
    for isa in _core.isas():
        np.testing.assert_array_equal(pack(isa, "Q4_K", 1000, 256, blocks), want)


def resident_bytes(file: Path) -> int:
    """How much of a mapped file this process holds, from /proc/self/smaps."""
    total, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        field, *values = line.split()
        if not field.endswith(":"):
            inside = line.endswith(str(file))
        elif inside and field == "Rss:":
            total += int(values[0]) * 1024
    return total


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux")
def test_packing_lets_go_of_the_file(tmp_path):
    contents = np.random.default_rng(0).integers(0, 256, 4096 * 18 * 64, dtype=np.uint8)
    (tmp_path / "blocks").write_bytes(contents.tobytes())
    with (tmp_path / "blocks").open("rb") as file:
        mapped = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), dtype=np.uint8)
    assert mapped.sum() == contents.sum()  # all pages are there now
    before = resident_bytes(tmp_path / "blocks")
    assert before >= contents.nbytes
    half = len(mapped) // 2
    second = Matrix.from_gguf("Q4_0", 2048, 2048, mapped[half:])
    assert resident_bytes(tmp_path / "blocks") <= before // 2
    first = Matrix.from_gguf("Q4_0", 2048, 2048, mapped[:half].reshape(2048, -1))
    assert resident_bytes(tmp_path / "blocks") == 0
    for matrix, blocks in ((first, contents[:half]), (second, contents[half:])):
        np.testing.assert_array_equal(matrix.planes, Matrix.from_gguf("Q4_0", 2048, 2048, blocks).planes)


def test_packing_leaves_what_was_written(tmp_path):
    (tmp_path / "blocks").write_bytes(bytes(18 * 4096))
    with (tmp_path / "blocks").open("rb") as file:
        copy = np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), dtype=np.uint8)
    copy[:] = 7
    Matrix.from_gguf("Q4_0", 4096, 32, copy)
    assert (copy == 7).all()


def test_planes_must_start_a_cache_line():
    planes = empty_planes(_core.plane_bytes("Q4_0", 32, 32) + 64)[8:-56]
    with pytest.raises(ValueError, match="modulo 64 is 8, expected 0"):
        _core.pack("Q4_0", 32, 32, np.zeros(32 * 18, np.uint8), planes)


def test_packed_planes_start_a_cache_line():
    planes = Matrix.from_gguf("Q4_0", 16, 32, np.zeros(16 * 18, np.uint8)).planes
    assert planes.ctypes.data % 64 == 0


def test_small_matrices_share_memory_without_meeting():
    sizes = [1, 64, 1000, 3 << 20, 20 << 20, 7, *([5 << 20] * 8)]  # one is too large to share
    planes = [empty_planes(size) for size in sizes]
    for i, (p, size) in enumerate(zip(planes, sizes, strict=True)):
        assert p.shape == (size,) and p.flags.c_contiguous
        assert p.ctypes.data % 64 == 0
        p[:: max(size - 1, 1)] = i  # the first byte and the last
    for i, p in enumerate(planes):
        assert p[0] == i and p[-1] == i
