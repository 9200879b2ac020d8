// The gated delta net between its projections, as Python sees it.
#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "bind_ops.hpp"
#include "ops.hpp"
#include "share.hpp"

namespace strata {

namespace {

using namespace nb::literals;

constexpr float kL2Epsilon = 1e-6f;
constexpr int64_t kChannelBlock = 512;

// Adds taps of x [n, channels] that lie `dilation` apart, and what came before in `past`.
void convolve(const Floats& x, const Floats& weight, const Floats& past, int64_t dilation, bool silu,
              float* out) {
    const OpKernels& kernels = op_kernels();
    int64_t n = x.size(1), channels = x.size(0), kernel = weight.size(0), before = past.size(1);
    int64_t blocks = (channels + kChannelBlock - 1) / kChannelBlock;
    share(blocks, n * channels * 4 * (kernel + (silu ? 8 : 1)), [&](int begin, int end) {
        std::vector<const float*> taps(kernel);
        int64_t c = begin * kChannelBlock;
        int width = static_cast<int>(std::min(end * kChannelBlock, channels) - c);
        for (int64_t t = 0; t < n; ++t) {
            for (int64_t j = 0; j < kernel; ++j) {
                int64_t row = t + j * dilation;
                taps[j] = (row < before ? past.row(row) : x.row(row - before)) + c;
            }
            float* to = out + t * channels + c;
            kernels.convolution(taps.data(), weight.data + c * kernel, static_cast<int>(kernel), width, to);
            if (silu) kernels.silu(to, width, to);
        }
    });
}

// The last rows of past and x, as many as past has.
nb::object next_past(const Floats& x, const Floats& past) {
    int64_t n = x.size(1), channels = x.size(0), before = past.size(1);
    float* out;
    nb::object result = empty<float>({before, channels}, &out);
    for (int64_t i = 0; i < before; ++i)
        std::copy_n(n + i < before ? past.row(n + i) : x.row(n + i - before), channels, out + i * channels);
    return result;
}

void expect_convolution(const Floats& x, const Floats& weight, const Floats& past, int64_t dilation) {
    if (x.ndim != 2 || weight.ndim != 2 || dilation < 1) bad_shape("x", "must be [n, channels]");
    weight.expect("weight", {x.size(0), weight.size(0)});
    past.expect("past", {(weight.size(0) - 1) * dilation, x.size(0)});
    if (weight.step(1) != weight.size(0)) bad_shape("weight", "must be contiguous");
}

nb::tuple causal_convolution(const Floats& x, const Floats& weight, const Floats& past, int64_t dilation) {
    expect_convolution(x, weight, past, dilation);
    float* out;
    nb::object y = empty_like(x, &out);
    convolve(x, weight, past, dilation, false, out);
    return nb::make_tuple(std::move(y), next_past(x, past));
}

// Key heads of value heads: h / (heads / key_heads), or h % key_heads where they are tiled.
struct DeltaRule {
    Floats q, k, v;          // [n, key_heads, key_dim] twice, [n, heads, value_dim]
    Floats log_decay, beta;  // [n, heads]
    const float* state;      // [heads, key_dim, value_dim]
    float *new_state, *out;
    bool tiled;
};

void run_delta_rule(const DeltaRule& r) {
    const OpKernels& kernels = op_kernels();
    int64_t n = r.q.size(2), key_heads = r.q.size(1), key_dim = r.q.size(0);
    int64_t heads = r.v.size(1), value_dim = r.v.size(0);
    constexpr int kColumns = DeltaColumns::kColumns;
    int64_t blocks = (value_dim + kColumns - 1) / kColumns;
    share(heads * blocks, heads * key_dim * value_dim * 8 * (n + 1), [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) {
            int64_t head = i / blocks, column = i % blocks * kColumns;
            int64_t key_head = r.tiled ? head % key_heads : head / (heads / key_heads);
            int64_t state = head * key_dim * value_dim + column;
            kernels.delta_columns({
                static_cast<int>(n),
                static_cast<int>(key_dim),
                static_cast<int>(std::min<int64_t>(kColumns, value_dim - column)),
                r.q.data + key_head * r.q.step(1),
                r.k.data + key_head * r.k.step(1),
                r.v.data + head * r.v.step(1) + column,
                r.q.step(2),
                r.k.step(2),
                r.v.step(2),
                r.log_decay.data + head,
                r.beta.data + head,
                r.log_decay.step(1),
                r.beta.step(1),
                r.state + state,
                r.new_state + state,
                value_dim,
                r.out + head * value_dim + column,
                heads * value_dim,
            });
        }
    });
}

void expect_state(const Floats& state, int64_t heads, int64_t key_dim, int64_t value_dim) {
    state.expect("state", {heads, key_dim, value_dim});
    if (state.step(1) != value_dim || state.step(2) != key_dim * value_dim)
        bad_shape("state", "must be contiguous");
    if (key_dim > DeltaColumns::kMaxKeyDim)
        bad_shape("state", "has keys longer than " + std::to_string(DeltaColumns::kMaxKeyDim));
}

nb::tuple delta_rule(const Floats& q, const Floats& k, const Floats& v, const Floats& log_decay,
                     const Floats& beta, const Floats& state, int64_t) {
    if (q.ndim != 3 || v.ndim != 3) bad_shape("q, v", "must be [n, heads, dim]");
    int64_t n = q.size(2), heads = q.size(1);
    if (n < 1) bad_shape("q", "has no tokens");
    k.expect("k", {n, heads, q.size(0)});
    v.expect("v", {n, heads, v.size(0)});
    log_decay.expect("log_decay", {n, heads});
    beta.expect("beta", {n, heads});
    expect_state(state, heads, q.size(0), v.size(0));
    float *out, *new_state;
    nb::object outputs = empty_like(v, &out), result = empty_like(state, &new_state);
    run_delta_rule({q, k, v, log_decay, beta, state.data, new_state, out, false});
    return nb::make_tuple(std::move(outputs), std::move(result));
}

// What the fused op works on, per token: queries, keys and values after the convolution, decays, strengths.
struct Workspace {
    std::unique_ptr<float[]> memory;
    float *qkv, *log_decay, *beta, *out;

