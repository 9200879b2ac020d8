// Codebook formats (IQ1, IQ2, IQ3): an index names 4 or 8 weights of a grid; signs and sub-scales are
// separate. Block layouts: ggml `ggml-common.h`; the readable decoders are in strata/formats/quants/grid.py.
#pragma once

#include <cstring>

#include "layout.hpp"

namespace strata {

// The codebooks, filled once from Python before a matrix of the format is made. A byte is a magnitude; in
// IQ1, it is 8 * weight + 8, so that it is unsigned too.
struct Grids {
    uint64_t iq1[2048], iq2_xxs[256], iq2_xs[512], iq2_s[1024];
    uint32_t iq3_xxs[256], iq3_s[512];
};
inline Grids grids;

// One GGUF block of 256 weights, taken apart for the planes.
struct GridBlock {
    uint8_t index[64];
    uint32_t signs[8];  // a set bit: the weight is negative
    uint16_t extra[8];  // upper bits of the indices of 32 weights (in IQ2_XS of 64)
    uint8_t sub[8];     // sub-scales of 32 weights (in IQ2_XXS of 64)
    uint16_t scale;
};

// 32 weights of 16 rows as a kernel wants them.
struct GridStep {
    alignas(64) uint32_t codes[8][kTileRows];
    alignas(16) uint8_t sub[2][kTileRows];
};

template <class T>
inline T load_as(const uint8_t* p) {
    T v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

// Seven stored sign bits in each byte; the eighth makes the number of negative weights even.
inline uint32_t even_signs(uint32_t seven) {
    uint32_t parity = (seven ^ seven >> 4) & 0x0F0F0F0F;
    parity ^= parity >> 2;
    parity = (parity ^ parity >> 1) & 0x01010101;
    return seven | parity << 7;
}

inline uint32_t even_sign_word(uint32_t packed) {
    return even_signs((packed & 0x7F) | (packed << 1 & 0x7F00) | (packed << 2 & 0x7F0000) |
                      (packed << 3 & 0x7F000000));
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

struct IQ2_XXS {
    static constexpr Layout layout = grid_layout("IQ2_XXS", 66, 43, 32, {8, 0, 4, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        for (int i = 0; i < 8; ++i) {
            uint32_t word = load_as<uint32_t>(b + 6 + 8 * i);
            std::memcpy(g.index + 4 * i, b + 2 + 8 * i, 4);
            g.signs[i] = even_sign_word(word);
            g.sub[i / 2] = static_cast<uint8_t>(i % 2 ? g.sub[i / 2] | word >> 28 << 4 : word >> 28);
        }
    }
    static uint64_t entry(int index, int, int) { return grids.iq2_xxs[index]; }
    static int extra(const uint8_t*, int, int) { return 0; }
    static int sub(const uint8_t* plane, int, int step, int row, int) {
        return plane[step / 2 * kTileRows + row] >> (step % 2 * 4) & 15;
    }
};

// Two nibbles of sub-scales for every 32 weights.
struct NibbleSubs {
    static int sub(const uint8_t* plane, int, int step, int row, int part) {
        return plane[step * kTileRows + row] >> (part * 4) & 15;
    }
};

struct IQ2_XS : NibbleSubs {
    static constexpr Layout layout = grid_layout("IQ2_XS", 74, 43, 16, {8, 4, 8, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memset(g.signs, 0, sizeof g.signs);
        std::memset(g.extra, 0, sizeof g.extra);
        for (int i = 0; i < 32; ++i) {
            uint32_t code = load_as<uint16_t>(b + 2 + 2 * i);
            g.index[i] = static_cast<uint8_t>(code);
            g.signs[i / 4] |= even_signs(code >> 9) << (i % 4 * 8);
            g.extra[i / 8] |= (code >> 8 & 1) << (i % 8);
        }
        std::memcpy(g.sub, b + 66, 8);
    }
    static uint64_t entry(int index, int extra, int i) { return grids.iq2_xs[index | (extra >> i & 1) << 8]; }
    static int extra(const uint8_t* plane, int step, int row) {
        return plane[step / 2 * kTileRows + row] >> (step % 2 * 4);
    }
};

struct IQ2_S : NibbleSubs {
    static constexpr Layout layout = grid_layout("IQ2_S", 82, 43, 16, {8, 8, 8, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 32);
        std::memcpy(g.signs, b + 34, 32);
        for (int i = 0; i < 8; ++i) g.extra[i] = b[66 + i];
        std::memcpy(g.sub, b + 74, 8);
    }
    static uint64_t entry(int index, int extra, int i) {
        return grids.iq2_s[index | (extra >> 2 * i & 3) << 8];
    }
    static int extra(const uint8_t* plane, int step, int row) { return plane[step * kTileRows + row]; }
};

// One byte of sub-scale for every 32 weights.
struct ByteSubs {
    static int sub(const uint8_t* plane, int, int step, int row, int) {
        return plane[step * kTileRows + row];
    }
};

struct IQ3_XXS : ByteSubs {
    static constexpr Layout layout = grid_layout("IQ3_XXS", 98, 62, 32, {4, 0, 8, 0.25f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 64);
        for (int i = 0; i < 8; ++i) {
            uint32_t word = load_as<uint32_t>(b + 66 + 4 * i);
            g.signs[i] = even_sign_word(word);
            g.sub[i] = static_cast<uint8_t>(word >> 28);
        }
    }
    static uint32_t entry(int index, int, int) { return grids.iq3_xxs[index]; }
    static int extra(const uint8_t*, int, int) { return 0; }
};

struct IQ3_S : ByteSubs {
    static constexpr Layout layout = grid_layout("IQ3_S", 110, 15, 32, {4, 8, 8, 1.0f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 64);
        for (int i = 0; i < 8; ++i) {
            g.extra[i] = b[66 + i];
            g.sub[i] = b[106 + i / 2] >> (i % 2 * 4) & 15;
        }
        std::memcpy(g.signs, b + 74, 32);
    }
    static uint32_t entry(int index, int extra, int i) { return grids.iq3_s[index | (extra >> i & 1) << 8]; }
    static int extra(const uint8_t* plane, int step, int row) { return plane[step * kTileRows + row]; }
};

// IQ1: 8 * weight +- 1, plus 9; a set bit `delta` means minus.
inline uint64_t iq1_entry(int index, int high, bool delta) {
    return grids.iq1[index | high << 8] + (delta ? 0 : 0x0202020202020202u);
}

inline int load_extra16(const uint8_t* plane, int step, int row) {
    return load_as<uint16_t>(plane + (step * kTileRows + row) * 2);
}

struct IQ1_S {
    static constexpr Layout layout = grid_layout("IQ1_S", 50, 18, 32, {8, 16, 0, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        g.scale = load_as<uint16_t>(b);
        std::memcpy(g.index, b + 2, 32);
        std::memcpy(g.extra, b + 34, 16);
    }
    static uint64_t entry(int index, int extra, int i) {
        return iq1_entry(index, extra >> 3 * i & 7, extra >> 15);
    }
    static int extra(const uint8_t* plane, int step, int row) { return load_extra16(plane, step, row); }
    static int sub(const uint8_t*, int extra, int, int, int) { return extra >> 12 & 7; }
};

struct IQ1_M {
    static constexpr Layout layout = grid_layout("IQ1_M", 56, 18, 16, {8, 16, 8, 0.125f});
    static void unpack(const uint8_t* b, GridBlock& g) {
        std::memcpy(g.index, b, 32);
        std::memcpy(g.extra, b + 32, 16);
        g.scale = 0;
        for (int i = 0; i < 4; ++i) {
            uint32_t word = load_as<uint16_t>(b + 48 + 2 * i);
            g.scale |= word >> 12 << (4 * i);
            g.sub[2 * i] = word & 63;
            g.sub[2 * i + 1] = word >> 6 & 63;
        }
    }
    static uint64_t entry(int index, int extra, int i) {
        return iq1_entry(index, extra >> 4 * i & 7, extra >> (4 * i + 3) & 1);
    }
    static int extra(const uint8_t* plane, int step, int row) { return load_extra16(plane, step, row); }
    static int sub(const uint8_t* plane, int, int step, int row, int part) {
        return plane[step * kTileRows + row] >> (3 * part) & 7;
    }
};

}  // namespace strata
