// The products of a model's layers as Python sees them: torch tensors in, torch tensors out, one call each.
#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bind_ops.hpp"
#include "bound.hpp"
#include "tensor.hpp"

namespace strata {

namespace {

using namespace nb::literals;

// The rows of x [..., width], `stride` floats apart.
struct Rows {
    const float* data;
    int count;
    size_t stride;
};

Rows rows_of(const Floats& x, int width) {
    expect("number of activations in a row", x.size(0), width);
    if (x.num_rows() > std::numeric_limits<int>::max() / 64) bad_shape("x", "has too many rows");
    for (int i = 2; i < x.ndim; ++i)
        if (x.size(i) > 1 && x.step(i) != x.step(i - 1) * x.size(i - 1)) bad_shape("x", "must be contiguous");
    return {x.data, static_cast<int>(x.num_rows()), static_cast<size_t>(x.step(1))};
}

// A new tensor in the shape of x but for its last dimension.
nb::object empty_rows(const Floats& x, int64_t width, float** data) {
    const auto& s = x.shape;
    switch (x.ndim) {
        case 1:
            return empty<float>({width}, data);
        case 2:
            return empty<float>({s[2], width}, data);
        case 3:
            return empty<float>({s[1], s[2], width}, data);
        default:
            return empty<float>({s[0], s[1], s[2], width}, data);
    }
}

// outs[i] = x times the transpose of matrices[i]; the rows of x are quantised once.
void multiply(const Rows& x, const std::vector<const Matrix*>& matrices, const std::vector<float*>& outs) {
    std::vector<int> ends;
    int n = 0;
    for (const Matrix* m : matrices) ends.push_back(n += num_tiles(m->n));
    std::lock_guard lock(runtime().mutex);
    const Kernels& kernels = *runtime().kernels;
    Pool& pool = *runtime().pool;
    Activations a(x.count, matrices[0]->k);
    a.set_floats(x.data, x.stride);
    auto quantized = [](const Matrix* m) { return !is_float(m->format); };
    if (std::any_of(matrices.begin(), matrices.end(), quantized)) a.quantize(x.data, x.stride, kernels, pool);
    pool.parallel_for(n, 1, [&](int begin, int end) {
        size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        while (begin < end) {
            int start = i ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
            multiply_tiles(kernels, *matrices[i], a, outs[i], matrices[i]->n, begin - start, stop - start);
            begin = stop;
            ++i;
        }
    });
}

nb::list matmul_all(const Floats& x, const std::vector<const BoundMatrix*>& matrices) {
    nb::list results;
    if (matrices.empty()) return results;
    Rows rows = rows_of(x, matrices[0]->matrix.k);
    std::vector<const Matrix*> bare;
    std::vector<float*> outs;
    for (const BoundMatrix* m : matrices) {
        expect("columns of a matrix", m->matrix.k, matrices[0]->matrix.k);
        bare.push_back(&m->matrix);
        results.append(empty_rows(x, m->matrix.n, &outs.emplace_back()));
    }
    nb::gil_scoped_release release;
    if (rows.count) multiply(rows, bare, outs);
    return results;
}

nb::object matmul(const Floats& x, const BoundMatrix& matrix) {
    return nb::object(matmul_all(x, {&matrix})[0]);
}

// The experts of a layer for rows of `slots` choices each.
nb::object experts(const Floats& x, const Array<const int64_t>& ids, const Floats& weights,
                   const BoundExperts& experts) {
    Rows rows = rows_of(x, experts.layer.gate.first.k);
    if (x.ndim != 2 || rows.stride != static_cast<size_t>(x.size(0))) bad_shape("x", "must be contiguous");
    const int64_t slots = ids.size(0);
    ids.expect("ids", {rows.count, slots});
    weights.expect("weights", {rows.count, slots});
    std::vector<int32_t> chosen;
    std::vector<float> shares;
    for (int64_t r = 0; r < rows.count; ++r) {
        for (int64_t s = 0; s < slots; ++s) {
            int64_t id = ids.row(r)[s];
            if (id < 0 || id >= experts.layer.gate.count)
                fail("expert id is " + std::to_string(id) + ", expected 0 to " +
                     std::to_string(experts.layer.gate.count - 1));
            chosen.push_back(static_cast<int32_t>(id));
            shares.push_back(weights.row(r)[s]);
        }
    }
    float* out;
    nb::object result = empty_like(x, &out);
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    if (rows.count)
        run_experts(runtime(), experts.layer, rows.data, chosen.data(), shares.data(), rows.count,
                    static_cast<int>(slots), out);
    return result;
}

// A dense feed-forward layer: the one expert that every row chooses, with weight 1.
nb::object feed_forward(const Floats& x, const BoundMatrix& gate, const BoundMatrix& up,
                        const BoundMatrix& down) {
    expect("rows of up", up.matrix.n, gate.matrix.n);
    expect("columns of up", up.matrix.k, gate.matrix.k);
    expect("columns of down", down.matrix.k, gate.matrix.n);
    expect("rows of down", down.matrix.n, gate.matrix.k);
    Rows rows = rows_of(x, gate.matrix.k);
    if (x.ndim != 2 || rows.stride != static_cast<size_t>(x.size(0))) bad_shape("x", "must be contiguous");
    const ExpertLayer layer{{gate.matrix, 0, 1}, {up.matrix, 0, 1}, {down.matrix, 0, 1}};
    float* out;
    nb::object result = empty_like(x, &out);
    nb::gil_scoped_release release;
    const std::vector<int32_t> ids(rows.count, 0);
    const std::vector<float> weights(rows.count, 1.0f);
    std::lock_guard lock(runtime().mutex);
    if (rows.count)
        run_experts(runtime(), layer, rows.data, ids.data(), weights.data(), rows.count, 1, out);
    return result;
}

}  // namespace

void bind_products(nb::module_& m) {
    m.def("matmul", &matmul, "x"_a, "matrix"_a);
    m.def("matmul_all", &matmul_all, "x"_a, "matrices"_a);
    m.def("experts", &experts, "x"_a, "ids"_a, "weights"_a, "layer"_a);
    m.def("feed_forward", &feed_forward, "x"_a, "gate"_a, "up"_a, "down"_a);
}

}  // namespace strata
