"""Instructions that Triton has no word for: dot products, permutations and conversions of four bytes.

Byte arithmetic never becomes `v_dot4` or `dp4a` by itself. Here LLVM's intrinsics are called by name rather
than through inline assembly, so that the compiler can schedule them, pipeline around them and insert the wait
states that some cards need after them. Triton's interpreter has neither a target nor external calls: there
the same is done by plain arithmetic.

LLVM's names: AMDGPU usage (`sdot4`, `sudot4`, `perm`), NVPTX usage (`idp4a`, `prmt`).
"""

import triton
import triton.language as tl
from triton import knobs
from triton.language import core

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


def _target(semantic) -> str:
    """What the kernel at hand is compiled for: `gfx1100`, ...; "cuda" for any NVIDIA card."""
    options = semantic.builder.options
    arch = getattr(options, "arch", None)
    return arch if isinstance(arch, str) and arch.startswith("gfx") else "cuda"


def _call(intrinsic: str, arguments: list, semantic):
    """An LLVM intrinsic on the elements of int32 tensors and Python booleans, which gives int32."""
    arguments = [semantic.to_tensor(argument) for argument in arguments]
    types = tuple(argument.dtype.scalar for argument in arguments)
    return core.extern_elementwise(
        "", "", arguments, {types: (intrinsic, core.int32)}, is_pure=True, _semantic=semantic
    )


@core.extern
def _is_radeon(_semantic=None):
    return core.constexpr(_target(_semantic) != "cuda")


@core.extern
def _dots_mixed_signs(_semantic=None):
    """Whether one instruction multiplies unsigned by signed bytes: not on Radeons before RDNA3."""
    return core.constexpr(_target(_semantic).startswith(("cuda", "gfx11", "gfx12")))


@core.extern
def _dot4(a, b, c, a_signed, _semantic=None):
    target = _target(_semantic)
    signed = bool(core._unwrap_if_constexpr(a_signed))
    if target == "cuda":
        return _call(f"llvm.nvvm.idp4a.{'s' if signed else 'u'}.s", [a, b, c], _semantic)
    if target.startswith(("gfx11", "gfx12")):
        return _call("llvm.amdgcn.sudot4", [signed, a, True, b, c, False], _semantic)
    return _call("llvm.amdgcn.sdot4", [a, b, c, False], _semantic)


@core.extern
def _perm(high, low, selectors, _semantic=None):
    if _target(_semantic) == "cuda":
        return _call("llvm.nvvm.prmt", [low, high, selectors], _semantic)
    return _call("llvm.amdgcn.perm", [high, low, selectors], _semantic)


@core.extern
def _halves(x, _semantic=None):
    """`to_half` for NVIDIA: a byte plus 128 behind 0x64 is the float16 1152 more than it; exact."""
    body = """{
    .reg .b32 bytes, offset;
    xor.b32 bytes, $2, 0x80808080;
    mov.b32 offset, 0x64806480;
    prmt.b32 $0, bytes, 0x64646464, 0x4140;
    prmt.b32 $1, bytes, 0x64646464, 0x4342;
    sub.f16x2 $0, $0, offset;
    sub.f16x2 $1, $1, offset;
    }"""
    return core.inline_asm_elementwise(
        body, "=&r,=&r,r", [x], dtype=core.float16, is_pure=True, pack=4, _semantic=_semantic
    )


@core.extern
def _radeon_watch(address, _semantic=None):
    """A load past every cache, and the wait for it, in the words of each generation."""
    target = _target(_semantic)
    if target.startswith("gfx9"):
        load, wait = "global_load_dwordx2 $0, $1, off glc", "s_waitcnt vmcnt(0)"
    elif target.startswith("gfx10"):
        load, wait = "global_load_dwordx2 $0, $1, off glc dlc", "s_waitcnt vmcnt(0)"
    elif target.startswith("gfx11"):
        load, wait = "global_load_b64 $0, $1, off glc dlc", "s_waitcnt vmcnt(0)"
    else:
        load, wait = "global_load_b64 $0, $1, off scope:SCOPE_SYS", "s_wait_loadcnt 0x0"
    return core.inline_asm_elementwise(
        f"{load}\n{wait}", "=&v,v", [address], dtype=core.int64, is_pure=False, pack=1, _semantic=_semantic
    )


@triton.jit
def watch(pointer):
    """The int64 that is in memory now, whoever has written it: a scalar load that no compiler may hoist.

    Triton up to 3.8 takes a volatile load of a Radeon out of its loop, and 3.9 one of a block.
    """
    if INTERPRETED:
        return tl.load(pointer, volatile=True)
    else:
        RADEON: tl.constexpr = _is_radeon()
        if RADEON:
            return _radeon_watch(pointer.to(tl.int64))
        else:
            return tl.load(pointer, volatile=True)


@triton.jit
def to_half(x):
    """The float16 of int8 `x`, four at a time: NVIDIA's conversions take one, at a quarter of the speed."""
    if INTERPRETED:
        return x.to(tl.float16)
    else:
        RADEON: tl.constexpr = _is_radeon()
        if RADEON:
            return x.to(tl.float16)
        else:
            return _halves(x)


@triton.jit
def dot4(a, b, c):
    """`c + sum of a[i] * b[i]` over the four signed bytes of int32 `a` and `b`; int32, wraps around."""
    if INTERPRETED:
        for i in tl.static_range(4):
            c += ((a << (24 - 8 * i)) >> 24) * ((b << (24 - 8 * i)) >> 24)
        return c
    else:
        return _dot4(a, b, c, True)


@triton.jit
def dot4_unsigned(a, b, c):
    """`c + sum of a[i] * b[i]` over the four bytes of int32 `a` (unsigned) and `b` (signed); int32.

    Where bytes of `a` are below 128, `dot4` is the same and never slower: Radeons before RDNA3 need two
    instructions more here.
    """
    if INTERPRETED:
        for i in tl.static_range(4):
            c += ((a >> (8 * i)) & 255) * ((b << (24 - 8 * i)) >> 24)
        return c
    else:
        MIXED: tl.constexpr = _dots_mixed_signs()
        if MIXED:
            return _dot4(a, b, c, False)
        else:  # a = (a - 128) + 128
            sum_b = _dot4(b, tl.full((), 0x01010101, tl.int32), tl.full((), 0, tl.int32), True)
            return _dot4(a ^ -0x7F7F7F80, b, c + (sum_b << 7), True)


@triton.jit
def perm(high, low, selectors):
    """Four bytes picked from eight: byte i is byte `selectors[i]` of `low` (0 to 3) and `high` (4 to 7).

    Args:
        high, low: int32.
        selectors: int32 of four bytes 0 to 7; other selectors differ between cards.
    """
    if INTERPRETED:
        result = selectors & 0
        for i in tl.static_range(4):
            pick = (selectors >> (8 * i)) & 7
            source = tl.where(pick < 4, low, high)
            result |= ((source >> ((pick & 3) * 8)) & 255) << (8 * i)
        return result
    else:
        RADEON: tl.constexpr = _is_radeon()
        if not RADEON:  # there a selector is four bits, and all four are in the low half
            pairs = (selectors | (selectors >> 4)) & 0x00FF00FF
            selectors = (pairs | (pairs >> 8)) & 0xFFFF
        return _perm(high, low, selectors)
