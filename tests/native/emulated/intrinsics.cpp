// What immintrin.h declares, lane by lane, after the pseudo-code of Intel's Intrinsics Guide.
#include <algorithm>
#include <functional>
#include <limits>
#include <type_traits>

#include "lanes.hpp"

namespace strata {

namespace {

// VPDPBUSD: four products of a byte without sign and one with, added to the lane's sum, which wraps around.
template <class V>
V add_byte_products(V sum, V a, V b) {
    auto s = lanes<uint32_t>(sum);
    auto x = lanes<uint8_t>(a);
    auto y = lanes<int8_t>(b);
    for (size_t i = 0; i < x.size(); ++i) s[i / 4] += static_cast<uint32_t>(x[i] * y[i]);
    return vector<V>(s);
}

// VPDPWSSD: two products of int16, likewise.
template <class V>
V add_word_products(V sum, V a, V b) {
    auto s = lanes<uint32_t>(sum);
    auto x = lanes<int16_t>(a), y = lanes<int16_t>(b);
    for (size_t i = 0; i < x.size(); ++i) s[i / 2] += static_cast<uint32_t>(x[i] * y[i]);
    return vector<V>(s);
}

template <class T, class V>
V blend(uint64_t k, V a, V b) {
    auto x = lanes<T>(a), y = lanes<T>(b);
    return make<V, T>([&](size_t i) { return bit(k, i) ? y[i] : x[i]; });
}

template <class T>
__m512i shift_left(__m512i a, unsigned n) {
    return map<T>(a, [n](T x) { return n < 8 * sizeof(T) ? x << n : 0; });
}

template <class T>
__m512i shift_right(__m512i a, unsigned n) {
    return map<T>(a, [n](T x) { return n < 8 * sizeof(T) ? x >> n : 0; });
}

// VPUNPCKLBW and VPUNPCKHBW: of every 128 bits, the bytes from `from` on of a and of b in turn.
__m512i unpack(__m512i a, __m512i b, size_t from) {
    auto x = lanes<uint8_t>(a), y = lanes<uint8_t>(b);
    return make<__m512i, uint8_t>([&](size_t i) {
        size_t at = i / 16 * 16 + from + i % 16 / 2;
        return i % 2 ? y[at] : x[at];
    });
}

}  // namespace

__m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return add_byte_products(sum, a, b); }
__m256i _mm256_dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b) { return add_word_products(sum, a, b); }
__m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b) { return add_byte_products(sum, a, b); }
__m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b) { return add_word_products(sum, a, b); }

__m512i _mm512_loadu_si512(const void* p) {
    __m512i r;
    std::memcpy(&r, p, sizeof r);
    return r;
}
void _mm512_storeu_ps(void* p, __m512 a) { std::memcpy(p, &a, sizeof a); }
__m512i _mm512_i32gather_epi32(__m512i index, const void* base, int scale) {
    return map<int32_t>(index, [&](int32_t i) {
        int32_t r;
        std::memcpy(&r, static_cast<const char*>(base) + static_cast<ptrdiff_t>(i) * scale, sizeof r);
        return r;
    });
}
__m512i _mm512_setzero_si512() { return _mm512_set1_epi8(0); }
__m512 _mm512_setzero_ps() { return _mm512_set1_ps(0); }
__m512i _mm512_set1_epi8(char x) {
    return make<__m512i, char>([x](size_t) { return x; });
}
__m512i _mm512_set1_epi16(short x) {
    return make<__m512i, short>([x](size_t) { return x; });
}
__m512i _mm512_set1_epi32(int x) {
    return make<__m512i, int>([x](size_t) { return x; });
}
__m512 _mm512_set1_ps(float x) {
    return make<__m512, float>([x](size_t) { return x; });
}
__m512i _mm512_setr_epi32(int a, int b, int c, int d, int e, int f, int g, int h, int i, int j, int k, int l,
                          int m, int n, int o, int p) {
    return vector<__m512i>(std::array{a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p});
}

