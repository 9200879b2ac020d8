"""Small GGUF files: sound ones through gguf's own writer, and any bytes at all, field by field."""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType

Tensors = Mapping[str, np.ndarray | tuple[np.ndarray, str]]


def write_gguf(
    path: Path, tensors: Tensors, metadata: Mapping[str, Any] | None = None, architecture: str = "llama"
) -> Path:
    """Write a sound GGUF with gguf's writer.

    Args:
        path: the file.
        tensors: name -> float array, stored as float32, or (array, type name): quantised where gguf can,
            taken as ready bytes `[*shape[:-1], bytes per row]` where the array is uint8.
        metadata: key -> int (uint32), float (float32), bool, str, or a list of one of these.
        architecture: `general.architecture`.
    """
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in (metadata or {}).items():
        _add(writer, key, value)
    for name, tensor in tensors.items():
        array, kind = tensor if isinstance(tensor, tuple) else (tensor, "F32")
        quant = GGMLQuantizationType[kind]
        data = array if array.dtype == np.uint8 else gguf.quants.quantize(array.astype(np.float32), quant)
        writer.add_tensor(name, np.ascontiguousarray(data), raw_dtype=quant)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


# The value types of the format.
UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))


def string(text: str | bytes) -> bytes:
    """A length-prefixed string."""
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str | bytes, kind: int, value: Any) -> bytes:
    """A key and its value; for an array, `value` is (element type, elements)."""
    return string(name) + struct.pack("<I", kind) + _value(kind, value)


def _value(kind: int, value: Any) -> bytes:
    if kind == STRING:
        return string(value)
    if kind == ARRAY:
        element, items = value
        return struct.pack("<IQ", element, len(items)) + b"".join(_value(element, item) for item in items)
    return struct.pack("<" + _SCALARS[kind], value)


@dataclass(frozen=True)
class Tensor:
    """A tensor of a `RawGGUF`: dimensions in ggml's order, fastest first."""

    name: str | bytes
    dimensions: Sequence[int]
    type_id: int = 0
    offset: int = 0

    def encode(self) -> bytes:
        shape = struct.pack(f"<I{len(self.dimensions)}Q", len(self.dimensions), *self.dimensions)
        return string(self.name) + shape + struct.pack("<IQ", self.type_id, self.offset)


@dataclass(frozen=True)
class RawGGUF:
    """A GGUF file put together without any check; counts follow the lists unless they are given."""

    keys: Sequence[bytes] = (key("general.architecture", STRING, "llama"),)
    tensors: Sequence[Tensor] = ()
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: bytes = field(default=struct.pack("<I", 3))
    num_keys: int | None = None
    num_tensors: int | None = None
    alignment: int = 32

    def encode(self) -> bytes:
        num_tensors = len(self.tensors) if self.num_tensors is None else self.num_tensors
        num_keys = len(self.keys) if self.num_keys is None else self.num_keys
        head = self.magic + self.version + struct.pack("<QQ", num_tensors, num_keys) + b"".join(self.keys)
        head += b"".join(tensor.encode() for tensor in self.tensors)
        return head + b"\0" * (-len(head) % self.alignment) + self.data

    def write(self, path: Path) -> Path:
        path.write_bytes(self.encode())
        return path

    def but(self, **changes: Any) -> "RawGGUF":
        """The same file with some fields changed."""
        return replace(self, **changes)


def split_gguf(folder: Path, count: int = 3, prefix: str = "model") -> list[Path]:
    """Write a split model: metadata in part 1, in every part one tensor `t<i>` of 32 float32 equal to i."""
    paths = []
    for i in range(count):
        keys = [key("split.no", UINT16, i), key("split.count", UINT16, count)]
        keys.append(key("split.tensors.count", INT32, count))
        if i == 0:
            keys.insert(0, key("general.architecture", STRING, "llama"))
        data = np.full(32, i, dtype="<f4").tobytes()
        raw = RawGGUF(keys, [Tensor(f"t{i}", [32])], data)
        paths.append(raw.write(folder / f"{prefix}-{i + 1:05d}-of-{count:05d}.gguf"))
    return paths
