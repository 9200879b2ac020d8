// Many rows on AMX: a tile register of 16 activation rows times one of 16 weight rows, 64 weights deep.
//
// AMX adds products of bytes up and nothing else. So a weight is multiplied with its integer sub-scale first,
// which makes a number of 16 bits, 256 * high + low, and the two bytes are multiplied on their own: a whole
// span is two sums. batch.hpp decodes, as for AVX-512.
#pragma once

#include "batch.hpp"
#include "decode_avx512.hpp"

namespace strata {

// The instruction set of batches on AMX; fewer rows take AVX-512.
struct Amx;
template <>
void multiply_batch<Amx>(int format, const Tile&, const Panel* panels, int num_panels, int k, float* out);

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
};

// Tile registers: 0 and 1 are sums, 2 activations [16][depth], 3 and 4 weights [depth / 4][16][4].
consteval TileConfig tile_config(int depth) {
    TileConfig c;
    for (int i = 0; i < 5; ++i) {
        c.row_bytes[i] = static_cast<uint16_t>(i == 2 ? depth : 64);
        c.rows[i] = static_cast<uint8_t>(i < 3 ? kBatchRows : depth / 4);
    }
    return c;
}

// Decoded weights, less their offsets and times their sub-scales: bytes with sign, and the bytes below them.
struct AmxPiece {
    alignas(64) uint32_t high[kPiece / 4][kTileRows], low[kPiece / 4][kTileRows];
};

template <class F>
struct AmxKernel {
    using I = Avx512;
    using Decode = PieceDecoder<F, I>;
    using Int = I::Int;
    using Float = I::Float;

    static constexpr int M = 4;  // activation rows whose totals are kept in registers
    static constexpr BatchShape f = Decode::shape;
    static constexpr int offset = f.sums == Sums::offset ? Decode::offset : 0;
    static constexpr int depth = f.span < 64 ? f.span : 64;
    static constexpr bool has_minima = f.sums == Sums::minimum_added || f.sums == Sums::minimum_subtracted;
    // Products with the 4-bit sub-scales of Q2_K are bytes still.
    static constexpr bool has_low = f.sub_block != 0 && F::layout.sub != Sub::nibbles;

    // [activation row][weight row] of a span: sums of the high bytes, and of the low ones if there are any.
    struct alignas(64) SpanSums {
        int32_t v[has_low ? 2 : 1][kBatchRows][kTileRows];
    };

