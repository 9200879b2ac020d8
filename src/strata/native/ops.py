"""Every op that layers call, on the processor's kernels; names and signatures of `strata.ops.reference`."""

from strata.native.products import experts, feed_forward, matmul, matmul_all
from strata.ops.reference import (
    attend,
    attend_gathered,
    causal_convolution,
    delta_rule,
    rms_norm,
    rotate,
    route,
    select_blocks,
    sigmoid,
    silu,
    softplus,
    swiglu,
)

__all__ = [
    "attend",
    "attend_gathered",
    "causal_convolution",
    "delta_rule",
    "experts",
    "feed_forward",
    "matmul",
    "matmul_all",
    "rms_norm",
    "rotate",
    "route",
    "select_blocks",
    "sigmoid",
    "silu",
    "softplus",
    "swiglu",
]
