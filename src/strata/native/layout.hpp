// How each quant format lies in memory: the facts that packing and kernels share, known at compile time.
//
// A matrix [N, K] is cut in tiles of 16 output rows (N padded up with zero rows). A tile is one run of bytes
// that holds its planes one after the other: low codes, high codes, float scales, float minima, sub-scales,
// sub-minima, upper bits of codebook indices. In every plane the 16 rows are innermost, so that a SIMD lane
// is a row: sums never cross lanes and float order is the same on every machine. docs/NUMERICS.md has the
// layout in full.
#pragma once

#include <cstddef>
#include <cstdint>

namespace strata {

inline constexpr int kTileRows = 16;
inline constexpr int kActivationBlock = 128;
inline constexpr int kStep = 32;  // weights of a row that a kernel decodes at once

enum class Scale : uint8_t { none, f16, e8m0, ue4m3, f32 };  // storage of the float scale
// Integer sub-scale; nibbles: scale low, minimum high; grid: 2 * s + 1, packed as the format has it.
enum class Sub : uint8_t { none, i8, u8, nibbles, grid };
enum class Minimum : uint8_t { none, f16, sub };  // one float per block, or dmin times integer sub-minima
// What a code stands for; sign_bits: a magnitude, with a plane of signs.
enum class Values : uint8_t { linear, signed8, iq4nl, e2m1, sign_bits, floats };

// Codebook formats: weights named by an index byte, bits for each 32 weights in the planes `extra` and `sub`,
// and the power of two that the scale is multiplied with. `weights` is 0 for all other formats.
struct GridLayout {
    int weights, extra_bits, sub_bits;
    float scale_factor;
};

// One format. `offset` is subtracted from every code.
struct Layout {
    const char* name;
    int gguf_block, gguf_bytes;  // weights and bytes of a block in the file
    int low_bits, high_bits;     // widths of the two code planes
    Values values;
    int offset;
    int max_code;  // largest magnitude that meets an activation code
    int scale_block;
    Scale scale;
    Sub sub;
    int sub_block;
    Minimum minimum;
    GridLayout grid = {};

    // Weights whose products are summed in integers.
    constexpr int span() const { return scale_block < kActivationBlock ? scale_block : kActivationBlock; }
    constexpr int scale_bytes() const {
        return scale == Scale::none ? 0 : scale == Scale::f16 ? 2 : scale == Scale::f32 ? 4 : 1;
    }
    constexpr bool has_sub() const { return sub != Sub::none; }
    constexpr bool has_sub_minima_plane() const { return minimum == Minimum::sub && sub != Sub::nibbles; }
};

// Byte offsets of the planes inside a tile of rows of `k` weights.
struct TilePlan {
    size_t low, high, scale, minimum, sub, sub_minimum, extra, bytes;
};

constexpr TilePlan plan_tile(const Layout& f, size_t k) {
    TilePlan p{};
    size_t at = 0;
    auto plane = [&at](size_t bytes_per_row) {
        size_t begin = at;
        at += bytes_per_row * kTileRows;
        return begin;
    };
    p.low = plane(k * f.low_bits / 8);
    p.high = plane(k * f.high_bits / 8);
    p.scale = plane((k + f.scale_block - 1) / f.scale_block * f.scale_bytes());
    p.minimum = plane(f.minimum == Minimum::none ? 0 : k / f.scale_block * 2);
    p.sub = plane(f.grid.weights ? k * f.grid.sub_bits / 256 : f.has_sub() ? k / f.sub_block : 0);
    p.sub_minimum = plane(f.has_sub_minima_plane() ? k / f.sub_block : 0);
    p.extra = plane(k * f.grid.extra_bits / 256);
    p.bytes = (at + 63) / 64 * 64;
    return p;
}

// The bytes of one tile, plane by plane.
struct Tile {
    const uint8_t *low, *high, *scale, *minimum, *sub, *sub_minimum, *extra;
};

inline Tile tile_at(const uint8_t* base, const TilePlan& p) {
    return {base + p.low, base + p.high,        base + p.scale, base + p.minimum,
            base + p.sub, base + p.sub_minimum, base + p.extra};
}

// Up to this many activation rows are interleaved for a tile's kernel; more make a batch.
inline constexpr int kFewRows = 8;
inline constexpr int kBatchRows = 16;   // in a panel of a batch
inline constexpr int kBatchWords = 16;  // neighbouring words of one row of a batch: a cache line

// Where weight `at` of a row stands in the codes of a batch's panel, in words.
constexpr size_t batch_place(size_t at) {
    return at / (4 * kBatchWords) * kBatchRows * kBatchWords + at / 4 % kBatchWords;
}

// Activation rows, quantised: what a kernel reads beside a tile. M = rows, which are 8, 4, 2 or 1; in a batch
// they are up to 16, M = 16, and codes are [ceil(K / 64)][M][16].
struct Panel {
    int rows;
    const uint32_t* codes;  // [K / 4][M], four int8 codes in each word
    const uint32_t* sums;   // [K / 32][M], two int16: the sums of 16 codes and of the next 16
    const float* scales;    // [ceil(K / 128)][M]
};

}  // namespace strata
