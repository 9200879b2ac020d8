"""Models of real geometry with made-up weights: to measure a machine without a download.

All codes are valid. Scales are such that activations stay of order one, and routers choose every expert
about equally often. There is no tokenizer: token ids go in and come out. A matrix is a piece of a pool of
random blocks of its format, from a place that its name, index and the seed give. So nothing is generated
twice, and a read gives the same bytes at any time.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from gguf import GGUFValueType, GGUFWriter
from gguf.constants import GGUF_DEFAULT_ALIGNMENT

from strata.errors import StrataError
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.geometry import Geometry
from strata.formats.mixes import Mix, tensors_of
from strata.formats.quants import FORMATS
from strata.outputs import whole_file

POOL_BYTES = 4 << 20  # of one format and row length: more than a core's cache, so that reading it is honest
_MEASURED_BLOCKS = 4096  # whose weights tell a format's deviation
_WIDE_KEYS = ("layer_multipliers", "head_vocab_sizes", "head_offsets")  # arrays of 64-bit numbers
_E2M1_DEVIATION = 34.25**0.5  # of 0, 1, 2, 3, 4, 6, 8, 12 (doubled E2M1) with either sign


class SyntheticCheckpoint(Checkpoint):
    """A checkpoint whose bytes are made when they are read.

    Args:
        geometry: shapes and keys.
        mix: formats.
        seed: another one gives other weights.

    Attributes:
        geometry: as given.
    """

    def __init__(self, geometry: Geometry, mix: Mix, seed: int = 0):
        self.geometry, self.seed = geometry, seed
        self.path = Path(f"synthetic {geometry.name}")
        self.architecture = geometry.architecture
        prefix = geometry.architecture
        self.metadata = {f"{prefix}.{key}": value for key, value in geometry.metadata().items()} | {
            "general.architecture": prefix,
            "general.name": f"{geometry.name}, made-up weights",
            "tokenizer.ggml.model": "no_vocab",
        }
        self.tensors = MappingProxyType(tensors_of(geometry, mix))
        self._constants = {t.name: t.value for t in geometry.tensors() if t.value is not None}
        self._pools: dict[tuple[str, int], np.ndarray] = {}

    def raw(self, name: str, index: int | None = None) -> np.ndarray:
        """As `Checkpoint.raw`; a view where one piece of a pool is all there is to it."""
        info = self.tensors[name]
        shape = info.shape if index is None else info.shape[1:]
        pieces = list(self.pieces(name, index))
        joined = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        return joined.reshape(*shape[:-1], -1)

    def pieces(self, name: str, index: int | None = None) -> Iterator[np.ndarray]:
        """The bytes of a tensor or of its slice `[index]` in order, as flat views of a pool."""
        info = self.tensors[name]
        slices = info.shape[0]
        if index is not None and not 0 <= index < slices:
            raise IndexError(f"slice {index} of tensor {name}, whose first dimension is {slices}")
        if len(info.shape) == 3:  # experts: each has a place of its own
            for expert in range(slices) if index is None else [index]:
                yield from self._round(info, expert, 0, info.num_bytes // slices)
        elif index is None:
            yield from self._round(info, 0, 0, info.num_bytes)
        else:
            row_bytes = info.num_bytes // slices
            yield from self._round(info, 0, index * row_bytes, row_bytes)

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        info = self.tensors[name]
        fmt = FORMATS[info.format]
        values = fmt.dequantize(self.raw(name, index).reshape(-1, fmt.block_bytes))
        return torch.from_numpy(values.reshape(info.shape if index is None else info.shape[1:]))

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        info = self.tensors[name]
        fmt = FORMATS[info.format]
        pool, blocks = self._pool(info), info.shape[1] // fmt.block_size
        first = self._place(info, 0) + rows.numpy() * blocks
        wanted = pool[(first[:, None] + np.arange(blocks)) % len(pool)]
        return torch.from_numpy(fmt.dequantize(wanted.reshape(-1, fmt.block_bytes)).reshape(len(rows), -1))

    def _round(self, info: TensorInfo, index: int, skip: int, num_bytes: int) -> Iterator[np.ndarray]:
        """`num_bytes` from the place of slice `index`, `skip` bytes on, round and round the pool."""
        pool = self._pool(info)
        stored = pool.reshape(-1)
        begin = (self._place(info, index) * pool.shape[1] + skip) % stored.size
        while num_bytes:
            piece = stored[begin : begin + num_bytes]
            yield piece
            num_bytes, begin = num_bytes - piece.size, 0

    def _place(self, info: TensorInfo, index: int) -> int:
        """The block of its pool where slice `index` of a tensor begins, so that it ends in it if it can."""
        if info.name in self._constants:
            return 0
        pool = self._pool(info)
        slices = info.shape[0] if len(info.shape) == 3 else 1
        length = info.num_bytes // slices // pool.shape[1]
        digest = hashlib.blake2b(f"{self.seed} {info.name} {index}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "little") % (len(pool) - length if length < len(pool) else len(pool))

    def _pool(self, info: TensorInfo) -> np.ndarray:
        """Read-only blocks, uint8 `[blocks, block bytes]`, of the tensor's format and row length."""
        constant = self._constants.get(info.name)
        key = (info.format, info.shape[-1]) if constant is None else (info.name, 0)
        pool = self._pools.get(key)
        if pool is None:
            if constant is None:
                pool = random_blocks(info.format, info.shape[-1], self.seed)
            else:
                pool = np.full((info.shape[-1], 1), constant, "<f4").view(np.uint8)
            pool.flags.writeable = False
            self._pools[key] = pool
        return pool


