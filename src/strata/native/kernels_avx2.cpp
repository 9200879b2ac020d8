#include "isa_avx2.hpp"
#include "kernel.hpp"

namespace strata {

const Kernels& avx2_kernels() {
    static constexpr Kernels kernels = make_kernels<Avx2>(static_cast<Formats*>(nullptr));
    return kernels;
}

}  // namespace strata
