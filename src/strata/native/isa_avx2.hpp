// AVX2 with F16C. Compiled without FMA, so that no product can be fused with a sum.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstring>

#include "inline.hpp"

namespace strata {

// What is the same for all vector widths: a byte or a uint16 for each row of a tile. Templates, as all that
// follows, so that every set has functions of its own, compiled with its flags.
template <class I>
struct RowOperations {
    // Inlined early: GCC drops calls of functions that do nothing but prefetch.
    static STRATA_INLINE void prefetch(const uint8_t* p) { _mm_prefetch(p, _MM_HINT_T0); }

    using Bytes16 = __m128i;
    using Rows = __m256i;

    static Bytes16 load_bytes(const uint8_t* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }

    static Rows load_rows(const uint8_t* p) {
        return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    }
    static void store_rows(uint16_t* p, Rows a) { _mm256_store_si256(reinterpret_cast<__m256i*>(p), a); }
    static Rows widen(Bytes16 b) { return _mm256_cvtepu8_epi16(b); }
    static Rows shr_rows(Rows a, int n) { return _mm256_srli_epi16(a, n); }
    static Rows and_rows(Rows a, int mask) {
        return _mm256_and_si256(a, _mm256_set1_epi16(static_cast<int16_t>(mask)));
    }
    static Rows either_rows(Rows a, Rows b) { return _mm256_or_si256(a, b); }
    static Rows join_rows(Rows low, Rows high) { return _mm256_or_si256(low, _mm256_slli_epi16(high, 8)); }
};

// Which byte of its 128 bits each byte of a vector becomes; 0 where that is negative.
struct alignas(32) Shuffle {
    int8_t from[32];
};

template <class From>
consteval Shuffle shuffle(From from) {
    Shuffle r{};
    for (int i = 0; i < 32; ++i) r.from[i] = static_cast<int8_t>(from(i));
    return r;
}

template <class I>
struct Avx2Operations : RowOperations<I> {
    static constexpr int lanes = 8;

    using Word = __m256i;
    using Int = __m256i;
    using Float = __m256;
    using Rows = __m256i;
    using Subs = __m256i;  // a byte for each row of a tile, twice: so that a shuffle finds every row
    using Dot = __m256i;   // two int16 in each lane
    struct Signed {
        __m256i value, magnitude;
    };

    static constexpr int signed_offset = 0;

    // vpmaddubsw adds two products in an int16: at most 2 * 127 * max_code.
    static constexpr int run(int max_code) {
        int n = 32767 / (2 * 127 * max_code);
        return n >= 8 ? 8 : n >= 4 ? 4 : n >= 2 ? 2 : 1;
    }

