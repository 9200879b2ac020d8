// The product of one tile of 16 weight rows with one panel of activation rows: one template for all formats
// and instruction sets. docs/NUMERICS.md is the contract it keeps.
//
// Every function here is a template over the instruction set: the same inline function compiled with the
// flags of two sets would be merged by the linker, and the wrong one could run.
#pragma once

#include <type_traits>

#include "decode.hpp"
#include "kernels.hpp"
#include "prefetch.hpp"

namespace strata {

// Defined in elementwise_*.cpp: those want the compiler's own vectors, which the lookups here must not have.
template <class I>
void quantize_block(const float* x, int n, int8_t* codes, float* scale);
template <class I>
void swiglu(float* gate, const float* up, int n);
// Defined in batch_*.cpp.
template <class I>
void multiply_batch(int format, const Tile&, const Panel* panels, int num_panels, int k, float* out);

template <class F, class I, int M>
struct TileKernel {
    using Decode = Decoder<F, I>;
    using Code = typename Decode::Code;
    using Dot = typename I::Dot;
    using Int = typename I::Int;
    using Float = typename I::Float;

    static constexpr Layout f = F::layout;
    static constexpr int halves = kTileRows / I::lanes;
    // Halves of a tile that share each load of an activation code: what the registers hold.
    static constexpr int shared = M == 1 ? halves : 1;
    static constexpr int steps = f.span() > kStep ? f.span() / kStep : 1;  // steps in a span
    static constexpr int parts = f.span() < kStep ? kStep / f.span() : 1;  // spans in a step
    static constexpr int sub_block = f.has_sub() ? f.sub_block : f.span() < kStep ? f.span() : kStep;
    static constexpr int groups = (sub_block < kStep ? sub_block : kStep) / 4;  // words of four codes
    static constexpr int run = I::run(f.max_code) < groups ? I::run(f.max_code) : groups;
    static constexpr bool sub_signed = f.sub == Sub::i8;
    static constexpr int offset = f.offset + (Decode::is_signed ? I::signed_offset : 0);
    static_assert(f.span() % kStep == 0 || kStep % f.span() == 0);

    // The sub-scales (or sub-minima) that meet the two sums of 16 activation codes of a step.
    static STRATA_INLINE Int step_pairs(const Decode& d, int step, int half, bool minimum) {
        auto first = d.sub(step, 0, minimum);
        auto second = sub_block == 16 ? d.sub(step, 1, minimum) : first;
        return I::template pairs<sub_signed>(first, second, half);
    }

    // sum += (sub-scale *) dot product of groups [2 * begin, 2 * end) with each activation row, for the
    // halves from `half` on, which share their loads.
    template <int begin, int end>
    static STRATA_INLINE void add_products(const Decode& d, int step, int half, const uint32_t* a,
                                           const Int (*scales)[2], Dot (*dots)[M], Int (*sum)[M]) {
        Code codes[shared][2];
        STRATA_UNROLL
        for (int h = 0; h < shared; ++h) d.template load_pair<begin>(step, half + h, codes[h]);
        STRATA_UNROLL
        for (int g = 2 * begin; g < 2 * begin + 2; ++g) {
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                STRATA_UNROLL
                for (int h = 0; h < shared; ++h) {
                    if (g % run == 0) dots[h][m] = I::zero();
                    I::multiply_add(dots[h][m], codes[h][g % 2], a[g * M + m]);
                    if ((g + 1) % run) continue;
                    sum[h][m] = f.has_sub() ? I::add_dot(sum[h][m], dots[h][m], scales[h][g / groups])
                                            : I::add_dot(sum[h][m], dots[h][m]);
                }
            }
        }
        if constexpr (begin + 1 < end) add_products<begin + 1, end>(d, step, half, a, scales, dots, sum);
    }

