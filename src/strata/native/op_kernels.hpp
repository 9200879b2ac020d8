// The table of ops for one instruction set.
#pragma once

#include "attention_kernels.hpp"
#include "small_kernels.hpp"

namespace strata {

template <class I>
constexpr OpKernels make_op_kernels() {
    using Small = SmallKernels<I>;
    using Attention = AttentionKernels<I>;
    return {
        Small::rms_norm, Small::rotate,          Small::swiglu,         Small::sigmoid_gate,
        Small::softmax,  Attention::attend_span, Attention::merge_span, Attention::finish,
    };
}

}  // namespace strata
