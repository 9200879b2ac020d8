// What one process has of this: the kernels that its processor runs, and one pool of threads.
#pragma once

#include <memory>
#include <mutex>

#include "activations.hpp"
#include "pack.hpp"

namespace strata {

struct Runtime {
    std::mutex mutex;  // one caller at a time: the pool has one job
    const Kernels* kernels = available_isas().tables[0];
    std::unique_ptr<Pool> pool = std::make_unique<Pool>(1);
};

Runtime& runtime();

// A matrix [n, k] in planes.
struct Matrix {
    int format, n, k;
    const uint8_t* planes;
    TilePlan plan;
    float scale = 1;  // factor of every product: NVFP4 files have one beside the matrix

    Matrix(int format, int n, int k, const uint8_t* planes)
        : format(format), n(n), k(k), planes(planes), plan(plan_tile(format_layout(format), k)) {}
    size_t bytes() const { return plan.bytes * num_tiles(n); }
};

// out[row, 0..n) = matrix * activations (quantised, or floats where the matrix is), for tiles [begin, end);
// rows of `out` are `stride` floats apart.
void multiply_tiles(const Kernels& kernels, const Matrix& w, const Activations& x, float* out, size_t stride,
                    int begin, int end);

}  // namespace strata
