#include "pack.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace strata {

namespace {

inline uint32_t load_u32(const uint8_t* p) {
    uint32_t v;
    std::memcpy(&v, p, 4);
    return v;
}

// Packs `n` codes of one row: bits [from, from + bits) of each, four codes to a group, 8 / bits groups to a
// word.
template <int bits, int from>
inline void pack_plane(const uint8_t* codes, int n, uint8_t* plane) {
    constexpr int groups = 8 / bits;
    constexpr uint32_t mask = ((1u << bits) - 1) * 0x01010101u;
    for (int i = 0; i < n / (4 * groups); ++i) {
        uint32_t word = 0;
        for (int g = 0; g < groups; ++g) {
            uint32_t group = load_u32(codes + (i * groups + g) * 4);
            word |= (group >> from & mask) << (g * bits);
        }
        std::memcpy(plane + i * 4 * kTileRows, &word, 4);
    }
}

template <class F>
void pack_grid_row(const uint8_t* blocks, int k, int row, uint8_t* tile) {
    constexpr Layout f = F::layout;
    constexpr int indices = 256 / f.grid.weights,
                  subs = f.grid.sub_bits;  // 8 steps of sub_bits each are as many bytes
    constexpr int extra_bytes = f.grid.extra_bits == 16 ? 2 : 1, extras = f.grid.extra_bits / extra_bytes;
    TilePlan p = plan_tile(f, k);
    GridBlock g;
    for (int b = 0; b < k / 256; ++b) {
        F::unpack(blocks + static_cast<size_t>(b) * f.gguf_bytes, g);
        for (int i = 0; i < indices; ++i) tile[p.low + (b * indices + i) * kTileRows + row] = g.index[i];
        if constexpr (f.high_bits > 0)
            for (int i = 0; i < 8; ++i)
                std::memcpy(tile + p.high + ((b * 8 + i) * kTileRows + row) * 4, &g.signs[i], 4);
        std::memcpy(tile + p.scale + (b * kTileRows + row) * 2, &g.scale, 2);
        for (int i = 0; i < subs; ++i) tile[p.sub + (b * subs + i) * kTileRows + row] = g.sub[i];
        for (int i = 0; i < extras; ++i)
            std::memcpy(tile + p.extra + ((b * extras + i) * kTileRows + row) * extra_bytes, &g.extra[i],
                        extra_bytes);
    }
}

template <class F>
void pack_row(const uint8_t* blocks, int k, int row, uint8_t* tile) {
    constexpr Layout f = F::layout;
    constexpr int scales = f.gguf_block / f.scale_block;
    constexpr int subs = f.has_sub() ? f.gguf_block / f.sub_block : 0;
    TilePlan p = plan_tile(f, k);
    Unpacked u;
    for (int b = 0; b < k / f.gguf_block; ++b) {
        F::unpack(blocks + static_cast<size_t>(b) * f.gguf_bytes, u);
        constexpr int low_bytes = f.gguf_block * f.low_bits / 8, high_bytes = f.gguf_block * f.high_bits / 8;
        pack_plane<f.low_bits, 0>(u.codes, f.gguf_block, tile + p.low + b * low_bytes * kTileRows + row * 4);
        if constexpr (f.high_bits > 0)
            pack_plane<f.high_bits, f.low_bits>(u.codes, f.gguf_block,
                                                tile + p.high + b * high_bytes * kTileRows + row * 4);
        for (int i = 0; i < scales; ++i) {
            uint8_t* to = tile + p.scale + ((b * scales + i) * kTileRows + row) * f.scale_bytes();
            std::memcpy(to, &u.scale[i], f.scale_bytes());  // little endian: the low byte comes first
        }
        if constexpr (f.minimum != Minimum::none)
            std::memcpy(tile + p.minimum + (b * kTileRows + row) * 2, &u.minimum[0], 2);
        for (int i = 0; i < subs; ++i) tile[p.sub + (b * subs + i) * kTileRows + row] = u.sub[i];
        if constexpr (f.has_sub_minima_plane())
            for (int i = 0; i < subs; ++i)
                tile[p.sub_minimum + (b * subs + i) * kTileRows + row] = u.sub_minimum[i];
    }
}

template <class F>
void pack_tile(const uint8_t* blocks, int rows, int k, uint8_t* tile) {
    TilePlan p = plan_tile(F::layout, k);
    size_t row_bytes = static_cast<size_t>(k) / F::layout.gguf_block * F::layout.gguf_bytes;
    if (rows < kTileRows) std::memset(tile, 0, p.bytes);
    for (int row = 0; row < rows; ++row) {
        if constexpr (F::layout.grid.weights)
            pack_grid_row<F>(blocks + row * row_bytes, k, row, tile);
        else
            pack_row<F>(blocks + row * row_bytes, k, row, tile);
    }
}

template <class F>
void pack_float_tile(const uint8_t* rows, int num_rows, int k, uint8_t* tile) {
    constexpr size_t bytes = F::layout.gguf_bytes;
    if (num_rows < kTileRows) std::memset(tile, 0, k * bytes * kTileRows);
    for (int row = 0; row < num_rows; ++row)
        for (int i = 0; i < k; ++i)
            std::memcpy(tile + (i * kTileRows + row) * bytes,
                        rows + (static_cast<size_t>(row) * k + i) * bytes, bytes);
}

using PackTile = void (*)(const uint8_t* blocks, int rows, int k, uint8_t* tile);

struct FormatEntry {
    Layout layout;
    PackTile pack;
};

template <class... F, class... G>
constexpr std::array<FormatEntry, kNumAllFormats> make_entries(std::tuple<F...>*, std::tuple<G...>*) {
    return {FormatEntry{F::layout, &pack_tile<F>}..., FormatEntry{G::layout, &pack_float_tile<G>}...};
}

constexpr auto kEntries = make_entries(static_cast<Formats*>(nullptr), static_cast<FloatFormats*>(nullptr));

}  // namespace

const Layout& format_layout(int index) { return kEntries[index].layout; }

int find_format(const char* name) {
    for (int i = 0; i < kNumAllFormats; ++i)
        if (!std::strcmp(kEntries[i].layout.name, name)) return i;
    return -1;
}

void pack_tiles([[maybe_unused]] const Kernels& kernels, int format, int n, int k, const uint8_t* blocks,
                uint8_t* planes, int begin, int end) {
    const auto& [layout, pack] = kEntries[format];
    size_t tile_blocks = static_cast<size_t>(k) / layout.gguf_block * layout.gguf_bytes * kTileRows;
    TilePlan plan = plan_tile(layout, k);
#if defined(STRATA_X86)
    if (int full = std::min(end, n / kTileRows); &kernels != &portable_kernels() && begin < full) {
        avx2_repack(format)(blocks + begin * tile_blocks, k, plan, planes + begin * plan.bytes, full - begin);
        begin = full;
    }
#endif
    for (int t = begin; t < end; ++t) {
        int rows = std::min(kTileRows, n - t * kTileRows);
        pack(blocks + t * tile_blocks, rows, k, planes + t * plan.bytes);
    }
}

}  // namespace strata
