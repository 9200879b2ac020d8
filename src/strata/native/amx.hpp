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

// Tile registers: 0 to 3 are sums, 4 and 5 activations [16][depth], 6 and 7 weights [depth / 4][16][4].
consteval TileConfig tile_config(int depth) {
    TileConfig c;
    for (int i = 0; i < 8; ++i) {
        c.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? depth : 64);
        c.rows[i] = static_cast<uint8_t>(i < 6 ? kBatchRows : depth / 4);
    }
    return c;
}

// Decoded weights, less their offsets and times their sub-scales: bytes with sign, and the bytes below them.
struct AmxPiece {
    alignas(64) uint32_t high[kPiece / 4][kTileRows], low[kPiece / 4][kTileRows];
};

struct alignas(64) Sums16 {
    int32_t v[kBatchRows][kTileRows];
};

template <class F>
struct AmxKernel {
    using I = Avx512;
    using Decode = PieceDecoder<F, I>;
    using Int = I::Int;
    using Float = I::Float;

    static constexpr BatchShape f = Decode::shape;
    static constexpr int offset = f.sums == Sums::offset ? Decode::offset : 0;
    static constexpr int depth = f.span < 64 ? f.span : 64;
    static constexpr bool has_minima = f.sums == Sums::minimum_added || f.sums == Sums::minimum_subtracted;
    // Products with the 4-bit sub-scales of Q2_K are bytes still.
    static constexpr bool has_low = f.sub_block != 0 && F::layout.sub != Sub::nibbles;

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
        const auto bytes = _mm512_set1_epi16(255), offsets = _mm512_set1_epi16(offset);
        factor = _mm512_mask_blend_epi16(0xAAAAAAAA, factor, _mm512_slli_epi32(factor, 16));
        auto even = _mm512_sub_epi16(_mm512_and_si512(codes, bytes), offsets);
        auto odd = _mm512_sub_epi16(_mm512_srli_epi16(codes, 8), offsets);
        even = _mm512_mullo_epi16(even, factor);
        odd = _mm512_mullo_epi16(odd, factor);
        constexpr uint64_t odd_bytes = 0xAAAAAAAAAAAAAAAA;
        auto lows = _mm512_mask_blend_epi8(odd_bytes, even, _mm512_slli_epi16(odd, 8));
        if constexpr (has_low) {
            store(low, lows);
            store(high, _mm512_mask_blend_epi8(odd_bytes, _mm512_srli_epi16(even, 8), odd));
        } else {
            store(high, lows);
        }
    }

    // Sums of a span of one or two panels: of the high bytes, and of the low ones, [activation row][weight
    // row].
    template <int panels>
    static STRATA_INLINE void sum_span(const AmxPiece& w, size_t at, const Panel* p, size_t first,
                                       Sums16 (*sums)[2]) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (size_t d = at; d < at + f.span; d += depth) {
            size_t place = batch_place(first + d);
            _tile_loadd(4, p[0].codes + place, 4 * kBatchWords);
            _tile_loadd(6, w.high[d / 4], 4 * kTileRows);
            _tile_dpbssd(0, 4, 6);
            if constexpr (has_low) {
                _tile_loadd(7, w.low[d / 4], 4 * kTileRows);
                _tile_dpbsud(1, 4, 7);
            }
            if constexpr (panels == 2) {
                _tile_loadd(5, p[1].codes + place, 4 * kBatchWords);
                _tile_dpbssd(2, 5, 6);
                if constexpr (has_low) _tile_dpbsud(3, 5, 7);
            }
        }
        _tile_stored(0, sums[0][0].v, 4 * kTileRows);
        if constexpr (has_low) _tile_stored(1, sums[0][1].v, 4 * kTileRows);
        if constexpr (panels == 2) {
            _tile_stored(2, sums[1][0].v, 4 * kTileRows);
            if constexpr (has_low) _tile_stored(3, sums[1][1].v, 4 * kTileRows);
        }
    }

    // totals[m * 16 + row] += the products of a span, which begins with weight first + at of its row.
    static STRATA_INLINE void add_span(const DecodedTile& w, size_t at, size_t first, const Panel& p,
                                       const Sums16* sums, float* totals) {
        const float* scales = p.scales + (first + at) / kActivationBlock * kBatchRows;
        auto scale = load_as<Float>(w.scales[at / f.scale_block]);
        for (int m = 0; m < p.rows; ++m) {
            Int sum = load_as<Int>(sums[0].v[m]);
            if constexpr (has_low) sum = I::add(load_as<Int>(sums[1].v[m]), _mm512_slli_epi32(sum, 8));
            float* to = totals + m * kTileRows;
            Float a = I::broadcast(scales[m]);
            Float total = I::add(load_as<Float>(to), I::mul(I::mul(I::to_float(sum), scale), a));
            if constexpr (has_minima) {
                const uint32_t* activations = p.sums + (first + at) / kStep * kBatchRows + m;
                total = add_minima(w, at, activations, a, total);
            }
            I::store(to, total);
        }
    }

    // The n decoded weights, whose first is weight `first` of its row, times one or two panels.
    template <int panels>
    static void multiply(const DecodedTile& w, const AmxPiece& piece, size_t first, size_t n, const Panel* p,
                         float* totals) {
        Sums16 sums[2][2];
        for (size_t at = 0; at < n; at += f.span) {
            sum_span<panels>(piece, at, p, first, sums);
            for (int i = 0; i < panels; ++i)
                add_span(w, at, first, p[i], sums[i], totals + i * kBatchRows * kTileRows);
        }
    }

    static STRATA_INLINE Float add_minima(const DecodedTile& w, size_t at, const uint32_t* sums, Float a,
                                          Float total) {
        Int sum = I::zero();
        STRATA_UNROLL
        for (int i = 0; i < f.span / kStep; ++i)
            sum = I::add_pairs(sum, load_as<Int>(w.pairs[at / kStep + i]), sums[i * kBatchRows]);
        auto least = load_as<Float>(w.minima[at / f.scale_block]);
        Float term = I::mul(I::mul(I::to_float(sum), least), a);
        return f.sums == Sums::minimum_added ? I::add(total, term) : I::sub(total, term);
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
            int i = 0;
            for (; i + 2 <= num_panels; i += 2)
                multiply<2>(decoded, piece, first, n, panels + i, totals + i * kBatchRows * kTileRows);
            if (i < num_panels)
                multiply<1>(decoded, piece, first, n, panels + i, totals + i * kBatchRows * kTileRows);
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
