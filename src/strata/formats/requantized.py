"""A checkpoint as if its float matrices had been stored as Q8_0: what `--dense q8_0` makes of one.

Codes and scales are those of ggml's quantiser: for 32 weights `d = max |w| / 127`, stored as float16, and
`round(w / d)`, halves away from zero.
"""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from strata.choices import Dense
from strata.errors import ModelFileError
from strata.formats.checkpoint import Checkpoint, TensorInfo
from strata.formats.mapping import let_go
from strata.formats.quants import FORMATS

if TYPE_CHECKING:  # the planner asks for names and shapes only
    import torch

_FLOATS = ("F32", "F16", "BF16")
_Q8_0 = FORMATS["Q8_0"]
# Left as they are: tables, of which a token reads some rows; experts; and what is too small to pay, of which
# routers choose, and a flipped choice changes more than a rounded product (docs/benchmarks.md has how much).
_KEPT = re.compile(
    r"conv1d|^per_layer_token_embd\.|^ple_ngram_embd\.|\.ffn_(?:gate|up|down)\.\d+\.weight$"
    r"|\.ffn_gate_inp(?:_shexp)?\.weight$|\.indexer\.|\.ssm_(?:ba|alpha|beta)\.weight$"
)
_CHUNK = 1 << 20  # weights that a thread takes at a time


def requantized(tensor: TensorInfo, tied: bool) -> TensorInfo:
    """The tensor as Q8_0 if it is one that becomes so, else as it is.

    Args:
        tied: the token embedding is the output matrix too, and not only a table.
    """
    is_matrix = len(tensor.shape) == 2 and tensor.name.endswith(".weight")
    is_table = tensor.name == "token_embd.weight" and not tied
    if not is_matrix or is_table or tensor.format not in _FLOATS or _KEPT.search(tensor.name):
        return tensor
    if tensor.shape[1] % _Q8_0.block_size:
        return tensor
    num_blocks = tensor.shape[0] * tensor.shape[1] // _Q8_0.block_size
    return TensorInfo(tensor.name, tensor.shape, "Q8_0", num_blocks * _Q8_0.block_bytes)


def with_dense(checkpoint: Checkpoint, dense: Dense) -> Checkpoint:
    """The checkpoint, with its float matrices as `--dense` says."""
    return checkpoint if dense == "as_stored" else RequantizedCheckpoint(checkpoint)


class RequantizedCheckpoint(Checkpoint):
    """A checkpoint whose float matrices, those that `requantized` names, are Q8_0 for whoever reads them."""

    def __init__(self, stored: Checkpoint):
        self._stored = stored
        self.path, self.architecture, self.metadata = stored.path, stored.architecture, stored.metadata
        tied = "output.weight" not in stored.tensors
        self.tensors = {name: requantized(tensor, tied) for name, tensor in stored.tensors.items()}

    def read(self, name: str, index: int | None = None) -> "torch.Tensor":
        if self._is_stored(name):
            return self._stored.read(name, index)
        return self._decoded(self.raw(name, index), self.tensors[name].shape[0 if index is None else 1 :])

    def raw(self, name: str, index: int | None = None) -> np.ndarray | None:
        """As of the checkpoint; of what becomes Q8_0 a new array, made by all cores.

        Raises:
            ModelFileError: a weight is too large for Q8_0, or is no number.
        """
        if self._is_stored(name):
            return self._stored.raw(name, index)
        blocks = self._quantized(name)
        return blocks if index is None else blocks[index]

    def read_fp8(self, name: str, index: int | None = None) -> "tuple[torch.Tensor, torch.Tensor]":
        return self._stored.read_fp8(name, index)

    def read_rows(self, name: str, rows: "torch.Tensor") -> "torch.Tensor":
        values = self._stored.read_rows(name, rows)
        if self._is_stored(name):
            return values
        return self._decoded(self._blocks(name, values.numpy()), values.shape)

    def _is_stored(self, name: str) -> bool:
        return name not in self.tensors or self.tensors[name] is self._stored.tensors[name]

    def _decoded(self, blocks: np.ndarray, shape: tuple[int, ...]) -> "torch.Tensor":
        import torch

        return torch.from_numpy(_Q8_0.dequantize(blocks.reshape(-1, _Q8_0.block_bytes))).reshape(shape)

    def _quantized(self, name: str) -> np.ndarray:
        """All of a matrix as blocks, uint8 `[out, bytes of a row]`."""
        num_out, num_in = self.tensors[name].shape
        raw, fmt = self._stored.raw(name), FORMATS[self._stored.tensors[name].format]
        values = self._stored.read(name).numpy() if raw is None else None
        out = np.empty((num_out, num_in // _Q8_0.block_size * _Q8_0.block_bytes), np.uint8)
        step = max(1, _CHUNK // num_in)

        def quantize(start: int) -> None:
            rows = slice(start, start + step)
            if values is not None:
                some = values[rows]
            else:
                some = fmt.dequantize(raw[rows].reshape(-1, fmt.block_bytes)).reshape(-1, num_in)
            out[rows] = self._blocks(name, some)

        with ThreadPoolExecutor(thread_name_prefix="requantize") as threads:
            list(threads.map(quantize, range(0, num_out, step)))
        if raw is not None:
            let_go(raw)
        return out

    def _blocks(self, name: str, values: np.ndarray) -> np.ndarray:
        """float32 `[rows, in]` as blocks, uint8 `[rows, bytes of a row]`."""
        from gguf import GGMLQuantizationType
        from gguf.quants import quantize

        largest = np.abs(values).max(initial=0)
        if not largest / 127 <= np.finfo(np.float16).max:
            raise ModelFileError(
                f"{self.path}: tensor {name} holds {largest}, which Q8_0 has no scale for; "
                "leave out --dense q8_0"
            )
        return quantize(values, GGMLQuantizationType.Q8_0)
