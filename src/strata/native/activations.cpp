#include "activations.hpp"

#include <algorithm>
#include <cstring>

namespace strata {

namespace {

int sum16(const int8_t* codes) {
    int sum = 0;
    for (int i = 0; i < 16; ++i) sum += codes[i];
    return sum;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

Activations::Activations(int rows, int k) : rows_(rows), k_(k), is_batch_(rows > kFewRows) {
    size_t codes = is_batch_ ? round_up(k, 4 * kBatchWords) / 4 : k / 4;
    size_t sums = k / kStep, scales = round_up(k, kActivationBlock) / kActivationBlock;
    size_t stored = is_batch_ ? round_up(rows, kBatchRows) : rows;
    words_ = std::make_unique_for_overwrite<uint32_t[]>(stored * (codes + sums + scales) + 16);
    uint32_t* at = words_.get();
    at += -reinterpret_cast<uintptr_t>(at) / 4 % 16;  // a row of a batch begins a cache line
    for (int row = 0; row < rows;) {
        int m = kFewRows;
        while (m > rows - row) m /= 2;
        int used = is_batch_ ? std::min(kBatchRows, rows - row) : m;
        int width = is_batch_ ? kBatchRows : m;
        panels_.push_back(
            {used, at, at + codes * width, reinterpret_cast<float*>(at + (codes + sums) * width)});
        first_rows_.push_back(row);
        size_t words = (codes + sums + scales) * width;
        if (used < width) std::memset(at, 0, 4 * words);  // rows that AMX multiplies along
        at += words;
        row += used;
    }
}

// The word of `codes` that holds codes 4 * word... of row m of a panel.
size_t Activations::place(const Panel& p, int m, int word) const {
    if (is_batch_) return batch_place(4 * word) + m * kBatchWords;
    return static_cast<size_t>(word) * p.rows + m;
}

void Activations::quantize_panel(int i, const float* x, size_t stride, QuantizeBlock quantize) {
    const Panel& p = panels_[i];
    auto* codes = const_cast<uint32_t*>(p.codes);
    auto* sums = const_cast<uint32_t*>(p.sums);
    auto* scales = const_cast<float*>(p.scales);
    int width = is_batch_ ? kBatchRows : p.rows;
    int8_t block[kActivationBlock];
    for (int m = 0; m < p.rows; ++m) {
        const float* row = x + (first_rows_[i] + m) * stride;
        for (int first = 0; first < k_; first += kActivationBlock) {
            int n = std::min(kActivationBlock, k_ - first);
            quantize(row + first, n, block, &scales[first / kActivationBlock * width + m]);
            for (int j = 0; j < n / 4; ++j) std::memcpy(&codes[place(p, m, first / 4 + j)], block + j * 4, 4);
            for (int s = 0; s < n / kStep; ++s) {
                uint32_t low = sum16(block + s * kStep), high = sum16(block + s * kStep + 16);
                sums[(first / kStep + s) * width + m] = (low & 0xFFFF) | high << 16;
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
