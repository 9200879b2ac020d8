#include "experts.hpp"

#include <algorithm>
#include <cstring>

namespace strata {

namespace {

// The rows that one expert computes. Entries are (row, slot) pairs: entry = row * slots + slot.
struct Group {
    int expert;
    std::vector<int> entries;
    Activations input, hidden;
    std::vector<float> gathered, gate, up, down;  // [entries, width], [entries, ff] twice, [entries, width]
};

// Entries by expert, experts ascending.
std::vector<Group> group_by_expert(const int32_t* ids, int num_entries, int num_experts, int width, int ff) {
    std::vector<std::vector<int>> entries(num_experts);
    for (int i = 0; i < num_entries; ++i) entries[ids[i]].push_back(i);
    std::vector<Group> groups;
    for (int e = 0; e < num_experts; ++e) {
        if (entries[e].empty()) continue;
        int n = static_cast<int>(entries[e].size());
        size_t wide = static_cast<size_t>(n) * width, deep = static_cast<size_t>(n) * ff;
        groups.push_back({e, std::move(entries[e]), Activations(n, width), Activations(n, ff),
                          std::vector<float>(wide), std::vector<float>(deep), std::vector<float>(deep),
                          std::vector<float>(wide)});
    }
    return groups;
}

// Calls work(group, begin, end) for ranges of `size(group)` items of every group, all groups in one loop.
template <class Size, class Work>
void for_each_item(Pool& pool, std::vector<Group>& groups, const Size& size, const Work& work) {
    std::vector<int> ends;
    int n = 0;
    for (auto& g : groups) ends.push_back(n += size(g));
    pool.parallel_for(n, 1, [&](int begin, int end) {
        size_t i = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
        while (begin < end) {
            int start = i ? ends[i - 1] : 0, stop = std::min(end, ends[i]);
            work(groups[i], begin - start, stop - start);
            begin = stop;
            ++i;
        }
    });
}

}  // namespace

void run_experts(Runtime& runtime, const ExpertLayer& layer, const float* x, const int32_t* ids,
                 const float* weights, int rows, int slots, float* out) {
    const Kernels& kernels = *runtime.kernels;
    Pool& pool = *runtime.pool;
    int width = layer.gate.first.k, ff = layer.gate.first.n;
    auto groups = group_by_expert(ids, rows * slots, layer.gate.count, width, ff);
    auto panels = [](Group& g) { return g.input.num_panels(); };

    for_each_item(pool, groups, panels, [&](Group& g, int begin, int end) {
        for (int i = begin; i < end; ++i) {
            int first = g.input.first_row(i);
            for (int r = first; r < first + g.input.panel(i).rows; ++r)
                std::memcpy(&g.gathered[static_cast<size_t>(r) * width],
                            x + static_cast<size_t>(g.entries[r] / slots) * width, width * sizeof(float));
            g.input.quantize_panel(i, g.gathered.data(), width, kernels.quantize);
        }
    });
    auto ff_tiles = [&](Group&) { return num_tiles(ff); };
    for_each_item(pool, groups, ff_tiles, [&](Group& g, int begin, int end) {
        multiply_tiles(kernels, layer.gate.at(g.expert), g.input, g.gate.data(), ff, begin, end);
        multiply_tiles(kernels, layer.up.at(g.expert), g.input, g.up.data(), ff, begin, end);
        int column = begin * kTileRows, n = std::min(end * kTileRows, ff) - column;
        for (size_t r = 0; r < g.entries.size(); ++r)
            kernels.swiglu(&g.gate[r * ff + column], &g.up[r * ff + column], n);
    });
    for_each_item(pool, groups, panels, [&](Group& g, int begin, int end) {
        for (int i = begin; i < end; ++i) g.hidden.quantize_panel(i, g.gate.data(), ff, kernels.quantize);
    });
    auto width_tiles = [&](Group&) { return num_tiles(width); };
    for_each_item(pool, groups, width_tiles, [&](Group& g, int begin, int end) {
        multiply_tiles(kernels, layer.down.at(g.expert), g.hidden, g.down.data(), width, begin, end);
    });

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
