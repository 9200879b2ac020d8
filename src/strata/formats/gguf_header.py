"""The header of one GGUF file: keys, values and the list of tensors, each number checked before it is used.

Format: ggml `docs/gguf.md`, versions 2 and 3, little endian. The file is untrusted: lengths and counts
are compared with the bytes that are left before anything is read or allocated, and arrays stay in the
file until they are asked for.
"""

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from strata.errors import ModelFileError, UnsupportedModelError

MAX_DIMENSIONS = 4  # ggml's GGML_MAX_DIMS
MAX_NAME_BYTES = 1024  # of a key or tensor; ggml stops at 64 for tensors, no known key is longer either
MAX_ENTRIES = 1 << 16  # keys, or tensors, of one file; the largest models have a few thousand
DEFAULT_ALIGNMENT = 32
# Metadata as Python objects may take twice the file's size, or this much for a file without weights.
MIN_METADATA_BUDGET = 128 << 20

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: np.dtype("u1"), 1: np.dtype("i1"), 2: np.dtype("<u2"), 3: np.dtype("<i2"), 4: np.dtype("<u4"),
    5: np.dtype("<i4"), 6: np.dtype("<f4"), _BOOL: np.dtype("u1"), 10: np.dtype("<u8"), 11: np.dtype("<i8"),
    12: np.dtype("<f8"),
}  # fmt: skip
# What a Python object takes at most: a list's pointer and the object it points to.
_NUMBER_OBJECT_BYTES, _STRING_OBJECT_BYTES = 40, 72
_BYTES_PER_TEXT_BYTE = 5  # the bytes while they are decoded, and four for each character after one emoji
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor as its header lists it: shape in torch order, ggml type, byte offset from the data's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


