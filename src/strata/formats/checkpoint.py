"""One view of a model on disk, whatever the container: GGUF keys, GGUF tensor names, float32 on demand.

GGUF's vocabulary of keys and tensor names (gguf-py `constants.py`, and MODELS.md section 4 for
`qwen4exp`) is the one the rest of Strata uses. A safetensors checkpoint is translated into it while
it is opened, so that each model is written once.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the server reads vocabularies through this module and has no other use for torch
    import numpy as np
    import torch


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor of a checkpoint: its GGUF name, shape in torch order `[out, in]`, and how it is stored."""

    name: str
    shape: tuple[int, ...]
    format: str  # storage format by ggml's name: "F32", "BF16", "Q4_K", ...
    num_bytes: int  # on disk


class Checkpoint(ABC):
    """A model's metadata and tensors, memory-mapped and validated; nothing is decoded before `read`."""

    path: Path
    architecture: str  # `general.architecture`
    metadata: Mapping[str, Any]  # GGUF keys
    tensors: Mapping[str, TensorInfo]

    @abstractmethod
    def read(self, name: str, index: int | None = None) -> "torch.Tensor":
        """Decode a tensor, or the slice `[index]` of its first dimension, to a new float32 tensor."""

    def raw(self, name: str, index: int | None = None) -> "np.ndarray | None":
        """The bytes of a tensor or of its slice `[index]`, uint8, a view; None where they are not stored in
        blocks of the tensor's `format` one after the other."""
        return None

    def read_fp8(self, name: str, index: int | None = None) -> "tuple[torch.Tensor, torch.Tensor]":
        """A matrix whose `format` is F8_E4M3, or the slice `[index]` of such a stack, as it is stored.

        Returns:
            The codes, uint8 `[out, in]`, and float32 scales `[ceil(out / 128), ceil(in / 128)]`.
        """
        raise NotImplementedError

    @abstractmethod
    def read_rows(self, name: str, rows: "torch.Tensor") -> "torch.Tensor":
        """Decode rows (int64 `[n]`) of a 2-D tensor to float32 `[n, in]` without touching the others."""


def open_checkpoint(path: str | Path) -> Checkpoint:
    """Open a GGUF file (or any part of a split one) or a folder with `config.json` and safetensors.

    Raises:
        ModelFileError: the path is missing, damaged, or holds no model.
        UnsupportedModelError: the container is sound and its architecture or a tensor type is unknown.
    """
    from strata.errors import ModelFileError
    from strata.formats.gguf import GGUFCheckpoint
    from strata.formats.huggingface import SafetensorsCheckpoint

    path = Path(path)
    try:
        path = path.expanduser()
        path.stat()
        is_checkpoint = (path / "config.json").is_file()
    except (FileNotFoundError, NotADirectoryError, ValueError) as error:  # ValueError: a zero byte
        raise ModelFileError(f"{path}: no such file or folder") from error
    except (OSError, RuntimeError) as error:  # no right to look, too long a name, nobody of that ~name
        raise ModelFileError(f"{path!s:.200}: cannot be opened: {error!s:.200}") from error
    if path.is_file():
        return GGUFCheckpoint(path)
    if is_checkpoint:
        return SafetensorsCheckpoint(path)
    if not path.is_dir():  # a pipe would wait for ever, and none of these can be mapped
        raise ModelFileError(f"{path}: is a device, pipe or socket; a model is a file or a folder")
    inside = sorted(p.name for p in path.glob("*.gguf"))
    hint = (
        f"name one of its GGUF files, e.g. {path / inside[0]}"
        if inside
        else "it holds no config.json and no .gguf"
    )
    raise ModelFileError(f"{path}: is a folder, not a model: {hint}")
