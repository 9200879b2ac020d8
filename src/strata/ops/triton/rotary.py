"""Rotary positions on the card: cosines and sines of a step's rows, and the rotation of a head by them.

As in `ops/rotary.py` and `layers/rotary.py`: the angle is the float32 product of position and inverse
frequency. A step's angles are made once and serve all of its layers.
"""

import torch
import triton
import triton.language as tl

from strata.ops.triton.dependent_launch import begin_kernel, step_launch
from strata.ops.triton.kernel import kernel


@triton.jit
def _cos_sin(angle):
    """Cosine and sine, float64, of float64 `angle` up to 2**20 or so: far better than float32 can tell.

    The quadrant is taken off in float64, so that large angles lose nothing; Taylor's series does the rest.
    """
    quadrant = tl.floor(angle * 0.6366197723675814 + 0.5)
    x = angle - quadrant * 1.5707963267948966
    square = x * x
    sine = 1 - square * (1 / 156.0)
    sine = 1 - square * (1 / 110.0) * sine
    sine = 1 - square * (1 / 72.0) * sine
    sine = 1 - square * (1 / 42.0) * sine
    sine = 1 - square * (1 / 20.0) * sine
    sine = x * (1 - square * (1 / 6.0) * sine)
    cosine = 1 - square * (1 / 182.0)
    cosine = 1 - square * (1 / 132.0) * cosine
    cosine = 1 - square * (1 / 90.0) * cosine
    cosine = 1 - square * (1 / 56.0) * cosine
    cosine = 1 - square * (1 / 30.0) * cosine
    cosine = 1 - square * (1 / 12.0) * cosine
    cosine = 1 - square * (1 / 2.0) * cosine
    turns = quadrant.to(tl.int32) & 3
    is_odd = (turns & 1) == 1
    out_cos, out_sin = tl.where(is_odd, sine, cosine), tl.where(is_odd, cosine, sine)
    out_cos = tl.where((turns == 1) | (turns == 2), -out_cos, out_cos)
    return out_cos, tl.where(turns >= 2, -out_sin, out_sin)


@kernel
def _angles_kernel(position, inv_freq, cos, sin, back, factor, PAIRS: tl.constexpr, BLOCK: tl.constexpr):
    begin_kernel()
    row, pair = tl.program_id(0), tl.arange(0, BLOCK)
    inside = pair < PAIRS
    at = tl.maximum(tl.load(position + row) - back, 0)
    angle = at.to(tl.float32) * tl.load(inv_freq + pair, mask=inside, other=0.0)
    c, s = _cos_sin(angle.to(tl.float64))
    tl.store(cos + row * PAIRS + pair, c.to(tl.float32) * factor, mask=inside)
    tl.store(sin + row * PAIRS + pair, s.to(tl.float32) * factor, mask=inside)


def angles(
    position: torch.Tensor,
    inv_freq: torch.Tensor,
    factor: float,
    cos: torch.Tensor,
    sin: torch.Tensor,
    back: int = 0,
) -> None:
    """Cosines and sines of the rows of a step, times `factor`.

    Args:
        position: int32 `[rows]`; of unused rows any.
        inv_freq: float32 `[pairs]`, inverse frequencies (`layers.rotary.Rotary.inv_freq`).
        factor: YaRN's factor of cosines and sines, else 1.
        cos, sin: float32 `[rows, pairs]`, written.
        back: the angles are those of `position - back`, not below 0.
    """
    rows, pairs = cos.shape
    _angles_kernel[(rows,)](
        position,
        inv_freq,
        cos,
        sin,
        back,
        factor,
        PAIRS=pairs,
        BLOCK=triton.next_power_of_2(pairs),
        num_warps=1,
        **step_launch(),
    )


@triton.jit
def load_head(x, norm, cos, sin, epsilon, DIM: tl.constexpr, PAIRS: tl.constexpr, INTERLEAVED: tl.constexpr):
    """A head `[DIM]` at `x`, normalised if there is a `norm` `[DIM]`, its first 2 * PAIRS values rotated.

    `cos` and `sin` point to the row's `[PAIRS]`.
    """
    d = tl.arange(0, DIM)
    if INTERLEAVED:
        pair, partner, is_first = d // 2, d ^ 1, d % 2 == 0
    else:
        is_first = d < PAIRS
        pair, partner = tl.where(is_first, d, d - PAIRS), tl.where(is_first, d + PAIRS, d - PAIRS)
    turns = d < 2 * PAIRS
    own, other = tl.load(x + d), tl.load(x + partner, mask=turns, other=0.0)
    if norm is not None:
        factor = 1 / tl.sqrt(tl.sum(own * own, 0) / DIM + epsilon)
        own = own * factor * tl.load(norm + d)
        other = other * factor * tl.load(norm + partner, mask=turns, other=0.0)
    c, s = tl.load(cos + pair, mask=turns, other=1.0), tl.load(sin + pair, mask=turns, other=0.0)
    return own * c + tl.where(is_first, -other, other) * s
