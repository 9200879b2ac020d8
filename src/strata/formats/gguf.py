"""GGUF checkpoints, single and split: memory-mapped, checked in full when opened, decoded when read."""

import math
import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

from strata.errors import ModelFileError, UnsupportedModelError
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.gguf_header import Header, TensorEntry, align, read_header
from strata.formats.gguf_split import all_parts, check_part
from strata.formats.quants import FORMATS, FORMATS_BY_ID, UNSUPPORTED_NAMES


@dataclass(frozen=True, slots=True)
class _Part:
    """One mapped file: its bytes (uint8, read-only) and its header."""

    path: Path
    data: np.ndarray
    header: Header


class GGUFCheckpoint(Checkpoint):
    """A model in GGUF.

    Everything in the headers is checked against the files' sizes while opening, so that a read cannot
    leave a file. The files stay mapped; only what is asked for is read and decoded.

    Args:
        path: the file, or any part of a split one; its siblings are found by name.
        tensors: False reads the metadata of the first file alone and skips all weights.

    Attributes:
        files: the file, or all parts in order.

    Raises:
        ModelFileError: a file is missing, truncated, too long or inconsistent.
        UnsupportedModelError: not a model (adapter, projector), or a version or tensor type Strata lacks.
    """

    files: list[Path]

    def __init__(self, path: str | Path, tensors: bool = True):
        self.path = Path(path)
        self.files = all_parts(self.path)
        parts = [_open(file) for file in (self.files if tensors else self.files[:1])]
        self.metadata: Mapping[str, Any] = parts[0].header.metadata
        self.architecture: str = _architecture(parts[0])
        located: dict[str, tuple[TensorInfo, np.ndarray]] = {}
        if tensors:
            _check_types(parts)
            located = _locate(parts)
        self._bytes = {name: data for name, (_, data) in located.items()}
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(
            {n: info for n, (info, _) in located.items()}
        )

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """Decode a tensor, or the slice `[index]` of its first dimension, to a new float32 tensor."""
        info = self._info(name)
        shape = info.shape if index is None else info.shape[1:]
        return _decode(info, self.raw(name, index)).reshape(shape)

    def read_rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Decode rows (int64 `[n]`) of a 2-D tensor to float32 `[n, in]` without touching the others."""
        info = self._info(name)
        if len(info.shape) != 2:
            raise ValueError(f"tensor {name} has shape {list(info.shape)}, rows are read from 2-D tensors")
        num_rows, width = info.shape
        wanted = rows.numpy()
        if wanted.size and not 0 <= wanted.min() <= wanted.max() < num_rows:
            outside = wanted.min() if wanted.min() < 0 else wanted.max()
            raise IndexError(f"row {outside} of tensor {name}, which has {num_rows} rows")
        return _decode(info, self.raw(name)[wanted]).reshape(-1, width)

    def raw(self, name: str, index: int | None = None) -> np.ndarray:
        """The stored bytes of a tensor, or of the slice `[index]` of its first dimension.

        Returns:
            A read-only view of the mapped file, uint8 `[*shape[:-1], bytes per row]`; for a slice of a
            1-D tensor uint8 `[bytes per value]`.
        """
        info = self._info(name)
        if index is not None and not 0 <= index < info.shape[0]:
            raise IndexError(f"slice {index} of tensor {name}, whose first dimension is {info.shape[0]}")
        data = self._bytes[name]
        if index is not None and len(info.shape) == 1:
            return data.reshape(info.shape[0], -1)[index]
        data = data.reshape(*info.shape[:-1], -1)
        return data if index is None else data[index]

    def _info(self, name: str) -> TensorInfo:
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path}: has no tensor {name}")
        return info


def _decode(info: TensorInfo, data: np.ndarray) -> torch.Tensor:
    """Whole blocks of `info`'s format, uint8, any shape -> flat float32."""
    fmt = FORMATS[info.format]
    return torch.from_numpy(fmt.dequantize(data.reshape(-1, fmt.block_bytes)).reshape(-1))


def _open(path: Path) -> _Part:
    """Map a file and parse its header."""
    if path.is_dir():
        raise ModelFileError(f"{path}: is a folder, not a GGUF file; name a file in it")
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such file") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read: {error.strerror or error}") from error
    return _Part(path, np.frombuffer(mapped, dtype=np.uint8), read_header(mapped, str(path)))


