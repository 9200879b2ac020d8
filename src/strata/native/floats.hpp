// Matrices that are not quantised: weights are floats, activations stay float32, and each output is one sum
// in ascending order of k (docs/NUMERICS.md). Their formats follow the quantised ones in the numbering.
#pragma once

#include "kernels.hpp"

namespace strata {

constexpr Layout float_layout(const char* name, int bytes, Scale scale) {
    return {.name = name,
            .gguf_block = 1,
            .gguf_bytes = bytes,
            .low_bits = 8 * bytes,
            .high_bits = 0,
            .values = Values::floats,
            .offset = 0,
            .max_code = 0,
            .scale_block = kActivationBlock,
            .scale = scale,
            .sub = Sub::none,
            .sub_block = 0,
            .minimum = Minimum::none};
}

// `load`: one weight of each of 16 rows, widened exactly.
struct F32 {
    static constexpr Layout layout = float_layout("F32", 4, Scale::none);
    template <class I>
    static void load(const uint8_t* p, typename I::Float* rows) {
        for (int i = 0; i < kTileRows / I::lanes; ++i) rows[i] = I::load_f32(p + i * I::lanes * 4);
    }
};

struct F16 {
    static constexpr Layout layout = float_layout("F16", 2, Scale::none);
    template <class I>
    static void load(const uint8_t* p, typename I::Float* rows) {
        for (int i = 0; i < kTileRows / I::lanes; ++i) rows[i] = I::load_f16(p + i * I::lanes * 2);
    }
};

struct BF16 {
    static constexpr Layout layout = float_layout("BF16", 2, Scale::none);
    template <class I>
    static void load(const uint8_t* p, typename I::Float* rows) {
        for (int i = 0; i < kTileRows / I::lanes; ++i) rows[i] = I::load_bf16(p + i * I::lanes * 2);
    }
};

// One float32 scale for 128 weights of a row; packing leaves the scales to the caller.
struct F8E4M3 {
    static constexpr Layout layout = float_layout("F8_E4M3", 1, Scale::f32);
    template <class I>
    static void load(const uint8_t* p, typename I::Float* rows) {
        I::load_f8(p, rows);
    }
};

using FloatFormats = std::tuple<F32, F16, BF16, F8E4M3>;
inline constexpr int kNumFloatFormats = std::tuple_size_v<FloatFormats>;

inline bool is_float(int format) { return format >= kNumFormats; }

// A matrix [n, k] in planes, float32 rows [rows, k] `x_stride` apart, and where their products go.
struct FloatProduct {
    const uint8_t* planes;
    TilePlan plan;
    int n, k;
    const float* x;
    size_t x_stride;
    int rows;
    float* out;
    size_t out_stride;
};

// Tiles [begin, end) of the product.
using MultiplyFloats = void (*)(const FloatProduct& p, int begin, int end);
MultiplyFloats float_kernel(const Kernels& kernels, int format);

MultiplyFloats portable_float_kernel(int format);
#if defined(STRATA_X86)
MultiplyFloats avx2_float_kernel(int format);
#endif

}  // namespace strata
