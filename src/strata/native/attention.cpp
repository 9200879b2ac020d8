#include "attention.hpp"

#include <algorithm>
#include <limits>
#include <vector>

namespace strata {

namespace {

constexpr int kBlockRows = 128;  // more, and their scores of a span leave the second-level cache

// A few queries of all heads that read one key-value head, and scratch for their attention to one span.
class Block {
public:
    Block(const OpKernels& kernels, const Attention& a, int64_t max_queries)
        : kernels_(kernels), a_(a), max_rows_(max_queries * a.group()) {
        size_t padded = (max_rows_ + 3) / 4 * 4, dim = a.q.size(0), value_dim = a.v.size(0);
        scratch_.resize(16 + (dim + kSpan) * 16 + padded * (kSpan + dim) + 2 * max_rows_ * (value_dim + 2));
        size_t to_line = -reinterpret_cast<uintptr_t>(scratch_.data()) % 64 / sizeof(float);
        keys_ = scratch_.data() + to_line;
        values_ = keys_ + dim * 16;
        scores_ = values_ + kSpan * 16;
        q_ = scores_ + padded * kSpan;
        sum_ = partial(q_ + padded * dim);
        span_ = partial(sum_.out + max_rows_ * value_dim);
        limits_.resize(2 * max_rows_);
        mask_.resize(a.mask ? max_rows_ : 0);
    }

    // Takes queries [begin, end) of key-value head `head`.
    void begin(int64_t head, int64_t begin, int64_t end) {
        head_ = head;
        begin_ = begin;
        rows_ = static_cast<int>((end - begin) * a_.group());
        int64_t dim = a_.q.size(0);
        for (int r = 0; r < rows_; ++r) {
            const float* from = a_.q.data + query(r) * a_.q.step(2) + q_head(r) * a_.q.step(1);
            for (int64_t d = 0; d < dim; ++d) q_[r * dim + d] = from[d] * a_.scale;
        }
        std::fill(q_ + rows_ * dim, q_ + (rows_ + 3) / 4 * 4 * dim, 0.0f);
    }

    // Spans that some row sees.
    int64_t first_span() const { return low(begin_) / kSpan; }
    int64_t end_span() const { return (position(query(rows_ - 1))) / kSpan + 1; }

    void attend_span(int64_t span, const Partial& out) {
        int64_t start = span * kSpan;
        for (int r = 0; r < rows_; ++r) {
            int64_t from = std::clamp<int64_t>(low(query(r)) - start, 0, kSpan);
            int64_t to = std::clamp<int64_t>(position(query(r)) + 1 - start, 0, kSpan);
            limits_[r] = static_cast<int>(from);
            limits_[max_rows_ + r] = static_cast<int>(std::max(from, to));
            if (a_.mask) mask_[r] = a_.mask->data + query(r) * a_.mask->step(1) + start;
        }
        kernels_.attend_span({rows_, static_cast<int>(a_.q.size(0)), static_cast<int>(a_.v.size(0)), q_,
                              a_.k.data + start * a_.k.step(2) + head_ * a_.k.step(1),
                              a_.v.data + start * a_.v.step(2) + head_ * a_.v.step(1), a_.k.step(2),
                              a_.v.step(2), limits_.data(), limits_.data() + max_rows_,
                              a_.mask ? mask_.data() : nullptr, keys_, values_, scores_},
                             out);
    }

    // All spans in one go.
    void run(float* out) {
        clear();
        for (int64_t s = first_span(); s < end_span(); ++s) {
            attend_span(s, span_);
            merge(span_);
        }
        finish(out);
    }

    void clear() {
        std::fill(sum_.max, sum_.max + rows_, -std::numeric_limits<float>::infinity());
        std::fill(sum_.sum, sum_.sum + rows_, 0.0f);
        std::fill(sum_.out, sum_.out + rows_ * a_.v.size(0), 0.0f);
    }
    void merge(const Partial& span) {
        kernels_.merge_span(rows_, static_cast<int>(a_.v.size(0)), sum_, span);
    }
    void finish(float* out) {
        int64_t value_dim = a_.v.size(0);
        for (int r = 0; r < rows_; ++r)
            kernels_.finish(r, static_cast<int>(value_dim), sum_,
                            out + (query(r) * a_.num_heads() + q_head(r)) * value_dim);
    }

    // The parts of a Partial of `max_rows` rows in memory.
    Partial partial(float* memory) const { return {memory, memory + max_rows_, memory + 2 * max_rows_}; }

private:
    int64_t query(int row) const { return begin_ + row / a_.group(); }
    int64_t q_head(int row) const { return head_ * a_.group() + row % a_.group(); }
    int64_t position(int64_t query) const { return a_.num_keys() - a_.num_queries() + query; }
    int64_t low(int64_t query) const {
        return a_.window ? std::max<int64_t>(0, position(query) - a_.window + 1) : 0;
    }

    const OpKernels& kernels_;
    const Attention& a_;
    int64_t max_rows_, head_ = 0, begin_ = 0;
    int rows_ = 0;
    std::vector<float> scratch_;
    std::vector<int> limits_;
    std::vector<const bool*> mask_;
    float *keys_, *values_, *scores_, *q_;
    Partial sum_, span_;
};

// One or a few queries over a long past: each span of a key-value head is a task of its own.
void attend_by_spans(const OpKernels& kernels, Pool& pool, const Attention& a, float* out) {
    int64_t n = a.num_queries(), heads = a.num_kv_heads();
    Block first(kernels, a, n);
    first.begin(0, 0, n);
    int64_t begin = first.first_span(), spans = first.end_span() - begin;
    size_t size = n * a.group() * (a.v.size(0) + 2);
    std::vector<float> partials(heads * spans * size);
    pool.parallel_for(static_cast<int>(heads * spans), 1, [&](int from, int to) {
        Block block(kernels, a, n);
        for (int i = from; i < to; ++i) {
            block.begin(i / spans, 0, n);
            block.attend_span(begin + i % spans, block.partial(&partials[i * size]));
        }
    });
    for (int64_t h = 0; h < heads; ++h) {
        first.begin(h, 0, n);
        first.clear();
        for (int64_t s = 0; s < spans; ++s) first.merge(first.partial(&partials[(h * spans + s) * size]));
        first.finish(out);
    }
}

}  // namespace

void compute_attention(const OpKernels& kernels, Pool* pool, const Attention& a, float* out) {
    int64_t n = a.num_queries(), step = std::max<int64_t>(1, kBlockRows / a.group());
    int64_t blocks = (n + step - 1) / step, tasks = blocks * a.num_kv_heads();
    if (pool && blocks == 1 && tasks < 4 * pool->num_threads() && a.num_keys() > kSpan)
        return attend_by_spans(kernels, *pool, a, out);
    auto work = [&](int begin, int end) {
        Block block(kernels, a, std::min(step, n));
        for (int i = begin; i < end; ++i) {
            int64_t first = (blocks - 1 - i % blocks) * step;  // the longest first
            block.begin(i / blocks, first, std::min(first + step, n));
            block.run(out);
        }
    };
    if (pool)
        pool->parallel_for(static_cast<int>(tasks), 1, work);
    else
        work(0, static_cast<int>(tasks));
}

}  // namespace strata
