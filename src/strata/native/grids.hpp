// Codebook formats (IQ1, IQ2, IQ3): an index names 4 or 8 weights of a grid; signs and sub-scales are
// separate. Block layouts: ggml `ggml-common.h`; the readable decoders are in strata/formats/quants/grid.py.
#pragma once

#include <array>
#include <bit>
#include <cstring>

#include "layout.hpp"

namespace strata {

// The codebooks, filled once from Python before a matrix of the format is made. A byte of an entry is the
// magnitude of a weight. In IQ1 a nibble n is 8 * weight +- 1 = 2n - 9; low nibbles are weights 0 to 3, high
// ones 4 to 7, and the upper half of the entries has the minus. Kernels may read 16 bytes around an entry.
struct Grids {
    uint64_t before[2];
    uint64_t iq2_xxs[256], iq2_xs[512], iq2_s[1024];
    uint32_t iq3_xxs[256], iq3_s[512], iq1[4096];
    uint64_t after[2];
};
inline Grids grids;

// One GGUF block of 256 weights, taken apart for the planes.
struct GridBlock {
    uint8_t index[64];
    uint32_t signs[8];  // bit g of byte j: weight 4g + j is negative
    uint16_t extra[8];  // upper bits of the indices of 32 weights (in IQ2_XS of 64)
    uint8_t sub[8];     // nibbles of sub-scales
    uint16_t scale;
};

template <class T>
inline T load_as(const uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Signs of eight weights, bit j for weight j, to where they are in a word of 32 signs: bit j / 4 of byte j
// % 4.
constexpr uint32_t spread_signs(uint32_t byte) {
    uint32_t word = 0;
    for (int j = 0; j < 8; ++j) word |= (byte >> j & 1) << (j % 4 * 8 + j / 4);
    return word;
}

inline constexpr auto kSigns = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t byte = 0; byte < 256; ++byte) table[byte] = spread_signs(byte);
    return table;
}();

// Seven stored sign bits: the eighth makes the number of negative weights even.
inline constexpr auto kEvenSigns = [] {
    std::array<uint32_t, 128> table{};
    for (uint32_t seven = 0; seven < 128; ++seven)
        table[seven] = spread_signs(seven | std::popcount(seven) % 2 << 7);
    return table;
}();

inline uint32_t sign_word(const uint8_t* bytes) {
    return kSigns[bytes[0]] | kSigns[bytes[1]] << 2 | kSigns[bytes[2]] << 4 | kSigns[bytes[3]] << 6;
}

inline uint32_t even_sign_word(uint32_t packed) {
    return kEvenSigns[packed & 127] | kEvenSigns[packed >> 7 & 127] << 2 |
           kEvenSigns[packed >> 14 & 127] << 4 | kEvenSigns[packed >> 21 & 127] << 6;
}

constexpr Layout grid_layout(const char* name, int bytes, int max_code, int sub_block, GridLayout grid) {
    bool iq1 = grid.extra_bits == 16;
    return {.name = name,
            .gguf_block = 256,
            .gguf_bytes = bytes,
            .low_bits = 8 / grid.weights,
            .high_bits = iq1 ? 0 : 1,
            .values = iq1 ? Values::linear : Values::sign_bits,
            .offset = iq1 ? 9 : 0,
            .max_code = max_code,
            .scale_block = 256,
            .scale = Scale::f16,
            .sub = Sub::grid,
            .sub_block = sub_block,
            .minimum = Minimum::none,
            .grid = grid};
}

// What kernels ask of a format: its table, the bits of the indices above the byte (`upper`, for index i of a
// step, from the step's `extra` bits), and its sub-scales as they are stored. `I` is the instruction set.

// A nibble of sub-scale for every 32 weights, two neighbours in a byte.
struct StepSubs {
    template <class I>
    static auto sub(const Tile& t, int step, int) {
        return I::nibbles(I::load_subs(t.sub + step / 2 * kTileRows), step % 2 * 4);
    }
};

// Two nibbles of sub-scales for every 32 weights.
struct HalfStepSubs {
    template <class I>
    static auto sub(const Tile& t, int step, int part) {
        return I::nibbles(I::load_subs(t.sub + step * kTileRows), part * 4);
    }
};

struct IQ2_XXS : StepSubs {
    static constexpr Layout layout = grid_layout("IQ2_XXS", 66, 43, 32, {8, 0, 4, 0.125f});
    static const uint64_t* table() { return grids.iq2_xxs; }
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        for (int i = 0; i < 8; ++i) {
            uint32_t word = load_as<uint32_t>(b + 6 + 8 * i);
            std::memcpy(g.index + 4 * i, b + 2 + 8 * i, 4);
            g.signs[i] = even_sign_word(word);
            g.sub[i / 2] = static_cast<uint8_t>(i % 2 ? g.sub[i / 2] | word >> 28 << 4 : word >> 28);
        }
    }
};

