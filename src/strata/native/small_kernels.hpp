// Kernels of ops on single rows.
#pragma once

#include <cmath>

#include "simd.hpp"

namespace strata {

template <class I>
struct SmallKernels : Simd<I> {
    using S = Simd<I>;
    using typename S::Vec;

    // f(offset, lanes) for eight lanes at a time, fewer at the end.
    template <class F>
    static STRATA_INLINE void for_lanes(int n, const F& f) {
        int i = 0;
        for (; i + 8 <= n; i += 8) f(i, 8);
        if (i < n) f(i, n - i);
    }
    static STRATA_INLINE Vec get(const float* p, int lanes) {
        return lanes == 8 ? S::load(p) : S::load_part(p, lanes);
    }
    static STRATA_INLINE void put(float* p, Vec v, int lanes) {
        if (lanes == 8) return S::store(p, v);
        S::store_part(p, v, lanes);
    }

    // Sum of f(offset, lanes) in 32 partial sums: element i goes to sum i mod 32.
    template <class F>
    static STRATA_INLINE float sum_of(int n, const F& f) {
        Vec sums[4] = {};
        int i = 0;
        for (; i + 32 <= n; i += 32) {
            for (int j = 0; j < 4; ++j) sums[j] += f(i + 8 * j, 8);
        }
        for (int j = 0; i < n; i += 8, ++j) sums[j] += f(i, n - i < 8 ? n - i : 8);
        return S::sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
    }

    static void rms_norm(const float* x, const float* weight, float epsilon, int n, float* out) {
        float squares = sum_of(n, [&](int i, int lanes) {
            Vec v = get(x + i, lanes);
            return v * v;
        });
        Vec factor = S::broadcast(1.0f / std::sqrt(squares / static_cast<float>(n) + epsilon));
        for_lanes(n, [&](int i, int lanes) {
            put(out + i, get(x + i, lanes) * factor * get(weight + i, lanes), lanes);
        });
    }

    static void rotate(const float* x, const float* cos, const float* sin, int pairs, int dim,
                       bool interleaved, float* out) {
        if (interleaved) {
            for (int i = 0; i < pairs; ++i) {
                float a = x[2 * i], b = x[2 * i + 1];
                out[2 * i] = a * cos[i] - b * sin[i];
                out[2 * i + 1] = b * cos[i] + a * sin[i];
            }
        } else {
            for_lanes(pairs, [&](int i, int lanes) {
                Vec a = get(x + i, lanes), b = get(x + pairs + i, lanes);
                Vec c = get(cos + i, lanes), s = get(sin + i, lanes);
                put(out + i, a * c - b * s, lanes);
                put(out + pairs + i, b * c + a * s, lanes);
            });
        }
        if (out != x) std::memcpy(out + 2 * pairs, x + 2 * pairs, (dim - 2 * pairs) * sizeof(float));
    }

    static STRATA_INLINE Vec silu(Vec x) { return x / (S::exponential(-x) + 1.0f); }

    static STRATA_INLINE Vec sigmoid(Vec x) { return 1.0f / (S::exponential(-x) + 1.0f); }

    // out = f(x), and out = x * f(gate), element by element.
    template <class F>
    static STRATA_INLINE void map(const float* x, int n, float* out, const F& f) {
        for_lanes(n, [&](int i, int lanes) { put(out + i, f(get(x + i, lanes)), lanes); });
    }
    template <class F>
    static STRATA_INLINE void multiply(const float* x, const float* gate, int n, float* out, const F& f) {
        for_lanes(
            n, [&](int i, int lanes) { put(out + i, f(get(gate + i, lanes)) * get(x + i, lanes), lanes); });
    }
    static void silu(const float* x, int n, float* out) {
        map(x, n, out, [](Vec v) { return silu(v); });
    }
    static void sigmoid(const float* x, int n, float* out) {
        map(x, n, out, [](Vec v) { return sigmoid(v); });
    }
    // log(1 + exp(x)) by the standard library, as torch: decays are few, and long products of them.
    static void softplus(const float* x, int n, float* out) {
        for (int i = 0; i < n; ++i) out[i] = x[i] > 20.0f ? x[i] : std::log1p(std::exp(x[i]));
    }
    static void silu_gate(const float* x, const float* gate, int n, float* out) {
        multiply(x, gate, n, out, [](Vec v) { return silu(v); });
    }
    static void sigmoid_gate(const float* x, const float* gate, int n, float* out) {
        multiply(x, gate, n, out, [](Vec v) { return sigmoid(v); });
    }

    static void softmax(const float* logits, int n, float* out) {
        float largest = logits[0];
        for (int i = 1; i < n; ++i) largest = logits[i] > largest ? logits[i] : largest;
        Vec shift = S::broadcast(largest);
        for_lanes(n, [&](int i, int lanes) {
            put(out + i, S::exponential(get(logits + i, lanes) - shift), lanes);
        });
        Vec total = S::broadcast(sum_of(n, [&](int i, int lanes) { return get(out + i, lanes); }));
        for_lanes(n, [&](int i, int lanes) { put(out + i, get(out + i, lanes) / total, lanes); });
    }
};

}  // namespace strata
