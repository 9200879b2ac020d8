// Kernels of attention: one span of keys and values for a few rows of queries.
#pragma once

#include <limits>

#include "ops.hpp"
#include "simd.hpp"

namespace strata {

template <class I>
struct AttentionKernels : Simd<I> {
    using S = Simd<I>;
    using typename S::Int;
    using typename S::Vec;
    static constexpr int kGroup = 4;    // rows that share a load of keys or values
    static constexpr int kKeys = 16;    // keys whose scores are computed together
    static constexpr int kFewRows = 8;  // so many at most are limited by memory

    // keys[d][0..8) = value d of 8 keys, for all d; `n` keys exist, the others are zero.
    static STRATA_INLINE void transpose_keys(const float* k, ptrdiff_t step, int n, int dim, float* keys) {
        int d = 0;
        for (; d + 8 <= dim; d += 8) {
            Vec rows[8] = {};
            for (int j = 0; j < n; ++j) rows[j] = S::load(k + j * step + d);
            S::transpose(rows);
            for (int i = 0; i < 8; ++i) S::store(keys + (d + i) * kKeys, rows[i]);
        }
        for (; d < dim; ++d)
            for (int j = 0; j < 8; ++j) keys[d * kKeys + j] = j < n ? k[j * step + d] : 0;
    }

    // Scores of 16 keys for four rows, each a sum over d in ascending order.
    static STRATA_INLINE void score_keys(const float* q, const float* keys, int dim, float* scores) {
        Vec sums[kGroup][2] = {};
        for (int d = 0; d < dim; ++d) {
            Vec a = S::load(keys + d * kKeys), b = S::load(keys + d * kKeys + 8);
            STRATA_UNROLL
            for (int r = 0; r < kGroup; ++r) {
                Vec x = S::broadcast(q[r * dim + d]);
                sums[r][0] += x * a;
                sums[r][1] += x * b;
            }
        }
        for (int r = 0; r < kGroup; ++r) {
            S::store(scores + r * kSpan, sums[r][0]);
            S::store(scores + r * kSpan + 8, sums[r][1]);
        }
    }

    static STRATA_INLINE void prefetch(const float* p, int n) {
        for (int i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 2);
    }

    // scores[row] = q[row] k for the keys from `low` to `high`.
    static void score(const SpanRows& s, int low, int high) {
        for (int j = low / kKeys * kKeys; j < high; j += kKeys) {
            // in strides that the processor's own prefetcher does not follow
            for (int i = j; i < j + kKeys && i < high; ++i) {
                prefetch(s.v + i * s.v_step, s.value_dim);
                if (i + kKeys < high) prefetch(s.k + (i + kKeys) * s.k_step, s.dim);
            }
            for (int half = 0; half < kKeys; half += 8) {
                int n = high - j - half;
                const float* k = s.k + (j + half) * s.k_step;
                // a constant 8 keeps the rows in registers
                if (n >= 8)
                    transpose_keys(k, s.k_step, 8, s.dim, s.keys + half);
                else
                    transpose_keys(k, s.k_step, n > 0 ? n : 0, s.dim, s.keys + half);
            }
            for (int r = 0; r < s.rows; r += kGroup)
                score_keys(s.q + r * s.dim, s.keys, s.dim, s.scores + r * kSpan + j);
        }
    }

    // Turns scores of [low, high) into exp(score - max); those the row does not see become 0.
    static void exponentials(const SpanRows& s, int row, int low, int high, float& max, float& sum) {
        float* p = s.scores + row * kSpan;
        const float hidden = -std::numeric_limits<float>::infinity();
        for (int j = low; j < high && j < s.low[row]; ++j) p[j] = hidden;
        for (int j = s.high[row] > low ? s.high[row] : low; j < high; ++j) p[j] = hidden;
        if (s.mask)
            for (int j = s.low[row]; j < s.high[row]; ++j) p[j] = s.mask[row][j] ? p[j] : hidden;
        Vec largest = S::broadcast(hidden);
        for (int j = low; j < high; j += 8) largest = S::max(S::load(p + j), largest);
        max = S::max(largest);
        Vec sums[2] = {}, shift = S::broadcast(max);
        for (int j = low; j < high; j += 8) {
            Vec x = S::load(p + j);
            Vec e = S::select(x == S::broadcast(hidden), Vec{}, S::exponential(x - shift));
            S::store(p + j, e);
            sums[j / 8 % 2] += e;
        }
        sum = S::sum(sums[0] + sums[1]);
    }

