// The feed-forward experts of one layer: gate and up, SiLU, requantise, down, for rows that each name some
// experts.
#pragma once

#include <vector>

#include "runtime.hpp"

namespace strata {

// Matrices of one role (gate, up or down) for all experts, `stride` bytes of planes apart.
struct ExpertMatrices {
    Matrix first;
    size_t stride;
    int count;
    std::vector<float> scales = {};  // of the experts, where the file has factors beside the matrices

    Matrix at(int expert) const {
        Matrix m = first;
        m.planes += static_cast<size_t>(expert) * stride;
        if (!scales.empty()) m.scale = scales[expert];
        return m;
    }
};

struct ExpertLayer {
    ExpertMatrices gate, up, down;  // [ff, width], [ff, width], [width, ff]
};

// out[row] = sum over slots, ascending, of weights[row, slot] * expert(ids[row, slot])(x[row]).
// x and out: float32 [rows, width]; ids: int32 [rows, slots], each below the number of experts; weights:
// float32.
void run_experts(Runtime& runtime, const ExpertLayer& layer, const float* x, const int32_t* ids,
                 const float* weights, int rows, int slots, float* out);

// out[i] = expert(experts[i])(x[rows[i]]) for each entry i: what `run_experts` adds up, not yet weighed.
// experts and rows: int32 [entries], in range; out: float32 [entries, width].
void run_entries(const Kernels& kernels, Pool& pool, const ExpertLayer& layer, const float* x,
                 const int32_t* experts, const int32_t* rows, int num_entries, float* out);

}  // namespace strata