def _architecture(part: _Part) -> str:
    metadata = part.header.metadata
    architecture = metadata.get("general.architecture")
    kind = metadata.get("general.type", "model")
    if architecture == "clip":  # projectors from before general.type existed
        kind = "mmproj"
    if kind != "model":
        raise UnsupportedModelError(
            f"{part.path}: general.type is {kind!r:.60}: this file goes with a model and is not one itself"
        )
    if not isinstance(architecture, str) or not architecture:
        raise ModelFileError(
            f"{part.path}: general.architecture is missing, so it is not known what model this is"
        )
    return architecture


def _check_types(parts: list[_Part]) -> None:
    """Refuse a model with tensor types that have no decoder, all in one message."""
    unknown = [t for part in parts for t in part.header.tensors if t.type_id not in FORMATS_BY_ID]
    if not unknown:
        return
    shown = ", ".join(f"{t.name} (type {_type_name(t.type_id)})" for t in unknown[:5])
    more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
    raise UnsupportedModelError(
        f"{parts[0].path}: {len(unknown)} tensors have a type that Strata cannot decode: {shown}{more}. "
        f"It decodes {', '.join(FORMATS)}."
    )


def _type_name(type_id: int) -> str:
    name = UNSUPPORTED_NAMES.get(type_id)
    return f"{name}, id {type_id}" if name else f"id {type_id}"


def _locate(parts: list[_Part]) -> dict[str, tuple[TensorInfo, np.ndarray]]:
    """Check where all tensors lie and return each with its bytes."""
    located: dict[str, tuple[TensorInfo, np.ndarray]] = {}
    owner: dict[str, Path] = {}
    num_tensors = sum(len(part.header.tensors) for part in parts)
    for index, part in enumerate(parts):
        check_part(part.path, part.header.metadata, index, len(parts), num_tensors)
        infos = [_tensor_info(entry, part.path) for entry in part.header.tensors]
        _check_layout(part, infos)
        for entry, info in zip(part.header.tensors, infos, strict=True):
            if entry.name in owner:
                raise ModelFileError(f"{part.path}: tensor {entry.name} is also in {owner[entry.name].name}")
            owner[entry.name] = part.path
            start = part.header.data_start + entry.offset
            located[entry.name] = info, part.data[start : start + info.num_bytes]
    return located


def _tensor_info(entry: TensorEntry, path: Path) -> TensorInfo:
    fmt = FORMATS_BY_ID[entry.type_id]
    if entry.shape[-1] % fmt.block_size:
        raise ModelFileError(
            f"{path}: tensor {entry.name} has rows of {entry.shape[-1]} values, "
            f"no multiple of {fmt.name}'s block of {fmt.block_size}"
        )
    num_bytes = math.prod(entry.shape) // fmt.block_size * fmt.block_bytes
    return TensorInfo(entry.name, entry.shape, fmt.name, num_bytes)


def _check_layout(part: _Part, infos: list[TensorInfo]) -> None:
    """Tensors must follow each other, each at the next multiple of the alignment, and end with the file.

    The last one may be padded to the alignment or not: writers differ.
    """
    header, size = part.header, part.data.size
    offsets = [entry.offset for entry in header.tensors]
    end = 0  # of the tensors so far, from the data's start
    for offset, info in sorted(zip(offsets, infos, strict=True), key=lambda pair: pair[0]):
        expected = align(end, header.alignment)
        if offset != expected:
            raise ModelFileError(
                f"{part.path}: tensor {info.name} is at offset {offset}, where {expected} is expected"
            )
        end = offset + info.num_bytes
        if header.data_start + end > size:
            raise ModelFileError(
                f"{part.path}: is truncated: tensor {info.name} takes {info.num_bytes} bytes and ends at "
                f"byte {header.data_start + end}, the file has {size} bytes. Download it again."
            )
    full = header.data_start + align(end, header.alignment)
    if size > full:
        raise ModelFileError(
            f"{part.path}: is too long: its {len(infos)} tensors end at byte {header.data_start + end}, "
            f"which makes {full} bytes, the file has {size}. Download it again."
        )