__m512i _mm512_add_epi8(__m512i a, __m512i b) { return map<uint8_t>(a, b, std::plus()); }
__m512i _mm512_add_epi32(__m512i a, __m512i b) { return map<uint32_t>(a, b, std::plus()); }
__m512i _mm512_sub_epi8(__m512i a, __m512i b) { return map<uint8_t>(a, b, std::minus()); }
__m512i _mm512_sub_epi16(__m512i a, __m512i b) { return map<uint16_t>(a, b, std::minus()); }
__m512i _mm512_sub_epi32(__m512i a, __m512i b) { return map<uint32_t>(a, b, std::minus()); }
__m512i _mm512_mask_sub_epi8(__m512i from, __mmask64 k, __m512i a, __m512i b) {
    return blend<uint8_t>(k, from, _mm512_sub_epi8(a, b));
}
__m512i _mm512_mullo_epi16(__m512i a, __m512i b) { return map<int16_t>(a, b, std::multiplies<int>()); }
__m512i _mm512_mullo_epi32(__m512i a, __m512i b) { return map<uint32_t>(a, b, std::multiplies()); }
// VPMADDUBSW: products of a byte without sign and one with; the sum of two is held to what int16 holds.
__m512i _mm512_maddubs_epi16(__m512i a, __m512i b) {
    auto x = lanes<uint8_t>(a);
    auto y = lanes<int8_t>(b);
    return make<__m512i, int16_t>([&](size_t i) {
        return std::clamp(x[2 * i] * y[2 * i] + x[2 * i + 1] * y[2 * i + 1], -32768, 32767);
    });
}
__m512 _mm512_add_ps(__m512 a, __m512 b) { return map<float>(a, b, std::plus()); }
__m512 _mm512_sub_ps(__m512 a, __m512 b) { return map<float>(a, b, std::minus()); }
__m512 _mm512_mul_ps(__m512 a, __m512 b) { return map<float>(a, b, std::multiplies()); }

__m512i _mm512_and_si512(__m512i a, __m512i b) { return map<uint64_t>(a, b, std::bit_and()); }
__m512i _mm512_or_si512(__m512i a, __m512i b) { return map<uint64_t>(a, b, std::bit_or()); }
__m512i _mm512_xor_si512(__m512i a, __m512i b) { return map<uint64_t>(a, b, std::bit_xor()); }
__m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
    auto x = lanes<uint8_t>(a), y = lanes<uint8_t>(b), z = lanes<uint8_t>(c);
    return make<__m512i, uint8_t>([&](size_t i) {
        int r = 0;
        for (int j = 0; j < 8; ++j)
            r |= bit(table, bit(x[i], j) << 2 | bit(y[i], j) << 1 | bit(z[i], j)) << j;
        return r;
    });
}
__m512i _mm512_slli_epi16(__m512i a, unsigned n) { return shift_left<uint16_t>(a, n); }
__m512i _mm512_slli_epi32(__m512i a, unsigned n) { return shift_left<uint32_t>(a, n); }
__m512i _mm512_srli_epi16(__m512i a, unsigned n) { return shift_right<uint16_t>(a, n); }
__m512i _mm512_srli_epi32(__m512i a, unsigned n) { return shift_right<uint32_t>(a, n); }
__m512i _mm512_mask_sllv_epi32(__m512i from, __mmask16 k, __m512i a, __m512i n) {
    return blend<uint32_t>(
        k, from, map<uint32_t>(a, n, [](uint32_t x, uint32_t by) { return by < 32 ? x << by : 0; }));
}

__mmask64 _mm512_movepi8_mask(__m512i a) {
    return mask_of<__mmask64, int8_t>(a, a, [](int8_t x, int8_t) { return x < 0; });
}
__mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b) {
    return mask_of<__mmask64, uint8_t>(a, b, [](uint8_t x, uint8_t y) { return (x & y) != 0; });
}
__mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b) {
    return mask_of<__mmask16, int32_t>(a, b, std::less());
}
__m512i _mm512_mask_blend_epi8(__mmask64 k, __m512i a, __m512i b) { return blend<uint8_t>(k, a, b); }
__m512i _mm512_mask_blend_epi16(__mmask32 k, __m512i a, __m512i b) { return blend<uint16_t>(k, a, b); }

