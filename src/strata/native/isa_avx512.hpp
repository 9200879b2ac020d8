// AVX-512 with VNNI, VBMI and BITALG (Ice Lake, Zen 4 and later): a vector is the 16 rows of a tile.
#pragma once

#include "isa_avx2.hpp"

namespace strata {

struct Avx512 : RowOperations<Avx512> {
    static constexpr const char* name = "avx512";
    static constexpr int lanes = 16;

    using Subs = Bytes16;
    using Word = __m512i;
    using Int = __m512i;
    using Float = __m512;
    using Dot = Int;
    using Signed = Word;  // code + 128: vpdpbusd multiplies unsigned codes

    static constexpr int signed_offset = 128;
    static constexpr int run(int) { return 8; }

    static Word load(const uint8_t* p) { return _mm512_loadu_si512(p); }
    template <int n>
    static Word shr(Word a) {
        return _mm512_srli_epi32(a, n);
    }
    template <int n>
    static Word shl(Word a) {
        return _mm512_slli_epi32(a, n);
    }
    static Word mask(Word a, uint8_t m) {
        return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(m)));
    }
    static Word either(Word a, Word b) { return _mm512_or_si512(a, b); }
    static Word lookup(const int8_t* table, Word a) {
        return _mm512_shuffle_epi8(
            _mm512_broadcast_i32x4(load_bytes(reinterpret_cast<const uint8_t*>(table))), a);
    }

    // Lane i becomes table[index[i]].
    static Word lookup_words(const uint32_t* table, const uint16_t* index) {
        return _mm512_i32gather_epi32(
            _mm512_cvtepu16_epi32(load_rows(reinterpret_cast<const uint8_t*>(index))), table, 4);
    }

    static Int zero() { return _mm512_setzero_si512(); }
    static Int add(Int a, Int b) { return _mm512_add_epi32(a, b); }

    static __m512i spread(uint32_t a) { return _mm512_set1_epi32(static_cast<int>(a)); }
    static void keep(__m512i&) {}
    static const uint32_t* hide(const uint32_t* p) { return p; }
    static Signed prepare(Word codes) { return _mm512_xor_si512(codes, _mm512_set1_epi8(-128)); }
    template <int>
    static Word biased(Signed codes) {
        return codes;
    }
    // The bytes whose bit g is set.
    template <int g>
    static __mmask64 sign_mask(Word signs) {
        return _mm512_test_epi8_mask(signs, _mm512_set1_epi8(static_cast<char>(1 << g)));
    }
    static void multiply_add(Dot& sum, Word codes, uint32_t a) {
        sum = _mm512_dpbusd_epi32(sum, codes, spread(a));
    }
    static Int add_dot(Int sum, Dot d) { return add(sum, d); }
    static Int add_dot(Int sum, Dot d, Int scale) { return add(sum, _mm512_mullo_epi32(d, scale)); }

    static Subs load_subs(const uint8_t* p) { return load_bytes(p); }
    static Subs nibbles(Subs b, int shift) {
        return _mm_and_si128(_mm_srli_epi16(b, shift), _mm_set1_epi8(15));
    }
    static Subs odd(Subs b) { return _mm_or_si128(_mm_add_epi8(b, b), _mm_set1_epi8(1)); }
    static Subs narrow(Rows a) {
        return _mm_packus_epi16(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    }
    template <bool is_signed>
    static Int scale(Subs b, int) {
        return is_signed ? _mm512_cvtepi8_epi32(b) : _mm512_cvtepu8_epi32(b);
    }
    template <bool is_signed>
    static Int pairs(Subs a, Subs b, int half) {
        Int high = _mm512_slli_epi32(scale<is_signed>(b, half), 16);
        return _mm512_mask_blend_epi16(0xAAAAAAAA, scale<is_signed>(a, half), high);
    }
    static Int constant_pairs(int low, int high) {
        return spread(static_cast<uint16_t>(low) | static_cast<uint32_t>(static_cast<uint16_t>(high)) << 16);
    }
    static Int times(Int a, int n) {
        return _mm512_mullo_epi16(a, _mm512_set1_epi16(static_cast<int16_t>(n)));
    }
    static Int add_pairs(Int sum, Int p, uint32_t s) { return _mm512_dpwssd_epi32(sum, p, spread(s)); }

    static Float zero_float() { return _mm512_setzero_ps(); }
    static Float broadcast(float x) { return _mm512_set1_ps(x); }
    static Float to_float(Int a) { return _mm512_cvtepi32_ps(a); }
    static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
    static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
    static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
    static void store(float* p, Float a) { _mm512_storeu_ps(p, a); }

    static Float load_f16(const uint8_t* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static Float load_e8m0(const uint8_t* p) {
        Int e = _mm512_cvtepu8_epi32(load_bytes(p));
        Int normal = _mm512_slli_epi32(_mm512_sub_epi32(e, spread(1)), 23);
        __mmask16 is_subnormal = _mm512_cmplt_epi32_mask(e, spread(2));
        return _mm512_castsi512_ps(_mm512_mask_sllv_epi32(normal, is_subnormal, spread(0x00200000), e));
    }
    // By way of float16, which has the same layout with another bias: a float32 would be subnormal, and slow.
    static Float load_ue4m3(const uint8_t* p) {
        Rows e = widen(load_bytes(p));
        Rows is_zero = _mm256_cmpeq_epi16(e, _mm256_set1_epi16(127));
        Rows bits = _mm256_andnot_si256(is_zero, _mm256_slli_epi16(and_rows(e, 127), 7));
        return mul(_mm512_cvtph_ps(bits), broadcast(0x1p7f));
    }
};

}  // namespace strata
