// The products of the emulated instruction sets, for ctypes.
#include <bit>
#include <cstring>
#include <vector>

#include "activations.hpp"
#include "pack.hpp"
#include "packed_grids.hpp"

using namespace strata;

namespace {

const Kernels* find_kernels(const char* isa) {
    for (const Kernels* kernels : {&avxvnni_kernels(), &avx512_kernels(), &amx_kernels()})
        if (!std::strcmp(kernels->name, isa)) return kernels;
    return nullptr;
}

// [panel][16][16]: the products of a tile with all panels, as runtime.cpp asks for them.
void multiply_tile(const Kernels& kernels, int format, const Tile& tile, const Activations& a, float* out) {
    if (a.is_batch()) return kernels.multiply_batch(format, tile, a.panels(), a.num_panels(), a.k(), out);
    for (int i = 0; i < a.num_panels(); ++i) {
        auto rows = static_cast<unsigned>(a.panel(i).rows);
        kernels.multiply[format][std::countr_zero(rows)](tile, a.panel(i), a.k(),
                                                         out + i * kBatchRows * kTileRows);
    }
}

}  // namespace

extern "C" {

// Fills the codebook `name` from its bytes, as many as it has.
void set_codebook(const char* name, const uint8_t* bytes) {
    auto table = codebook(name);
    std::memcpy(table.data(), bytes, table.size());
    pack_grids();
}

// out [rows, n] = x [rows, k] times the transpose of a matrix [n, k] in planes. `isa` and `format` exist.
void multiply(const char* isa, const char* format, int n, int k, const uint8_t* planes, const float* x,
              int rows, float* out) {
    const Kernels& kernels = *find_kernels(isa);
    const int index = find_format(format);
    const TilePlan plan = plan_tile(format_layout(index), k);
    Activations a(rows, k);
    for (int i = 0; i < a.num_panels(); ++i) a.quantize_panel(i, x, k, kernels.quantize);
    std::vector<float> products(static_cast<size_t>(a.num_panels()) * kBatchRows * kTileRows);
    for (int t = 0; t < num_tiles(n); ++t) {
        multiply_tile(kernels, index, tile_at(planes + t * plan.bytes, plan), a, products.data());
        for (int i = 0; i < a.num_panels(); ++i)
            for (int m = 0; m < a.panel(i).rows; ++m)
                for (int row = 0; row < kTileRows && t * kTileRows + row < n; ++row)
                    out[(a.first_row(i) + m) * n + t * kTileRows + row] =
                        products[(i * kBatchRows + m) * kTileRows + row];
    }
}
}
