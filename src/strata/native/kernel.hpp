// The product of one tile of 16 weight rows with one panel of activation rows: one template for all formats
// and instruction sets. docs/NUMERICS.md is the contract it keeps.
//
// Every function here is a template over the instruction set: the same inline function compiled with the
// flags of two sets would be merged by the linker, and the wrong one could run.
#pragma once

#include <type_traits>

#include "formats.hpp"
#include "inline.hpp"
#include "kernels.hpp"

namespace strata {

// Defined in elementwise_*.cpp: those want the compiler's own vectors, which the lookups here must not have.
template <class I>
void quantize_block(const float* x, int n, int8_t* codes, float* scale);
template <class I>
void swiglu(float* gate, const float* up, int n);

alignas(16) inline constexpr int8_t kIq4nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                  1,    13,   25,  38,  53,  69,  89,  113};
// Twice the E2M1 values, plus 12 so that they are unsigned.
alignas(16) inline constexpr int8_t kE2m1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

template <class F, class I, int M>
struct TileKernel {
    static constexpr Layout f = F::layout;
    static constexpr int halves = kTileRows / I::lanes;
    static constexpr int lane_bytes = 4 * I::lanes;
    static constexpr int steps = f.span() > kStep ? f.span() / kStep : 1;  // steps in a span
    static constexpr int parts = f.span() < kStep ? kStep / f.span() : 1;  // spans in a step
    static constexpr int sub_block = f.has_sub() ? f.sub_block : f.span() < kStep ? f.span() : kStep;
    static constexpr int groups = (sub_block < kStep ? sub_block : kStep) / 4;  // words of four codes
    static constexpr bool is_signed =
        f.values == Values::signed8 || f.values == Values::iq4nl || f.values == Values::sign_bits;
    static constexpr bool is_grid = f.grid.weights != 0;
    static constexpr int run = I::run(f.max_code) < groups ? I::run(f.max_code) : groups;
    static constexpr bool sub_signed = f.sub == Sub::i8;
    static constexpr int offset = f.offset + (is_signed ? I::signed_offset : 0);
    static_assert(f.span() % kStep == 0 || kStep % f.span() == 0);

    using Word = typename I::Word;
    using Int = typename I::Int;
    using Float = typename I::Float;
    using Code = std::conditional_t<is_signed, typename I::Signed, Word>;

    // Groups 0..7 (four codes each) of 32 weights, from a plane of `bits` per code, moved up by `up` bits.
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
    static STRATA_INLINE void load_codes(const Tile& t, const GridStep& grid, int step, int half,
                                         Code* codes) {
        if constexpr (is_grid) {
            Word w = I::load(reinterpret_cast<const uint8_t*>(grid.codes[g] + half * I::lanes));
            if constexpr (is_signed)
                codes[g] = I::template apply_signs<g>(w, I::load(t.high + step * 64 + half * lane_bytes));
            else
                codes[g] = w;
        } else {
            Word w = group<f.low_bits, 0, g>(t.low, step, half);
            if constexpr (f.high_bits > 0)
                w = I::either(w, group<f.high_bits, f.low_bits, g>(t.high, step, half));
            if constexpr (f.values == Values::iq4nl) w = I::lookup(kIq4nl, w);
            if constexpr (f.values == Values::e2m1) w = I::lookup(kE2m1, w);
            if constexpr (is_signed)
                codes[g] = I::prepare(w);
            else
                codes[g] = w;
        }
        if constexpr (g < 7) load_codes<g + 1>(t, grid, step, half, codes);
    }

