#include "runtime.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace strata {

Runtime& runtime() {
    static Runtime r;
    return r;
}

const Isas& available_isas() {
    static const Isas isas = [] {
        Isas found{};
#if defined(STRATA_X86)
        // GCC and Clang also ask the operating system whether it saves the registers.
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
            found.tables[found.count++] = &avx2_kernels();
#endif
        found.tables[found.count++] = &portable_kernels();
        return found;
    }();
    return isas;
}

void multiply_tiles(const Kernels& kernels, const Matrix& w, const Activations& x, float* out, size_t stride,
                    int begin, int end) {
    const auto& multiply = kernels.multiply[w.format];
    alignas(64) float sums[8 * kTileRows];
    for (int t = begin; t < end; ++t) {
        Tile tile = tile_at(w.planes + t * w.plan.bytes, w.plan);
        size_t columns = std::min(kTileRows, w.n - t * kTileRows);
        for (int i = 0; i < x.num_panels(); ++i) {
            const Panel& p = x.panel(i);
            multiply[std::countr_zero(static_cast<unsigned>(p.rows))](tile, p, w.k, sums);
            for (int m = 0; m < p.rows; ++m)
                std::memcpy(out + (x.first_row(i) + m) * stride + t * kTileRows, sums + m * kTileRows,
                            columns * sizeof(float));
        }
    }
}

}  // namespace strata
