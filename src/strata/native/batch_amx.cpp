#include "amx.hpp"

namespace strata {

namespace {

template <class... F>
constexpr auto tile_kernels_amx(std::tuple<F...>*) {
    return std::array{&AmxKernel<F>::multiply_tile...};
}

}  // namespace

template <>
void multiply_batch<Amx>(int format, const Tile& tile, const Panel* panels, int num_panels, int k,
                         float* out) {
    static constexpr auto kernels = tile_kernels_amx(static_cast<Formats*>(nullptr));
    kernels[format](tile, panels, num_panels, k, out);
}

}  // namespace strata
