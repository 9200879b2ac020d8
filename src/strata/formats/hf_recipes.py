"""How a GGUF tensor is made from the tensors of a safetensors checkpoint, part by part and lazily.

A recipe knows its shape and reads nothing until it is asked; asked for one slice or a few rows, it
touches only those bytes of the memory-mapped files.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from strata.errors import ModelFileError, UnsupportedModelError

# Element types that can be read, by safetensors' name, which is also ggml's, and their bytes.
_ELEMENT_BYTES = {"F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1}
_SCALE_BLOCK = 128  # rows and columns of an F8_E4M3 matrix that share a scale


class Reader:
    """The tensors of a safetensors checkpoint, over all of its files, memory-mapped.

    Every name that is asked for counts as used, so that the others can be reported (`unused`).

    Args:
        folder: the checkpoint, for messages.
        files: each tensor's file, or None to take all tensors of `paths`.
        paths: the safetensors files.

    Raises:
        ModelFileError: a file is missing or damaged, or lacks a tensor that `files` places in it.
    """

    def __init__(self, folder: Path, paths: Sequence[Path], files: dict[str, str] | None = None):
        self.folder = folder
        self._used: set[str] = set()
        self._handles: dict[str, Any] = {}
        for path in paths:
            handle = _open(path)
            for name in handle.keys():  # noqa: SIM118 - not a mapping
                if files is not None and files.get(name) != path.name:
                    continue
                if name in self._handles:
                    raise ModelFileError(f"{path}: tensor {name} is in another file of the checkpoint too")
                self._handles[name] = handle
        for name, file in (files or {}).items():
            if name not in self._handles:
                raise ModelFileError(f"{folder / file}: tensor {name} is missing; the index places it there")
        # Multimodal checkpoints keep the text model one level down.
        nested = "model.language_model.embed_tokens.weight" in self
        self.prefix = "model.language_model." if nested else "model."

    def __contains__(self, name: str) -> bool:
        return name in self._handles

    def ignore(self, *prefixes: str) -> None:
        """Count the tensors whose names start with one of `prefixes` as used: the text model has no use."""
        self._used.update(name for name in self._handles if name.startswith(prefixes))

    def unused(self) -> list[str]:
        return sorted(set(self._handles) - self._used)

    def describe(self, name: str) -> tuple[tuple[int, ...], str]:
        """Shape and element type of a tensor.

        Raises:
            ModelFileError: there is no such tensor.
            UnsupportedModelError: its elements are none of `_ELEMENT_BYTES`.
        """
        if name not in self._handles:
            raise ModelFileError(f"{self.folder}: tensor {name} is missing")
        self._used.add(name)
        header = self._handles[name].get_slice(name)
        dtype = header.get_dtype()
        if dtype not in _ELEMENT_BYTES:
            raise UnsupportedModelError(
                f"{self.folder}: tensor {name} is stored as {dtype}; from safetensors Strata reads "
                f"{', '.join(_ELEMENT_BYTES)} (for a quantised model use its GGUF)"
            )
        return tuple(header.get_shape()), dtype

    def view(self, name: str) -> torch.Tensor:
        """The tensor as it is stored, a view of the mapped file; nothing is read yet."""
        return self._handles[name].get_tensor(name)


def _open(path: Path) -> Any:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such file; the checkpoint is incomplete")
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ModelFileError(f"{path}: not a sound safetensors file: {error}") from error


class Recipe(ABC):
    """A tensor of the translated checkpoint: `shape` in torch order, `format` by ggml's name."""

    shape: tuple[int, ...]
    format: str
    num_bytes: int

    @abstractmethod
    def read(self) -> torch.Tensor:
        """The whole tensor, float32."""

    def read_fp8(self, index: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        """A matrix whose `format` is F8_E4M3, or slice `[index]` of a stack of them, as it is stored.

        Returns:
            The codes, uint8 `[out, in]`, and float32 scales `[ceil(out / 128), ceil(in / 128)]`.
        """
        raise NotImplementedError

    def read_slice(self, index: int) -> torch.Tensor:
        """Slice `[index]` of the first dimension, float32."""
        return self.read()[index]

    def read_rows(self, rows: torch.Tensor) -> torch.Tensor:
        """Slices `rows` (int64 `[n]`) of the first dimension, float32 `[n, ...]`."""
        return self.read()[rows]


class Plain(Recipe):
    """Tensor `name` as it is. Float32 ones are views of the mapped file, so they cost no memory.

    F8_E4M3 is for matrices, and `X_scale_inv` holds their factors, one for a block of 128 x 128.
    """

    def __init__(self, reader: Reader, name: str):
        self.reader = reader
        self.name = name
        self.shape, self.format = reader.describe(name)
        self.num_bytes = math.prod(self.shape) * _ELEMENT_BYTES[self.format]
        self.scales = self._find_scales() if self.format == "F8_E4M3" else None

    def _find_scales(self) -> "Plain":
        where = f"{self.reader.folder}: tensor {self.name} is stored as F8_E4M3"
        if len(self.shape) != 2:
            raise UnsupportedModelError(f"{where} with shape {list(self.shape)}; Strata reads matrices of it")
        scales = Plain(self.reader, f"{self.name}_scale_inv")
        expected = tuple(-(-n // _SCALE_BLOCK) for n in self.shape)
        if scales.shape != expected:
            raise ModelFileError(f"{where} with scales {list(scales.shape)}, expected {list(expected)}")
        self.num_bytes += scales.num_bytes
        return scales

    def read(self) -> torch.Tensor:
        return self._decode(self.reader.view(self.name), torch.arange(self.shape[0]) if self.scales else None)

    def read_slice(self, index: int) -> torch.Tensor:
        return self._decode(self.reader.view(self.name)[index], torch.tensor(index))

    def read_rows(self, rows: torch.Tensor) -> torch.Tensor:
        return self._decode(self.reader.view(self.name)[rows], rows)

    def _decode(self, stored: torch.Tensor, rows: torch.Tensor | None) -> torch.Tensor:
        if self.scales is None:
            return stored.float()
        scales = self.scales.read()[rows // _SCALE_BLOCK].repeat_interleave(_SCALE_BLOCK, dim=-1)
        return stored.float() * scales[..., : self.shape[1]]

    def read_fp8(self, index: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.scales is not None and index is None
        return self.reader.view(self.name).view(torch.uint8), self.scales.read()


class Values(Recipe):
    """Float32 values that the configuration implies and no file holds."""

    def __init__(self, values: torch.Tensor):
        self.values = values.float()
        self.shape = tuple(values.shape)
        self.format = "F32"
        self.num_bytes = 4 * values.numel()

    def read(self) -> torch.Tensor:
        return self.values


def _decoded(format: str) -> str:
    """The format in which a part or a function of a tensor is given: blocks of scales do not survive."""
    return "F32" if format == "F8_E4M3" else format


class Map(Recipe):
    """`function` of another recipe's tensor: `1 + w`, a permutation, a squeeze, ...

    Args:
        source: what `function` is applied to, whole.
        function: float32 tensor -> float32 tensor.
        shape: of the result, where it is not the source's.
    """

    def __init__(
        self,
        source: Recipe,
        function: Callable[[torch.Tensor], torch.Tensor],
        shape: tuple[int, ...] | None = None,
    ):
        self.source = source
        self.function = function
        self.shape = source.shape if shape is None else shape
        self.format = _decoded(source.format)
        self.num_bytes = source.num_bytes

    def read(self) -> torch.Tensor:
        return self.function(self.source.read())


class Stack(Recipe):
    """Tensors of one shape along a new first dimension: an expert's matrix is one slice."""

    def __init__(self, sources: Sequence[Recipe]):
        for source in sources[1:]:
            if source.shape != sources[0].shape:
                raise ModelFileError(
                    f"tensors of shapes {list(sources[0].shape)} and {list(source.shape)} cannot be stacked"
                )
        self.sources = sources
        self.shape = (len(sources), *sources[0].shape)
        formats = {source.format for source in sources}
        self.format = formats.pop() if len(formats) == 1 else "F32"
        self.num_bytes = sum(source.num_bytes for source in sources)

    def read(self) -> torch.Tensor:
        return torch.stack([source.read() for source in self.sources])

    def read_slice(self, index: int) -> torch.Tensor:
        return self.sources[index].read()

    def read_fp8(self, index: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert index is not None
        return self.sources[index].read_fp8(None)


class Part(Recipe):
    """`source[begin:end]` along dimension `dim`: the gate's half of a fused matrix, the rows of q."""

    def __init__(self, source: Recipe, dim: int, begin: int, end: int):
        if dim >= len(source.shape) or not 0 <= begin < end <= source.shape[dim]:
            raise ModelFileError(f"a tensor of shape {list(source.shape)} has no rows {begin} to {end}")
        self.source, self.dim, self.begin, self.end = source, dim, begin, end
        self.shape = (*source.shape[:dim], end - begin, *source.shape[dim + 1 :])
        self.format = _decoded(source.format)
        self.num_bytes = source.num_bytes // source.shape[dim] * (end - begin)

    def read(self) -> torch.Tensor:
        return self.source.read().narrow(self.dim, self.begin, self.end - self.begin)

    def read_slice(self, index: int) -> torch.Tensor:
        if self.dim == 0:
            return self.source.read_slice(self.begin + index)
        return self.source.read_slice(index).narrow(self.dim - 1, self.begin, self.end - self.begin)

    def read_rows(self, rows: torch.Tensor) -> torch.Tensor:
        if self.dim == 0:
            return self.source.read_rows(self.begin + rows)
        return self.source.read_rows(rows).narrow(self.dim, self.begin, self.end - self.begin)


class Concat(Recipe):
    """Tensors one after the other along dimension `dim`; rows of a table come from their own shard."""

    def __init__(self, sources: Sequence[Recipe], dim: int = 0):
        first = sources[0].shape
        for source in sources[1:]:
            if len(source.shape) != len(first) or any(
                a != b for i, (a, b) in enumerate(zip(source.shape, first, strict=True)) if i != dim
            ):
                raise ModelFileError(
                    f"tensors of shapes {list(first)} and {list(source.shape)} cannot be joined"
                )
        self.sources, self.dim = sources, dim
        self.shape = (*first[:dim], sum(source.shape[dim] for source in sources), *first[dim + 1 :])
        self.format = _decoded(sources[0].format)
        self.num_bytes = sum(source.num_bytes for source in sources)

    def read(self) -> torch.Tensor:
        return torch.cat([source.read() for source in self.sources], self.dim)

    def read_rows(self, rows: torch.Tensor) -> torch.Tensor:
        if self.dim != 0:
            return torch.cat([source.read_rows(rows) for source in self.sources], self.dim)
        out = torch.empty(len(rows), *self.shape[1:])
        begin = 0
        for source in self.sources:
            end = begin + source.shape[0]
            mine = ((rows >= begin) & (rows < end)).nonzero(as_tuple=True)[0]
            if len(mine):
                out[mine] = source.read_rows(rows[mine] - begin)
            begin = end
        return out
