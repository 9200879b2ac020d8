"""Named weights, decoded to float32 when used and kept within a byte budget."""

from collections import OrderedDict

import torch

from strata.errors import ModelFileError
from strata.formats.checkpoint import Checkpoint


class Weights:
    """Tensors of a checkpoint by name, with a least-recently-used cache of their decoded form.

    A model asks for each of its tensors once by `require`, so that a missing or misshapen one is
    reported at load, and a tensor that no layer asked for can be named (`unused`).
    """

    def __init__(self, checkpoint: Checkpoint, cache_bytes: int):
        self.checkpoint = checkpoint
        self.cache_bytes = cache_bytes
        self.cached_bytes = 0
        self._cache: OrderedDict[tuple[str, int | None], torch.Tensor] = OrderedDict()
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

    def _scaled(self, tensor: torch.Tensor, name: str, index: int | None = None) -> torch.Tensor:
        if name not in self._scales:
            return tensor
        scale = self.get(self._scales[name])
        if len(scale) > 1:
            scale = scale[:, None, None] if index is None else scale[index]
        return tensor * scale

    def unused(self) -> list[str]:
        """Names of tensors in the checkpoint that the model did not ask for."""
        return sorted(set(self.checkpoint.tensors) - self._required)

    def get(self, name: str, index: int | None = None) -> torch.Tensor:
        """The float32 tensor `name`, or slice `[index]` of its first dimension (one expert's matrix)."""
        key = (name, index)
        tensor = self._cache.get(key)
        if tensor is not None:
            self._cache.move_to_end(key)
            return tensor
        tensor = self._scaled(self.checkpoint.read(name, index), name, index)
        num_bytes = tensor.numel() * tensor.element_size()
        if num_bytes <= self.cache_bytes:
            while self.cached_bytes + num_bytes > self.cache_bytes:
                _, old = self._cache.popitem(last=False)
                self.cached_bytes -= old.numel() * old.element_size()
            self._cache[key] = tensor
            self.cached_bytes += num_bytes
        return tensor

    def rows(self, name: str, rows: torch.Tensor) -> torch.Tensor:
        """Rows (int64 `[n]`) of a table as float32 `[n, in]`; only these rows are read and decoded."""
        return self._scaled(self.checkpoint.read_rows(name, rows), name)
