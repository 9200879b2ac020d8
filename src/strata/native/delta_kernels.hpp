// Kernels of the gated delta net: short convolution, normalisation, and the delta rule as plain recurrence.
#pragma once

#include "ops.hpp"
#include "small_kernels.hpp"

namespace strata {

template <class I>
struct DeltaKernels : SmallKernels<I> {
    using Small = SmallKernels<I>;
    using S = Simd<I>;
    using typename S::Vec;

    // `kernel` taps of one token, oldest first; weights [channels, kernel].
    template <int kernel>
    static STRATA_INLINE void convolve(const float* const* taps, const float* weights, int n, float* out) {
        for (int c = 0; c < n; ++c) {
            float sum = taps[0][c] * weights[c * kernel];
            for (int j = 1; j < kernel; ++j) sum += taps[j][c] * weights[c * kernel + j];
            out[c] = sum;
        }
    }

    static void convolution(const float* const* taps, const float* weights, int kernel, int n, float* out) {
        if (kernel == 4) return convolve<4>(taps, weights, n, out);
        for (int c = 0; c < n; ++c) {
            float sum = taps[0][c] * weights[c * kernel];
            for (int j = 1; j < kernel; ++j) sum += taps[j][c] * weights[c * kernel + j];
            out[c] = sum;
        }
    }

    static void l2_norm(const float* x, float epsilon, float scale, int n, float* out) {
        float squares = Small::sum_of(n, [&](int i, int lanes) {
            Vec v = Small::get(x + i, lanes);
            return v * v;
        });
        Vec factor = S::broadcast(1.0f / std::sqrt(squares + epsilon));
        Small::for_lanes(n, [&](int i, int lanes) {
            Small::put(out + i, Small::get(x + i, lanes) * factor * scale, lanes);
        });
    }

    // Up to 16 columns of one head's state, for n tokens. Summed over the key dimension in ascending order:
    //   a = S^T k, b = S^T q;  d = beta (v - g a);  out = g b + (k . q) d;  S <- g S + k d^T
    // A token's update is applied while the next one reads, so that the state passes through once for each.
    static void delta_columns(const DeltaColumns& s) {
        constexpr int kColumns = DeltaColumns::kColumns;
        alignas(64) float state[DeltaColumns::kMaxKeyDim * kColumns];
        for (int i = 0; i < s.key_dim; ++i) {
            std::memset(state + i * kColumns, 0, kColumns * sizeof(float));
            std::memcpy(state + i * kColumns, s.state + i * s.state_step, s.columns * sizeof(float));
        }
        Vec update[2] = {}, decay = S::broadcast(1);
        const float* last_key = s.k;
        for (int t = 0; t < s.tokens; ++t) {
            const float *q = s.q + t * s.q_step, *k = s.k + t * s.k_step, *v = s.v + t * s.v_step;
            Vec a[2] = {}, b[2] = {};
            for (int i = 0; i < s.key_dim; ++i) {
                Vec old_key = S::broadcast(last_key[i]), key = S::broadcast(k[i]), query = S::broadcast(q[i]);
                STRATA_UNROLL
                for (int j = 0; j < 2; ++j) {
                    float* at = state + i * kColumns + 8 * j;
                    Vec x = S::load(at);
                    if (t) {
                        x = x * decay + old_key * update[j];
                        S::store(at, x);
                    }
                    a[j] += x * key;
                    b[j] += x * query;
                }
            }
            float product = Small::sum_of(s.key_dim, [&](int i, int lanes) {
                return Small::get(k + i, lanes) * Small::get(q + i, lanes);
            });
            decay = S::exponential(S::broadcast(s.log_decay[t * s.decay_step]));
            float beta = s.beta[t * s.beta_step];
            for (int j = 0; j < 2; ++j) {
                int lanes = s.columns - 8 * j;
                lanes = lanes < 0 ? 0 : lanes > 8 ? 8 : lanes;
                update[j] = (Small::get(v + 8 * j, lanes) - decay * a[j]) * beta;
                Small::put(s.out + t * s.out_step + 8 * j, decay * b[j] + update[j] * product, lanes);
            }
            last_key = k;
        }
        for (int i = 0; i < s.key_dim; ++i) {
            float* at = state + i * kColumns;
            for (int j = 0; j < 2; ++j)
                S::store(at + 8 * j, S::load(at + 8 * j) * decay + S::broadcast(last_key[i]) * update[j]);
            std::memcpy(s.new_state + i * s.state_step, at, s.columns * sizeof(float));
        }
    }
};

}  // namespace strata
