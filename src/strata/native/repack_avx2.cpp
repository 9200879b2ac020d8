#include <immintrin.h>

#include <array>

#include "pack.hpp"
#include "repack.hpp"

namespace strata {

namespace {

struct RepackAvx2 {
    static constexpr int lanes = 8;
    using Word = uint32_t __attribute__((vector_size(32)));

    // 16 bytes of eight rows: out[i] holds dword i of each.
    static void load4(const uint8_t* p, size_t stride, Word* out) {
        auto rows = [&](int i) {  // row i below, row i + 4 above
            __m128i low = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + i * stride));
            const auto* high = reinterpret_cast<const __m128i*>(p + (i + 4) * stride);
            return _mm256_inserti128_si256(_mm256_castsi128_si256(low), _mm_loadu_si128(high), 1);
        };
        __m256i a = rows(0), b = rows(1), c = rows(2), d = rows(3);
        __m256i ab = _mm256_unpacklo_epi32(a, b), cd = _mm256_unpacklo_epi32(c, d);
        out[0] = Word(_mm256_unpacklo_epi64(ab, cd));
        out[1] = Word(_mm256_unpackhi_epi64(ab, cd));
        ab = _mm256_unpackhi_epi32(a, b);
        cd = _mm256_unpackhi_epi32(c, d);
        out[2] = Word(_mm256_unpacklo_epi64(ab, cd));
        out[3] = Word(_mm256_unpackhi_epi64(ab, cd));
    }

    // Whole cache lines go past the caches: planes are read much later, and a line need not be fetched to be
    // overwritten. What would leave a line in two pieces is slow that way and stays in the cache.
    static void stream(uint8_t* p, __m256i x) { _mm256_stream_si256(reinterpret_cast<__m256i*>(p), x); }
    static void keep(uint8_t* p, __m256i x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x); }
    static void store_line(uint8_t* p, __m256i first, __m256i second) {
        bool whole = reinterpret_cast<uintptr_t>(p) % 64 == 0;
        whole ? stream(p, first) : keep(p, first);
        whole ? stream(p + 32, second) : keep(p + 32, second);
    }

    static void store(uint8_t* p, Word w) { stream(p, __m256i(w)); }

    // Bytes 0, 1, 2 and 3 of 16 rows.
    static void store_bytes(uint8_t* p, const Word* halves) {
        const __m256i turn = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                              0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        __m256i a = _mm256_shuffle_epi8(__m256i(halves[0]), turn);
        __m256i b = _mm256_shuffle_epi8(__m256i(halves[1]), turn);
        store_line(p, _mm256_permutevar8x32_epi32(_mm256_unpacklo_epi32(a, b), order),
                   _mm256_permutevar8x32_epi32(_mm256_unpackhi_epi32(a, b), order));
    }

    // The low, or the high, 16 bits of 16 rows; one after the other.
    static void store_low_halves(uint8_t* p, const Word* halves) {
        keep(p, shorts(halves[0] & 0xFFFF, halves[1] & 0xFFFF));
    }
    static void store_high_halves(uint8_t* p, const Word* halves) {
        keep(p, shorts(halves[0] >> 16, halves[1] >> 16));
    }
    static void store_halves(uint8_t* p, const Word* halves) {
        store_line(p, shorts(halves[0] & 0xFFFF, halves[1] & 0xFFFF),
                   shorts(halves[0] >> 16, halves[1] >> 16));
    }
    static __m256i shorts(Word a, Word b) {
        return _mm256_permute4x64_epi64(_mm256_packus_epi32(__m256i(a), __m256i(b)), 0xD8);
    }
    // The low byte of 16 rows.
    static void store_low_bytes(uint8_t* p, const Word* halves) {
        __m256i pairs = shorts(halves[0] & 0xFF, halves[1] & 0xFF);
        __m128i bytes = _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bytes);
    }

    static void prefetch(const uint8_t* p) { _mm_prefetch(reinterpret_cast<const char*>(p), _MM_HINT_T1); }
    // Streamed lines must be seen by the threads that read the planes.
    static void finish() { _mm_sfence(); }
};

template <class... F, class... G>
constexpr std::array<RepackTiles, kNumAllFormats> make_entries(std::tuple<F...>*, std::tuple<G...>*) {
    return {&repack_tiles<F, RepackAvx2>..., &repack_tiles<G, RepackAvx2>...};
}

constexpr auto kEntries = make_entries(static_cast<Formats*>(nullptr), static_cast<FloatFormats*>(nullptr));

}  // namespace

RepackTiles avx2_repack(int format) { return kEntries[format]; }

}  // namespace strata
