// The product of one tile of 16 weight rows with many activation rows. The tile is decoded once, a piece at a
// time, to bytes and plain factors, and these meet all the rows while the nearest cache holds them. Returns
// the bits of kernel.hpp, from whose parts it is made.
#pragma once

#include "kernel.hpp"

namespace strata {

// Decoded weights of one tile stay below the size of a first-level data cache.
inline constexpr int kPiece = 512;

struct DecodedTile {
    alignas(64) uint32_t codes[kPiece / 4][kTileRows];     // four codes of a row in each word
    alignas(64) uint32_t factors[kPiece / 16][kTileRows];  // sub-scales, as I::add_dot wants them
    alignas(
        64) uint32_t pairs[kPiece / 16][kTileRows];  // what the sums of activation codes are multiplied with
    alignas(64) float scales[kPiece / 16][kTileRows];
    alignas(64) float minima[kPiece / 32][kTileRows];
};

// What meets the sums of activation codes: nothing, the offset of codes, or minima.
enum class Sums : uint8_t { none, offset, minimum_added, minimum_subtracted };

// All that the product of decoded weights depends on: formats that agree in it share their code.
struct BatchShape {
    bool is_signed;
    int max_code, span, sub_block, scale_block;  // sub_block: 0 for formats without sub-scales
    Sums sums;
};

// Decodes a tile from its first weights to its last.
template <class F, class I>
struct PieceDecoder {
    using Kernel = TileKernel<F, I, 1>;
    using Decode = Decoder<F, I>;
    static constexpr Layout f = F::layout;
    static constexpr bool narrow = Decode::is_signed && !I::signed_offset && f.max_code <= 64;
    // Small signed codes become unsigned, which saves an operation for each product.
    static constexpr int bias = narrow ? f.max_code : Decode::is_signed ? I::signed_offset : 0;
    static constexpr int offset = f.offset + bias;
    static constexpr BatchShape shape{.is_signed = Decode::is_signed && bias == 0,
                                      .max_code = narrow ? 2 * f.max_code : f.max_code,
                                      .span = f.span(),
                                      .sub_block = f.has_sub() ? f.sub_block : 0,
                                      .scale_block = f.scale_block,
                                      .sums = f.minimum == Minimum::sub   ? Sums::minimum_subtracted
                                              : f.minimum == Minimum::f16 ? Sums::minimum_added
                                              : offset != 0               ? Sums::offset
                                                                          : Sums::none};
    Decode decode;
    int num_steps;

    PieceDecoder(const Tile& t, int k) : decode(t), num_steps(k / kStep) { decode.prepare(0); }

    template <class V, class T>
    static STRATA_INLINE void store(T* row, int half, V v) {
        std::memcpy(row + half * I::lanes, &v, sizeof v);
    }

    // Weights [first, first + n) of each row.
    void next(int first, int n, DecodedTile& out) {
        for (int i = 0; i < n / kStep; ++i) {
            int step = first / kStep + i;
            if (step + 1 < num_steps) decode.prepare(step + 1);
            STRATA_UNROLL
            for (int h = 0; h < Kernel::halves; ++h) {
                decode_codes<0>(step, h, out.codes + i * 8);
                decode_factors(step, h, out.factors + i * (kStep / Kernel::sub_block));
                decode_sums(step, h, out.pairs + i * Kernel::parts);
            }
        }
        for (int i = 0; i < n / f.scale_block; ++i) {
            int block = first / f.scale_block + i;
            for (int h = 0; h < Kernel::halves; ++h) {
                store(out.scales[i], h, Kernel::load_scale(decode.tile, block, h));
                if constexpr (f.minimum != Minimum::none)
                    store(out.minima[i], h, Kernel::load_minimum(decode.tile, block, h));
            }
        }
    }

private:
    template <int pair>
    STRATA_INLINE void decode_codes(int step, int half, uint32_t (*out)[kTileRows]) {
        typename Decode::Code codes[2];
        decode.template load_pair<pair>(step, half, codes);
        for (int j = 0; j < 2; ++j) {
            if constexpr (Decode::is_signed)
                store(out[2 * pair + j], half, I::template biased<bias>(codes[j]));
            else
                store(out[2 * pair + j], half, codes[j]);
        }
        if constexpr (pair < 3) decode_codes<pair + 1>(step, half, out);
    }