struct IQ2_XS : HalfStepSubs {
    static constexpr Layout layout = grid_layout("IQ2_XS", 74, 43, 16, {8, 4, 8, 0.125f});
    static const uint64_t* table() { return grids.iq2_xs; }
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memset(g.signs, 0, sizeof g.signs);
        std::memset(g.extra, 0, sizeof g.extra);
        for (int i = 0; i < 32; ++i) {
            uint32_t code = load_as<uint16_t>(b + 2 + 2 * i);
            g.index[i] = static_cast<uint8_t>(code);
            g.signs[i / 4] |= kEvenSigns[code >> 9] << (i % 4 * 2);
            g.extra[i / 8] |= (code >> 8 & 1) << (i % 8);
        }
        std::memcpy(g.sub, b + 66, 8);
    }
    template <class I>
    static auto extra(const Tile& t, int step) {
        return I::shr_rows(I::widen(I::load_bytes(t.extra + step / 2 * kTileRows)), step % 2 * 4);
    }
    template <class I>
    static auto upper(typename I::Rows extra, int i) {
        return I::and_rows(I::shr_rows(extra, i), 1);
    }
};

struct IQ2_S : HalfStepSubs {
    static constexpr Layout layout = grid_layout("IQ2_S", 82, 43, 16, {8, 8, 8, 0.125f});
    static const uint64_t* table() { return grids.iq2_s; }
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 32);
        for (int i = 0; i < 8; ++i) {
            g.signs[i] = sign_word(b + 34 + 4 * i);
            g.extra[i] = b[66 + i];
        }
        std::memcpy(g.sub, b + 74, 8);
    }
    template <class I>
    static auto extra(const Tile& t, int step) {
        return I::widen(I::load_bytes(t.extra + step * kTileRows));
    }
    template <class I>
    static auto upper(typename I::Rows extra, int i) {
        return I::and_rows(I::shr_rows(extra, 2 * i), 3);
    }
};

struct IQ3_XXS : StepSubs {
    static constexpr Layout layout = grid_layout("IQ3_XXS", 98, 62, 32, {4, 0, 4, 0.25f});
    static const uint32_t* table() { return grids.iq3_xxs; }
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 64);
        for (int i = 0; i < 8; ++i) {
            uint32_t word = load_as<uint32_t>(b + 66 + 4 * i);
            g.signs[i] = even_sign_word(word);
            g.sub[i / 2] = static_cast<uint8_t>(i % 2 ? g.sub[i / 2] | word >> 28 << 4 : word >> 28);
        }
    }
};

struct IQ3_S : StepSubs {
    static constexpr Layout layout = grid_layout("IQ3_S", 110, 15, 32, {4, 8, 4, 1.0f});
    static const uint32_t* table() { return grids.iq3_s; }
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 64);
        for (int i = 0; i < 8; ++i) {
            g.signs[i] = sign_word(b + 74 + 4 * i);
            g.extra[i] = b[66 + i];
        }
        std::memcpy(g.sub, b + 106, 4);
    }
    template <class I>
    static auto extra(const Tile& t, int step) {
        return I::widen(I::load_bytes(t.extra + step * kTileRows));
    }
    template <class I>
    static auto upper(typename I::Rows extra, int i) {
        return I::and_rows(I::shr_rows(extra, i), 1);
    }
};

// The file's 16 bits for each 32 weights.
struct Extra16 {
    static const uint32_t* table() { return grids.iq1; }
    template <class I>
    static auto extra(const Tile& t, int step) {
        return I::load_rows(t.extra + step * kTileRows * 2);
    }
};

struct IQ1_S : Extra16 {
    static constexpr Layout layout = grid_layout("IQ1_S", 50, 18, 32, {8, 16, 0, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 32);
        std::memcpy(g.extra, b + 34, 16);
    }
    template <class I>
    static auto upper(typename I::Rows extra, int i) {
        auto minus = I::and_rows(I::shr_rows(extra, 12), 8);
        return I::either_rows(I::and_rows(I::shr_rows(extra, 3 * i), 7), minus);
    }
    template <class I>
    static auto sub(const Tile& t, int step, int) {
        return I::narrow(I::and_rows(I::shr_rows(extra<I>(t, step), 12), 7));
    }
};

struct IQ1_M : Extra16, HalfStepSubs {
    static constexpr Layout layout = grid_layout("IQ1_M", 56, 18, 16, {8, 16, 8, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        std::memcpy(g.index, b, 32);
        std::memcpy(g.extra, b + 32, 16);
        g.scale = 0;
        for (int i = 0; i < 4; ++i) {
            uint32_t word = load_as<uint16_t>(b + 48 + 2 * i);
            g.scale |= word >> 12 << (4 * i);
            g.sub[2 * i] = (word & 7) | (word >> 3 & 7) << 4;
            g.sub[2 * i + 1] = (word >> 6 & 7) | (word >> 9 & 7) << 4;
        }
    }
    template <class I>
    static auto upper(typename I::Rows extra, int i) {
        return I::and_rows(I::shr_rows(extra, 4 * i), 15);
    }
};

}  // namespace strata
