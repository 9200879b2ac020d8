"""Every op that layers call, on the processor's kernels; names and signatures of `strata.ops.reference`.

A row of a batch is computed as if it were alone, in one order of operations: neither the other rows, nor how
a prompt was cut, nor threads, nor the instruction set is visible in its bits. Tensors must lie on the CPU and
be contiguous in their last dimension; TypeError and ValueError else. Matrices and experts are what
`layers.planes.PlaneWeights` hands out.
"""

from strata.native._core import (
    add_rms_norm,
    attend,
    attend_cached,
    attend_gathered,
    causal_convolution,
    delta_rule,
    experts,
    feed_forward,
    gated_delta_net,
    matmul,
    matmul_all,
    read_streams,
    rms_norm,
    rotate,
    route,
    select_blocks,
    sigmoid,
    silu,
    softplus,
    swiglu,
    write_streams,
)

__all__ = [
    "add_rms_norm",
    "attend",
    "attend_cached",
    "attend_gathered",
    "causal_convolution",
    "delta_rule",
    "experts",
    "feed_forward",
    "gated_delta_net",
    "matmul",
    "matmul_all",
    "read_streams",
    "rms_norm",
    "rotate",
    "route",
    "select_blocks",
    "sigmoid",
    "silu",
    "softplus",
    "swiglu",
    "write_streams",
]
