// Attention where every query has a key list of its own, and the choice of blocks that makes such lists.
#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "bind_ops.hpp"
#include "share.hpp"
#include "span_scratch.hpp"

namespace strata {

namespace {

using namespace nb::literals;

constexpr int64_t kScoredRows = 64;  // queries times heads that share a copy of keys

struct Gathered {
    Floats q, k, v;
    float scale;
    Array<const int64_t> positions;  // [n, keys]
    Array<const bool> visible;       // [n, keys]

    int64_t group() const { return q.size(1) / k.size(1); }
};

// One query's heads that read one key-value head; its list is cut into spans, hidden entries left out.
class GatheredRows {
public:
    GatheredRows(const OpKernels& kernels, const Gathered& g)
        : kernels_(kernels),
          g_(g),
          scratch_(g.group(), g.q.size(0), g.v.size(0)),
          keys_(kSpan * g.k.size(0)),
          values_(kSpan * g.v.size(0)) {}

    void begin(int64_t query, int64_t head) {
        head_ = head;
        for (int64_t r = 0; r < g_.group(); ++r)
            scratch_.set_query(r, g_.q.row(query * g_.q.size(1) + head * g_.group() + r), g_.scale);
        scratch_.pad_queries(g_.group());
        list_.clear();
        for (int64_t j = 0; j < g_.positions.size(0); ++j)
            if (g_.visible.row(query)[j]) list_.push_back(g_.positions.row(query)[j]);
    }

    void run(float* out) {
        int rows = static_cast<int>(g_.group()), value_dim = static_cast<int>(g_.v.size(0));
        scratch_.clear();
        for (size_t first = 0; first < list_.size(); first += kSpan) {
            int count = static_cast<int>(std::min<size_t>(kSpan, list_.size() - first));
            gather(first, count);
            SpanRows span = scratch_.rows(rows);
            span.k = keys_.data();
            span.v = values_.data();
            span.k_step = g_.k.size(0);
            span.v_step = value_dim;
            std::fill_n(scratch_.low(), rows, 0);
            std::fill_n(scratch_.high(), rows, count);
            kernels_.attend_span(span, scratch_.span());
            kernels_.merge_span(rows, value_dim, scratch_.sum(), scratch_.span());
        }
        for (int r = 0; r < rows; ++r) kernels_.finish(r, value_dim, scratch_.sum(), out + r * value_dim);
    }

private:
    void gather(size_t first, int count) {
        for (int j = 0; j < count; ++j) {
            int64_t row = list_[first + j];
            std::copy_n(g_.k.data + row * g_.k.step(2) + head_ * g_.k.step(1), g_.k.size(0),
                        &keys_[j * g_.k.size(0)]);
            std::copy_n(g_.v.data + row * g_.v.step(2) + head_ * g_.v.step(1), g_.v.size(0),
                        &values_[j * g_.v.size(0)]);
        }
    }

    const OpKernels& kernels_;
    const Gathered& g_;
    SpanScratch scratch_;
    std::vector<float> keys_, values_;
    std::vector<int64_t> list_;
    int64_t head_ = 0;
};

nb::object attend_gathered(const Floats& q, const Floats& k, const Floats& v, float scale,
                           const Array<const int64_t>& positions, const Array<const bool>& visible) {
    if (q.ndim != 3 || k.ndim != 3 || v.ndim != 3) bad_shape("q, k, v", "must be [positions, heads, dim]");
    int64_t n = q.size(2), heads = q.size(1), kv_heads = k.size(1), value_dim = v.size(0);
    k.expect("k", {k.size(2), kv_heads, q.size(0)});
    v.expect("v", {k.size(2), kv_heads, value_dim});
    if (kv_heads < 1 || heads % kv_heads) bad_shape("q", "has heads that cannot share those of k");
    positions.expect("positions", {n, positions.size(0)});
    visible.expect("visible", {n, positions.size(0)});
    for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < positions.size(0); ++j)
            if (positions.row(i)[j] < 0 || positions.row(i)[j] >= k.size(2))
                bad_shape("positions", "names a row that k does not have");
    float* out;
    nb::object result = empty<float>({n, heads, value_dim}, &out);
    Gathered g{q, k, v, scale, positions, visible};
    share(n * kv_heads, n * kv_heads * positions.size(0) * (q.size(0) + value_dim) * 4,
          [&](int begin, int end) {
              GatheredRows rows(op_kernels(), g);
              for (int64_t i = begin; i < end; ++i) {
                  rows.begin(i / kv_heads, i % kv_heads);
                  rows.run(out + i * g.group() * value_dim);
              }
          });
    return result;
}

// The `budget` blocks with the highest scores, ascending. Which of equal scores are chosen follows from the
// algorithms of the standard library that torch.topk calls, with its order: NaN first.
void choose_blocks(const float* scores, int64_t count, int64_t budget, int64_t* chosen) {
    using Entry = std::pair<float, int64_t>;
    auto above = [](const Entry& a, const Entry& b) {
        return (std::isnan(a.first) && !std::isnan(b.first)) || a.first > b.first;
    };
    std::vector<Entry> entries(count);
    for (int64_t i = 0; i < count; ++i) entries[i] = {scores[i], i};
    if (budget * 64 <= count)
        std::partial_sort(entries.begin(), entries.begin() + budget, entries.end(), above);
    else
        std::nth_element(entries.begin(), entries.begin() + budget - 1, entries.end(), above);
    for (int64_t i = 0; i < budget; ++i) chosen[i] = entries[i].second;
    std::sort(chosen, chosen + budget);
}

// Adds up scores of a few queries for the blocks that each may choose from, and chooses.
class BlockChooser {
public:
    BlockChooser(const OpKernels& kernels, const Floats& q, const Floats& keys, int64_t max_queries)
        : kernels_(kernels),
          q_(q),
          keys_(keys),
          scratch_(max_queries * q.size(1), q.size(0), 0),
          scores_(max_queries * keys.size(1)) {}