    // The terms of a step that meet only sums of activation codes: offsets of codes, and minima.
    static STRATA_INLINE void add_sums(const Decode& d, const uint32_t* sums, int step, int half, int part,
                                       Int* sum, Int* minimum) {
        if constexpr (offset != 0) {
            Int pairs;
            if constexpr (f.has_sub()) {
                pairs = I::times(step_pairs(d, step, half, false), -offset);
            } else {
                pairs = I::constant_pairs(parts == 2 && part == 1 ? 0 : -offset,
                                          parts == 2 && part == 0 ? 0 : -offset);
            }
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) sum[m] = I::add_pairs(sum[m], pairs, sums[m]);
        }
        if constexpr (f.minimum != Minimum::none) {
            Int pairs = f.minimum == Minimum::f16 ? I::constant_pairs(1, 1) : step_pairs(d, step, half, true);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) minimum[m] = I::add_pairs(minimum[m], pairs, sums[m]);
        }
    }

    static STRATA_INLINE Float load_scale(const Tile& t, int block, int half) {
        const uint8_t* p = t.scale + (block * kTileRows + half * I::lanes) * f.scale_bytes();
        if constexpr (f.scale == Scale::e8m0) return I::load_e8m0(p);
        if constexpr (f.scale == Scale::ue4m3) return I::load_ue4m3(p);
        Float scale = I::load_f16(p);
        if constexpr (Decode::is_grid && f.grid.scale_factor != 1)
            scale = I::mul(scale, I::broadcast(f.grid.scale_factor));
        return scale;
    }

    static STRATA_INLINE Float load_minimum(const Tile& t, int block, int half) {
        return I::load_f16(t.minimum + (block * kTileRows + half * I::lanes) * 2);
    }

    static STRATA_INLINE void add_span(const Tile& t, const float* scales, int block, int half,
                                       const Int* sum, const Int* minimum, Float* total) {
        Float scale = load_scale(t, block, half);
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) {
            Float a = I::broadcast(scales[m]);
            total[m] = I::add(total[m], I::mul(I::mul(I::to_float(sum[m]), scale), a));
        }
        if constexpr (f.minimum != Minimum::none) {
            Float least = load_minimum(t, block, half);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                Float term = I::mul(I::mul(I::to_float(minimum[m]), least), I::broadcast(scales[m]));
                total[m] = f.minimum == Minimum::f16 ? I::add(total[m], term) : I::sub(total[m], term);
            }
        }
    }

    // out[m * 16 + row] = the product of weight row `row` with activation row m.
    static void multiply(const Tile& t, const Panel& p, int k, float* out) {
        const int num_steps = k / kStep;
        const Prefetch<F, I> planes(t, k);
        Decode d(t);
        d.prepare(0);
        Float total[halves][M];
        for (auto& half : total)
            for (auto& x : half) x = I::zero_float();
        for (int first = 0; first < num_steps; first += steps) {
            const float* scales = p.scales + first * kStep / kActivationBlock * M;
            Int sum[halves][M], minimum[halves][M];
            for (int h = 0; h < halves; ++h)
                for (int m = 0; m < M; ++m) sum[h][m] = minimum[h][m] = I::zero();
            for (int step = first; step < first + steps; ++step) {
                if (step + 1 < num_steps) d.prepare(step + 1);
                planes.fetch(step);
                STRATA_UNROLL
                for (int h = 0; h < halves; h += shared) {
                    const uint32_t* a = I::hide(p.codes + step * 8 * M);
                    if constexpr (parts == 1)
                        multiply_step(d, p, step, h, a, sum + h, minimum + h);
                    else
                        finish_parts(d, p, step, h, a, scales, total + h);
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
    static STRATA_INLINE void multiply_step(const Decode& d, const Panel& p, int step, int half,
                                            const uint32_t* a, Int (*sum)[M], Int (*minimum)[M]) {
        Int scales[shared][2];
        if constexpr (f.has_sub()) {
            STRATA_UNROLL
            for (int h = 0; h < shared; ++h) {
                STRATA_UNROLL
                for (int s = 0; s < kStep / sub_block; ++s)
                    scales[h][s] = I::template scale<sub_signed>(d.sub(step, s, false), half + h);
            }
        }
        Dot dots[shared][M];
        add_products<0, 4>(d, step, half, a, scales, dots, sum);
        STRATA_UNROLL
        for (int h = 0; h < shared; ++h)
            add_sums(d, p.sums + step * M, step, half + h, 0, sum[h], minimum[h]);
    }

    // A step of two spans: each ends its integer part on its own.
    static STRATA_INLINE void finish_parts(const Decode& d, const Panel& p, int step, int half,
                                           const uint32_t* a, const float* scales, Float (*total)[M]) {
        finish_part<0>(d, p, step, half, a, scales, total);
        finish_part<1>(d, p, step, half, a, scales, total);
    }

    template <int part>
    static STRATA_INLINE void finish_part(const Decode& d, const Panel& p, int step, int half,
                                          const uint32_t* a, const float* scales, Float (*total)[M]) {
        Int sum[shared][M], minimum[shared][M];
        Dot dots[shared][M];
        for (int h = 0; h < shared; ++h)
            for (int m = 0; m < M; ++m) sum[h][m] = minimum[h][m] = I::zero();
        add_products<2 * part, 2 * part + 2>(d, step, half, a, nullptr, dots, sum);
        STRATA_UNROLL
        for (int h = 0; h < shared; ++h) {
            add_sums(d, p.sums + step * M, step, half + h, part, sum[h], minimum[h]);
            add_span(d.tile, scales, step * 2 + part, half + h, sum[h], minimum[h], total[h]);
        }
    }
};

template <class F, class I>
constexpr std::array<MultiplyTile, 4> kernels_of_format() {
    return {&TileKernel<F, I, 1>::multiply, &TileKernel<F, I, 2>::multiply, &TileKernel<F, I, 4>::multiply,
            &TileKernel<F, I, 8>::multiply};
}

// The loops over activations may be those of another set.
template <class I, class Elementwise = I, class... F>
constexpr Kernels make_kernels(std::tuple<F...>*) {
    return {I::name,
            &quantize_block<Elementwise>,
            &swiglu<Elementwise>,
            {kernels_of_format<F, I>()...},
            &multiply_batch<I>};
}

}  // namespace strata