def random_blocks(format: str, row_length: int, seed: int) -> np.ndarray:
    """About `POOL_BYTES` of weights of mean 0 and deviation 1 / sqrt(row_length), `[blocks, block bytes]`."""
    fmt = FORMATS[format]
    key = hashlib.sha256(f"{format} {row_length} {seed}".encode()).digest()
    rng = np.random.Generator(np.random.SFC64(np.frombuffer(key, np.uint32)))
    # an odd number: places do not fall on the same few phases
    count = POOL_BYTES // fmt.block_bytes | 1
    if fmt.block_size == 1:
        values = rng.standard_normal(count, np.float32) * np.float32(row_length**-0.5)
        return _as_floats(values, format).reshape(count, -1)
    blocks = rng.integers(0, 256, (count, fmt.block_bytes), np.uint8).view(fmt.layout)[:, 0]
    if format in _SET_SCALES:
        _SET_SCALES[format](blocks, row_length**-0.5, rng)
    else:
        _set_float_scale(format, blocks, row_length**-0.5)
    return blocks.view(np.uint8).reshape(count, -1)


def _set_float_scale(format: str, blocks: np.ndarray, deviation: float) -> None:
    """Write the float16 scale `d`, and the minimum that takes the mean away where there is one."""
    minimum = next((name for name in ("dmin", "m") if name in blocks.dtype.names), None)
    sample = blocks[:_MEASURED_BLOCKS].copy()

    def weights(scale: float, offset: float) -> np.ndarray:
        sample["d"] = scale
        if minimum:
            sample[minimum] = offset
        return FORMATS[format].dequantize(sample.view(np.uint8))

    # the minimum that takes the mean away, in units of the scale
    offset = -weights(1, 0).mean() / weights(0, 1).mean() if minimum else 0.0
    scale = deviation / weights(1, offset).std()
    blocks["d"] = scale
    if minimum:
        blocks[minimum] = offset * scale


def _set_iq1_m(blocks: np.ndarray, deviation: float, rng: np.random.Generator) -> None:
    """IQ1_M keeps its float16 scale in the top nibbles of the four words of sub-scales, lowest first."""

    def write(scale: float, to: np.ndarray) -> None:
        bits = int(np.float16(scale).view(np.uint16))
        nibbles = np.array([bits >> shift & 15 for shift in (0, 4, 8, 12)], np.uint16)
        to["scales"] = to["scales"] & 0x0FFF | nibbles << 12

    sample = blocks[:_MEASURED_BLOCKS].copy()
    write(1.0, sample)
    write(deviation / FORMATS["IQ1_M"].dequantize(sample.view(np.uint8)).std(), blocks)


