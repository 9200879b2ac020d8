"""Tiny models of the architectures that have plain blocks, with made-up weights."""

import math
import zlib
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch

from strata.formats.checkpoint import TensorInfo
from strata.formats.geometry import DeltaNet, Geometry
from strata.formats.mixes import Mix
from strata.formats.synthetic import SyntheticCheckpoint

TINY = Geometry(
    "tiny", "llama", layers=1, width=32, vocab=32, context=256, heads=2, kv_heads=1, head_length=16,
    expert_count=0, used=0, ff=32, rope_base=1e4, rope_dimensions=16, interval=2,
)  # fmt: skip
EXPERTS = {"expert_count": 4, "used": 2}
HYBRID = {"rope_dimensions": 8, "delta": DeltaNet(1, 2, state=16)}
FUSED = {"rope_dimensions": 8, "delta": DeltaNet(2, 4, state=16, fused=True)}


class TinyCheckpoint(SyntheticCheckpoint):
    """Made-up weights whose norms are not all one.

    Args:
        geometry: shapes.
        formats: of the roles of tensors (`geometry.Tensor.role`); BF16 of all others, which the interpreter
            multiplies fastest.
        keys: further metadata, without the architecture's prefix.
        more: further tensors, F32, by name: their shapes.
        less: tensors whose names end so are left out.
    """

    def __init__(
        self,
        geometry: Geometry,
        formats: Mapping[str, str],
        keys: Mapping[str, Any] | None = None,
        more: Mapping[str, tuple[int, ...]] | None = None,
        less: tuple[str, ...] = (),
    ):
        super().__init__(geometry, Mix(defaultdict(lambda: "BF16", formats)))
        self.metadata |= {f"{self.architecture}.{key}": value for key, value in (keys or {}).items()}
        self.tensors = {name: info for name, info in self.tensors.items() if not name.endswith(less)} | {
            name: TensorInfo(name, shape, "F32", 4 * math.prod(shape)) for name, shape in (more or {}).items()
        }

    def read(self, name: str, index: int | None = None) -> torch.Tensor:
        tensor = super().read(name, index)
        if "norm." not in name:
            return tensor
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        return torch.rand(tensor.shape, generator=generator) + 0.5
