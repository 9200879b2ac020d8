#include "activations.hpp"

#include <algorithm>
#include <cstring>

namespace strata {

namespace {

size_t num_blocks(size_t k) { return (k + kActivationBlock - 1) / kActivationBlock; }

}  // namespace

Activations::Activations(int rows, int k) : rows_(rows), k_(k) {
    size_t codes = k / 4, sums = k / kStep, scales = num_blocks(k);
    words_ = std::make_unique_for_overwrite<uint32_t[]>(rows * (codes + sums + scales));
    uint32_t* at = words_.get();
    for (int row = 0; row < rows;) {
        int m = 8;
        while (m > rows - row) m /= 2;
        panels_.push_back({m, at, at + codes * m, reinterpret_cast<float*>(at + (codes + sums) * m)});
        first_rows_.push_back(row);
        at += (codes + sums + scales) * m;
        row += m;
    }
}

void Activations::quantize_panel(int i, const float* x, size_t stride, QuantizeBlock quantize) {
    const Panel& p = panels_[i];
    auto* codes = const_cast<uint32_t*>(p.codes);
    auto* sums = const_cast<uint32_t*>(p.sums);
    auto* scales = const_cast<float*>(p.scales);
    int8_t block[kActivationBlock];
    for (int m = 0; m < p.rows; ++m) {
        const float* row = x + (first_rows_[i] + m) * stride;
        for (int first = 0; first < k_; first += kActivationBlock) {
            int n = std::min(kActivationBlock, k_ - first);
            quantize(row + first, n, block, &scales[first / kActivationBlock * p.rows + m]);
            for (int j = 0; j < n / 4; ++j)
                std::memcpy(&codes[(first / 4 + j) * p.rows + m], block + j * 4, 4);
            for (int s = 0; s < n / kStep; ++s) {
                int pair[2] = {0, 0};
                for (int j = 0; j < kStep; ++j) pair[j / 16] += block[s * kStep + j];
                sums[(first / kStep + s) * p.rows + m] =
                    static_cast<uint16_t>(pair[0]) | static_cast<uint32_t>(pair[1]) << 16;
            }
        }
    }
}

void Activations::quantize(const float* x, size_t stride, const Kernels& kernels, Pool& pool) {
    pool.parallel_for(num_panels(), 2, [&](int begin, int end) {
        for (int i = begin; i < end; ++i) quantize_panel(i, x, stride, kernels.quantize);
    });
}

}  // namespace strata
