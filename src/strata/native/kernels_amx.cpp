#include "amx.hpp"

namespace strata {

const Kernels& amx_kernels() {
    static const Kernels kernels = [] {
        Kernels k = avx512_kernels();
        k.name = "amx";
        k.multiply_batch = &multiply_batch<Amx>;
        return k;
    }();
    return kernels;
}

}  // namespace strata
