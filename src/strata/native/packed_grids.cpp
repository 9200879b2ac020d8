#include "packed_grids.hpp"

namespace strata {

namespace {

template <class F, int n, class Entry>
void pack_entries(const Entry (&entries)[n]) {
    constexpr int weights = F::layout.grid.weights, bits = 16 / weights;
    for (int i = 0; i < n; ++i) {
        unsigned word = 0;
        for (int w = 0; w < weights; ++w) {
            int magnitude = entries[i] >> (8 * w) & 255, field = 0;
            while (field + 1 < 1 << bits && field_magnitude<F>(field) != magnitude) ++field;
            word |= field << (bits * w);
        }
        packed_grid<F>().low[i] = static_cast<uint8_t>(word);
        packed_grid<F>().high[i] = static_cast<uint8_t>(word >> 8);
    }
}

}  // namespace

std::span<uint8_t> codebook(std::string_view name) {
    const auto bytes = [](auto& table) { return std::span(reinterpret_cast<uint8_t*>(table), sizeof table); };
    if (name == "IQ1_S") return bytes(grids.iq1);
    if (name == "IQ2_XXS") return bytes(grids.iq2_xxs);
    if (name == "IQ2_XS") return bytes(grids.iq2_xs);
    if (name == "IQ2_S") return bytes(grids.iq2_s);
    if (name == "IQ3_XXS") return bytes(grids.iq3_xxs);
    if (name == "IQ3_S") return bytes(grids.iq3_s);
    return {};
}

void pack_grids() {
    pack_entries<IQ2_XXS>(grids.iq2_xxs);
    pack_entries<IQ2_XS>(grids.iq2_xs);
    pack_entries<IQ2_S>(grids.iq2_s);
    pack_entries<IQ3_XXS>(grids.iq3_xxs);
    pack_entries<IQ3_S>(grids.iq3_s);
}

}  // namespace strata
