#include "float_kernel.hpp"
#include "isa_avx2.hpp"

namespace strata {

MultiplyFloats avx2_float_kernel(int format) {
    static constexpr auto kernels = make_float_kernels<Avx2>(static_cast<FloatFormats*>(nullptr));
    return kernels[format - kNumFormats];
}

}  // namespace strata
