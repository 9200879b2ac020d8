#include "op_kernels.hpp"

namespace strata {

struct OpsAvx2;

const OpKernels& avx2_op_kernels() {
    static constexpr OpKernels kernels = make_op_kernels<OpsAvx2>();
    return kernels;
}

}  // namespace strata
