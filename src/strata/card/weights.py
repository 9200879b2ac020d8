"""A model's weights on a card: what every token needs in its own memory, experts in host memory."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from strata.card.device import Card
from strata.card.store import ExpertStore
from strata.errors import UnsupportedModelError
from strata.formats.checkpoint import Checkpoint
from strata.formats.quants.planes import QUANT_PLANES
from strata.layers.linear import Linear
from strata.layers.planes import PlaneWeights
from strata.native import ExpertPlanes, Experts
from strata.native.matrix import empty_planes, pack, plane_bytes
from strata.ops.triton.expert_records import ExpertShape
from strata.ops.triton.quantized_matmul import PlaneMatrix, codebook

CardMatrix = PlaneMatrix | torch.Tensor
_FLOATS = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@dataclass(frozen=True, slots=True)
class Stacked:
    """Matrices one below the other, so that one launch multiplies with all of them.

    Args:
        matrix: in planes, or floats `[num_out, num_in]`.
        rows: of each linear layer's matrix: the first, and how many. In planes each begins a tile.
    """

    matrix: CardMatrix
    rows: dict[str, tuple[int, int]]


class CardWeights(PlaneWeights):
    """Weights for a card's kernels, which take more than `matrix` gives: see `stack` and `store`.

    Args:
        checkpoint: the model.
        card: where it is to run.
    """

    def __init__(self, checkpoint: Checkpoint, card: Card):
        super().__init__(checkpoint)
        self.card = card
        self.store: ExpertStore
        self.dense_bytes = 0  # on the card by now
        self._on_card: dict[str, torch.Tensor] = {}
        self._orders: dict[str, np.ndarray] = {}

    def get(self, name: str) -> torch.Tensor:
        tensor = self._on_card.get(name)
        if tensor is None:
            tensor = self._on_card[name] = self.read(name).to(self.card.device)
        return tensor

    def reorder(self, linear: Linear, rows: np.ndarray) -> None:
        """Have a matrix on the card with its rows in this order, integers `[num_out]`; before `stack`."""
        self._orders[linear.name] = rows

    def bias(self, linear: Linear) -> torch.Tensor | None:
        """What is added to the products of a matrix on the card."""
        if linear.bias is None:
            return None
        return self.get(linear.bias)[self._order(linear.name)]

    def is_quantized(self, linear: Linear) -> bool:
        """Whether a matrix on the card is multiplied with quantised activations."""
        return self.card_format(linear.name) in QUANT_PLANES

    def stack(self, linears: Sequence[Linear]) -> list[Stacked]:
        """The matrices of layers that multiply the same rows, those of one format stacked."""
        by_format: dict[str, list[Linear]] = {}
        for linear in linears:
            by_format.setdefault(self.card_format(linear.name), []).append(linear)
        return [self._stack(format, group) for format, group in by_format.items()]

    def are_alike(self, linears: Sequence[Linear]) -> bool:
        """Whether the matrices are floats of one format, with neither a bias nor a factor."""
        formats = {self.card_format(linear.name) for linear in linears}
        bare = all(linear.bias is None and self.scale(linear.name) is None for linear in linears)
        return bare and len(formats) == 1 and formats <= _FLOATS.keys()

    def stack_floats(self, linears: Sequence[Linear]) -> torch.Tensor:
        """The matrices as floats of one type that holds all their values, `[sum of num_out, num_in]`.

        Raises:
            UnsupportedModelError: one has a bias, or a factor beside it.
        """
        self.require_bare(linears)
        formats = {self.card_format(linear.name) for linear in linears}
        format = formats.pop() if len(formats) == 1 and formats <= _FLOATS.keys() else "F32"
        matrix = self._stack(format, list(linears)).matrix
        assert isinstance(matrix, torch.Tensor)
        return matrix

    def require_bare(self, linears: Sequence[Linear]) -> None:
        """Raise UnsupportedModelError where one has a bias or a factor, which `stack_floats` ignores."""
        for linear in linears:
            if linear.bias is not None or self.scale(linear.name) is not None:
                raise UnsupportedModelError(
                    f"{self.checkpoint.path}: tensor {linear.name} has a bias or a factor (.scale) beside "
                    f"it, which a card does not add here"
                )

    def card_format(self, name: str) -> str:
        """The format in which a matrix lies on the card: its own, or floats that hold its values.

        Raises:
            UnsupportedModelError: the matrix is fp8, whose values no smaller float than float32 holds.
        """
        format = self._format(name)
        if format == "F8_E4M3":
            raise UnsupportedModelError(
                f"{self.checkpoint.path}: tensor {name} is {format}, which a card does not multiply with; "
                f"take the model in bfloat16 or as a GGUF, or run it on the processor"
            )
        return format if format in QUANT_PLANES or format in _FLOATS else "F32"

    def _order(self, name: str) -> np.ndarray | slice:
        return self._orders.get(name, slice(None))

    def _stack(self, format: str, linears: list[Linear]) -> Stacked:
        shapes = [self.matrices[linear.name] for linear in linears]
        num_in = shapes[0][1]
        if format in _FLOATS:
            parts = [
                self.checkpoint.read(linear.name).view(shape)[self._order(linear.name)].to(_FLOATS[format])
                for linear, shape in zip(linears, shapes, strict=True)
            ]
            matrix = torch.cat(parts).to(self.card.device)
            self.dense_bytes += matrix.nbytes
            return Stacked(matrix, _places(linears, np.cumsum([0, *(n for n, _ in shapes)]).tolist(), shapes))
        sizes = [plane_bytes(format, *shape) for shape in shapes]
        planes = empty_planes(sum(sizes))
        starts = np.cumsum([0, *sizes[:-1]]).tolist()
        for linear, start, size in zip(linears, starts, sizes, strict=True):
            self._pack_planes(linear.name, planes[start : start + size])
        tile = plane_bytes(format, 1, num_in)
        on_card = torch.from_numpy(planes).to(self.card.device)
        self.dense_bytes += on_card.nbytes
        matrix = PlaneMatrix(
            format, sum(sizes) // tile * 16, num_in, on_card, codebook(format, self.card.device)
        )
        return Stacked(matrix, _places(linears, [start // tile * 16 for start in starts], shapes))

    def _pack_planes(self, name: str, planes: np.ndarray) -> None:
        format, (num_out, num_in) = self._format(name), self.matrices[name]
        blocks = self._blocks(name, None, format).reshape(num_out, -1)
        pack(format, num_out, num_in, blocks[self._order(name)], planes)

    def expert_shape(self, key: int) -> ExpertShape:
        """The record of the experts that `require_experts` gave `key` for."""
        gate, up, down = self.stacks[key]
        formats = (self.stack_format(stack) for stack in (gate, up, down))
        return ExpertShape(gate.num_in, gate.num_out, *formats)

    def expert_factors(self, key: int) -> torch.Tensor | None:
        """Factors of the experts' products, float32 `[experts, 3]` on the card: of gate, up and down.

        None where the file has none beside the matrices.
        """
        scales = [self.stack_scales(stack) for stack in self.stacks[key]]
        if not any(scales):
            return None
        experts = self.stacks[key][0].experts
        columns = [torch.tensor(s) if s else torch.ones(experts) for s in scales]
        return torch.stack(columns, 1).to(self.card.device)

    def load_experts(self, num_layers: int, progress: Callable[[int, int], None]) -> list[Experts]:
        """Read experts into `store`; returns them as the processor's pool computes them, by key.

        Args:
            num_layers: of the decoder that have experts; a draft layer's, which have the keys after theirs,
                stay in the file.
            progress: gets bytes done and bytes to do.
        """
        shapes = [self.expert_shape(key) for key in range(num_layers)]
        num_experts = self.stacks[0][0].experts if shapes else 0
        self.store = ExpertStore(self.card, [shape.record_bytes for shape in shapes], num_experts)
        total = sum(shape.record_bytes for shape in shapes) * num_experts
        done, layers = 0, []
        for key, shape in enumerate(shapes):
            progress(done, total)
            layers.append(self._load_layer(key, shape))
            self.store.fill(key)
            done += shape.record_bytes * num_experts
        self.store.wait()
        progress(total, total)
        return layers

    def _load_layer(self, key: int, shape: ExpertShape) -> Experts:
        records, planes = self.store.records(key), []
        offsets = (0, shape.up_at, shape.down_at, shape.record_bytes)
        formats = (shape.gate, shape.up, shape.down)
        for stack, format, begin, end in zip(self.stacks[key], formats, offsets, offsets[1:], strict=False):
            part = records[:, begin:end]
            for expert in range(stack.experts):
                self.pack_expert(stack, expert, part[expert])
            planes.append(ExpertPlanes(format, part, self.stack_scales(stack)))
        return Experts(shape.width, shape.ff, *planes)


def _places(
    linears: list[Linear], starts: list[int], shapes: list[tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    return {
        linear.name: (start, rows) for linear, start, (rows, _) in zip(linears, starts, shapes, strict=False)
    }
