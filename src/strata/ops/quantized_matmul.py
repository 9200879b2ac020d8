"""Product of activations with a quantised matrix: the reference of docs/NUMERICS.md."""

import numpy as np

from strata.formats.quants.integer import IntegerMatrix

ACTIVATION_BLOCK = 128


def quantize_activations(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantise float32 `[rows, num_in]` in blocks of 128, the last one shorter where it must be.

    Returns:
        codes int32 `[rows, num_in]` in -127..127 and scales float32 `[rows, blocks]`: scale = max |x| / 127,
        code = round-half-even(x / scale). A block of zeros has scale 0 and one that holds a NaN or an
        infinity scale NaN; both have codes 0.
    """
    rows, num_in = x.shape
    num_blocks = -(-num_in // ACTIVATION_BLOCK)
    padded = np.zeros((rows, num_blocks, ACTIVATION_BLOCK), dtype=np.float32)
    padded.reshape(rows, -1)[:, :num_in] = x
    largest = np.abs(padded).max(axis=2)
    scales = np.where(np.isfinite(largest), largest / np.float32(127), np.float32(np.nan))
    usable = scales > 0
    with np.errstate(invalid="ignore"):
        codes = np.rint(padded / np.where(usable, scales, np.float32(1))[:, :, None])
    codes = np.where(usable[:, :, None], np.clip(codes, -127, 127), 0).astype(np.int32)
    return codes.reshape(rows, -1)[:, :num_in], scales


def _times(integers: np.ndarray, factors: np.ndarray | None) -> np.ndarray:
    """`integers` `[n, k]` times `factors` `[n, s]`, each for k / s neighbours."""
    if factors is None:
        return integers
    return integers * np.repeat(factors, integers.shape[1] // factors.shape[1], axis=1)


def quantized_matmul(weight: IntegerMatrix, x: np.ndarray) -> np.ndarray:
    """`x` float32 `[rows, num_in]` -> float32 `[rows, num_out]`, in bits what every kernel returns."""
    codes, x_scales = quantize_activations(x)
    num_out, num_in = weight.codes.shape
    scale_block = num_in // weight.scales.shape[1]
    span = min(scale_block, ACTIVATION_BLOCK)
    # Integers below 2^53 in float64: the products are exact, and BLAS does them.
    weights = _times(weight.codes, weight.subscales).astype(np.float64)
    minima = None
    if weight.minima is not None:
        minima = _times(np.ones_like(weight.codes), weight.sub_minima).astype(np.float64)
    total = np.zeros((len(x), num_out), dtype=np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        for start in range(0, num_in, span):
            piece = slice(start, start + span)
            a = codes[:, piece].astype(np.float64)
            x_scale = x_scales[:, start // ACTIVATION_BLOCK, None]
            block = start // scale_block
            products = (a @ weights[:, piece].T).astype(np.float32)
            total = total + products * weight.scales[:, block] * x_scale
            if minima is not None:
                term = (a @ minima[:, piece].T).astype(np.float32) * weight.minima[:, block] * x_scale
                total = total + term if weight.sub_minima is None else total - term
    return total
