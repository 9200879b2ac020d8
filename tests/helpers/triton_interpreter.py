"""Triton's interpreter with bfloat16 put right.

As it comes (3.6 to 3.9), bfloat16 is uint16 there: conversions to it truncate, `tl.dot` multiplies the
integers, and so does arithmetic. Here conversions round to nearest even, and `tl.dot` widens its operands and
adds products sixteen at a time, so that a sum has the same bits in tiles of any size, as it has on a card.
Arithmetic on bfloat16 itself is refused, as cards differ in how they do it: kernels convert to float32 first.
"""

import numpy as np
import triton.language as tl
from triton.runtime import interpreter


def _is_bf16(dtype: tl.dtype) -> bool:
    return dtype.scalar == tl.bfloat16


def _widened(handle: interpreter.TensorHandle) -> interpreter.TensorHandle:
    """A bfloat16 operand as float32; any other as it is."""
    if not _is_bf16(handle.dtype):
        return handle
    bits = np.asarray(handle.data).astype(np.uint32) << 16
    return interpreter.TensorHandle(bits.view(np.float32), tl.float32)


def _rounded(x: np.ndarray) -> np.ndarray:
    """bfloat16 bits, uint16, of float32 numbers: to nearest, ties to even."""
    bits = np.ascontiguousarray(x, dtype=np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x), 0x7FC0, nearest).astype(np.uint16)


def repair_bfloat16() -> None:
    """Put the interpreter's bfloat16 right in this process; once."""
    builder = interpreter.InterpreterBuilder
    reduce_ops = interpreter.ReduceOps
    if hasattr(builder, "strata_repaired"):
        return
    builder.strata_repaired = True
    builder.cast_impl = _conversion(builder.cast_impl)
    builder.create_fp_to_fp = _conversion(builder.create_fp_to_fp)
    builder.binary_op = _refusing(builder.binary_op)
    builder.unary_op = _refusing(builder.unary_op)
    reduce_ops.sum = _refusing(reduce_ops.sum)
    builder.create_dot = _dot


def _dot(self, a, b, total, *rest):
    """As matrix units add: sixteen products, then the next, whatever the tile. BLAS's order is not seen."""
    a, b = (_widened(x).data for x in (a, b))
    wide = np.int32 if total.data.dtype == np.int32 else np.float64
    products = total.data
    for k in range(0, a.shape[-1], 16):
        step = np.matmul(a[..., k : k + 16], b[..., k : k + 16, :], dtype=wide)
        products = products + step.astype(total.data.dtype)
    return interpreter.TensorHandle(products, total.dtype.scalar)


def _conversion(original):
    def convert(self, source, target, *rest):
        if _is_bf16(source.dtype) == _is_bf16(target):
            return original(self, source, target, *rest)
        wide = _widened(source)
        if _is_bf16(target):
            if wide.dtype.scalar != tl.float32:
                wide = original(self, wide, tl.float32, *rest)
            return interpreter.TensorHandle(_rounded(wide.data), tl.bfloat16)
        return wide if target.scalar == tl.float32 else original(self, wide, target, *rest)

    return convert


def _refusing(original):
    def operate(self, operand, *rest):
        if _is_bf16(operand.dtype):
            raise TypeError("arithmetic on bfloat16: convert to float32 first")
        return original(self, operand, *rest)

    return operate
