#define STRATA_PORTABLE
#include "isa_portable.hpp"
#include "kernel.hpp"

namespace strata {

const Kernels& portable_kernels() {
    static constexpr Kernels kernels = make_kernels<Portable>(static_cast<Formats*>(nullptr));
    return kernels;
}

}  // namespace strata
