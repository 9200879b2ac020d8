// The ops between the products as Python sees them: torch tensors in, torch tensors out.
#include "ops.hpp"

#include <vector>

#include "bind_ops.hpp"
#include "share.hpp"
#include "tensor.hpp"

namespace strata {

const OpKernels& op_kernels() {
#if defined(STRATA_X86)
    if (runtime().kernels != &portable_kernels()) return avx2_op_kernels();
#endif
    return portable_op_kernels();
}

namespace {

using namespace nb::literals;

void expect_same_shape(const char* name, const Floats& got, const Floats& want) {
    if (got.ndim != want.ndim || got.shape != want.shape) bad_shape(name, "has another shape");
}

// [width], or [streams, width] for x [n, streams, width].
void expect_weight(const Floats& weight, const Floats& x) {
    bool per_row = weight.ndim > 1;
    if (weight.ndim > 2 || weight.size(0) != x.size(0) || (per_row && weight.size(1) != x.size(1)))
        bad_shape("weight", "does not fit the last dimensions of x");
}

nb::object rms_norm(const Floats& x, const Floats& weight, float epsilon) {
    expect_weight(weight, x);
    float* out;
    nb::object result = empty_like(x, &out);
    const OpKernels& kernels = op_kernels();
    int width = static_cast<int>(x.size(0));
    share(x.num_rows(), x.num_elements() * 8, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i)
            kernels.rms_norm(x.row(i), weight.data + i % weight.size(1) * weight.step(1), epsilon, width,
                             out + i * width);
    });
    return result;
}

nb::tuple add_rms_norm(const Floats& x, const Floats& y, const Floats& weight, float epsilon) {
    expect_weight(weight, x);
    expect_same_shape("y", y, x);
    float *sums, *out;
    nb::object sum = empty_like(x, &sums), result = empty_like(x, &out);
    const OpKernels& kernels = op_kernels();
    int width = static_cast<int>(x.size(0));
    share(x.num_rows(), x.num_elements() * 16, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) {
            float* row = sums + i * width;
            const float *a = x.row(i), *b = y.row(i);
            for (int j = 0; j < width; ++j) row[j] = a[j] + b[j];
            kernels.rms_norm(row, weight.data + i % weight.size(1) * weight.step(1), epsilon, width,
                             out + i * width);
        }
    });
    return nb::make_tuple(std::move(sum), std::move(result));
}

nb::object rotate(const Floats& x, const Floats& cos, const Floats& sin, bool interleaved) {
    if (x.ndim != 3) bad_shape("x", "must be [n, heads, dim]");
    int64_t dim = x.size(0), heads = x.size(1), pairs = cos.size(0);
    if (2 * pairs > dim) bad_shape("cos", "turns more values than a head has");
    cos.expect("cos", {x.size(2), pairs});
    sin.expect("sin", {x.size(2), pairs});
    float* out;
    nb::object result = empty_like(x, &out);
    const OpKernels& kernels = op_kernels();
    share(x.num_rows(), x.num_elements() * 8, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i)
            kernels.rotate(x.row(i), cos.row(i / heads), sin.row(i / heads), static_cast<int>(pairs),
                           static_cast<int>(dim), interleaved, out + i * dim);
    });
    return result;
}

nb::object swiglu(const Floats& gate, const Floats& up) {
    expect_same_shape("up", up, gate);
    float* out;
    nb::object result = empty_like(gate, &out);
    const OpKernels& kernels = op_kernels();
    int width = static_cast<int>(gate.size(0));
    // an exponential is worth some loads
    share(gate.num_rows(), gate.num_elements() * 32, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i)
            kernels.silu_gate(up.row(i), gate.row(i), width, out + i * width);
    });
    return result;
}

using Function = void (*OpKernels::*)(const float* x, int n, float* out);

// A function of each value by itself.
template <Function function>
nb::object elementwise(const Floats& x) {
    float* out;
    nb::object result = empty_like(x, &out);
    const OpKernels& kernels = op_kernels();
    int width = static_cast<int>(x.size(0));
    share(x.num_rows(), x.num_elements() * 32, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) (kernels.*function)(x.row(i), width, out + i * width);
    });
    return result;
}

nb::object read_streams(const Floats& normalized, const Floats& gate) {
    if (normalized.ndim != 3) bad_shape("normalized", "must be [n, streams, width]");
    int64_t n = normalized.size(2), streams = normalized.size(1), width = normalized.size(0);
    gate.expect("gate", {n, streams * width});
    float* out;
    nb::object result = empty<float>({n, width}, &out);
    const OpKernels& kernels = op_kernels();
    share(n, normalized.num_elements() * 32, [&](int begin, int end) {
        std::vector<float> part(width);
        for (int64_t i = begin; i < end; ++i) {
            float* row = out + i * width;
            for (int64_t s = 0; s < streams; ++s) {
                float* to = s ? part.data() : row;
                kernels.sigmoid_gate(normalized.row(i * streams + s), gate.row(i) + s * width,
                                     static_cast<int>(width), to);
                for (int64_t j = 0; s && j < width; ++j) row[j] += part[j];
            }
            for (int64_t j = 0; j < width; ++j) row[j] /= static_cast<float>(streams);
        }
    });
    return result;
}

