#include "isa_avxvnni.hpp"
#include "kernel.hpp"

namespace strata {

const Kernels& avxvnni_kernels() {
    static constexpr Kernels kernels = make_kernels<AvxVnni, Avx2>(static_cast<Formats*>(nullptr));
    return kernels;
}

}  // namespace strata
