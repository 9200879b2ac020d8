// The memory that attention to one span works in.
#pragma once

#include <algorithm>
#include <limits>
#include <vector>

#include "ops.hpp"

namespace strata {

// For up to `max_rows` rows; every part begins a cache line.
class SpanScratch {
public:
    SpanScratch(int64_t max_rows, int64_t dim, int64_t value_dim)
        : max_rows_(max_rows), dim_(dim), value_dim_(value_dim), low_(max_rows), high_(max_rows) {
        int64_t padded = (max_rows + 3) / 4 * 4;
        size_t sizes[] = {static_cast<size_t>(padded * dim),
                          static_cast<size_t>(dim * 16),
                          kSpan * 16,
                          static_cast<size_t>(padded * kSpan),
                          partial_size(),
                          partial_size()};
        float** parts[] = {&q, &keys, &values, &scores, &sum_, &span_};
        size_t total = 16;
        for (size_t& n : sizes) total += n = (n + 15) / 16 * 16;
        memory_.resize(total);
        float* at = memory_.data() + -reinterpret_cast<uintptr_t>(memory_.data()) % 64 / sizeof(float);
        for (int i = 0; i < 6; ++i) {
            *parts[i] = at;
            at += sizes[i];
        }
    }
    SpanScratch(const SpanScratch&) = delete;
    SpanScratch& operator=(const SpanScratch&) = delete;

    float *q, *keys, *values, *scores;

    size_t partial_size() const { return max_rows_ * (value_dim_ + 2); }
    Partial partial(float* memory) const { return {memory, memory + max_rows_, memory + 2 * max_rows_}; }
    Partial sum() const { return partial(sum_); }
    Partial span() const { return partial(span_); }

    // Nothing seen yet.
    void clear() {
        std::fill_n(sum_, max_rows_, -std::numeric_limits<float>::infinity());
        std::fill_n(sum_ + max_rows_, max_rows_ * (value_dim_ + 1), 0.0f);
    }

    // q[row] = scale * from
    void set_query(int64_t row, const float* from, float scale) {
        for (int64_t d = 0; d < dim_; ++d) q[row * dim_ + d] = from[d] * scale;
    }
    // Rows are taken in groups of four: those that are missing are zero.
    void pad_queries(int64_t rows) { std::fill(q + rows * dim_, q + (rows + 3) / 4 * 4 * dim_, 0.0f); }

    int* low() { return low_.data(); }
    int* high() { return high_.data(); }

    // All of a SpanRows but keys, values and mask.
    SpanRows rows(int rows) const {
        SpanRows s{};
        s.rows = rows;
        s.dim = static_cast<int>(dim_);
        s.value_dim = static_cast<int>(value_dim_);
        s.q = q;
        s.low = low_.data();
        s.high = high_.data();
        s.keys = keys;
        s.values = values;
        s.scores = scores;
        return s;
    }

private:
    int64_t max_rows_, dim_, value_dim_;
    float *sum_, *span_;
    std::vector<int> low_, high_;
    std::vector<float> memory_;
};

}  // namespace strata