    STRATA_INLINE void decode_factors(int step, int half, uint32_t (*out)[kTileRows]) {
        if constexpr (f.has_sub())
            for (int s = 0; s < kStep / f.sub_block; ++s)
                store(out[s], half, I::template scale<Kernel::sub_signed>(decode.sub(step, s, false), half));
    }

    STRATA_INLINE void decode_sums(int step, int half, uint32_t (*out)[kTileRows]) {
        if constexpr (shape.sums == Sums::minimum_subtracted) {
            store(out[0], half, Kernel::step_pairs(decode, step, half, true));
        } else if constexpr (shape.sums == Sums::minimum_added) {
            store(out[0], half, I::constant_pairs(1, 1));
        } else if constexpr (shape.sums == Sums::offset && f.has_sub()) {
            store(out[0], half, I::times(Kernel::step_pairs(decode, step, half, false), -offset));
        } else if constexpr (shape.sums == Sums::offset && Kernel::parts == 2) {
            store(out[0], half, I::constant_pairs(-offset, 0));
            store(out[1], half, I::constant_pairs(0, -offset));
        } else if constexpr (shape.sums == Sums::offset) {
            store(out[0], half, I::constant_pairs(-offset, -offset));
        }
    }
};

// M activation rows of a panel times decoded weights.
template <BatchShape f, class I, int M>
struct BatchKernel {
    static constexpr int halves = kTileRows / I::lanes;
    static constexpr int unit = f.span < kStep ? f.span : kStep;  // weights for each row of `pairs`
    static constexpr int block = f.sub_block ? f.sub_block : unit;
    static constexpr int groups = (block < kStep ? block : kStep) / 4;
    static constexpr int run = I::run(f.max_code) < groups ? I::run(f.max_code) : groups;

    using Word = typename I::Word;
    using Int = typename I::Int;
    using Float = typename I::Float;
    using Code = std::conditional_t<f.is_signed, typename I::Signed, Word>;

    template <class V, class T>
    static STRATA_INLINE V load(const T* row, int half) {
        V v;
        std::memcpy(&v, row + half * I::lanes, sizeof v);
        return v;
    }

    static STRATA_INLINE Code load_code(const uint32_t* row, int half) {
        Word w = load<Word>(row, half);
        if constexpr (f.is_signed)
            return I::prepare(w);
        else
            return w;
    }

    static STRATA_INLINE void add_dot(const DecodedTile& w, size_t at, int half, typename I::Dot dot,
                                      Int& sum) {
        if constexpr (f.sub_block != 0)
            sum = I::add_dot(sum, dot, load<Int>(w.factors[at / block], half));
        else
            sum = I::add_dot(sum, dot);
        I::keep(sum);
    }

