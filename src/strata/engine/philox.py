"""Philox4x32-10, the counter-based random generator of Salmon, Moraes, Dror and Shaw ("Parallel random
numbers: as easy as 1, 2, 3", SC 2011): a number depends on key and counter alone, so any order and any
device give the same ones.
"""

import numpy as np

ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox4x32(counter: np.ndarray, key: int) -> np.ndarray:
    """Random words of many counters under one key.

    Args:
        counter: uint32 `[n, 4]`, word 0 first.
        key: 64 bits, word 0 in the low half.

    Returns:
        uint32 `[n, 4]`.
    """
    c0, c1, c2, c3 = counter.T.astype(np.uint64)
    for i in range(ROUNDS):
        k0 = np.uint64(key + i * _WEYL[0] & 0xFFFFFFFF)
        k1 = np.uint64((key >> 32) + i * _WEYL[1] & 0xFFFFFFFF)
        product0, product1 = _MULTIPLIERS[0] * c0, _MULTIPLIERS[1] * c2
        c0, c1 = (product1 >> _32) ^ c1 ^ k0, product1 & _LOW
        c2, c3 = (product0 >> _32) ^ c3 ^ k1, product0 & _LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def uniform(key: int, position: int, ids: np.ndarray) -> np.ndarray:
    """One number in the open interval (0, 1), a multiple of 2^-33, per token id at a position.

    Args:
        key: the request's seed, 64 bits.
        position: of the token to be drawn in its sequence.
        ids: token ids, int64 `[n]`.

    Returns:
        float64 `[n]`: `(w + 1/2) / 2^32`, w being word 0 for the counter (id, position, 0, 0).
    """
    counter = np.zeros((len(ids), 4), np.uint32)
    counter[:, 0] = ids
    counter[:, 1] = position
    return (philox4x32(counter, key)[:, 0] + 0.5) / 2**32
