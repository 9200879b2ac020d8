// AVX-VNNI, AVX-512 and AMX on any processor with AVX2: in namespace strata, these functions hide the
// compiler's intrinsics, so that the kernels of src/strata/native compile without the flags of these sets.
// intrinsics.cpp does what Intel's pseudo-code says they do.
//
// An intrinsic that is missing here does not compile, since the real one needs its flag (GCC's macros for AMX
// do compile, and end in an illegal instruction).
#pragma once

#include_next <immintrin.h>

#include <cstddef>

// What GCC or Clang defines as macros, some only without optimisation.
#undef _mm256_dpbusd_avx_epi32
#undef _mm256_dpwssd_avx_epi32
#undef _mm512_cmplt_epi32_mask
#undef _mm512_dpbusd_epi32
#undef _mm512_dpwssd_epi32
#undef _mm512_i32gather_epi32
#undef _mm512_mask_blend_epi16
#undef _mm512_mask_blend_epi8
#undef _mm512_setr_epi32
#undef _mm512_slli_epi16
#undef _mm512_slli_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32
#undef _mm512_ternarylogic_epi32
#undef _tile_dpbssd
#undef _tile_dpbsud
#undef _tile_loadd
#undef _tile_stored
#undef _tile_zero

namespace strata {

// AVX-VNNI
__m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i a, __m256i b);
__m256i _mm256_dpwssd_avx_epi32(__m256i sum, __m256i a, __m256i b);

// AVX-512F and BW: memory and constants
__m512i _mm512_loadu_si512(const void* p);
void _mm512_storeu_ps(void* p, __m512 a);
__m512i _mm512_i32gather_epi32(__m512i index, const void* base, int scale);
__m512i _mm512_setzero_si512();
__m512 _mm512_setzero_ps();
__m512i _mm512_set1_epi8(char x);
__m512i _mm512_set1_epi16(short x);
__m512i _mm512_set1_epi32(int x);
__m512 _mm512_set1_ps(float x);
__m512i _mm512_setr_epi32(int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int);

// ... arithmetic
__m512i _mm512_add_epi8(__m512i a, __m512i b);
__m512i _mm512_add_epi32(__m512i a, __m512i b);
__m512i _mm512_sub_epi8(__m512i a, __m512i b);
__m512i _mm512_sub_epi16(__m512i a, __m512i b);
__m512i _mm512_sub_epi32(__m512i a, __m512i b);
__m512i _mm512_mask_sub_epi8(__m512i from, __mmask64 k, __m512i a, __m512i b);
__m512i _mm512_mullo_epi16(__m512i a, __m512i b);
__m512i _mm512_mullo_epi32(__m512i a, __m512i b);
__m512i _mm512_maddubs_epi16(__m512i a, __m512i b);
__m512 _mm512_add_ps(__m512 a, __m512 b);
__m512 _mm512_sub_ps(__m512 a, __m512 b);
__m512 _mm512_mul_ps(__m512 a, __m512 b);

// ... bits
__m512i _mm512_and_si512(__m512i a, __m512i b);
__m512i _mm512_or_si512(__m512i a, __m512i b);
__m512i _mm512_xor_si512(__m512i a, __m512i b);
__m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table);
__m512i _mm512_slli_epi16(__m512i a, unsigned n);
__m512i _mm512_slli_epi32(__m512i a, unsigned n);
__m512i _mm512_srli_epi16(__m512i a, unsigned n);
__m512i _mm512_srli_epi32(__m512i a, unsigned n);
__m512i _mm512_mask_sllv_epi32(__m512i from, __mmask16 k, __m512i a, __m512i n);

// ... masks
__mmask64 _mm512_movepi8_mask(__m512i a);
__mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b);
__mmask16 _mm512_cmplt_epi32_mask(__m512i a, __m512i b);
__m512i _mm512_mask_blend_epi8(__mmask64 k, __m512i a, __m512i b);
__m512i _mm512_mask_blend_epi16(__mmask32 k, __m512i a, __m512i b);

// ... conversions
__m512i _mm512_castsi128_si512(__m128i a);
__m512 _mm512_castsi512_ps(__m512i a);
__m512i _mm512_cvtepi8_epi32(__m128i a);
__m512i _mm512_cvtepu8_epi32(__m128i a);
__m512i _mm512_cvtepu16_epi32(__m256i a);
__m512 _mm512_cvtepi32_ps(__m512i a);
__m512 _mm512_cvtph_ps(__m256i a);

// ... permutations
__m512i _mm512_broadcast_i32x4(__m128i a);
__m512i _mm512_shuffle_epi8(__m512i a, __m512i index);
__m512i _mm512_unpacklo_epi8(__m512i a, __m512i b);
__m512i _mm512_unpackhi_epi8(__m512i a, __m512i b);
__m512i _mm512_permutexvar_epi32(__m512i index, __m512i a);

// AVX-512 VBMI, BITALG and VNNI
__m512i _mm512_permutexvar_epi8(__m512i index, __m512i a);
__m512i _mm512_permutex2var_epi8(__m512i a, __m512i index, __m512i b);
__m512i _mm512_multishift_epi64_epi8(__m512i from, __m512i a);
__mmask64 _mm512_bitshuffle_epi64_mask(__m512i a, __m512i from);
__m512i _mm512_dpbusd_epi32(__m512i sum, __m512i a, __m512i b);
__m512i _mm512_dpwssd_epi32(__m512i sum, __m512i a, __m512i b);

// AMX
void _tile_loadconfig(const void* config);
void _tile_release();
void _tile_zero(int tile);
void _tile_loadd(int tile, const void* base, size_t stride);
void _tile_stored(int tile, void* base, size_t stride);
void _tile_dpbssd(int sums, int a, int b);
void _tile_dpbsud(int sums, int a, int b);

}  // namespace strata
