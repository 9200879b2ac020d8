#include "op_kernels.hpp"

namespace strata {

struct OpsPortable;

const OpKernels& portable_op_kernels() {
    static constexpr OpKernels kernels = make_op_kernels<OpsPortable>();
    return kernels;
}

}  // namespace strata