class Metadata(Mapping[str, Any]):
    """Keys and values of a header: int, float, bool, str, or a list of one of these.

    A list is decoded when it is first asked for, and kept.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        if isinstance(value, partial):
            value = self._values[key] = value()
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def store(self, key: str, value: Any) -> None:
        """Set a value, or a `partial` that decodes it."""
        self._values[key] = value


@dataclass(frozen=True, slots=True)
class Header:
    """What precedes the weights of one file."""

    version: int
    metadata: Metadata
    tensors: list[TensorEntry]
    alignment: int  # bytes; the data and each tensor start at a multiple of it
    data_start: int  # first byte of the data in the file


def read_header(data: Any, file: str) -> Header:
    """Parse and check the header at the start of `data`.

    Args:
        data: the whole file as bytes or as a memory map.
        file: name for error messages.

    Raises:
        ModelFileError: not a GGUF file, truncated or inconsistent.
        UnsupportedModelError: version 1, a future version, or big endian.
    """
    cursor = _Cursor(data, file)
    version = _read_version(cursor)
    num_tensors, num_keys = cursor.u64("the tensor count"), cursor.u64("the key count")
    # A key takes at least 13 bytes (length, type, value), a tensor 32 (length, dimensions, type, offset).
    cursor.check_count(num_keys, 13, "keys")
    cursor.check_count(num_tensors, 32, "tensors")
    metadata = Metadata()
    for i in range(num_keys):
        key = cursor.name(f"key {i + 1} of {num_keys}")
        if key in metadata:
            raise ModelFileError(f"{file}: key {key!r} occurs twice")
        metadata.store(key, cursor.value(key))
    tensors = [_read_tensor(cursor, f"tensor {i + 1} of {num_tensors}") for i in range(num_tensors)]
    names: set[str] = set()
    for tensor in tensors:
        if tensor.name in names:
            raise ModelFileError(f"{file}: tensor {tensor.name} occurs twice")
        names.add(tensor.name)
    alignment = _alignment(metadata, file)
    return Header(version, metadata, tensors, alignment, align(cursor.position, alignment))


def align(position: int, alignment: int) -> int:
    """The first multiple of `alignment` that is not below `position`."""
    return -(-position // alignment) * alignment


def _read_version(cursor: "_Cursor") -> int:
    magic = bytes(cursor.data[:4])
    if magic != b"GGUF":
        hint = "; it is a Git LFS pointer, fetch the file itself" if magic == b"vers" else ""
        raise ModelFileError(
            f"{cursor.file}: is not a GGUF file: it starts with {magic!r}, not b'GGUF'{hint}"
        )
    cursor.position = 4
    version = cursor.u32("the version")
    if version in (2, 3):
        return version
    if version & 0xFFFF == 0:
        raise UnsupportedModelError(
            f"{cursor.file}: is a big-endian GGUF file; Strata reads little-endian ones. "
            "Convert it with gguf's gguf_convert_endian."
        )
    raise UnsupportedModelError(
        f"{cursor.file}: GGUF version {version}; Strata reads versions 2 and 3. Convert the model again."
    )


def _alignment(metadata: Metadata, file: str) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        raise ModelFileError(f"{file}: general.alignment is {_shown(alignment)}, not a power of two")
    return alignment


def _read_tensor(cursor: "_Cursor", what: str) -> TensorEntry:
    name = cursor.name(what)
    num_dimensions = cursor.u32(f"the dimension count of tensor {name}")
    if not 1 <= num_dimensions <= MAX_DIMENSIONS:
        raise ModelFileError(
            f"{cursor.file}: tensor {name} has {num_dimensions} dimensions, not 1 to {MAX_DIMENSIONS}"
        )
    dimensions = [cursor.u64(f"the dimensions of tensor {name}") for _ in range(num_dimensions)]
    num_values = 1
    for dimension in dimensions:
        num_values *= dimension
        if not 0 < num_values < 1 << 63:
            raise ModelFileError(
                f"{cursor.file}: tensor {name} has dimensions {dimensions[::-1]}, whose product "
                f"is not between 1 and {(1 << 63) - 1}"
            )
    type_id = cursor.u32(f"the type of tensor {name}")
    offset = cursor.u64(f"the offset of tensor {name}")
    return TensorEntry(
        name, tuple(dimensions[::-1]), type_id, offset
    )  # ggml lists the fastest dimension first


def _shown(value: Any) -> str:
    text = repr(value[:80] if isinstance(value, str | list) else value)
    return text if len(text) <= 80 else text[:77] + "..."


class _Cursor:
    """A position in the file that cannot pass its end."""

    def __init__(self, data: Any, file: str):
        self.data = data
        self.size = len(data)
        self.file = file
        self.position = 0
        self.budget_bytes = max(2 * self.size, MIN_METADATA_BUDGET)

    def take(self, num_bytes: int, what: str) -> int:
        """Move past `num_bytes` bytes and return where they start."""
        start = self.position
        if num_bytes > self.size - start:
            raise ModelFileError(
                f"{self.file}: is truncated: {what} needs {num_bytes} bytes at offset {start}, "
                f"the file has {self.size} bytes"
            )
        self.position = start + num_bytes
        return start

    def check_count(self, count: int, min_bytes: int, what: str) -> None:
        """Refuse a count of things that cannot fit into the rest of the file."""
        left = self.size - self.position
        if count * min_bytes > left:
            raise ModelFileError(
                f"{self.file}: announces {count} {what}, which take at least {count * min_bytes} bytes, "
                f"and only {left} bytes are left"
            )
        if count > MAX_ENTRIES:
            raise ModelFileError(f"{self.file}: announces {count} {what}, more than {MAX_ENTRIES}")

    def spend(self, num_bytes: int, what: str) -> None:
        """Count what a value will take as Python objects."""
        self.budget_bytes -= num_bytes
        if self.budget_bytes < 0:
            raise ModelFileError(
                f"{self.file}: {what} takes about {num_bytes} bytes in memory; with it the metadata would "
                f"exceed {max(2 * self.size, MIN_METADATA_BUDGET)} bytes, the limit for a file of "
                f"{self.size} bytes"
            )

    def u32(self, what: str) -> int:
        return _U32.unpack_from(self.data, self.take(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64.unpack_from(self.data, self.take(8, what))[0]

    def name(self, what: str) -> str:
        """A key or a tensor's name."""
        length = self.u64(f"the name of {what}")
        if not 0 < length <= MAX_NAME_BYTES:
            raise ModelFileError(
                f"{self.file}: the name of {what} has {length} bytes, not 1 to {MAX_NAME_BYTES}"
            )
        start = self.take(length, f"the name of {what}")
        raw = bytes(self.data[start : start + length])
        name = raw.decode("utf-8", errors="replace")
        if not name.isprintable() or "\ufffd" in name:  # names are shown to people
            raise ModelFileError(f"{self.file}: the name of {what} is not printable text: {raw[:40]!r}")
        return name

    def value(self, key: str) -> Any:
        """The value of a key, or for an array a `partial` that decodes it."""
        kind = self.u32(f"the type of key {key!r}")
        if kind == _STRING:
            length = self.u64(f"the value of key {key!r}")
            start = self.take(length, f"the value of key {key!r}")
            self.spend(_STRING_OBJECT_BYTES + length * _BYTES_PER_TEXT_BYTE, f"key {key!r}")
            return bytes(self.data[start : start + length]).decode("utf-8", errors="replace")
        if kind == _ARRAY:
            return self.array(key)
        dtype = self.scalar(kind, key)
        start = self.take(dtype.itemsize, f"the value of key {key!r}")
        return _decode_numbers(self.data, start, 1, dtype, kind)[0]

    def scalar(self, kind: int, key: str) -> np.dtype:
        dtype = _SCALARS.get(kind)
        if dtype is None:
            raise ModelFileError(f"{self.file}: key {key!r} has value type {kind}; the format knows 0 to 12")
        return dtype

    def array(self, key: str) -> partial:
        """Check an array and move past it; its elements are decoded when they are asked for."""
        kind = self.u32(f"the element type of key {key!r}")
        count = self.u64(f"the length of key {key!r}")
        what = f"key {key!r} with {count} elements"
        if kind == _STRING:
            return self.strings(count, what)
        if kind == _ARRAY:
            raise ModelFileError(f"{self.file}: {what} is an array of arrays, which no model uses")
        dtype = self.scalar(kind, key)
        start = self.take(count * dtype.itemsize, what)
        self.spend(count * _NUMBER_OBJECT_BYTES, what)
        return partial(_decode_numbers, self.data, start, count, dtype, kind)

    def strings(self, count: int, what: str) -> partial:
        """Check an array of strings by walking over their lengths."""
        start = self.position
        if count * 8 > self.size - start:
            self.take(count * 8, what)  # raises: each string has at least its length
        self.spend(count * _STRING_OBJECT_BYTES, what)
        data, length_at, last = self.data, _U64.unpack_from, self.size - 8
        position = start
        for i in range(count):
            if position > last:
                self.position = position
                self.take(8, f"string {i + 1} of {what}")
            position += 8 + length_at(data, position)[0]
        if position > self.size:
            self.position = start
            self.take(position - start, what)
        self.spend((position - start - 8 * count) * _BYTES_PER_TEXT_BYTE, what)
        self.position = position
        return partial(_decode_strings, data, start, position, count)


def _decode_numbers(data: Any, start: int, count: int, dtype: np.dtype, kind: int) -> list[Any]:
    numbers = np.frombuffer(data, dtype=dtype, count=count, offset=start)
    return (numbers != 0).tolist() if kind == _BOOL else numbers.tolist()


def _decode_strings(data: Any, start: int, end: int, count: int) -> list[str]:
    raw = bytes(data[start:end])
    length_at = _U64.unpack_from
    strings = []
    position = 0
    for _ in range(count):
        position += 8
        stop = position + length_at(raw, position - 8)[0]
        strings.append(raw[position:stop].decode("utf-8", "replace"))
        position = stop
    return strings
