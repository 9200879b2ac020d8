// AVX2 with F16C. Compiled without FMA, so that no product can be fused with a sum.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace strata {

struct Avx2 {
    static constexpr const char* name = "avx2";
    static constexpr int lanes = 8;

    using Word = __m256i;
    using Int = __m256i;
    using Float = __m256;
    using Bytes16 = __m128i;
    using Dot = __m256i;  // two int16 in each lane
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
    static Bytes16 load_bytes(const uint8_t* p) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    }
    static Bytes16 low_nibbles(Bytes16 b) { return _mm_and_si128(b, _mm_set1_epi8(15)); }
    static Bytes16 high_nibbles(Bytes16 b) { return _mm_and_si128(_mm_srli_epi16(b, 4), _mm_set1_epi8(15)); }

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

    // Lane i becomes entry(i), a uint32.
    template <class Entry>
    static void store_words(uint32_t* p, const Entry& entry) {
        __m256i w =
            _mm256_setr_epi32(entry(0), entry(1), entry(2), entry(3), entry(4), entry(5), entry(6), entry(7));
        _mm256_store_si256(reinterpret_cast<__m256i*>(p), w);
    }
    // Lane i of `low` and `high` becomes the low and the high half of entry(i), a uint64.
    template <class Entry>
    static void store_pairs(uint32_t* low, uint32_t* high, const Entry& entry) {
        __m256 a = _mm256_castsi256_ps(_mm256_setr_epi64x(entry(0), entry(1), entry(4), entry(5)));
        __m256 b = _mm256_castsi256_ps(_mm256_setr_epi64x(entry(2), entry(3), entry(6), entry(7)));
        _mm256_store_ps(reinterpret_cast<float*>(low), _mm256_shuffle_ps(a, b, 0x88));
        _mm256_store_ps(reinterpret_cast<float*>(high), _mm256_shuffle_ps(a, b, 0xDD));
    }

    static Int zero() { return _mm256_setzero_si256(); }
    static Int add(Int a, Int b) { return _mm256_add_epi32(a, b); }

    static __m256i spread(uint32_t a) { return _mm256_set1_epi32(static_cast<int>(a)); }
    static Signed prepare(Word codes) { return {codes, _mm256_abs_epi8(codes)}; }
    template <int g>
    static Signed apply_signs(Word magnitudes, Word signs) {
        // The byte that holds the four bits goes to all four bytes of the lane, and each keeps its own bit.
        constexpr int at = g / 2;
        const __m256i spread_byte = _mm256_broadcastsi128_si256(
            _mm_setr_epi8(at, at, at, at, at + 4, at + 4, at + 4, at + 4, at + 8, at + 8, at + 8, at + 8,
                          at + 12, at + 12, at + 12, at + 12));
        const __m256i bits = spread(g % 2 ? 0x80402010u : 0x08040201u);
        __m256i own = _mm256_and_si256(_mm256_shuffle_epi8(signs, spread_byte), bits);
        __m256i negative = _mm256_cmpeq_epi8(own, bits);
        return {_mm256_or_si256(negative, _mm256_set1_epi8(1)), magnitudes};
    }
    static void multiply_add(Dot& sum, Word codes, uint32_t a) {
        add_dots(sum, _mm256_maddubs_epi16(codes, spread(a)));
    }
    // |code| * (sign(code) * a): -128 is safe as an unsigned magnitude, and a is never -128.
    static void multiply_add(Dot& sum, Signed codes, uint32_t a) {
        add_dots(sum, _mm256_maddubs_epi16(codes.magnitude, _mm256_sign_epi8(spread(a), codes.value)));
    }
    // GCC would otherwise multiply everything first and add at the end, through the stack.
    static void add_dots(Dot& a, Dot b) {
        a = _mm256_add_epi16(a, b);
        asm volatile("" : "+x"(a));
    }
    // Nor should it keep one half's broadcasts for the other half: loading them again is free, spilling is
    // not.
    static const uint32_t* hide(const uint32_t* p) {
        asm volatile("" : "+r"(p));
        return p;
    }
    static Int add_dot(Int sum, Dot d) { return add(sum, _mm256_madd_epi16(d, _mm256_set1_epi16(1))); }
    static Int add_dot(Int sum, Dot d, Int pairs) { return add(sum, _mm256_madd_epi16(d, pairs)); }

    template <bool is_signed>
    static Int pairs(Bytes16 a, Bytes16 b, int half) {
        __m128i both = half ? _mm_unpackhi_epi8(a, b) : _mm_unpacklo_epi8(a, b);
        return is_signed ? _mm256_cvtepi8_epi16(both) : _mm256_cvtepu8_epi16(both);
    }
    template <bool is_signed>
    static Int scale(Bytes16 b, int half) {
        return pairs<is_signed>(b, b, half);
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

    static Float load_f16(const uint8_t* p) { return _mm256_cvtph_ps(load_bytes(p)); }
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
    static Float load_ue4m3(const uint8_t* p) {
        Int e = load_byte_lanes(p);
        Int bits = _mm256_slli_epi32(_mm256_and_si256(e, spread(127)), 20);
        bits = _mm256_andnot_si256(_mm256_cmpeq_epi32(e, spread(127)), bits);
        return mul(_mm256_castsi256_ps(bits), broadcast(0x1p119f));
    }
};

}  // namespace strata
