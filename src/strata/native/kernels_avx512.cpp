#include "decode_avx512.hpp"
#include "kernel.hpp"

namespace strata {

const Kernels& avx512_kernels() {
    static constexpr Kernels kernels = make_kernels<Avx512, Avx2>(static_cast<Formats*>(nullptr));
    return kernels;
}

}  // namespace strata
