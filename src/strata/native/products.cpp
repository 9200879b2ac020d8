// Products of a model's layers as one call each. Tensors come as addresses of contiguous float32: strata/native/ops.py
// has checked them, and that costs a tenth of an array's way through DLPack.
#include "products.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>

#include "bound.hpp"

namespace strata {

namespace {

using namespace nb::literals;

// outs[i] = x times the transpose of matrices[i], the rows of x quantised once.
void multiply_all(uintptr_t x, int rows, const std::vector<const BoundMatrix*>& matrices,
                  const std::vector<uintptr_t>& outs) {
    expect("number of outputs", outs.size(), matrices.size());
    const int k = matrices.at(0)->matrix.k;
    std::vector<int> ends;
    int n = 0;
    for (const BoundMatrix* m : matrices) {
        expect("number of activations in a row", k, m->matrix.k);
        ends.push_back(n += num_tiles(m->matrix.n));
    }
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    const Kernels& kernels = *runtime().kernels;
    Pool& pool = *runtime().pool;
    Activations a(rows, k);
    a.quantize(reinterpret_cast<const float*>(x), k, kernels, pool);
    pool.parallel_for(n, 1, [&](int begin, int end) {
        size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        while (begin < end) {
            int start = i ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
            const Matrix& m = matrices[i]->matrix;
            multiply_tiles(kernels, m, a, reinterpret_cast<float*>(outs[i]), m.n, begin - start, stop - start);
            begin = stop;
            ++i;
        }
    });
}

// The experts of a layer for `rows` rows of `slots` choices each; ids are int64, as torch has them.
void run_layer(const BoundExperts& experts, uintptr_t x, uintptr_t ids, uintptr_t weights, int rows, int slots,
               uintptr_t out) {
    const auto* id = reinterpret_cast<const int64_t*>(ids);
    std::vector<int32_t> chosen(static_cast<size_t>(rows) * slots);
    for (size_t i = 0; i < chosen.size(); ++i) {
        if (id[i] < 0 || id[i] >= experts.layer.gate.count)
            fail("expert id is " + std::to_string(id[i]) + ", expected 0 to " +
                 std::to_string(experts.layer.gate.count - 1));
        chosen[i] = static_cast<int32_t>(id[i]);
    }
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    run_experts(runtime(), experts.layer, reinterpret_cast<const float*>(x), chosen.data(),
                reinterpret_cast<const float*>(weights), rows, slots, reinterpret_cast<float*>(out));
}

// A dense feed-forward layer: the one expert that every row chooses, with weight 1.
void feed_forward(const BoundMatrix& gate, const BoundMatrix& up, const BoundMatrix& down, uintptr_t x,
                  int rows, uintptr_t out) {
    expect("rows of up", up.matrix.n, gate.matrix.n);
    expect("columns of up", up.matrix.k, gate.matrix.k);
    expect("columns of down", down.matrix.k, gate.matrix.n);
    expect("rows of down", down.matrix.n, gate.matrix.k);
    const ExpertLayer layer{{gate.matrix, 0, 1}, {up.matrix, 0, 1}, {down.matrix, 0, 1}};
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    const std::vector<int32_t> ids(rows, 0);
    const std::vector<float> weights(rows, 1.0f);
    run_experts(runtime(), layer, reinterpret_cast<const float*>(x), ids.data(), weights.data(), rows, 1,
                reinterpret_cast<float*>(out));
}

}  // namespace

void bind_products(nb::module_& m) {
    m.def("multiply_all", &multiply_all, "x"_a, "rows"_a, "matrices"_a, "outs"_a);
    m.def("run_layer", &run_layer, "experts"_a, "x"_a, "ids"_a, "weights"_a, "rows"_a, "slots"_a, "out"_a);
    m.def("feed_forward", &feed_forward, "gate"_a, "up"_a, "down"_a, "x"_a, "rows"_a, "out"_a);
}

}  // namespace strata
