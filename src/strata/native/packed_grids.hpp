// Codebooks for vectors of bytes: 16 bits an entry, a field of 2 bits (IQ2) or 4 (IQ3) for each weight.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "formats.hpp"

namespace strata {

// The low and the high bytes of n entries.
template <int n>
struct PackedGrid {
    static constexpr int size = n;
    alignas(64) uint8_t low[n], high[n];
};

struct PackedGrids {
    PackedGrid<256> iq2_xxs, iq3_xxs;
    PackedGrid<512> iq2_xs, iq3_s;
    PackedGrid<1024> iq2_s;
};
inline PackedGrids packed_grids;

template <class F>
constexpr auto& packed_grid() {
    if constexpr (std::is_same_v<F, IQ2_XXS>) return (packed_grids.iq2_xxs);
    if constexpr (std::is_same_v<F, IQ2_XS>) return (packed_grids.iq2_xs);
    if constexpr (std::is_same_v<F, IQ2_S>) return (packed_grids.iq2_s);
    if constexpr (std::is_same_v<F, IQ3_XXS>) return (packed_grids.iq3_xxs);
    if constexpr (std::is_same_v<F, IQ3_S>) return (packed_grids.iq3_s);
}

// The magnitude that a field stands for.
template <class F>
constexpr int field_magnitude(int field) {
    constexpr int iq2[] = {8, 25, 43}, iq3_xxs[] = {4, 12, 20, 28, 36, 44, 52, 62};
    if constexpr (F::layout.grid.weights == 8) return field < 3 ? iq2[field] : 0;
    if constexpr (std::is_same_v<F, IQ3_XXS>) return field < 8 ? iq3_xxs[field] : 0;
    return field;
}

// The codebook `name`, to be filled from its bytes as they come from Python; empty if there is none.
std::span<uint8_t> codebook(std::string_view name);

// Fills packed_grids from the codebooks.
void pack_grids();

}  // namespace strata
