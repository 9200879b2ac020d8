"""Named weights: what a model asks a checkpoint for, and in which form the ops get it."""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from strata.errors import ModelFileError
from strata.formats.checkpoint import Checkpoint
from strata.ops import reference


@dataclass(frozen=True, slots=True)
class Stack:
    """One matrix `[num_out, num_in]` of each expert of a layer, as it lies in the checkpoint.

    Args:
        names: the stacked tensor `[experts, ...]`, or a tensor for each expert.
        experts: how many there are.
        num_out: rows of a matrix.
        num_in: columns.
        first_row: where the matrix begins in its slice of the tensor (gate and up may be fused).
    """

    names: tuple[str, ...]
    experts: int
    num_out: int
    num_in: int
    first_row: int = 0

    def slice(self, expert: int) -> tuple[str, int | None]:
        """Tensor and index of its first dimension that hold expert `expert`."""
        return (self.names[0], expert) if len(self.names) < self.experts else (self.names[expert], None)


class Weights(ABC):
    """Tensors of a checkpoint by name, and the ops that take them.

    A model asks for each of its tensors once by `require` or `require_matrix`, so that a missing or misshapen
    one is reported at load, and a tensor that no layer asked for can be named (`unused`). What `matrix` and
    `experts` return is for `ops` only.
    """

    ops: ModuleType  # names and signatures of `strata.ops.reference`

    def __init__(self, checkpoint: Checkpoint):
        self.checkpoint = checkpoint
        self.matrices: dict[str, tuple[int, int]] = {}  # names and shapes
        self.stacks: list[tuple[Stack, Stack, Stack]] = []
        self.tables: list[str] = []  # names of what `rows` reads from the file
        self._required: set[str] = set()
        self._scales: dict[str, str] = {}  # tensor -> the one with its factor

    def __contains__(self, name: str) -> bool:
        return name in self.checkpoint.tensors

    def require(self, name: str, *shape: int) -> str:
        """Note that the model uses tensor `name` and check that its shape is `shape` (torch order)."""
        info = self.checkpoint.tensors.get(name)
        if info is None:
            raise ModelFileError(
                f"{self.checkpoint.path}: tensor {name} is missing; "
                f"architecture {self.checkpoint.architecture} needs it"
            )
        if info.shape != shape:
            raise ModelFileError(
                f"{self.checkpoint.path}: tensor {name} has shape {list(info.shape)}, "
                f"the metadata asks for {list(shape)}"
            )
        self._required.add(name)
        self._require_scale(name, shape)
        return name

    def require_matrix(self, name: str, num_out: int, num_in: int) -> str:
        """`require`, for a tensor that `matrix` will be asked for; one row may be stored as a vector."""
        info = self.checkpoint.tensors.get(name)
        is_vector = num_out == 1 and info is not None and len(info.shape) == 1
        self.require(name, *(num_in,) if is_vector else (num_out, num_in))
        self.matrices[name] = (num_out, num_in)
        return name

    def require_table(self, name: str, num_rows: int, width: int) -> str:
        """`require`, for a tensor that `rows` will be asked for."""
        self.require(name, num_rows, width)
        self.tables.append(name)
        return name

    def require_experts(self, gate: Stack, up: Stack, down: Stack) -> int:
        """Note the experts of a layer, whose tensors are required already; returns the key of `experts`."""
        self.stacks.append((gate, up, down))
        return len(self.stacks) - 1

    def _require_scale(self, name: str, shape: tuple[int, ...]) -> None:
        """NVFP4 files keep a factor beside a matrix, `X.scale` `[1]`, or one per expert of a stack.

        `X.input_scale` is for kernels that round activations to four bits too; float32 needs none.
        """
        stem, _, suffix = name.rpartition(".")
        if suffix != "weight":
            return
        scale = f"{stem}.scale"
        if scale in self:
            stacked = len(shape) == 3 and self.checkpoint.tensors[scale].shape != (1,)
            self._scales[name] = self.require(scale, shape[0] if stacked else 1)
        if f"{stem}.input_scale" in self:
            self._required.add(f"{stem}.input_scale")

    def scale(self, name: str, index: int | None = None) -> torch.Tensor | None:
        """The factor of tensor `name` or of slice `[index]`, float32 that broadcasts; None: it has none.

        It lies where `read` and `rows` decode, which is not always where `get` puts tensors.
        """
        if name not in self._scales:
            return None
        scale = self.read(self._scales[name])
        if len(scale) > 1:
            return scale[:, None, None] if index is None else scale[index]
        return scale

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        """Decode tensor `name`, or slice `[index]` of its first dimension, to float32."""
        tensor, scale = self.checkpoint.read(name, index), self.scale(name, index)
        return tensor if scale is None else tensor * scale

    def unused(self) -> list[str]:
        """Names of tensors in the checkpoint that the model did not ask for."""
        return sorted(set(self.checkpoint.tensors) - self._required)

    def rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows (int64 `[n]`) of a table as float32 `[n, in]`; only these rows are read and decoded."""
        tensor, scale = self.checkpoint.read_rows(name, rows), self.scale(name)
        return tensor if scale is None else tensor * scale

    @abstractmethod
    def get(self, name: str) -> torch.Tensor:
        """The float32 tensor `name`: a vector or another small tensor."""

    @abstractmethod
    def matrix(self, name: str) -> Any:
        """Matrix `name`, for `ops.matmul`, `ops.matmul_all` and `ops.feed_forward`."""

    @abstractmethod
    def experts(self, key: int) -> Any:
        """Experts of a layer by the key that `require_experts` gave, for `ops.experts`."""

    @abstractmethod
    def load(self, progress: Callable[[int, int], None]) -> None:
        """Bring into memory what must be there; `progress` gets bytes done and bytes to do."""


class DecodedWeights(Weights):
    """Weights decoded to float32 when used and kept, least recently used first to go, in `cache_bytes`."""

    ops = reference

    def __init__(self, checkpoint: Checkpoint, cache_bytes: int):
        super().__init__(checkpoint)
        self.cache_bytes = cache_bytes
        self.cached_bytes = 0
        self._cache: OrderedDict[tuple[str, int | None], torch.Tensor] = OrderedDict()

    def get(self, name: str, index: int | None = None) -> torch.Tensor:
        """Also slice `[index]` of the first dimension: one expert's matrix."""
        key = (name, index)
        tensor = self._cache.get(key)
        if tensor is not None:
            self._cache.move_to_end(key)
            return tensor
        tensor = self.read(name, index)
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes <= self.cache_bytes:
            while self.cached_bytes + num_bytes > self.cache_bytes:
                _, old = self._cache.popitem(last=False)
                self.cached_bytes -= old.numel() * old.element_size()
            self._cache[key] = tensor
            self.cached_bytes += num_bytes
        return tensor

    def load(self, progress: Callable[[int, int], None]) -> None:
        """Nothing: weights are decoded when they are used."""

    def matrix(self, name: str) -> torch.Tensor:
        return self.get(name).view(self.matrices[name])

    def experts(self, key: int) -> Callable[[int], tuple[torch.Tensor, ...]]:
        def matrices(expert: int) -> tuple[torch.Tensor, ...]:
            return tuple(self._expert(stack, expert) for stack in self.stacks[key])

        return matrices

    def _expert(self, stack: Stack, expert: int) -> torch.Tensor:
        return self.get(*stack.slice(expert))[stack.first_row : stack.first_row + stack.num_out]
