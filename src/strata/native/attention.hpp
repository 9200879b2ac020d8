// Attention over keys and values in memory: rows of queries shared out to threads.
#pragma once

#include "ops.hpp"
#include "runtime.hpp"
#include "tensor.hpp"

namespace strata {

// Query i of n stands at position t - n + i and sees the positions up to its own, the last `window` of them
// where window > 0, and those where mask [n, t] is true.
struct Attention {
    Floats q, k, v;  // [n, heads, dim], [t, kv_heads, dim], [t, kv_heads, value_dim]
    float scale;
    int64_t window = 0;
    const Array<const bool>* mask = nullptr;

    int64_t num_queries() const { return q.size(2); }
    int64_t num_heads() const { return q.size(1); }
    int64_t num_keys() const { return k.size(2); }
    int64_t num_kv_heads() const { return k.size(1); }
    int64_t group() const { return num_heads() / num_kv_heads(); }
};

// out: [n, heads, value_dim]. Without a pool on the caller alone.
void compute_attention(const OpKernels& kernels, Pool* pool, const Attention& a, float* out);

}  // namespace strata
