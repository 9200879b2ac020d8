"""What an expert is in memory, and where a window's experts leave what lies between launches."""

from dataclasses import dataclass

import torch

from strata.ops.triton.expert_groups import Groups
from strata.ops.triton.planes import ACTIVATION_BLOCK, plane_bytes
from strata.ops.triton.quantized_matmul import PlaneMatrix
from strata.ops.triton.tile_product import num_terms


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """What an expert's record holds: gate and up planes `[ff, width]`, then down planes `[width, ff]`.

    Args:
        gate, up, down: ggml's names of the formats.
    """

    width: int
    ff: int
    gate: str
    up: str
    down: str

    @property
    def up_at(self) -> int:
        """Byte of a record where the planes of up begin."""
        return plane_bytes(self.gate, self.ff, self.width)

    @property
    def down_at(self) -> int:
        """Byte of a record where the planes of down begin."""
        return self.up_at + plane_bytes(self.up, self.ff, self.width)

    @property
    def terms(self) -> int:
        """The most terms that a product of gate or up has."""
        return max(num_terms(self.gate, self.width), num_terms(self.up, self.width))

    @property
    def record_bytes(self) -> int:
        """Bytes of a record, a multiple of 64."""
        return self.down_at + plane_bytes(self.down, self.width, self.ff)


@dataclass(frozen=True, slots=True)
class SharedExpert:
    """The expert that all rows go to, quantised.

    Args:
        gate_up: `[2 * ff, width]`, gate above up; ff is a multiple of 16.
        down: `[width, ff]`.
    """

    gate_up: PlaneMatrix
    down: PlaneMatrix

    @property
    def ff(self) -> int:
        return self.down.num_in


@dataclass(frozen=True, slots=True)
class Between:
    """What lies between the launches of some experts, for each of some entries.

    Args:
        hidden: float32 `[entries, terms, 2 * ff]`: gate's products, then up's; of a single row their terms.
        codes, scales: int8 `[entries, ff]` and float32 `[entries, ceil(ff / 128)]`: activations of down.
        y: float32 `[entries, width]`, not weighed; of the shared expert `[rows, terms, width]`, as `hidden`.
    """

    hidden: torch.Tensor
    codes: torch.Tensor
    scales: torch.Tensor
    y: torch.Tensor

    @classmethod
    def empty(cls, hidden: tuple[int, int, int], y: tuple[int, ...], device: torch.device) -> "Between":
        """Without content, of these sizes."""
        entries, ff = hidden[0], hidden[2] // 2
        return cls(
            torch.empty(hidden, device=device),
            torch.empty(entries, ff, dtype=torch.int8, device=device),
            torch.empty(entries, -(-ff // ACTIVATION_BLOCK), device=device),
            torch.empty(y, device=device),
        )


@dataclass(frozen=True, slots=True)
class ExpertBuffers:
    """Where a window's experts leave what lies between launches.

    Args:
        groups: see there.
        routed: of rows * slots entries.
        shared: of the rows, where there is a shared expert.
    """

    groups: Groups
    routed: Between
    shared: Between | None

    @classmethod
    def allocate(
        cls,
        shape: ExpertShape,
        rows: int,
        slots: int,
        device: torch.device,
        shared: SharedExpert | None = None,
    ) -> "ExpertBuffers":
        """Buffers for windows of `rows` with `slots` experts each, and the shared one."""
        entries = rows * slots
        terms = shape.terms if rows == 1 else 1
        beside = None
        if shared is not None:
            up, down = (
                num_terms(m.format, m.num_in) if rows == 1 else 1 for m in (shared.gate_up, shared.down)
            )
            beside = Between.empty((rows, up, 2 * shared.ff), (rows, down, shape.width), device)
        return cls(
            Groups(*torch.empty(4, entries, dtype=torch.int32, device=device)),
            Between.empty((entries, terms, 2 * shape.ff), (entries, shape.width), device),
            beside,
        )
