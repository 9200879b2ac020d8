// Loops over activations, plain C++ that compilers turn into vectors: one instantiation for each instruction
// set.
#pragma once

#include <cstdint>

#include "inline.hpp"

namespace strata {

// Quantises up to 128 activations to int8: scale = max |x| / 127, code = round-half-even(x / scale).
// All zero gives scale 0; a NaN or infinity gives scale NaN; both give codes 0.
template <class I>
void quantize_block(const float* x, int n, int8_t* codes, float* scale) {
    uint32_t largest = 0;  // magnitudes order as integers, with infinity and NaN on top
    for (int i = 0; i < n; ++i) {
        uint32_t magnitude = __builtin_bit_cast(uint32_t, x[i]) & 0x7FFFFFFF;
        largest = magnitude > largest ? magnitude : largest;
    }
    bool finite = largest < 0x7F800000;
    float s = finite ? __builtin_bit_cast(float, largest) / 127.0f : __builtin_bit_cast(float, 0x7FC00000u);
    *scale = s;
    if (!(s > 0)) {
        for (int i = 0; i < n; ++i) codes[i] = 0;
        return;
    }
    for (int i = 0; i < n; ++i) {
        float q = x[i] / s;  // beyond 127 only where the scale itself is subnormal and was rounded
        q = q > 127.0f ? 127.0f : q < -127.0f ? -127.0f : q;
        q = (q + 0x1.8p23f) - 0x1.8p23f;  // rounds half to even
        codes[i] = static_cast<int8_t>(static_cast<int32_t>(q));
    }
}

// exp(x) in multiplications and additions: Cody-Waite reduction and the polynomial of Cephes' expf. Beyond 88
// and -87 it stays where it was there. A NaN stays a NaN.
template <class I>
STRATA_INLINE float exponential(float x) {
    x = x > 88.0f ? 88.0f : x < -87.0f ? -87.0f : x;
    float shifted = x * 1.44269504f + 0x1.8p23f;  // the low bits of the sum are round(x / ln 2)
    float n = shifted - 0x1.8p23f;
    float r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    float y = (p * (r * r) + r) + 1.0f;
    uint32_t power = (__builtin_bit_cast(uint32_t, shifted) - 0x4B400000u + 127u) << 23;
    return y * __builtin_bit_cast(float, power);
}

// gate[i] = silu(gate[i]) * up[i], silu(x) = x / (1 + exp(-x)).
template <class I>
void swiglu(float* gate, const float* up, int n) {
    for (int i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + exponential<I>(-gate[i])) * up[i];
}

}  // namespace strata
