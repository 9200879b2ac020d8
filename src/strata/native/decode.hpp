// From the planes of a tile to the codes that meet activations: 32 weights of 16 rows, a step, at a time.
#pragma once

#include <type_traits>

#include "formats.hpp"
#include "inline.hpp"

namespace strata {

alignas(16) inline constexpr int8_t kIq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
// Twice the E2M1 values, plus 12 so that they are unsigned.
alignas(16) inline constexpr int8_t kE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <class F, class I>
struct Decoder {
    static constexpr Layout f = F::layout;
    static constexpr int lane_bytes = 4 * I::lanes;
    static constexpr bool is_signed =
        f.values == Values::signed8 || f.values == Values::iq4nl || f.values == Values::sign_bits;
    static constexpr bool is_grid = f.grid.weights != 0;
    static constexpr int indices = is_grid ? kStep / f.grid.weights : 1;  // of a row in a step
    static constexpr bool joins = f.grid.extra_bits != 0;                 // an index is longer than its byte

    using Word = typename I::Word;
    using Subs = typename I::Subs;
    using Code = std::conditional_t<is_signed, typename I::Signed, Word>;

    Tile tile;
    // Whole indices of two steps. Made a step early, they are read when no store is in flight any more:
    // to forward them costs a fifth of the time on Zen 3.
    alignas(64) uint16_t joined[2][joins ? indices : 1][kTileRows];

    explicit STRATA_INLINE Decoder(const Tile& t) : tile(t) {}

    // To be called for every step in turn; the codes of that step and of the one before can then be loaded.
    STRATA_INLINE void prepare(int step) {
        if constexpr (joins) {
            auto extra = F::template extra<I>(tile, step);
            STRATA_UNROLL
            for (int i = 0; i < indices; ++i) {
                auto low = I::widen(I::load_bytes(tile.low + (step * indices + i) * kTileRows));
                I::store_rows(joined[step % 2][i], I::join_rows(low, F::template upper<I>(extra, i)));
            }
        }
    }

    // The codes of groups 2p and 2p + 1 (four weights each) of a step.
    template <int p>
    STRATA_INLINE void load_pair(int step, int half, Code* codes) const {
        Word words[2];
        if constexpr (is_grid) {
            look_up<p>(step, half, words);
        } else {
            words[0] = load_word<2 * p>(step, half);
            words[1] = load_word<2 * p + 1>(step, half);
        }
        if constexpr (f.values == Values::sign_bits) {
            Word signs = I::load(tile.high + step * 64 + half * lane_bytes);
            codes[0] = I::template apply_signs<2 * p>(words[0], signs);
            codes[1] = I::template apply_signs<2 * p + 1>(words[1], signs);
        } else if constexpr (is_signed) {
            for (int j = 0; j < 2; ++j) codes[j] = I::prepare(words[j]);
        } else {
            for (int j = 0; j < 2; ++j) codes[j] = words[j];
        }
    }

    // Sub-scales (or sub-minima) of sub-block `part` of a step.
    STRATA_INLINE Subs sub(int step, int part, bool minimum) const {
        if constexpr (is_grid) {
            return I::odd(F::template sub<I>(tile, step, part));
        } else {
            constexpr int per_step = f.sub_block < kStep ? kStep / f.sub_block : 1;
            const uint8_t* plane = minimum && f.has_sub_minima_plane() ? tile.sub_minimum : tile.sub;
            Subs b = I::load_subs(plane + (step * per_step + part) * kTileRows);
            return f.sub == Sub::nibbles ? I::nibbles(b, minimum ? 4 : 0) : b;
        }
    }

private:
    // Group g from a plane of `bits` per code, moved up by `up` bits.
    template <int bits, int up, int g>
    static STRATA_INLINE Word group(const uint8_t* plane, int step, int half) {
        constexpr int per_word = 8 / bits, words = 8 / per_word, shift = g % per_word * bits;
        Word w = I::load(plane + (step * words + g / per_word) * 64 + half * lane_bytes);
        if constexpr (bits == 8) return w;
        if constexpr (up > shift) w = I::template shl<(up > shift ? up - shift : 0)>(w);
        if constexpr (up < shift) w = I::template shr<(up < shift ? shift - up : 0)>(w);
        return I::mask(w, ((1 << bits) - 1) << up);
    }

    template <int g>
    STRATA_INLINE Word load_word(int step, int half) const {
        Word w = group<f.low_bits, 0, g>(tile.low, step, half);
        if constexpr (f.high_bits > 0)
            w = I::either(w, group<f.high_bits, f.low_bits, g>(tile.high, step, half));
        if constexpr (f.values == Values::iq4nl) w = I::lookup(kIq4nl, w);
        if constexpr (f.values == Values::e2m1) w = I::lookup(kE2m1, w);
        return w;
    }

    // The indices numbered i of 16 rows: bytes of the plane, or made by prepare().
    STRATA_INLINE auto index_row(int step, int i) const {
        if constexpr (joins)
            return joined[step % 2][i];
        else
            return tile.low + (step * indices + i) * kTileRows;
    }

    template <int p>
    STRATA_INLINE void look_up(int step, int half, Word* words) const {
        if constexpr (f.grid.weights == 4) {
            for (int j = 0; j < 2; ++j)
                words[j] = I::lookup_words(F::table(), index_row(step, 2 * p + j) + half * I::lanes);
        } else if constexpr (is_signed) {
            I::lookup_pairs(F::table(), index_row(step, p) + half * I::lanes, words[0], words[1]);
        } else {
            Word w = I::lookup_words(F::table(), index_row(step, p) + half * I::lanes);
            words[0] = I::mask(I::template shl<1>(w), 0x1E);
            words[1] = I::mask(I::template shr<3>(w), 0x1E);
        }
    }
};

}  // namespace strata
