"""The cards that kernels are compiled for.

Sizes: AMD's ISA manuals (LDS of a work-group processor or compute unit) and NVIDIA's table of compute
capabilities (shared memory and warps of a multiprocessor).
"""

import zlib
from dataclasses import dataclass

from triton.backends.compiler import GPUTarget

_KIB = 1024


@dataclass(frozen=True, slots=True)
class Target:
    """A compiler target.

    Attributes:
        name: as `strata.hardware` calls a card's architecture: `gfx1100`, `sm_89`.
        cards: examples.
        shared_limit: bytes of LDS or shared memory that one workgroup may have.
        shared_pool: bytes that the workgroups of a work-group processor, compute unit or multiprocessor
            share.
        max_waves: waves that a SIMD can hold; NVIDIA: warps of a multiprocessor.
    """

    name: str
    cards: str
    shared_limit: int
    shared_pool: int
    max_waves: int

    @property
    def is_radeon(self) -> bool:
        return self.name.startswith("gfx")

    @property
    def wave(self) -> int:
        """Threads of a wave: 64 up to GCN, else 32."""
        return 64 if self.name.startswith("gfx9") else 32

    @property
    def triton(self) -> GPUTarget:
        """The target as Triton names it."""
        if self.is_radeon:
            return GPUTarget("hip", self.name, self.wave)
        return GPUTarget("cuda", int(self.name.removeprefix("sm_")), self.wave)


def _radeon(name: str, cards: str, pool: int = 128 * _KIB, waves: int = 16) -> Target:
    return Target(name, cards, 64 * _KIB, pool, waves)


# An NVIDIA workgroup may have all of the pool but 1 KiB.
def _nvidia(name: str, cards: str, pool: int, warps: int) -> Target:
    return Target(name, cards, pool - _KIB, pool, warps)


TARGETS: dict[str, Target] = {
    target.name: target
    for target in (
        _radeon("gfx906", "Radeon VII, MI50", 64 * _KIB, 10),
        _radeon("gfx1030", "RX 6800, 6900"),
        _radeon("gfx1100", "RX 7900"),
        _radeon("gfx1101", "RX 7800, 7700"),
        _radeon("gfx1102", "RX 7600"),
        _radeon("gfx1151", "Ryzen AI Max"),
        _radeon("gfx1200", "RX 9060"),
        _radeon("gfx1201", "RX 9070"),
        _nvidia("sm_80", "A100", 164 * _KIB, 64),
        _nvidia("sm_86", "RTX 30", 100 * _KIB, 48),
        _nvidia("sm_89", "RTX 40", 100 * _KIB, 48),
        _nvidia("sm_90", "H100, H200", 228 * _KIB, 64),
        _nvidia("sm_120", "RTX 50", 100 * _KIB, 48),
    )
}

OWN_TARGETS = [name for name in TARGETS if name != "gfx1030"]  # which left Triton with 3.9


def own_target(launch: str) -> Target:
    """The target for which a launch is always compiled; each is that of some launches."""
    return TARGETS[OWN_TARGETS[zlib.crc32(launch.encode()) % len(OWN_TARGETS)]]