    // Queries [begin, end); the first counts[i] blocks compete for query i.
    void choose(int64_t begin, int64_t end, const int64_t* counts, int64_t budget, int64_t* chosen) {
        int64_t heads = q_.size(1), blocks = keys_.size(1), rows = (end - begin) * heads;
        for (int64_t r = 0; r < rows; ++r) scratch_.set_query(r, q_.row(begin * heads + r), 1.0f);
        scratch_.pad_queries(rows);
        int64_t most = *std::max_element(counts + begin, counts + end);
        for (int64_t first = 0; first < most; first += kSpan) {
            int n = static_cast<int>(std::min<int64_t>(kSpan, most - first));
            SpanRows span = scratch_.rows(static_cast<int>(rows));
            span.k = keys_.row(first);
            span.k_step = keys_.step(1);
            kernels_.score_span(span, n);
            for (int64_t i = 0; i < end - begin; ++i)
                kernels_.add_rectified(span.scores + i * heads * kSpan, static_cast<int>(heads), n,
                                       &scores_[i * blocks + first]);
        }
        for (int64_t i = begin; i < end; ++i)
            choose_blocks(&scores_[(i - begin) * blocks], counts[i], budget, chosen + i * budget);
    }

private:
    const OpKernels& kernels_;
    const Floats &q_, &keys_;
    SpanScratch scratch_;
    std::vector<float> scores_;  // [queries, blocks]
};

nb::object select_blocks(const Floats& q, const Floats& block_keys, const Array<const int64_t>& num_complete,
                         int64_t budget) {
    if (q.ndim != 3 || q.size(1) < 1) bad_shape("q", "must be [n, heads, dim]");
    int64_t n = q.size(2), heads = q.size(1), dim = q.size(0), blocks = block_keys.size(1);
    block_keys.expect("block_keys", {blocks, dim});
    num_complete.expect("num_complete", {n});
    for (int64_t i = 0; i < n; ++i)
        if (num_complete.data[i] < budget || num_complete.data[i] > blocks)
            bad_shape("num_complete", "must lie between budget and the number of blocks");
    if (budget < 1) bad_shape("budget", "must be at least 1");
    int64_t* chosen;
    nb::object result = empty<int64_t>({n, budget}, &chosen);
    const int64_t step = std::max<int64_t>(1, kScoredRows / heads);
    share((n + step - 1) / step, n * blocks * dim * 4, [&](int begin, int end) {
        BlockChooser chooser(op_kernels(), q, block_keys, std::min(step, n));
        for (int64_t i = begin; i < end; ++i)
            chooser.choose(i * step, std::min((i + 1) * step, n), num_complete.data, budget, chosen);
    });
    return result;
}

}  // namespace

void bind_sparse_attention(nb::module_& m) {
    m.def("attend_gathered", &attend_gathered, "q"_a, "k"_a, "v"_a, "scale"_a, "positions"_a, "visible"_a,
          "As strata.ops.gathered_attention.attend_gathered.");
    m.def("select_blocks", &select_blocks, "q"_a, "block_keys"_a, "num_complete"_a, "budget"_a,
          "As strata.ops.block_selection.select_blocks.");
}

}  // namespace strata
