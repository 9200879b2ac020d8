"""How the cards differ, as far as launches depend on it."""

from strata.ops.triton.arithmetic import has_matrix_units
from strata.ops.triton.intrinsics import INTERPRETED
from strata.ops.triton.kernel import current_target

# Registers of a SIMD: 1024, where others of RDNA3 and RDNA4 have 1536 (LLVM's Feature1_5xVGPRs).
_FEW_REGISTERS = ("gfx1102", "gfx1103", "gfx1150", "gfx1152", "gfx1153")


def warps(threads: int) -> int:
    """Warps of a workgroup of `threads`, a multiple of 64.

    A Radeon before RDNA has 64 threads in a warp. What others keep in the registers of eight warps, it keeps
    in those of four; with eight, each thread would have half of its registers, and spill.
    """
    if INTERPRETED:
        return threads // 32
    return threads // current_target().warp_size


def has_few_registers() -> bool:
    """Whether tiles must be smaller: registers are few, or also hold what others give to matrix units."""
    if INTERPRETED:
        return False
    return not has_matrix_units() or current_target().arch in _FEW_REGISTERS


def loads_to_shared_memory() -> bool:
    """Whether the loads of a loop go to shared memory by themselves, and matrix instructions read it there.

    Elsewhere tiles pass through registers, and a product's are all there at once.
    """
    return not INTERPRETED and current_target().backend == "cuda"


def multiplies_by_warp_groups() -> bool:
    """Whether four warps multiply tiles of 64 rows together (wgmma), whose sums take fewer registers of each.

    Of NVIDIA's cards only Hopper has it. What datacenter Blackwells have in its place is not known to give
    the same bits as the instruction that windows use.
    """
    return loads_to_shared_memory() and current_target().arch // 10 == 9


def load_stages() -> int:
    """`num_stages` of a loop of loads and products, so that the next loads are under way during a product.

    For NVIDIA, with two, Triton asks for what comes next when a product is done, and waits for it at once.
    For AMD two do, and more would take registers.
    """
    return 3 if loads_to_shared_memory() else 2


def loads_together(registers: int = 168) -> dict[str, int]:
    """Options of a kernel that asks for much at once, then waits for it.

    NVIDIA's assembler would move loads behind arithmetic, or spill, to fit as many warps as a multiprocessor
    takes: a limit on registers that is never met keeps loads together.
    """
    if INTERPRETED or current_target().backend != "cuda":
        return {}
    return {"maxnreg": registers}