    // sum += (sub-scale *) the products of the weights [at, at + block); x: activation codes from there on.
    static STRATA_INLINE void add_products(const DecodedTile& w, size_t at, const uint32_t* x,
                                           Int (*sum)[M]) {
        STRATA_UNROLL
        for (int g = 0; g < groups; g += run) {
            typename I::Dot dots[halves][M];
            STRATA_UNROLL
            for (int j = g; j < g + run; ++j) {
                Code codes[halves];
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h) codes[h] = load_code(w.codes[at / 4 + j], h);
                STRATA_UNROLL
                for (int m = 0; m < M; ++m) {
                    STRATA_UNROLL
                    for (int h = 0; h < halves; ++h) {
                        if (j == g) dots[h][m] = I::zero();
                        I::multiply_add(dots[h][m], codes[h], x[m * kBatchWords + j]);
                        // At once where it is a run of its own: registers do not hold `dots` and `sum`.
                        if (run == 1) add_dot(w, at, h, dots[h][m], sum[h][m]);
                    }
                }
            }
            if constexpr (run > 1) {
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h) {
                    STRATA_UNROLL
                    for (int m = 0; m < M; ++m) add_dot(w, at, h, dots[h][m], sum[h][m]);
                }
            }
        }
    }

    static STRATA_INLINE void add_sums(const DecodedTile& w, size_t at, const uint32_t* sums, Int (*sum)[M]) {
        STRATA_UNROLL
        for (int h = 0; h < halves; ++h) {
            auto pairs = load<Int>(w.pairs[at / unit], h);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) sum[h][m] = I::add_pairs(sum[h][m], pairs, sums[m]);
        }
    }

    static STRATA_INLINE void add_span(const DecodedTile& w, size_t at, const float* scales,
                                       const Int (*sum)[M], const Int (*minimum)[M], float* totals) {
        STRATA_UNROLL
        for (int h = 0; h < halves; ++h) {
            auto scale = load<Float>(w.scales[at / f.scale_block], h);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                float* to = totals + m * kTileRows + h * I::lanes;
                Float a = I::broadcast(scales[m]);
                Float total = load<Float>(to, 0);
                total = I::add(total, I::mul(I::mul(I::to_float(sum[h][m]), scale), a));
                if constexpr (f.sums == Sums::minimum_added || f.sums == Sums::minimum_subtracted) {
                    auto least = load<Float>(w.minima[at / f.scale_block], h);
                    Float term = I::mul(I::mul(I::to_float(minimum[h][m]), least), a);
                    total = f.sums == Sums::minimum_added ? I::add(total, term) : I::sub(total, term);
                }
                I::store(to, total);
            }
        }
    }

    // totals[m * 16 + row] += the products of the n decoded weights, whose first is weight `first` of its
    // row.
    static STRATA_NOINLINE void multiply(const DecodedTile& w, size_t first, size_t n, const Panel& p,
                                         int row, float* totals) {
        const uint32_t* codes = p.codes + first / 4 * kBatchRows + row * kBatchWords;
        const uint32_t* sums = p.sums + first / kStep * kBatchRows + row;
        const float* scales = p.scales + first / kActivationBlock * kBatchRows + row;
        for (size_t at = 0; at < n; at += f.span) {
            Int sum[halves][M], minimum[halves][M];
            for (int h = 0; h < halves; ++h)
                for (int m = 0; m < M; ++m) sum[h][m] = minimum[h][m] = I::zero();
            for (size_t b = at; b < at + f.span; b += block) add_products(w, b, codes + batch_place(b), sum);
            if constexpr (f.sums != Sums::none) {
                for (size_t b = at; b < at + f.span; b += unit)
                    add_sums(w, b, sums + b / kStep * kBatchRows, f.sums == Sums::offset ? sum : minimum);
            }
            add_span(w, at, scales + at / kActivationBlock * kBatchRows, sum, minimum, totals);
        }
    }
};

// Rows `row`... of a panel, in blocks of M and then of fewer.
template <BatchShape f, class I, int M>
void multiply_rows(const DecodedTile& w, int first, int n, const Panel& p, int row, float* totals) {
    for (; row + M <= p.rows; row += M)
        BatchKernel<f, I, M>::multiply(w, first, n, p, row, totals + row * kTileRows);
    if constexpr (M > 1) multiply_rows<f, I, M / 2>(w, first, n, p, row, totals);
}

// totals[panel][m][row] = the product of weight row `row` with activation row m of a panel.
template <class F, class I>
void multiply_tile(const Tile& tile, const Panel* panels, int num_panels, int k, float* totals) {
    constexpr int rows = I::lanes == kTileRows ? 8 : 4;  // what the registers hold
    PieceDecoder<F, I> decoder(tile, k);
    DecodedTile decoded;
    std::memset(totals, 0, sizeof(float) * num_panels * kBatchRows * kTileRows);
    for (int first = 0; first < k; first += kPiece) {
        int n = k - first < kPiece ? k - first : kPiece;
        decoder.next(first, n, decoded);
        for (int i = 0; i < num_panels; ++i)
            multiply_rows<decltype(decoder)::shape, I, rows>(decoded, first, n, panels[i], 0,
                                                             totals + i * kBatchRows * kTileRows);
    }
}

template <class I, class... F>
constexpr auto tile_kernels(std::tuple<F...>*) {
    return std::array{&multiply_tile<F, I>...};
}

template <class I>
void multiply_batch(int format, const Tile& tile, const Panel* panels, int num_panels, int k, float* out) {
    static constexpr auto kernels = tile_kernels<I>(static_cast<Formats*>(nullptr));
    kernels[format](tile, panels, num_panels, k, out);
}

}  // namespace strata
