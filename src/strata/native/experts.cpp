#include "experts.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <source_location>

namespace strata {

namespace {

// What one expert computes: the entries of a call that name it, ascending.
struct Group {
    int expert;
    std::vector<int> entries;
    Activations input, hidden;
    // [entries, width], [entries, ff] twice, [entries, width]; not initialised, which would take as long as
    // the products of a long prompt.
    std::unique_ptr<float[]> gathered, gate, up, down;

    Group(int expert, std::vector<int> of, int width, int ff)
        : expert(expert),
          entries(std::move(of)),
          input(static_cast<int>(entries.size()), width),
          hidden(static_cast<int>(entries.size()), ff),
          gathered(std::make_unique_for_overwrite<float[]>(entries.size() * width)),
          gate(std::make_unique_for_overwrite<float[]>(entries.size() * ff)),
          up(std::make_unique_for_overwrite<float[]>(entries.size() * ff)),
          down(std::make_unique_for_overwrite<float[]>(entries.size() * width)) {}
};

// Entries by expert, experts ascending.
std::vector<Group> group_by_expert(const int32_t* experts, int num_entries, int width, int ff) {
    std::vector<int> order(num_entries);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return experts[a] < experts[b]; });
    std::vector<Group> groups;
    for (auto first = order.begin(); first != order.end();) {
        int expert = experts[*first];
        auto last = std::find_if(first, order.end(), [&](int i) { return experts[i] != expert; });
        groups.emplace_back(expert, std::vector<int>(first, last), width, ff);
        Group& group = groups.back();
        group.input.set_floats(group.gathered.get(), width);
        group.hidden.set_floats(group.gate.get(), ff);
        first = last;
    }
    return groups;
}

// Calls work(group, begin, end) for ranges of `size(group)` items of every group, all groups in one loop.
template <class Size, class Work>
void for_each_item(Pool& pool, std::vector<Group>& groups, const Size& size, const Work& work,
                   std::source_location loop = std::source_location::current()) {
    std::vector<int> ends;
    int n = 0;
    for (auto& g : groups) ends.push_back(n += size(g));
    auto split = [&](int begin, int end) {
        size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        while (begin < end) {
            int start = i ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
            work(groups[i], begin - start, stop - start);
            begin = stop;
            ++i;
        }
    };
    pool.parallel_for(n, 1, split, loop);
}

// Computes every group, one pass over an expert's weights for all its entries. row_of(entry) is its row of
// `x`; ready(group, column, n) is called where columns [column, column + n) of `down` are there.
template <class RowOf, class Ready>
void compute(const Kernels& kernels, Pool& pool, const ExpertLayer& layer, std::vector<Group>& groups,
             const float* x, const RowOf& row_of, const Ready& ready) {
    int width = layer.gate.first.k, ff = layer.gate.first.n;
    bool quantized_input = !is_float(layer.gate.first.format) || !is_float(layer.up.first.format);
    auto panels = [](Group& g) { return g.input.num_panels(); };

    for_each_item(pool, groups, panels, [&](Group& g, int begin, int end) {
        for (int i = begin; i < end; ++i) {
            int first = g.input.first_row(i);
            for (int r = first; r < first + g.input.panel(i).rows; ++r)
                std::memcpy(&g.gathered[static_cast<size_t>(r) * width],
                            x + static_cast<size_t>(row_of(g.entries[r])) * width, width * sizeof(float));
            if (quantized_input) g.input.quantize_panel(i, g.gathered.get(), width, kernels.quantize);
        }
    });
    auto ff_tiles = [&](Group&) { return num_tiles(ff); };
    for_each_item(pool, groups, ff_tiles, [&](Group& g, int begin, int end) {
        multiply_tiles(kernels, layer.gate.at(g.expert), g.input, g.gate.get(), ff, begin, end);
        multiply_tiles(kernels, layer.up.at(g.expert), g.input, g.up.get(), ff, begin, end);
        int column = begin * kTileRows, n = std::min(end * kTileRows, ff) - column;
        for (size_t r = 0; r < g.entries.size(); ++r)
            kernels.swiglu(&g.gate[r * ff + column], &g.up[r * ff + column], n);
    });
    if (!is_float(layer.down.first.format))
        for_each_item(pool, groups, panels, [&](Group& g, int begin, int end) {
            for (int i = begin; i < end; ++i) g.hidden.quantize_panel(i, g.gate.get(), ff, kernels.quantize);
        });
    auto width_tiles = [&](Group&) { return num_tiles(width); };
    for_each_item(pool, groups, width_tiles, [&](Group& g, int begin, int end) {
        multiply_tiles(kernels, layer.down.at(g.expert), g.hidden, g.down.get(), width, begin, end);
        int column = begin * kTileRows;
        ready(g, column, std::min(end * kTileRows, width) - column);
    });
}

}  // namespace

void run_entries(const Kernels& kernels, Pool& pool, const ExpertLayer& layer, const float* x,
                 const int32_t* experts, const int32_t* rows, int num_entries, float* out) {
    int width = layer.gate.first.k;
    auto groups = group_by_expert(experts, num_entries, width, layer.gate.first.n);
    compute(
        kernels, pool, layer, groups, x, [&](int entry) { return rows[entry]; },
        [&](const Group& g, int column, int n) {
            for (size_t r = 0; r < g.entries.size(); ++r)
                std::memcpy(out + static_cast<size_t>(g.entries[r]) * width + column,
                            &g.down[r * width + column], n * sizeof(float));
        });
}

void run_experts(Runtime& runtime, const ExpertLayer& layer, const float* x, const int32_t* ids,
                 const float* weights, int rows, int slots, float* out) {
    Pool& pool = *runtime.pool;
    int width = layer.gate.first.k;
    auto groups = group_by_expert(ids, rows * slots, width, layer.gate.first.n);
    compute(
        *runtime.kernels, pool, layer, groups, x, [&](int entry) { return entry / slots; },
        [](const Group&, int, int) {});

    std::vector<const float*> partial(static_cast<size_t>(rows) * slots);
    for (auto& g : groups)
        for (size_t r = 0; r < g.entries.size(); ++r) partial[g.entries[r]] = &g.down[r * width];
    pool.parallel_for(rows, 4, [&](int begin, int end) {
        for (int row = begin; row < end; ++row) {
            float* y = out + static_cast<size_t>(row) * width;
            std::fill(y, y + width, 0.0f);
            for (int s = 0; s < slots; ++s) {
                const float* p = partial[static_cast<size_t>(row) * slots + s];
                float w = weights[static_cast<size_t>(row) * slots + s];
                for (int i = 0; i < width; ++i) y[i] = y[i] + w * p[i];
            }
        }
    });
}

}  // namespace strata
