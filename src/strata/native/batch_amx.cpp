#include "amx.hpp"
#include "pack.hpp"

namespace strata {

namespace {

template <class... F>
constexpr auto tile_kernels_amx(std::tuple<F...>*) {
    return std::array{&AmxKernel<F>::multiply_tile...};
}

// Whether AMX is faster than AVX-512: not where sums are short, nor where multiplying with sub-scales is for
// one panel.
bool pays(const Layout& f, int num_panels) { return f.span() >= kStep && (num_panels > 1 || !f.has_sub()); }

}  // namespace

template <>
void multiply_batch<Amx>(int format, const Tile& tile, const Panel* panels, int num_panels, int k,
                         float* out) {
    if (!pays(format_layout(format), num_panels))
        return avx512_kernels().multiply_batch(format, tile, panels, num_panels, k, out);
    static constexpr auto kernels = tile_kernels_amx(static_cast<Formats*>(nullptr));
    kernels[format](tile, panels, num_panels, k, out);
}

}  // namespace strata