    static void split(const DecodedTile& w, int n, AmxPiece& out) {
        for (int word = 0; word < n / 4; ++word) {
            auto codes = load_as<I::Word>(w.codes[word]);
            if constexpr (f.sub_block == 0) {
                store(out.high[word], _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(offset))));
            } else {
                auto factor = load_as<Int>(w.factors[word * 4 / f.sub_block]);
                split_word(codes, factor, out.high[word], out.low[word]);
            }
        }
    }

    // The products of 64 codes with the sub-scales of their rows.
    static STRATA_INLINE void split_word(I::Word codes, Int factor, uint32_t* high, uint32_t* low) {
        // vpmaddubsw adds two products up, of which one is zero.
        factor = _mm512_and_si512(factor, _mm512_set1_epi32(255));
        factor = _mm512_or_si512(factor, _mm512_slli_epi32(factor, 16));
        auto even = _mm512_maddubs_epi16(codes, factor);
        auto odd = _mm512_maddubs_epi16(codes, _mm512_slli_epi32(factor, 8));
        if constexpr (offset != 0) {
            auto less = _mm512_maddubs_epi16(_mm512_set1_epi16(offset), factor);
            even = _mm512_sub_epi16(even, less);
            odd = _mm512_sub_epi16(odd, less);
        }
        constexpr uint64_t odd_bytes = 0xAAAAAAAAAAAAAAAA;
        auto lows = _mm512_mask_blend_epi8(odd_bytes, even, _mm512_slli_epi16(odd, 8));
        if constexpr (has_low) {
            store(low, lows);
            store(high, _mm512_mask_blend_epi8(odd_bytes, _mm512_srli_epi16(even, 8), odd));
        } else {
            store(high, lows);
        }
    }

    // The sums of a span: of the high bytes, and of the low ones.
    static STRATA_INLINE void sum_span(const AmxPiece& w, size_t at, const uint32_t* codes, SpanSums& sums) {
        _tile_zero(0);
        if constexpr (has_low) _tile_zero(1);
        for (size_t d = at; d < at + f.span; d += depth) {
            _tile_loadd(2, codes + batch_place(d), 4 * kBatchWords);
            _tile_loadd(3, w.high[d / 4], 4 * kTileRows);
            _tile_dpbssd(0, 2, 3);
            if constexpr (has_low) {
                _tile_loadd(4, w.low[d / 4], 4 * kTileRows);
                _tile_dpbsud(1, 2, 4);
            }
        }
        _tile_stored(0, sums.v[0], 4 * kTileRows);
        if constexpr (has_low) _tile_stored(1, sums.v[1], 4 * kTileRows);
    }

    // totals[m * 16 + row] += the products of the n decoded weights, whose first is weight `first` of its
    // row.
    static void multiply(const DecodedTile& w, const AmxPiece& piece, size_t first, size_t n, const Panel& p,
                         float* totals) {
        SpanSums sums[kPiece / f.span];
        const uint32_t* codes = p.codes + first / 4 * kBatchRows;
        for (size_t at = 0; at < n; at += f.span) sum_span(piece, at, codes, sums[at / f.span]);
        for (int row = 0; row < p.rows; row += M)
            add_spans(w, first, n, p, row, sums, totals + row * kTileRows);
    }

    // totals += the spans of M activation rows. A panel has 16 of them, used or not.
    static STRATA_INLINE void add_spans(const DecodedTile& w, size_t first, size_t n, const Panel& p, int row,
                                        const SpanSums* sums, float* totals) {
        Float total[M];
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) total[m] = load_as<Float>(totals + m * kTileRows);
        for (size_t at = 0; at < n; at += f.span) {
            const auto *high = sums[at / f.span].v[0] + row, *low = high + kBatchRows;
            const float* scales = p.scales + (first + at) / kActivationBlock * kBatchRows + row;
            auto scale = load_as<Float>(w.scales[at / f.scale_block]);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                Int sum = load_as<Int>(high[m]);
                if constexpr (has_low) sum = I::add(load_as<Int>(low[m]), _mm512_slli_epi32(sum, 8));
                Float a = I::broadcast(scales[m]);
                total[m] = I::add(total[m], I::mul(I::mul(I::to_float(sum), scale), a));
            }
            if constexpr (has_minima)
                add_minima(w, at, p.sums + (first + at) / kStep * kBatchRows + row, scales, total);
        }
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) I::store(totals + m * kTileRows, total[m]);
    }

    static STRATA_INLINE void add_minima(const DecodedTile& w, size_t at, const uint32_t* sums,
                                         const float* scales, Float* total) {
        auto least = load_as<Float>(w.minima[at / f.scale_block]);
        Int sum[M];
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) sum[m] = I::zero();
        STRATA_UNROLL
        for (int i = 0; i < f.span / kStep; ++i) {
            auto pairs = load_as<Int>(w.pairs[at / kStep + i]);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) sum[m] = I::add_pairs(sum[m], pairs, sums[i * kBatchRows + m]);
        }
        STRATA_UNROLL
        for (int m = 0; m < M; ++m) {
            Float term = I::mul(I::mul(I::to_float(sum[m]), least), I::broadcast(scales[m]));
            total[m] = f.sums == Sums::minimum_added ? I::add(total[m], term) : I::sub(total[m], term);
        }
    }

    static void multiply_tile(const Tile& tile, const Panel* panels, int num_panels, int k, float* totals) {
        static constexpr TileConfig config = tile_config(depth);
        _tile_loadconfig(&config);
        Decode decoder(tile, k);
        DecodedTile decoded;
        AmxPiece piece;
        std::memset(totals, 0, sizeof(float) * num_panels * kBatchRows * kTileRows);
        for (int first = 0; first < k; first += kPiece) {
            int n = k - first < kPiece ? k - first : kPiece;
            decoder.next(first, n, decoded);
            split(decoded, n, piece);
            asm volatile("" ::: "memory");  // GCC 12 does not know that tiles read memory
            for (int i = 0; i < num_panels; ++i)
                multiply(decoded, piece, first, n, panels[i], totals + i * kBatchRows * kTileRows);
        }
        _tile_release();
    }

private:
    template <class V>
    static STRATA_INLINE V load_as(const void* p) {
        V v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    template <class V>
    static STRATA_INLINE void store(uint32_t* p, V v) {
        std::memcpy(p, &v, sizeof v);
    }
};

}  // namespace strata
