// The ops between the products, on one row, one block or one head: a table for each instruction set. Their
// results do not depend on it, nor on what else is in a call.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {

// Keys at absolute multiples of this many positions are a span. A query's softmax is made in each of its
// spans for itself, and the spans are added in ascending order: that sequence is all its result depends on.
constexpr int kSpan = 256;

// Rows (pairs of a query and a head) that read the same key-value head, in one span.
struct SpanRows {
    int rows, dim, value_dim;
    const float* q;            // [rows rounded up to 4, dim], scaled; rows beyond are zero
    const float *k, *v;        // of the span's first key
    ptrdiff_t k_step, v_step;  // between keys
    const int *low, *high;  // keys of the span that a row sees: [low, high) within [0, kSpan], or low == high
    const bool* const* mask;  // of a row at the span's first key, or null
    float *keys, *values;     // scratch [dim, 16], [kSpan, 16]
    float* scores;            // scratch [rows rounded up to 4, kSpan]
};

// The softmax of a row so far: `out / sum` is its result.
struct Partial {
    float *max, *sum;  // [rows]
    float* out;        // [rows, value_dim]
};

// Some columns (value dimensions) of one head of the delta rule, over `tokens` tokens.
struct DeltaColumns {
    static constexpr int kColumns = 16, kMaxKeyDim = 256;
    int tokens, key_dim, columns;
    const float *q, *k, *v;            // of the first token; v at the first column
    ptrdiff_t q_step, k_step, v_step;  // between tokens
    const float *log_decay, *beta;     // of the head
    ptrdiff_t decay_step, beta_step;
    const float* state;  // [key_dim] rows at the first column, `state_step` apart
    float* new_state;    // may be the same
    ptrdiff_t state_step;
    float* out;
    ptrdiff_t out_step;
};

struct OpKernels {
    // out = x / sqrt(mean(x^2) + epsilon) * weight
    void (*rms_norm)(const float* x, const float* weight, float epsilon, int n, float* out);
    // Turns the first 2 * pairs of `dim` values.
    void (*rotate)(const float* x, const float* cos, const float* sin, int pairs, int dim, bool interleaved,
                   float* out);
    void (*silu)(const float* x, int n, float* out);
    void (*sigmoid)(const float* x, int n, float* out);
    void (*softplus)(const float* x, int n, float* out);
    // out = x * sigmoid(gate), out = x * silu(gate)
    void (*sigmoid_gate)(const float* x, const float* gate, int n, float* out);
    void (*silu_gate)(const float* x, const float* gate, int n, float* out);
    // Softmax of n logits.
    void (*softmax)(const float* logits, int n, float* out);
    // One token of a causal depthwise convolution: the rows its taps see, oldest first; weights [n, kernel].
    void (*convolution)(const float* const* taps, const float* weights, int kernel, int n, float* out);
    // out = x / sqrt(sum(x^2) + epsilon) * scale
    void (*l2_norm)(const float* x, float epsilon, float scale, int n, float* out);
    void (*delta_columns)(const DeltaColumns&);
    // One span of attention, and its addition to what came before.
    void (*attend_span)(const SpanRows&, const Partial& out);
    void (*merge_span)(int rows, int value_dim, const Partial& sum, const Partial& span);
    // The scores of the span's first `keys` keys alone, and their sum over rows without negative ones.
    void (*score_span)(const SpanRows&, int keys);
    void (*add_rectified)(const float* scores, int rows, int keys, float* sums);
    // out[row] = sum.out[row] / sum.sum[row]
    void (*finish)(int row, int value_dim, const Partial& sum, float* out);
};

const OpKernels& portable_op_kernels();
#if defined(STRATA_X86)
const OpKernels& avx2_op_kernels();
#endif

// Those of the instruction set in use.
const OpKernels& op_kernels();

}  // namespace strata
