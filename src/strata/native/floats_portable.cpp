#define STRATA_PORTABLE
#include "float_kernel.hpp"
#include "isa_portable.hpp"

namespace strata {

MultiplyFloats portable_float_kernel(int format) {
    static constexpr auto kernels = make_float_kernels<Portable>(static_cast<FloatFormats*>(nullptr));
    return kernels[format - kNumFormats];
}

MultiplyFloats float_kernel(const Kernels& kernels, int format) {
#if defined(STRATA_X86)
    if (&kernels != &portable_kernels()) return avx2_float_kernel(format);
#endif
    return portable_float_kernel(format);
}

}  // namespace strata
