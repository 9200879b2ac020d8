#include "attention.hpp"

#include <algorithm>
#include <vector>

#include "span_scratch.hpp"

namespace strata {

namespace {

constexpr int kBlockRows = 128;  // more, and their scores of a span leave the second-level cache

// A few queries of all heads that read one key-value head, and scratch for their attention to one span.
class Block {
public:
    Block(const OpKernels& kernels, const Attention& a, int64_t max_queries)
        : kernels_(kernels),
          a_(a),
          scratch_(max_queries * a.group(), a.q.size(0), a.v.size(0)),
          mask_(a.mask ? max_queries * a.group() : 0) {}

    // Takes queries [begin, end) of key-value head `head`.
    void begin(int64_t head, int64_t begin, int64_t end) {
        head_ = head;
        begin_ = begin;
        rows_ = static_cast<int>((end - begin) * a_.group());
        for (int r = 0; r < rows_; ++r)
            scratch_.set_query(r, a_.q.data + query(r) * a_.q.step(2) + q_head(r) * a_.q.step(1), a_.scale);
        scratch_.pad_queries(rows_);
    }

    // Spans that some row sees.
    int64_t first_span() const { return low(begin_) / kSpan; }
    int64_t end_span() const { return (position(query(rows_ - 1))) / kSpan + 1; }

    void attend_span(int64_t span, const Partial& out) {
        int64_t start = span * kSpan;
        for (int r = 0; r < rows_; ++r) {
            int64_t from = std::clamp<int64_t>(low(query(r)) - start, 0, kSpan);
            int64_t to = std::clamp<int64_t>(position(query(r)) + 1 - start, 0, kSpan);
            scratch_.low()[r] = static_cast<int>(from);
            scratch_.high()[r] = static_cast<int>(std::max(from, to));
            if (a_.mask) mask_[r] = a_.mask->data + query(r) * a_.mask->step(1) + start;
        }
        SpanRows rows = scratch_.rows(rows_);
        rows.k = a_.k.data + start * a_.k.step(2) + head_ * a_.k.step(1);
        rows.v = a_.v.data + start * a_.v.step(2) + head_ * a_.v.step(1);
        rows.k_step = a_.k.step(2);
        rows.v_step = a_.v.step(2);
        rows.mask = a_.mask ? mask_.data() : nullptr;
        kernels_.attend_span(rows, out);
    }

    // All spans in one go.
    void run(float* out) {
        clear();
        for (int64_t s = first_span(); s < end_span(); ++s) {
            attend_span(s, scratch_.span());
            merge(scratch_.span());
        }
        finish(out);
    }

    void clear() { scratch_.clear(); }
    void merge(const Partial& span) {
        kernels_.merge_span(rows_, static_cast<int>(a_.v.size(0)), scratch_.sum(), span);
    }
    void finish(float* out) {
        int64_t value_dim = a_.v.size(0);
        for (int r = 0; r < rows_; ++r)
            kernels_.finish(r, static_cast<int>(value_dim), scratch_.sum(),
                            out + (query(r) * a_.num_heads() + q_head(r)) * value_dim);
    }

    const SpanScratch& scratch() const { return scratch_; }

private:
    int64_t query(int row) const { return begin_ + row / a_.group(); }
    int64_t q_head(int row) const { return head_ * a_.group() + row % a_.group(); }
    int64_t position(int64_t query) const { return a_.num_keys() - a_.num_queries() + query; }
    int64_t low(int64_t query) const {
        return a_.window ? std::max<int64_t>(0, position(query) - a_.window + 1) : 0;
    }

    const OpKernels& kernels_;
    const Attention& a_;
    int64_t head_ = 0, begin_ = 0;
    int rows_ = 0;
    SpanScratch scratch_;
    std::vector<const bool*> mask_;
};

// One or a few queries over a long past: each span of a key-value head is a task of its own.
void attend_by_spans(const OpKernels& kernels, Pool& pool, const Attention& a, float* out) {
    int64_t n = a.num_queries(), heads = a.num_kv_heads();
    Block first(kernels, a, n);
    first.begin(0, 0, n);
    int64_t begin = first.first_span(), spans = first.end_span() - begin;
    size_t size = first.scratch().partial_size();
    std::vector<float> partials(heads * spans * size);
    pool.parallel_for(static_cast<int>(heads * spans), 1, [&](int from, int to) {
        Block block(kernels, a, n);
        for (int i = from; i < to; ++i) {
            block.begin(i / spans, 0, n);
            block.attend_span(begin + i % spans, block.scratch().partial(&partials[i * size]));
        }
    });
    for (int64_t h = 0; h < heads; ++h) {
        first.begin(h, 0, n);
        first.clear();
        for (int64_t s = 0; s < spans; ++s)
            first.merge(first.scratch().partial(&partials[(h * spans + s) * size]));
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
