// Attention as Python sees it.
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "attention.hpp"
#include "bind_ops.hpp"
#include "share.hpp"

namespace strata {

namespace {

using namespace nb::literals;

// Runs attention, by all threads where there is enough of it.
void run_attention(const Attention& a, float* out) {
    int64_t keys = a.window ? std::min(a.window, a.num_keys()) : a.num_keys();
    int64_t products = a.num_queries() * a.num_heads() * keys * (a.q.size(0) + a.v.size(0));
    // below some 20 microseconds of one thread
    if (products < 4 * kWorthSharing) return compute_attention(op_kernels(), nullptr, a, out);
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    compute_attention(op_kernels(), runtime().pool.get(), a, out);
}

nb::object attend(const Floats& q, const Floats& k, const Floats& v, float scale,
                  std::optional<int64_t> window, std::optional<Array<const bool>> mask) {
    if (q.ndim != 3 || k.ndim != 3 || v.ndim != 3) bad_shape("q, k, v", "must be [positions, heads, dim]");
    int64_t t = k.size(2), kv_heads = k.size(1), n = q.size(2);
    k.expect("k", {t, kv_heads, q.size(0)});
    v.expect("v", {t, kv_heads, v.size(0)});
    if (n > t) bad_shape("k", "has fewer positions than q");
    if (kv_heads < 1 || q.size(1) % kv_heads) bad_shape("q", "has heads that cannot share those of k");
    if (window && *window < 1) bad_shape("window", "must be at least 1");
    if (mask) mask->expect("mask", {n, t});
    float* out;
    nb::object result = empty<float>({n, q.size(1), v.size(0)}, &out);
    if (n) run_attention({q, k, v, scale, window.value_or(0), mask ? &*mask : nullptr}, out);
    return result;
}

// The last dimension cut into heads of `dim` values, where it is not already.
Floats in_heads(Floats x, int64_t dim, const char* name) {
    if (x.ndim == 2 && x.size(0) % dim == 0) {
        x.ndim = 3;
        x.shape = {1, x.size(1), x.size(0) / dim, dim};
        x.stride = {0, x.step(1), dim, 1};
    }
    if (x.ndim != 3 || x.size(0) != dim)
        bad_shape(name, "must be [n, heads, dim] or [n, heads * dim] with heads of " + std::to_string(dim));
    return x;
}

// Where queries and keys are turned to, and how they are normalised before.
struct Turn {
    Floats cos, sin;
    bool interleaved;
    float epsilon;
};

// out[i * step + head * dim] = the turned rows of x [n, heads, dim], normalised where there is a weight.
void turn(const Turn& t, const Floats& x, const std::optional<Floats>& weight, float* out, int64_t step) {
    const OpKernels& kernels = op_kernels();
    int64_t heads = x.size(1);
    int dim = static_cast<int>(x.size(0)), pairs = static_cast<int>(t.cos.size(0));
    share(x.num_rows(), x.num_elements() * 8, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) {
            float* to = out + i / heads * step + i % heads * dim;
            const float* from = x.row(i);
            if (weight) {
                kernels.rms_norm(from, weight->data, t.epsilon, dim, to);
                from = to;
            }
            kernels.rotate(from, t.cos.row(i / heads), t.sin.row(i / heads), pairs, dim, t.interleaved, to);
        }
    });
}

nb::object attend_cached(Floats q, Floats k, Floats v, const Floats& cos, const Floats& sin,
                         const Array<float>& keys, const Array<float>& values, int64_t length, float scale,
                         bool interleaved, std::optional<int64_t> window, std::optional<Floats> q_norm,
                         std::optional<Floats> k_norm, float epsilon, std::optional<Floats> gate) {
    if (keys.ndim != 3 || values.ndim != 3) bad_shape("keys, values", "must be [capacity, kv_heads, dim]");
    int64_t kv_heads = keys.size(1), dim = keys.size(0), value_dim = values.size(0);
    q = in_heads(q, dim, "q");
    k = in_heads(k, dim, "k");
    v = in_heads(v, value_dim, "v");
    int64_t n = q.size(2), heads = q.size(1), t = length + n;
    k.expect("k", {n, kv_heads, dim});
    v.expect("v", {n, kv_heads, value_dim});
    cos.expect("cos", {n, cos.size(0)});
    sin.expect("sin", {n, cos.size(0)});
    values.expect("values", {keys.size(2), kv_heads, value_dim});
    if (kv_heads < 1 || heads % kv_heads) bad_shape("q", "has heads that cannot share those of k");
    if (2 * cos.size(0) > dim) bad_shape("cos", "turns more values than a head has");
    if (length < 0 || t > keys.size(2)) bad_shape("keys", "have no room for these positions");
    if (keys.step(1) != dim || values.step(1) != value_dim) bad_shape("keys, values", "must be contiguous");
    if (window && *window < 1) bad_shape("window", "must be at least 1");
    if (q_norm) q_norm->expect("q_norm", {dim});
    if (k_norm) k_norm->expect("k_norm", {dim});
    if (gate) gate = in_heads(*gate, value_dim, "gate");
    if (gate) gate->expect("gate", {n, heads, value_dim});
    float* out;
    nb::object result = empty<float>({n, heads * value_dim}, &out);
    if (n == 0) return result;

    Turn how{cos, sin, interleaved, epsilon};
    std::unique_ptr<float[]> turned(new float[n * heads * dim]);
    turn(how, q, q_norm, turned.get(), heads * dim);
    turn(how, k, k_norm, keys.data + length * keys.step(2), keys.step(2));
    for (int64_t i = 0; i < n * kv_heads; ++i)
        std::copy_n(v.row(i), value_dim,
                    values.data + (length + i / kv_heads) * values.step(2) + i % kv_heads * value_dim);
    Floats queries{turned.get(), 3, {1, n, heads, dim}, {0, heads * dim, dim, 1}};
    Floats all_keys{keys.data, 3, {1, t, kv_heads, dim}, keys.stride};
    Floats all_values{values.data, 3, {1, t, kv_heads, value_dim}, values.stride};
    run_attention({queries, all_keys, all_values, scale, window.value_or(0)}, out);
    if (gate)
        share(n * heads, n * heads * value_dim * 32, [&](int begin, int end) {
            for (int64_t i = begin; i < end; ++i) {
                float* row = out + i * value_dim;
                op_kernels().sigmoid_gate(row, gate->row(i), static_cast<int>(value_dim), row);
            }
        });
    return result;
}

}  // namespace

void bind_attention(nb::module_& m) {
    m.def("attend", &attend, "q"_a, "k"_a, "v"_a, "scale"_a, "window"_a.none() = nb::none(),
          "mask"_a.none() = nb::none(), "As strata.ops.attention.attend.");
    m.def("attend_cached", &attend_cached, "q"_a, "k"_a, "v"_a, "cos"_a, "sin"_a, "keys"_a, "values"_a,
          "length"_a, "scale"_a, "interleaved"_a = false, "window"_a.none() = nb::none(),
          "q_norm"_a.none() = nb::none(), "k_norm"_a.none() = nb::none(), "epsilon"_a = 0.0f,
          "gate"_a.none() = nb::none(), "As strata.ops.cached_attention.attend_cached.");
}

}  // namespace strata
