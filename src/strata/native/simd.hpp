// Eight floats at a time in the compiler's own vectors: one source for every instruction set, whose results
// are the same bits on all of them, because each lane does the same IEEE operations.
#pragma once

#include <cstdint>
#include <cstring>

#include "inline.hpp"

namespace strata {

// `I` names the instruction set, so that functions compiled for one are never linked into another.
template <class I>
struct Simd {
    using Vec __attribute__((vector_size(32))) = float;
    using Int __attribute__((vector_size(32))) = int32_t;
    static constexpr int kLanes = 8;

    static STRATA_INLINE Vec load(const float* p) {
        Vec v;
        std::memcpy(&v, p, sizeof v);
        return v;
    }
    static STRATA_INLINE void store(float* p, Vec v) { std::memcpy(p, &v, sizeof v); }
    // The first n < 8 floats, and zeros.
    static STRATA_INLINE Vec load_part(const float* p, int n) {
        Vec v{};
        std::memcpy(&v, p, n * sizeof(float));
        return v;
    }
    static STRATA_INLINE void store_part(float* p, Vec v, int n) { std::memcpy(p, &v, n * sizeof(float)); }
    static STRATA_INLINE Vec broadcast(float x) { return Vec{x, x, x, x, x, x, x, x}; }
    static STRATA_INLINE Vec select(Int condition, Vec a, Vec b) { return condition ? a : b; }
    static STRATA_INLINE Vec max(Vec a, Vec b) { return a > b ? a : b; }

    static STRATA_INLINE float sum(Vec v) {
        return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
    }
    static STRATA_INLINE float max(Vec v) {
        float m = v[0];
        for (int i = 1; i < kLanes; ++i) m = v[i] > m ? v[i] : m;
        return m;
    }

    // `exponential` of elementwise.hpp, bit for bit.
    static STRATA_INLINE Vec exponential(Vec x) {
        x = x > broadcast(88.0f) ? broadcast(88.0f) : x;
        x = x < broadcast(-87.0f) ? broadcast(-87.0f) : x;
        Vec shifted = x * 1.44269504f + 0x1.8p23f;
        Vec n = shifted - 0x1.8p23f;
        Vec r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
        Vec p = broadcast(1.9875691500e-4f);
        p = p * r + 1.3981999507e-3f;
        p = p * r + 8.3334519073e-3f;
        p = p * r + 4.1665795894e-2f;
        p = p * r + 1.6666665459e-1f;
        p = p * r + 5.0000001201e-1f;
        Vec y = (p * (r * r) + r) + 1.0f;
        Int bits;
        std::memcpy(&bits, &shifted, sizeof bits);
        bits = (bits - (0x4B400000 - 127)) << 23;
        Vec power;
        std::memcpy(&power, &bits, sizeof power);
        return y * power;
    }

    // Rows of eight become columns.
    static STRATA_INLINE void transpose(Vec (&r)[8]) {
        Vec a[8], b[8];
        for (int i = 0; i < 4; ++i) {
            a[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
            a[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
        }
        for (int i = 0; i < 8; i += 4)
            for (int j = 0; j < 2; ++j) {
                b[i + 2 * j] = __builtin_shufflevector(a[i + j], a[i + j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
                b[i + 2 * j + 1] =
                    __builtin_shufflevector(a[i + j], a[i + j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
            }
        for (int i = 0; i < 4; ++i) {
            r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
            r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
        }
    }
};

}  // namespace strata
