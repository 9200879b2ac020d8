// Codebooks in registers: how AVX-512 decodes IQ2 and IQ3.
//
// vpermi2b looks 64 bytes up at once in 128, so a codebook lies in two planes of bytes: 16 bits an entry, a
// field for each weight. vpmultishiftqb brings the fields to the bytes of the lanes, and vpermb turns them
// into magnitudes, whatever stands in the bits above them.
#pragma once

#include <type_traits>

#include "decode.hpp"
#include "isa_avx512.hpp"
#include "packed_grids.hpp"

namespace strata {

struct alignas(64) Bytes64 {
    uint8_t v[64];
};

template <class Byte>
consteval Bytes64 bytes64(Byte byte) {
    Bytes64 r{};
    for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(byte(i));
    return r;
}

// Of four entries of 16 rows, 64 bytes, byte i is looked up for this row and this entry: unpacking two such
// vectors then puts what two neighbouring rows have of two entries in one quadword.
constexpr int row_at(int i) { return i / 16 * 4 + (i & 4) / 2 + (i & 1); }
constexpr int entry_at(int i) { return (i & 8) / 4 + (i & 2) / 2; }

template <class F>
    requires(F::layout.values == Values::sign_bits)
struct Decoder<F, Avx512> {
    using I = Avx512;
    using Code = __m512i;

    static constexpr Layout f = F::layout;
    static constexpr bool is_signed = true, is_grid = true;
    static constexpr int weights = f.grid.weights, field_bits = 16 / weights;
    static constexpr int quads = kStep / weights / 4;  // of entries, in a step
    static constexpr int size = std::remove_reference_t<decltype(packed_grid<F>())>::size;

    Tile tile;
    __m512i words[2][quads][2];  // entries of two steps, two to a vector

    explicit STRATA_INLINE Decoder(const Tile& t) : tile(t) {}

    STRATA_INLINE void prepare(int step) {
        static constexpr Bytes64 order = bytes64([](int i) { return 16 * entry_at(i) + row_at(i); });
        __m512i extra = load_extra(step);
        STRATA_UNROLL
        for (int q = 0; q < quads; ++q) {
            __m512i index = I::load(tile.low + (step * quads + q) * 64);
            index = _mm512_permutexvar_epi8(I::load(order.v), index);
            __mmask64 bits[3];
            load_index_bits(index, extra, q, bits);
            __m512i low = look_up<size>(packed_grid<F>().low, index, bits);
            __m512i high = look_up<size>(packed_grid<F>().high, index, bits);
            words[step % 2][q][0] = _mm512_unpacklo_epi8(low, high);
            words[step % 2][q][1] = _mm512_unpackhi_epi8(low, high);
        }
    }

    template <int p>
    STRATA_INLINE void load_pair(int step, int, Code* codes) const {
        __m512i signs = I::load(tile.high + step * 64);
        codes[0] = load_group<2 * p>(step, signs);
        codes[1] = load_group<2 * p + 1>(step, signs);
    }

    STRATA_INLINE __m128i sub(int step, int part, bool) const {
        return I::odd(F::template sub<I>(tile, step, part));
    }

private:
    // table[index | upper bits << 8] for each byte. The masks hold bit 7 of the indices and those above.
    template <int count>
    static STRATA_INLINE __m512i look_up(const uint8_t* table, __m512i index, const __mmask64* bits) {
        if constexpr (count == 128) {
            return _mm512_permutex2var_epi8(I::load(table), index, I::load(table + 64));
        } else {
            constexpr int top = count == 256 ? 0 : count == 512 ? 1 : 2;
            __m512i low = look_up<count / 2>(table, index, bits);
            return _mm512_mask_blend_epi8(bits[top], low, look_up<count / 2>(table + count / 2, index, bits));
        }
    }

    // The upper bits of a step's indices: those of four rows, a byte each, in both quadwords of their 128
    // bits.
    STRATA_INLINE __m512i load_extra(int step) const {
        const __m512i order = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        if constexpr (f.grid.extra_bits == 0) return order;  // unused
        __m128i bytes = I::load_bytes(tile.extra + step * f.grid.extra_bits / 8 * kTileRows);
        if constexpr (f.grid.extra_bits == 4) bytes = I::nibbles(bytes, step % 2 * 4);
        return _mm512_permutexvar_epi32(order, _mm512_castsi128_si512(bytes));
    }

    static STRATA_INLINE void load_index_bits(__m512i index, __m512i extra, int quad, __mmask64* bits) {
        constexpr int per_entry = size / 512;  // upper bits
        static constexpr Bytes64 at =
            bytes64([](int i) { return 8 * (row_at(i) % 4) + per_entry * entry_at(i); });
        bits[0] = _mm512_movepi8_mask(index);
        for (int i = 0; i < per_entry; ++i) {
            __m512i from = _mm512_add_epi8(I::load(at.v), _mm512_set1_epi8(static_cast<char>(4 * quad + i)));
            bits[i + 1] = _mm512_bitshuffle_epi64_mask(extra, from);
        }
    }

    // Group g of four weights, plus 128.
    template <int g>
    STRATA_INLINE __m512i load_group(int step, __m512i signs) const {
        constexpr int entry = g * 4 / weights;
        // Where the fields of four weights of two rows begin in a quadword.
        static constexpr Bytes64 at = bytes64([](int i) {
            int word = entry % 2 * 2 + (i & 4) / 4;
            return 16 * word + field_bits * (g * 4 % weights + i % 4);
        });
        static constexpr Bytes64 magnitudes =
            bytes64([](int i) { return field_magnitude<F>(i % (1 << field_bits)) + I::signed_offset; });
        __m512i entries = words[step % 2][entry / 4][entry / 2 % 2];
        __m512i fields = _mm512_multishift_epi64_epi8(I::load(at.v), entries);
        __m512i x;
        if constexpr (field_magnitude<F>(15) == 15)  // fields are magnitudes; 0xEA: (a & b) | c
            x = _mm512_ternarylogic_epi32(fields, _mm512_set1_epi8(15), _mm512_set1_epi8(-128), 0xEA);
        else
            x = _mm512_permutexvar_epi8(fields, I::load(magnitudes.v));
        return _mm512_mask_sub_epi8(x, I::sign_mask<g>(signs), I::zero(), x);
    }
};

}  // namespace strata