def _set_mxfp4(blocks: np.ndarray, deviation: float, rng: np.random.Generator) -> None:
    """A power of two for 32 weights: the two nearest ones, so often that the deviation comes out."""
    exponent = np.log2(deviation / _E2M1_DEVIATION) + 128
    low = int(np.floor(exponent))
    share = (4.0 ** (exponent - low) - 1) / 3
    blocks["e"] = low + (rng.random(len(blocks)) < share)


def _set_nvfp4(blocks: np.ndarray, deviation: float, rng: np.random.Generator) -> None:
    """An E4M3 scale for 16 weights: the two nearest ones, so often that the deviation comes out."""
    sample = np.tile(blocks[:1], 127)
    sample["d"] = np.arange(127, dtype=np.uint8)[:, None]
    sample["qs"] = 0x22  # the doubled value 2 everywhere
    scales = FORMATS["NVFP4"].dequantize(sample.view(np.uint8))[:, 0] / 2
    wanted = deviation / _E2M1_DEVIATION
    low = min(max(int(np.searchsorted(scales, wanted)) - 1, 0), 125)
    share = (wanted**2 - scales[low] ** 2) / (scales[low + 1] ** 2 - scales[low] ** 2)
    blocks["d"] = low + (rng.random(blocks["d"].shape) < share)


def _set_q2_0(blocks: np.ndarray, deviation: float, rng: np.random.Generator) -> None:
    """Without code 3, which stands for 2 and would lift the mean; quantisers hardly write it either."""
    codes = blocks["qs"]
    codes &= ~((codes & codes >> 1 & 0x55) << 1)
    blocks["d"] = deviation / 0.5**0.5  # codes 0, 1, 2 in the shares 1/4, 1/2, 1/4


_SET_SCALES = {"Q2_0": _set_q2_0, "IQ1_M": _set_iq1_m, "MXFP4": _set_mxfp4, "NVFP4": _set_nvfp4}


def _as_floats(values: np.ndarray, format: str) -> np.ndarray:
    """float32 as the bytes of F32, F16 or BF16 (rounded to nearest)."""
    if format == "BF16":
        bits = values.view(np.uint32)
        return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype("<u2").view(np.uint8)
    return values.astype({"F32": "<f4", "F16": "<f2"}[format]).view(np.uint8)


def write_gguf(checkpoint: SyntheticCheckpoint, path: Path, progress: Callable[[int, int], None]) -> None:
    """Write the model as a GGUF, piece by piece; the file appears only when it is complete.

    Args:
        progress: gets bytes done and bytes to do.

    Raises:
        StrataError: there is no room, or no right to write there.
    """
    total = sum(info.num_bytes for info in checkpoint.tensors.values())
    with whole_file(path) as partial:
        free = shutil.disk_usage(path.absolute().parent).free
        if total > free:
            raise StrataError(f"{path}: takes {total / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB left")
        _write_header(checkpoint, partial)
        done = 0
        with partial.open("ab") as file:
            for name, info in checkpoint.tensors.items():
                file.write(bytes(-file.tell() % GGUF_DEFAULT_ALIGNMENT))
                progress(done, total)
                for piece in checkpoint.pieces(name):
                    file.write(piece)
                done += info.num_bytes
        progress(done, total)


def _write_header(checkpoint: SyntheticCheckpoint, path: Path) -> None:
    writer = GGUFWriter(path, checkpoint.architecture)
    add = {str: writer.add_string, int: writer.add_uint32, float: writer.add_float32}
    for key, value in checkpoint.metadata.items():
        if isinstance(value, list):
            kind = GGUFValueType.UINT64 if key.endswith(_WIDE_KEYS) else GGUFValueType.INT32
            writer.add_key_value(key, value, GGUFValueType.ARRAY, sub_type=kind)
        elif key != "general.architecture":
            add[type(value)](key, value)
    for info in checkpoint.tensors.values():
        # The number, as gguf's enumeration lacks Q2_0; any numpy type but uint8 leaves the shape alone.
        type_id = FORMATS[info.format].ggml_id
        writer.add_tensor_info(info.name, info.shape, np.dtype(np.int8), info.num_bytes, type_id)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