    // Looks up 32 weights of 16 rows. One load for each index: measured on Zen 3, a gather takes 1.8 times as
    // long.
    static STRATA_INLINE void load_grid(const Tile& t, int step, GridStep& out) {
        if constexpr (is_grid) {
            constexpr int entries = kStep / f.grid.weights;
            const uint8_t* index = t.low + step * entries * kTileRows;
            int extra[kTileRows];
            for (int row = 0; row < kTileRows; ++row) extra[row] = F::extra(t.extra, step, row);
            STRATA_UNROLL
            for (int e = 0; e < entries; ++e) {
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h) {
                    const int first = h * I::lanes;
                    auto entry = [&](int i) {
                        return F::entry(index[e * kTileRows + first + i], extra[first + i], e);
                    };
                    if constexpr (f.grid.weights == 8)
                        I::store_pairs(out.codes[2 * e] + first, out.codes[2 * e + 1] + first, entry);
                    else
                        I::store_words(out.codes[e] + first, entry);
                }
            }
            for (int part = 0; part < kStep / f.sub_block; ++part)
                for (int row = 0; row < kTileRows; ++row)
                    out.sub[part][row] =
                        static_cast<uint8_t>(2 * F::sub(t.sub, extra[row], step, row, part) + 1);
        }
    }

    static STRATA_INLINE typename I::Bytes16 sub_bytes(const uint8_t* plane, int index, bool minimum) {
        auto b = I::load_bytes(plane + index * kTileRows);
        if constexpr (f.sub == Sub::nibbles) return minimum ? I::high_nibbles(b) : I::low_nibbles(b);
        return b;
    }

    // Grid formats have the sub-scales of the current step in front of them, all others those of the tile.
    static STRATA_INLINE int sub_step(int step) { return is_grid ? 0 : step; }

    // The sub-scales (or sub-minima) that meet the two sums of 16 activation codes of a step.
    static STRATA_INLINE Int step_pairs(const uint8_t* plane, int step, int half, bool minimum) {
        constexpr int per_step = kStep / sub_block;
        auto first = sub_bytes(plane, step * per_step, minimum);
        auto second = per_step == 2 ? sub_bytes(plane, step * 2 + 1, minimum) : first;
        return I::template pairs<sub_signed>(first, second, half);
    }

    // sum += (sub-scale *) dot product of groups [begin, begin + groups) with each activation row.
    static STRATA_INLINE void add_products(const Code* codes, const uint32_t* a, int begin, const Int* scale,
                                           Int* sum) {
        STRATA_UNROLL
        for (int g = begin; g < begin + groups; g += run) {
            typename I::Dot dots[M];
            for (auto& d : dots) d = I::zero();
            STRATA_UNROLL
            for (int j = 0; j < run; ++j) {
                const uint32_t* x = a + (g + j) * M;
                STRATA_UNROLL
                for (int m = 0; m < M; ++m) I::multiply_add(dots[m], codes[g + j], x[m]);
            }
            STRATA_UNROLL
            for (int m = 0; m < M; ++m)
                sum[m] = f.has_sub() ? I::add_dot(sum[m], dots[m], *scale) : I::add_dot(sum[m], dots[m]);
        }
    }

    // The terms of a step that meet only sums of activation codes: offsets of codes, and minima.
    static STRATA_INLINE void add_sums(const Tile& t, const uint32_t* sums, int step, int half, int part,
                                       Int* sum, Int* minimum) {
        if constexpr (offset != 0) {
            Int pairs;
            if constexpr (f.has_sub()) {
                pairs = I::times(step_pairs(t.sub, sub_step(step), half, false), -offset);
            } else {
                pairs = I::constant_pairs(parts == 2 && part == 1 ? 0 : -offset,
                                          parts == 2 && part == 0 ? 0 : -offset);
            }
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) sum[m] = I::add_pairs(sum[m], pairs, sums[m]);
        }
        if constexpr (f.minimum != Minimum::none) {
            Int pairs = f.minimum == Minimum::f16
                            ? I::constant_pairs(1, 1)
                            : step_pairs(f.has_sub_minima_plane() ? t.sub_minimum : t.sub, step, half, true);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) minimum[m] = I::add_pairs(minimum[m], pairs, sums[m]);
        }
    }

    static STRATA_INLINE void add_span(const Tile& t, const float* scales, int block, int half,
                                       const Int* sum, const Int* minimum, Float* total) {
        const uint8_t* p = t.scale + (block * kTileRows + half * I::lanes) * f.scale_bytes();
        Float scale;
        if constexpr (f.scale == Scale::f16) scale = I::load_f16(p);
        if constexpr (is_grid && f.grid.scale_factor != 1)
            scale = I::mul(scale, I::broadcast(f.grid.scale_factor));
        if constexpr (f.scale == Scale::e8m0) scale = I::load_e8m0(p);
        if constexpr (f.scale == Scale::ue4m3) scale = I::load_ue4m3(p);
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) {
            Float a = I::broadcast(scales[m]);
            total[m] = I::add(total[m], I::mul(I::mul(I::to_float(sum[m]), scale), a));
        }
        if constexpr (f.minimum != Minimum::none) {
            Float least = I::load_f16(t.minimum + (block * kTileRows + half * I::lanes) * 2);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                Float term = I::mul(I::mul(I::to_float(minimum[m]), least), I::broadcast(scales[m]));
                total[m] = f.minimum == Minimum::f16 ? I::add(total[m], term) : I::sub(total[m], term);
            }
        }
    }

    // out[m * 16 + row] = the product of weight row `row` with activation row m.
    static void multiply(const Tile& tile, const Panel& p, int k, float* out) {
        Tile t = tile;
        GridStep grid;
        if constexpr (is_grid) t.sub = grid.sub[0];
        Float total[halves][M];
        for (auto& half : total)
            for (auto& x : half) x = I::zero_float();
        for (int first = 0; first < k / kStep; first += steps) {
            const float* scales = p.scales + first * kStep / kActivationBlock * M;
            Int sum[halves][M], minimum[halves][M];
            for (int h = 0; h < halves; ++h)
                for (int m = 0; m < M; ++m) sum[h][m] = minimum[h][m] = I::zero();
            for (int step = first; step < first + steps; ++step) {
                load_grid(tile, step, grid);
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h) {
                    const uint32_t* a = I::hide(p.codes + step * 8 * M);
                    Code codes[8];
                    load_codes<0>(t, grid, step, h, codes);
                    multiply_step(t, p, step, h, codes, a, sum[h], minimum[h]);
                    if constexpr (parts == 2) finish_parts(t, p, step, h, codes, a, scales, total[h]);
                }
            }
            if constexpr (parts == 1) {
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h)
                    add_span(t, scales, first * kStep / f.scale_block, h, sum[h], minimum[h], total[h]);
            }
        }
        for (int h = 0; h < halves; ++h)
            for (int m = 0; m < M; ++m) I::store(out + m * kTileRows + h * I::lanes, total[h][m]);
    }

    // A step whose span is at least as long as the step.
    static STRATA_INLINE void multiply_step(const Tile& t, const Panel& p, int step, int half,
                                            const Code* codes, const uint32_t* a, Int* sum, Int* minimum) {
        if constexpr (parts == 1) {
            constexpr int per_step = kStep / sub_block;
            STRATA_UNROLL
            for (int s = 0; s < per_step; ++s) {
                Int scale = I::zero();
                if constexpr (f.has_sub()) {
                    auto bytes = sub_bytes(t.sub, sub_step(step) * per_step + s, false);
                    scale = I::template scale<sub_signed>(bytes, half);
                }
                add_products(codes, a, s * groups, &scale, sum);
            }
            add_sums(t, p.sums + step * M, step, half, 0, sum, minimum);
        }
    }

    // A step of two spans: each ends its integer part on its own.
    static STRATA_INLINE void finish_parts(const Tile& t, const Panel& p, int step, int half,
                                           const Code* codes, const uint32_t* a, const float* scales,
                                           Float* total) {
        STRATA_UNROLL
        for (int part = 0; part < 2; ++part) {
            Int sum[M], minimum[M];
            for (int m = 0; m < M; ++m) sum[m] = minimum[m] = I::zero();
            add_products(codes, a, part * groups, nullptr, sum);
            add_sums(t, p.sums + step * M, step, half, part, sum, minimum);
            add_span(t, scales, step * 2 + part, half, sum, minimum, total);
        }
    }
};

template <class F, class I>
constexpr std::array<MultiplyTile, 4> kernels_of_format() {
    return {&TileKernel<F, I, 1>::multiply, &TileKernel<F, I, 2>::multiply, &TileKernel<F, I, 4>::multiply,
            &TileKernel<F, I, 8>::multiply};
}

template <class I, class... F>
constexpr Kernels make_kernels(std::tuple<F...>*) {
    return {I::name, &quantize_block<I>, &swiglu<I>, {kernels_of_format<F, I>()...}};
}

}  // namespace strata