    Workspace(int64_t n, int64_t channels, int64_t heads, int64_t value_dim)
        : memory(new float[n * (channels + heads * (2 + value_dim))]),
          qkv(memory.get()),
          log_decay(qkv + n * channels),
          beta(log_decay + n * heads),
          out(beta + n * heads) {}
};

// Normalises queries and keys in place and makes decays and strengths.
void prepare(const Workspace& w, int64_t n, int64_t channels, int64_t key_heads, int64_t key_dim,
             const Floats& alpha, const Floats& beta, const Floats& a, const Floats& dt) {
    const OpKernels& kernels = op_kernels();
    int heads = static_cast<int>(a.size(0)), dim = static_cast<int>(key_dim);
    float scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(key_dim)));
    share(n, n * (2 * key_heads * key_dim * 8 + heads * 256), [&](int begin, int end) {
        for (int64_t t = begin; t < end; ++t) {
            float* row = w.qkv + t * channels;
            for (int64_t h = 0; h < 2 * key_heads; ++h)
                kernels.l2_norm(row + h * dim, kL2Epsilon, h < key_heads ? scale : 1.0f, dim, row + h * dim);
            float* decay = w.log_decay + t * heads;
            for (int h = 0; h < heads; ++h) decay[h] = alpha.row(t)[h] + dt.data[h];
            kernels.softplus(decay, heads, decay);
            for (int h = 0; h < heads; ++h) decay[h] *= a.data[h];
            kernels.sigmoid(beta.row(t), heads, w.beta + t * heads);
        }
    });
}