nb::object write_streams(const Floats& residual, const Floats& output, const Floats& inject) {
    if (residual.ndim != 3) bad_shape("residual", "must be [n, streams, width]");
    int64_t n = residual.size(2), streams = residual.size(1), width = residual.size(0);
    output.expect("output", {n, width});
    inject.expect("inject", {n, streams});
    float* out;
    nb::object result = empty_like(residual, &out);
    const OpKernels& kernels = op_kernels();
    share(n * streams, residual.num_elements() * 12, [&](int begin, int end) {
        for (int64_t i = begin; i < end; ++i) {
            float strength = inject.row(i / streams)[i % streams] / static_cast<float>(streams);
            kernels.sigmoid(&strength, 1, &strength);
            strength *= 2;
            const float *from = residual.row(i), *add = output.row(i / streams);
            for (int64_t j = 0; j < width; ++j) out[i * width + j] = from[j] + strength * add[j];
        }
    });
    return result;
}

// The num_used largest of n probabilities, largest first, equal ones in ascending order.
void choose(const float* probabilities, int n, int num_used, int64_t* experts, float* weights) {
    int count = 0;
    for (int i = 0; i < n; ++i) {
        float p = probabilities[i];
        if (count == num_used && !(p > weights[count - 1])) continue;
        int at = count < num_used ? count++ : count - 1;
        for (; at > 0 && p > weights[at - 1]; --at) {
            weights[at] = weights[at - 1];
            experts[at] = experts[at - 1];
        }
        weights[at] = p;
        experts[at] = i;
    }
}

nb::tuple route(const Floats& logits, int num_used, bool normalize) {
    if (logits.ndim != 2 || num_used < 1 || num_used > logits.size(0))
        bad_shape("logits", "must be [n, experts] with at least num_used experts");
    int64_t n = logits.size(1), num_experts = logits.size(0);
    int64_t* experts;
    float* weights;
    nb::object ids = empty<int64_t>({n, num_used}, &experts);
    nb::object shares = empty<float>({n, num_used}, &weights);
    const OpKernels& kernels = op_kernels();
    share(n, logits.num_elements() * 32, [&](int begin, int end) {
        std::vector<float> probabilities(num_experts);
        for (int64_t i = begin; i < end; ++i) {
            float* w = weights + i * num_used;
            kernels.softmax(logits.row(i), static_cast<int>(num_experts), probabilities.data());
            choose(probabilities.data(), static_cast<int>(num_experts), num_used, experts + i * num_used, w);
            float sum = 0;
            for (int j = 0; j < num_used; ++j) sum += w[j];
            for (int j = 0; normalize && j < num_used; ++j) w[j] /= sum;
        }
    });
    return nb::make_tuple(std::move(ids), std::move(shares));
}

}  // namespace

void bind_ops(nb::module_& m) {
    load_tensor_api();
    m.def("rms_norm", &rms_norm, "x"_a, "weight"_a, "epsilon"_a, "As strata.ops.rms_norm.rms_norm.");
    m.def("rotate", &rotate, "x"_a, "cos"_a, "sin"_a, "interleaved"_a = false,
          "As strata.ops.rotary.rotate.");
    m.def("swiglu", &swiglu, "gate"_a, "up"_a, "As strata.ops.activation.swiglu.");
    m.def("silu", &elementwise<&OpKernels::silu>, "x"_a, "As strata.ops.activation.silu.");
    m.def("sigmoid", &elementwise<&OpKernels::sigmoid>, "x"_a, "As strata.ops.activation.sigmoid.");
    m.def("softplus", &elementwise<&OpKernels::softplus>, "x"_a, "As strata.ops.activation.softplus.");
    m.def("read_streams", &read_streams, "normalized"_a, "gate"_a,
          "As strata.ops.hyper_connection.read_streams.");
    m.def("write_streams", &write_streams, "residual"_a, "output"_a, "inject"_a,
          "As strata.ops.hyper_connection.write_streams.");
    m.def("route", &route, "logits"_a, "num_used"_a, "normalize"_a = true, "As strata.ops.router.route.");
    m.def("add_rms_norm", &add_rms_norm, "x"_a, "y"_a, "weight"_a, "epsilon"_a,
          "As strata.ops.rms_norm.add_rms_norm.");
    bind_attention(m);
    bind_delta_net(m);
    bind_sparse_attention(m);
}

}  // namespace strata
