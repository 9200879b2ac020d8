"""What two token lists share; apart from `session.py`, so that a server need not import torch for it."""


def common_prefix(a: list[int], b: list[int]) -> int:
    """Number of leading tokens that `a` and `b` share."""
    length = min(len(a), len(b))
    if a[:length] == b[:length]:
        return length
    return next(i for i in range(length) if a[i] != b[i])