    static Word load(const uint8_t* p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)); }
    template <int n>
    static Word shr(Word a) {
        return _mm256_srli_epi32(a, n);
    }
    template <int n>
    static Word shl(Word a) {
        return _mm256_slli_epi32(a, n);
    }
    static Word mask(Word a, uint8_t m) {
        return _mm256_and_si256(a, _mm256_set1_epi8(static_cast<char>(m)));
    }
    static Word either(Word a, Word b) { return _mm256_or_si256(a, b); }
    static Word lookup(const int8_t* table, Word a) {
        __m128i t = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
        return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), a);
    }

    // Eight indices, two or four to a load: Zen 3 loads three times a cycle, and vectors only twice.
    struct Eight {
        uint32_t v[8];
    };
    template <class Index>
    static STRATA_INLINE Eight load_indices(const Index* p) {
        constexpr int per_word = 4 / sizeof(Index), bits = 32 / per_word;
        uint32_t w[8 / per_word];
        std::memcpy(w, p, sizeof w);
        auto at = [&w](int i) { return static_cast<Index>(w[i / per_word] >> (i % per_word * bits)); };
        return {at(0), at(1), at(2), at(3), at(4), at(5), at(6), at(7)};
    }
    static __m128i load_around(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }
    static __m256i concatenate(__m128i low, __m128i high) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
    }
    static __m128i four_entries(const uint32_t* table, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        // Loaded from where the entry falls on its own lane, blending needs no other instruction.
        __m128i w = _mm_cvtsi32_si128(static_cast<int>(table[a]));
        w = _mm_blend_epi32(w, load_around(table + b - 1), 2);
        w = _mm_blend_epi32(w, load_around(table + c - 2), 4);
        return _mm_blend_epi32(w, load_around(table + d - 3), 8);
    }
    static __m128i two_entries(const uint64_t* table, uint32_t a, uint32_t b) {
        __m128i low = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table + a));
        return _mm_unpacklo_epi64(low, load_around(table + b));
    }
    // Lane i becomes table[index[i]]. Measured on Zen 3, gathers take 1.8 times as long.
    template <class Index>
    static STRATA_INLINE Word lookup_words(const uint32_t* table, const Index* index) {
        Eight i = load_indices(index);
        return concatenate(four_entries(table, i.v[0], i.v[1], i.v[2], i.v[3]),
                           four_entries(table, i.v[4], i.v[5], i.v[6], i.v[7]));
    }
    // Lane i of `low` and `high` becomes the low and the high half of table[index[i]].
    template <class Index>
    static STRATA_INLINE void lookup_pairs(const uint64_t* table, const Index* index, Word& low, Word& high) {
        Eight i = load_indices(index);
        auto four = [&](int j) {
            return _mm256_castsi256_ps(concatenate(two_entries(table, i.v[j], i.v[j + 1]),
                                                   two_entries(table, i.v[j + 4], i.v[j + 5])));
        };
        __m256 a = four(0), b = four(2);
        low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88));
        high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xDD));
    }

    static Int zero() { return _mm256_setzero_si256(); }
    static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }

    static __m256i spread(uint32_t a) { return _mm256_set1_epi32(static_cast<int>(a)); }
    static Signed prepare(Word codes) { return {codes, _mm256_abs_epi8(codes)}; }
    template <int n>
    static Word biased(Signed codes) {
        return _mm256_add_epi8(_mm256_sign_epi8(codes.magnitude, codes.value), _mm256_set1_epi8(n));
    }
    // Magnitudes (below 128) with the signs in bit g of every byte.
    template <int g>
    static Signed apply_signs(Word magnitudes, Word signs) {
        // vpsignb takes the sign of a byte, if it is not zero: bit 0 sees to that.
        const __m256i ones = _mm256_set1_epi8(1);
        Word value = g == 0 ? _mm256_or_si256(shl<7>(signs), ones) : shl<7 - g>(_mm256_or_si256(signs, ones));
        return {value, magnitudes};
    }
    static void multiply_add(Dot& sum, Word codes, uint32_t a) {
        add_dots(sum, _mm256_maddubs_epi16(codes, spread(a)));
    }
    // |code| * (sign(code) * a): -128 is safe as an unsigned magnitude, and a is never -128.
    static void multiply_add(Dot& sum, Signed codes, uint32_t a) {
        add_dots(sum, _mm256_maddubs_epi16(codes.magnitude, _mm256_sign_epi8(spread(a), codes.value)));
    }
    // GCC would otherwise multiply everything first and add at the end, through the stack.
    static void keep(__m256i& sum) { asm volatile("" : "+x"(sum)); }
    static void add_dots(Dot& a, Dot b) {
        a = _mm256_add_epi16(a, b);
        keep(a);
    }
    // Nor should it keep one half's broadcasts for the other half: loading them again is free, spilling is
    // not.
    static const uint32_t* hide(const uint32_t* p) {
        asm volatile("" : "+r"(p));
        return p;
    }
    static Int add_dot(Int sum, Dot d) { return add(sum, _mm256_madd_epi16(d, _mm256_set1_epi16(1))); }
    static Int add_dot(Int sum, Dot d, Int pairs) { return add(sum, _mm256_madd_epi16(d, pairs)); }

    static Subs load_subs(const uint8_t* p) { return _mm256_broadcastsi128_si256(I::load_bytes(p)); }
    static Subs nibbles(Subs b, int shift) {
        return _mm256_and_si256(_mm256_srli_epi16(b, shift), _mm256_set1_epi8(15));
    }
    static Subs odd(Subs b) { return _mm256_or_si256(_mm256_add_epi8(b, b), _mm256_set1_epi8(1)); }
    static Subs narrow(Rows a) {
        return _mm256_permute4x64_epi64(_mm256_packus_epi16(a, a), _MM_SHUFFLE(2, 0, 2, 0));
    }
    static __m256i shuffled(__m256i a, const Shuffle& s) {
        return _mm256_shuffle_epi8(a, _mm256_load_si256(reinterpret_cast<const __m256i*>(s.from)));
    }
    // Signed bytes go to the upper half of their int16, to be moved down with their sign.
    template <bool is_signed>
    static Int pairs(Subs a, Subs b, int half) {
        static constexpr Shuffle widen = shuffle([](int i) { return i % 2 == is_signed ? i / 2 : -1; });
        Int r = shuffled(half ? _mm256_unpackhi_epi8(a, b) : _mm256_unpacklo_epi8(a, b), widen);
        return is_signed ? _mm256_srai_epi16(r, 8) : r;
    }
    template <bool is_signed>
    static Int scale(Subs b, int half) {
        static constexpr Shuffle widen[2] = {
            shuffle([](int i) { return i % 2 == is_signed ? i / 4 : -1; }),
            shuffle([](int i) { return i % 2 == is_signed ? 8 + i / 4 : -1; })};
        Int r = shuffled(b, widen[half]);
        return is_signed ? _mm256_srai_epi16(r, 8) : r;
    }
    static Int constant_pairs(int low, int high) {
        return spread(static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16);
    }
    static Int times(Int a, int n) {
        return _mm256_mullo_epi16(a, _mm256_set1_epi16(static_cast<int16_t>(n)));
    }
    static Int add_pairs(Int sum, Int p, uint32_t s) { return add(sum, _mm256_madd_epi16(p, spread(s))); }

    static Float zero_float() { return _mm256_setzero_ps(); }
    static Float broadcast(float x) { return _mm256_set1_ps(x); }
    static Float to_float(Int a) { return _mm256_cvtepi32_ps(a); }
    static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
    static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
    static void store(float* p, Float a) { _mm256_storeu_ps(p, a); }

    static Float load_f32(const uint8_t* p) { return _mm256_loadu_ps(reinterpret_cast<const float*>(p)); }
    static Float load_bf16(const uint8_t* p) {
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(I::load_bytes(p)), 16));
    }
    static void load_f8(const uint8_t* p, Float* rows) {
        // As float16 it is 2^8 too small; the converter takes subnormals at full speed.
        const __m256i largest = _mm256_set1_epi16(0x3F80);
        __m256i half = _mm256_slli_epi16(_mm256_cvtepi8_epi16(I::load_bytes(p)), 7);
        half = _mm256_and_si256(half, _mm256_set1_epi16(static_cast<int16_t>(0xBF80)));
        half = _mm256_or_si256(half, _mm256_cmpeq_epi16(_mm256_and_si256(half, largest), largest));  // NaN
        rows[0] = mul(_mm256_cvtph_ps(_mm256_castsi256_si128(half)), broadcast(256.0f));
        rows[1] = mul(_mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)), broadcast(256.0f));
    }
    static Float load_f16(const uint8_t* p) { return _mm256_cvtph_ps(I::load_bytes(p)); }
    static Int load_byte_lanes(const uint8_t* p) {
        return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    }
    static Float load_e8m0(const uint8_t* p) {
        Int e = load_byte_lanes(p);
        Int normal = _mm256_slli_epi32(_mm256_sub_epi32(e, spread(1)), 23);
        Int subnormal = _mm256_sllv_epi32(spread(0x00200000), e);
        Int is_normal = _mm256_cmpgt_epi32(e, spread(1));
        return _mm256_castsi256_ps(_mm256_blendv_epi8(subnormal, normal, is_normal));
    }
    // By way of float16, which has the same layout with another bias: a float32 would be subnormal, and slow.
    static Float load_ue4m3(const uint8_t* p) {
        __m128i e = _mm_cvtepu8_epi16(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
        __m128i is_zero = _mm_cmpeq_epi16(e, _mm_set1_epi16(127));  // 127 stands for NaN; 255 does not
        e = _mm_slli_epi16(_mm_and_si128(e, _mm_set1_epi16(127)), 7);
        __m128i bits = _mm_andnot_si128(is_zero, e);
        return mul(_mm256_cvtph_ps(bits), broadcast(0x1p7f));
    }
};

struct Avx2 : Avx2Operations<Avx2> {
    static constexpr const char* name = "avx2";
};

}  // namespace strata
