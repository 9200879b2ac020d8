"""What the text of a compiled kernel says: registers, spills, memory, occupancy, instructions that matter.

AMD's come from the comments and the metadata that LLVM writes beside the instructions (AMDGPU usage, "Code
Object V5 Metadata"), NVIDIA's from `cuobjdump --dump-resource-usage` and PTX.
"""

import re
from collections import Counter
from dataclasses import dataclass

from strata.ops.triton.proof.targets import Target

_REGISTERS_OF_SM = 65536
_SIMDS = 4  # of a work-group processor, a compute unit or a multiprocessor
_LDS_GRAIN = 1024
_NVIDIA_BLOCK_SHARED = 1024  # that the driver takes for itself, for each workgroup
_AMD_LOAD = re.compile(r"(?:global|buffer|flat)_load_(?:d16_)?(?:hi_)?(\w+)")
# Accesses past the caches: `glc` up to gfx11, `sc1` on gfx94x, `scope:` from gfx12.
_AMD_SYSTEM = re.compile(r"^\s+(\w+) [^;\n]*(?:\bglc\b|\bsc1\b|SCOPE_SYS)", re.MULTILINE)
_AMD_WIDTHS = {"dword": 32, "ubyte": 8, "sbyte": 8, "ushort": 16, "sshort": 16, "short": 16, "format": 0}
_PTX_LOAD = re.compile(r"ld\.(?:\w+\.)*?global(?:\.\w+)*?(?:\.v(\d))?\.[busf](\d+)$")
_PTX_ASYNC_LOAD = re.compile(r"cp\.async\.c[ag]\.shared\.global[\w.:]*\s*\[[^]]*\],\s*\[[^]]*\],\s*(\w+)")
_PTX_PRODUCTS = ("mma.", "wgmma.mma_async", "tcgen05.mma", "dp4a.")
_PTX_SHAPE = re.compile(r"^(m\d+n\d+k\d+|sync|aligned|row|col|mma_async|satfinite)$")


@dataclass(frozen=True, slots=True)
class Assembly:
    """A kernel's code for one target.

    Attributes:
        registers: vector registers of a thread.
        spills: vector registers of a thread that are kept in memory for want of room. (AMD's scalar registers
            spill to lanes of vector registers, which costs no memory access.)
        shared_bytes: LDS or shared memory of a workgroup.
        waves: that fit on a SIMD (NVIDIA: warps on a multiprocessor) by registers and shared memory.
        instructions: by name, how often each stands in the code: products of matrices and dots, and accesses
            that the whole system can see (AMD's named `... sys`), which signals are made of.
        widest_load: bits that one thread reads from global memory with one instruction.
    """

    registers: int
    spills: int
    shared_bytes: int
    waves: int
    instructions: dict[str, int]
    widest_load: int


def read_amdgcn(text: str, target: Target, shared_bytes: int, num_warps: int) -> Assembly:
    """Read what Triton's `amdgcn` stage says. LDS is given at launch, so LLVM does not know of it."""
    metadata = text[text.index(".amdgpu_metadata") :]

    def number(pattern: str, where: str) -> int:
        found = re.search(pattern, where, re.MULTILINE)
        return int(found.group(1)) if found else 0

    # Code ends where the kernel descriptor's section begins.
    code = text.split(".section\t.rodata", 1)[0]
    mnemonics = Counter(re.findall(r"^\s+([a-z]\w+)", code, re.MULTILINE))
    signals = Counter(f"{name} sys" for name in _AMD_SYSTEM.findall(code))
    waves = number(r"^; Occupancy:\s+(\d+)", text)
    if shared_bytes:
        workgroups = target.shared_pool // (-(-shared_bytes // _LDS_GRAIN) * _LDS_GRAIN)
        waves = min(waves, workgroups * num_warps // _SIMDS)
    return Assembly(
        registers=number(r"^\s*\.vgpr_count:\s+(\d+)", metadata),
        spills=number(r"^\s*\.vgpr_spill_count:\s+(\d+)", metadata),
        shared_bytes=shared_bytes,
        waves=waves,
        instructions={name: count for name, count in mnemonics.items() if _is_amd_product(name)} | signals,
        widest_load=max((_amd_load_bits(name) for name in mnemonics), default=0),
    )


def _is_amd_product(mnemonic: str) -> bool:
    return mnemonic.startswith(("v_wmma_", "v_swmmac_", "v_mfma_", "v_smfmac_", "v_dot2", "v_dot4", "v_dot8"))


def _amd_load_bits(mnemonic: str) -> int:
    found = _AMD_LOAD.match(mnemonic)
    if not found:
        return 0
    kind = found.group(1).split("_")[0]
    if kind.startswith("dwordx"):
        return 32 * int(kind.removeprefix("dwordx"))
    return _AMD_WIDTHS.get(kind) or int(re.sub(r"\D", "", kind) or 0)


def read_ptx(ptx: str, resources: str, target: Target, shared_bytes: int, num_warps: int) -> Assembly:
    """Read Triton's `ptx`, and what cuobjdump says of its `cubin`."""
    lines = re.findall(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)[\s;]", ptx, re.MULTILINE)
    mnemonics = Counter(line.replace("::", ".") for line in lines)
    registers, stack_bytes = (
        max((int(n) for n in re.findall(rf"\b{what}:(\d+)", resources)), default=0)
        for what in ("REG", "STACK")
    )
    instructions: Counter[str] = Counter()
    for name, count in mnemonics.items():
        if name.startswith(_PTX_PRODUCTS) or ".sys" in name or ".volatile" in name:
            instructions[".".join(part for part in name.split(".") if not _PTX_SHAPE.match(part))] += count
    loads = [int(load[1] or 1) * int(load[2]) for load in map(_PTX_LOAD.match, mnemonics) if load]
    loads += [8 * int(num_bytes, 0) for num_bytes in _PTX_ASYNC_LOAD.findall(ptx)]
    return Assembly(
        registers=registers,
        spills=stack_bytes // 4,  # a stack is there for nothing else
        shared_bytes=shared_bytes,
        waves=_nvidia_warps(registers, shared_bytes, num_warps, target),
        instructions=dict(instructions),
        widest_load=max(loads, default=0),
    )


def _nvidia_warps(registers: int, shared_bytes: int, num_warps: int, target: Target) -> int:
    """Warps on a multiprocessor: each SIMD gives registers to a warp in units of 256."""
    of_warp = max(-(-registers * 32 // 256) * 256, 256)
    of_simd = _REGISTERS_OF_SM // _SIMDS // of_warp
    workgroups = min(target.max_waves, of_simd * _SIMDS) // num_warps
    workgroups = min(workgroups, target.shared_pool // (shared_bytes + _NVIDIA_BLOCK_SHARED))
    return workgroups * num_warps
