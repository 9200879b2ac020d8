// AVX-VNNI: AVX2 whose dot products add up in int32 (Alder Lake and later, and Zen 5).
#pragma once

#include "isa_avx2.hpp"

namespace strata {

struct AvxVnni : Avx2Operations<AvxVnni> {
    static constexpr const char* name = "avx_vnni";

    using Dot = Int;
    using Signed = Word;  // code + 128: vpdpbusd multiplies unsigned codes

    static constexpr int signed_offset = 128;
    static constexpr int run(int) { return 8; }

    static void multiply_add(Dot& sum, Word codes, uint32_t a) {
        sum = _mm256_dpbusd_avx_epi32(sum, codes, spread(a));
    }
    static Signed prepare(Word codes) { return _mm256_xor_si256(codes, _mm256_set1_epi8(-128)); }
    template <int>
    static Word biased(Signed codes) {
        return codes;
    }
    template <int g>
    static Signed apply_signs(Word magnitudes, Word signs) {
        auto codes = Avx2Operations::apply_signs<g>(magnitudes, signs);
        return prepare(_mm256_sign_epi8(codes.magnitude, codes.value));
    }

    template <bool is_signed>
    static Int scale(Subs b, int half) {
        static constexpr Shuffle widen[2] = {
            shuffle([](int i) { return i % 4 == 3 * is_signed ? i / 4 : -1; }),
            shuffle([](int i) { return i % 4 == 3 * is_signed ? 8 + i / 4 : -1; })};
        Int r = shuffled(b, widen[half]);
        return is_signed ? _mm256_srai_epi32(r, 24) : r;
    }
    static Int add_dot(Int sum, Dot d) { return add(sum, d); }
    static Int add_dot(Int sum, Dot d, Int scale) { return add(sum, _mm256_mullo_epi32(d, scale)); }
    static Int add_pairs(Int sum, Int p, uint32_t s) { return _mm256_dpwssd_avx_epi32(sum, p, spread(s)); }
};

}  // namespace strata