    // out[row, 0..8 * vectors) = sum of scores[row, j] * v[j] over j in ascending order, four rows.
    template <int vectors>
    static STRATA_INLINE void weigh_values(const float* p, const float* v, ptrdiff_t step, int low, int high,
                                           float* out, int rows, int out_step) {
        Vec sums[kGroup][vectors] = {};
        for (int j = low; j < high; ++j) {
            Vec x[vectors];
            for (int i = 0; i < vectors; ++i) x[i] = S::load(v + j * step + 8 * i);
            STRATA_UNROLL
            for (int r = 0; r < kGroup; ++r) {
                Vec weight = S::broadcast(p[r * kSpan + j]);
                for (int i = 0; i < vectors; ++i) sums[r][i] += weight * x[i];
            }
        }
        for (int r = 0; r < rows; ++r)
            for (int i = 0; i < vectors; ++i) S::store(out + r * out_step + 8 * i, sums[r][i]);
    }

    // Columns [d, d + 8 * vectors) of the result. Many rows read a copy of the values: in place they lie at
    // distances that collide in the cache.
    template <int vectors>
    static void weigh_columns(const SpanRows& s, int low, int high, int d, float* out) {
        const float* v = s.v + d;
        ptrdiff_t step = s.v_step;
        if (s.rows > kFewRows) {
            v = s.values;
            step = kKeys;
            for (int j = low; j < high; ++j)
                for (int i = 0; i < vectors; ++i)
                    S::store(s.values + j * step + 8 * i, S::load(s.v + j * s.v_step + d + 8 * i));
        }
        for (int r = 0; r < s.rows; r += kGroup) {
            int rows = s.rows - r < kGroup ? s.rows - r : kGroup;
            int last = 0;  // causal rows see fewer keys than the block
            for (int i = 0; i < rows; ++i) last = s.high[r + i] > last ? s.high[r + i] : last;
            weigh_values<vectors>(s.scores + r * kSpan, v, step, low, last, out + r * s.value_dim + d, rows,
                                  s.value_dim);
        }
    }

    static void weigh(const SpanRows& s, int low, int high, float* out) {
        int d = 0;
        for (; d + 16 <= s.value_dim; d += 16) weigh_columns<2>(s, low, high, d, out);
        for (; d + 8 <= s.value_dim; d += 8) weigh_columns<1>(s, low, high, d, out);
        for (; d < s.value_dim; ++d)
            for (int r = 0; r < s.rows; ++r) {
                float sum = 0;
                for (int j = low; j < s.high[r]; ++j) sum += s.scores[r * kSpan + j] * s.v[j * s.v_step + d];
                out[r * s.value_dim + d] = sum;
            }
    }

    static void attend_span(const SpanRows& s, const Partial& out) {
        int low = kSpan, high = 0;
        for (int r = 0; r < s.rows; ++r) {
            if (s.low[r] == s.high[r]) continue;
            low = s.low[r] < low ? s.low[r] : low;
            high = s.high[r] > high ? s.high[r] : high;
        }
        score(s, low, high);
        int begin = low / 8 * 8, end = (high + 7) / 8 * 8;
        for (int r = 0; r < s.rows; ++r) exponentials(s, r, begin, end, out.max[r], out.sum[r]);
        weigh(s, low, high, out.out);
    }

    static void score_span(const SpanRows& s, int keys) { score(s, 0, keys); }

    // sums[j] = sum of max(0, scores[row, j]) over rows in ascending order
    static void add_rectified(const float* scores, int rows, int keys, float* sums) {
        for (int j = 0; j < keys; ++j) sums[j] = 0;
        for (int r = 0; r < rows; ++r)
            for (int j = 0; j < keys; ++j) {
                float x = scores[r * kSpan + j];
                sums[j] += x < 0 ? 0.0f : x;
            }
    }

    static void merge_span(int rows, int value_dim, const Partial& sum, const Partial& span) {
        const float nothing = -std::numeric_limits<float>::infinity();
        for (int r = 0; r < rows; ++r) {
            if (span.max[r] == nothing) continue;  // a mask hides all of it
            float max = sum.max[r] > span.max[r] ? sum.max[r] : span.max[r];
            // begins as -infinity with zeros, which any factor leaves
            Vec shrink = S::exponential(S::broadcast(sum.max[r] - max));
            Vec factor = S::exponential(S::broadcast(span.max[r] - max));
            sum.max[r] = max;
            sum.sum[r] = sum.sum[r] * shrink[0] + span.sum[r] * factor[0];
            float *a = sum.out + r * value_dim, *b = span.out + r * value_dim;
            int d = 0;
            for (; d + 8 <= value_dim; d += 8)
                S::store(a + d, S::load(a + d) * shrink + S::load(b + d) * factor);
            for (; d < value_dim; ++d) a[d] = a[d] * shrink[0] + b[d] * factor[0];
        }
    }

    static void finish(int row, int value_dim, const Partial& sum, float* out) {
        const float* from = sum.out + row * value_dim;
        Vec total = S::broadcast(sum.sum[row]);
        int d = 0;
        for (; d + 8 <= value_dim; d += 8) S::store(out + d, S::load(from + d) / total);
        for (; d < value_dim; ++d) out[d] = from[d] / total[0];
    }
};

}  // namespace strata