nb::tuple gated_delta_net(const Floats& qkv, const Floats& z, const Floats& beta, const Floats& alpha,
                          const Floats& conv_weight, const Floats& a, const Floats& dt, const Floats& norm,
                          float epsilon, const Floats& past, nb::handle state_object, int64_t, bool tiled,
                          bool sigmoid_gate, bool in_place) {
    Floats state;
    if (!nb::try_cast(state_object, state)) throw nb::type_error("state must be a float32 torch.Tensor");
    expect_convolution(qkv, conv_weight, past, 1);
    int64_t n = qkv.size(1), channels = qkv.size(0);
    int64_t heads = state.size(2), key_dim = state.size(1), value_dim = state.size(0);
    int64_t key_heads = (channels - heads * value_dim) / (2 * key_dim);
    if (n < 1) bad_shape("qkv", "has no tokens");
    if (key_heads < 1 || heads % key_heads || channels != 2 * key_heads * key_dim + heads * value_dim)
        bad_shape("qkv", "does not hold the heads of state");
    expect_state(state, heads, key_dim, value_dim);
    z.expect("z", {n, heads * value_dim});
    beta.expect("beta", {n, heads});
    alpha.expect("alpha", {n, heads});
    a.expect("ssm_a", {heads});
    dt.expect("ssm_dt", {heads});
    norm.expect("norm", {value_dim});

    Workspace w(n, channels, heads, value_dim);
    convolve(qkv, conv_weight, past, 1, true, w.qkv);
    prepare(w, n, channels, key_heads, key_dim, alpha, beta, a, dt);
    auto view = [&](float* data, int64_t count, int64_t dim, int64_t step) {
        return Floats{data, 3, {1, n, count, dim}, {0, step, dim, 1}};
    };
    auto per_head = [&](float* data) { return Floats{data, 2, {1, 1, n, heads}, {0, 0, heads, 1}}; };
    float *new_state = const_cast<float*>(state.data), *out;
    nb::object next = in_place ? nb::borrow(state_object) : empty_like(state, &new_state);
    run_delta_rule({view(w.qkv, key_heads, key_dim, channels),
                    view(w.qkv + key_heads * key_dim, key_heads, key_dim, channels),
                    view(w.qkv + 2 * key_heads * key_dim, heads, value_dim, channels), per_head(w.log_decay),
                    per_head(w.beta), state.data, new_state, w.out, tiled});
    nb::object result = empty<float>({n, heads * value_dim}, &out);
    const OpKernels& kernels = op_kernels();
    int dim = static_cast<int>(value_dim);
    share(n * heads, n * heads * value_dim * 32, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) {
            float* row = out + i * value_dim;
            const float* gate = z.row(i / heads) + i % heads * value_dim;
            kernels.rms_norm(w.out + i * value_dim, norm.data, epsilon, dim, row);
            (sigmoid_gate ? kernels.sigmoid_gate : kernels.silu_gate)(row, gate, dim, row);
        }
    });
    return nb::make_tuple(std::move(result), next_past(qkv, past), std::move(next));
}

}  // namespace

void bind_delta_net(nb::module_& m) {
    m.def("causal_convolution", &causal_convolution, "x"_a, "weight"_a, "past"_a, "dilation"_a = 1,
          "As strata.ops.convolution.causal_convolution.");
    m.def("delta_rule", &delta_rule, "q"_a, "k"_a, "v"_a, "log_decay"_a, "beta"_a, "state"_a, "position"_a,
          "As strata.ops.delta_rule.delta_rule.");
    m.def("gated_delta_net", &gated_delta_net, "qkv"_a, "z"_a, "beta"_a, "alpha"_a, "conv_weight"_a,
          "ssm_a"_a, "ssm_dt"_a, "norm"_a, "epsilon"_a, "past"_a, "state"_a, "position"_a, "tiled"_a,
          "sigmoid_gate"_a, "in_place"_a = false, "As strata.ops.gated_delta_net.gated_delta_net.");
}

}  // namespace strata
