// The table of ops for one instruction set.
#pragma once

#include "attention_kernels.hpp"
#include "delta_kernels.hpp"
#include "small_kernels.hpp"

namespace strata {

template <class I>
constexpr OpKernels make_op_kernels() {
    using Small = SmallKernels<I>;
    using Delta = DeltaKernels<I>;
    using Attention = AttentionKernels<I>;
    return {
        Small::rms_norm,       Small::rotate,         Small::silu,
        Small::sigmoid,        Small::softplus,       Small::sigmoid_gate,
        Small::silu_gate,      Small::softmax,        Delta::convolution,
        Delta::l2_norm,        Delta::delta_columns,  Attention::attend_span,
        Attention::merge_span, Attention::score_span, Attention::add_rectified,
        Attention::finish,
    };
}

}  // namespace strata