// The upper bits are undefined: nothing may depend on them.
__m512i _mm512_castsi128_si512(__m128i a) {
    auto x = lanes<uint8_t>(a);
    return make<__m512i, uint8_t>([&](size_t i) { return i < x.size() ? x[i] : 0xA5; });
}
__m512 _mm512_castsi512_ps(__m512i a) { return vector<__m512>(lanes<float>(a)); }
__m512i _mm512_cvtepi8_epi32(__m128i a) {
    auto x = lanes<int8_t>(a);
    return make<__m512i, int32_t>([&](size_t i) { return x[i]; });
}
__m512i _mm512_cvtepu8_epi32(__m128i a) {
    auto x = lanes<uint8_t>(a);
    return make<__m512i, int32_t>([&](size_t i) { return x[i]; });
}
__m512i _mm512_cvtepu16_epi32(__m256i a) {
    auto x = lanes<uint16_t>(a);
    return make<__m512i, int32_t>([&](size_t i) { return x[i]; });
}
__m512 _mm512_cvtepi32_ps(__m512i a) {
    auto x = lanes<int32_t>(a);
    return make<__m512, float>([&](size_t i) { return x[i]; });
}
__m512 _mm512_cvtph_ps(__m256i a) {
    std::array halves{_mm256_cvtph_ps(_mm256_castsi256_si128(a)),
                      _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1))};
    __m512 r;
    static_assert(sizeof r == sizeof halves);
    std::memcpy(&r, &halves, sizeof r);
    return r;
}

__m512i _mm512_broadcast_i32x4(__m128i a) {
    auto x = lanes<uint8_t>(a);
    return make<__m512i, uint8_t>([&](size_t i) { return x[i % 16]; });
}
__m512i _mm512_shuffle_epi8(__m512i a, __m512i index) {
    auto x = lanes<uint8_t>(a), from = lanes<uint8_t>(index);
    return make<__m512i, uint8_t>(
        [&](size_t i) { return from[i] & 128 ? 0 : x[i / 16 * 16 + from[i] % 16]; });
}
__m512i _mm512_unpacklo_epi8(__m512i a, __m512i b) { return unpack(a, b, 0); }
__m512i _mm512_unpackhi_epi8(__m512i a, __m512i b) { return unpack(a, b, 8); }
__m512i _mm512_permutexvar_epi32(__m512i index, __m512i a) {
    auto x = lanes<uint32_t>(a);
    return map<uint32_t>(index, [&](uint32_t i) { return x[i % 16]; });
}

__m512i _mm512_permutexvar_epi8(__m512i index, __m512i a) {
    auto x = lanes<uint8_t>(a);
    return map<uint8_t>(index, [&](uint8_t i) { return x[i % 64]; });
}
__m512i _mm512_permutex2var_epi8(__m512i a, __m512i index, __m512i b) {
    auto x = lanes<uint8_t>(a), y = lanes<uint8_t>(b);
    return map<uint8_t>(index, [&](uint8_t i) { return (i & 64 ? y : x)[i % 64]; });
}
// VPMULTISHIFTQB: byte j of a quadword becomes its eight bits from bit `from` on, going round at the end.
__m512i _mm512_multishift_epi64_epi8(__m512i from, __m512i a) {
    auto first = lanes<uint8_t>(from);
    auto x = lanes<uint64_t>(a);
    return make<__m512i, uint8_t>([&](size_t i) {
        int r = 0;
        for (int j = 0; j < 8; ++j) r |= bit(x[i / 8], (first[i] + j) % 64) << j;
        return r;
    });
}
// VPSHUFBITQMB
__mmask64 _mm512_bitshuffle_epi64_mask(__m512i a, __m512i from) {
    auto x = lanes<uint64_t>(a);
    auto at = lanes<uint8_t>(from);
    __mmask64 r = 0;
    for (size_t i = 0; i < at.size(); ++i) r |= static_cast<__mmask64>(bit(x[i / 8], at[i] % 64)) << i;
    return r;
}

}  // namespace strata
