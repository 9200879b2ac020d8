// The formats, one struct each: layout, and how a block of the file becomes plain integers.
// Block layouts: ggml `ggml-common.h`; the readable decoders are in strata/formats/quants.
#pragma once

#include <cstring>
#include <tuple>

#include "grids.hpp"

namespace strata {

// One GGUF block as integers, in the order of the weights. Scales and minima keep their stored bits.
struct Unpacked {
    uint8_t codes[256];
    uint8_t sub[16];
    uint8_t sub_minimum[16];
    uint16_t scale[4];
    uint16_t minimum[1];
};

inline uint16_t load_u16(const uint8_t* p) { return load_as<uint16_t>(p); }

// Nibbles of 2 * n weights in n bytes: first the low halves, then the high halves.
template <int n>
inline void unpack_nibbles(const uint8_t* p, uint8_t* codes) {
    for (int i = 0; i < n; ++i) {
        codes[i] = p[i] & 15;
        codes[n + i] = p[i] >> 4;
    }
}

// Adds bit i of a little-endian 32-bit mask to code i at position `at`, eight codes at a time.
template <int at>
inline void add_mask_bits(const uint8_t* mask, uint8_t* codes) {
    constexpr uint64_t ones = 0x0101010101010101u, diagonal = 0x8040201008040201u;
    for (int i = 0; i < 4; ++i) {
        uint64_t set =
            (mask[i] * ones & diagonal) + 0x7F7F7F7F7F7F7F7Fu;  // bit 7 of byte j: bit j of the mask
        uint64_t eight;
        std::memcpy(&eight, codes + i * 8, 8);
        eight |= (set >> 7 & ones) << at;
        std::memcpy(codes + i * 8, &eight, 8);
    }
}

struct Q8_0 {
    static constexpr Layout layout{.name = "Q8_0",
                                   .gguf_block = 32,
                                   .gguf_bytes = 34,
                                   .low_bits = 8,
                                   .high_bits = 0,
                                   .values = Values::signed8,
                                   .offset = 0,
                                   .max_code = 128,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        std::memcpy(u.codes, b + 2, 32);
    }
};

struct Q4_0 {
    static constexpr Layout layout{.name = "Q4_0",
                                   .gguf_block = 32,
                                   .gguf_bytes = 18,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::linear,
                                   .offset = 8,
                                   .max_code = 15,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        unpack_nibbles<16>(b + 2, u.codes);
    }
};

struct Q4_1 {
    static constexpr Layout layout{.name = "Q4_1",
                                   .gguf_block = 32,
                                   .gguf_bytes = 20,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::linear,
                                   .offset = 0,
                                   .max_code = 15,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::f16};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        u.minimum[0] = load_u16(b + 2);
        unpack_nibbles<16>(b + 4, u.codes);
    }
};

struct Q5_0 {
    static constexpr Layout layout{.name = "Q5_0",
                                   .gguf_block = 32,
                                   .gguf_bytes = 22,
                                   .low_bits = 4,
                                   .high_bits = 1,
                                   .values = Values::linear,
                                   .offset = 16,
                                   .max_code = 31,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        unpack_nibbles<16>(b + 6, u.codes);
        add_mask_bits<4>(b + 2, u.codes);
    }
};

struct Q5_1 {
    static constexpr Layout layout{.name = "Q5_1",
                                   .gguf_block = 32,
                                   .gguf_bytes = 24,
                                   .low_bits = 4,
                                   .high_bits = 1,
                                   .values = Values::linear,
                                   .offset = 0,
                                   .max_code = 31,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::f16};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        u.minimum[0] = load_u16(b + 2);
        unpack_nibbles<16>(b + 8, u.codes);
        add_mask_bits<4>(b + 4, u.codes);
    }
};

struct Q2_0 {
    static constexpr Layout layout{.name = "Q2_0",
                                   .gguf_block = 64,
                                   .gguf_bytes = 18,
                                   .low_bits = 2,
                                   .high_bits = 0,
                                   .values = Values::linear,
                                   .offset = 1,
                                   .max_code = 3,
                                   .scale_block = 64,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 64,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        for (int i = 0; i < 16; ++i) {
            uint32_t x = b[2 + i], four = (x | x << 6 | x << 12 | x << 18) & 0x03030303;
            std::memcpy(u.codes + i * 4, &four, 4);
        }
    }
};

struct Q2_K {
    static constexpr Layout layout{.name = "Q2_K",
                                   .gguf_block = 256,
                                   .gguf_bytes = 84,
                                   .low_bits = 2,
                                   .high_bits = 0,
                                   .values = Values::linear,
                                   .offset = 0,
                                   .max_code = 3,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::nibbles,
                                   .sub_block = 16,
                                   .minimum = Minimum::sub};
    static void unpack(const uint8_t* b, Unpacked& u) {
        std::memcpy(u.sub, b, 16);
        for (int half = 0; half < 2; ++half)
            for (int part = 0; part < 4; ++part)
                for (int i = 0; i < 32; ++i)
                    u.codes[half * 128 + part * 32 + i] = b[16 + half * 32 + i] >> (2 * part) & 3;
        u.scale[0] = load_u16(b + 80);
        u.minimum[0] = load_u16(b + 82);
    }
};

struct Q3_K {
    static constexpr Layout layout{.name = "Q3_K",
                                   .gguf_block = 256,
                                   .gguf_bytes = 110,
                                   .low_bits = 2,
                                   .high_bits = 1,
                                   .values = Values::linear,
                                   .offset = 4,
                                   .max_code = 7,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::i8,
                                   .sub_block = 16,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        const uint8_t *mask = b, *low = b + 32, *scales = b + 96;
        for (int half = 0; half < 2; ++half)
            for (int part = 0; part < 4; ++part)
                for (int i = 0; i < 32; ++i)
                    u.codes[half * 128 + part * 32 + i] =
                        (low[half * 32 + i] >> (2 * part) & 3) | (mask[i] >> (half * 4 + part) & 1) << 2;
        for (int i = 0; i < 16; ++i) {
            int nibble = i < 8 ? scales[i] & 15 : scales[i - 8] >> 4;
            int top = scales[8 + i % 4] >> (i / 4 * 2) & 3;
            u.sub[i] = static_cast<uint8_t>((nibble | top << 4) - 32);
        }
        u.scale[0] = load_u16(b + 108);
    }
};

// Scales and minima of Q4_K and Q5_K: 12 bytes hold eight 6-bit numbers of each.
inline void unpack_six_bit_scales(const uint8_t* p, Unpacked& u) {
    for (int i = 0; i < 4; ++i) {
        u.sub[i] = p[i] & 63;
        u.sub_minimum[i] = p[4 + i] & 63;
        u.sub[4 + i] = (p[8 + i] & 15) | (p[i] >> 2 & 48);
        u.sub_minimum[4 + i] = p[8 + i] >> 4 | (p[4 + i] >> 2 & 48);
    }
}

struct Q4_K {
    static constexpr Layout layout{.name = "Q4_K",
                                   .gguf_block = 256,
                                   .gguf_bytes = 144,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::linear,
                                   .offset = 0,
                                   .max_code = 15,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::u8,
                                   .sub_block = 32,
                                   .minimum = Minimum::sub};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        u.minimum[0] = load_u16(b + 2);
        unpack_six_bit_scales(b + 4, u);
        for (int i = 0; i < 4; ++i) unpack_nibbles<32>(b + 16 + i * 32, u.codes + i * 64);
    }
};

struct Q5_K {
    static constexpr Layout layout{.name = "Q5_K",
                                   .gguf_block = 256,
                                   .gguf_bytes = 176,
                                   .low_bits = 4,
                                   .high_bits = 1,
                                   .values = Values::linear,
                                   .offset = 0,
                                   .max_code = 31,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::u8,
                                   .sub_block = 32,
                                   .minimum = Minimum::sub};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        u.minimum[0] = load_u16(b + 2);
        unpack_six_bit_scales(b + 4, u);
        for (int i = 0; i < 4; ++i) unpack_nibbles<32>(b + 48 + i * 32, u.codes + i * 64);
        for (int part = 0; part < 8; ++part)
            for (int i = 0; i < 32; ++i) u.codes[part * 32 + i] |= (b[16 + i] >> part & 1) << 4;
    }
};

struct Q6_K {
    static constexpr Layout layout{.name = "Q6_K",
                                   .gguf_block = 256,
                                   .gguf_bytes = 210,
                                   .low_bits = 4,
                                   .high_bits = 2,
                                   .values = Values::linear,
                                   .offset = 32,
                                   .max_code = 63,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::i8,
                                   .sub_block = 16,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        for (int half = 0; half < 2; ++half) {
            uint8_t* codes = u.codes + half * 128;
            unpack_nibbles<64>(b + half * 64, codes);
            for (int part = 0; part < 4; ++part)
                for (int i = 0; i < 32; ++i)
                    codes[part * 32 + i] |= (b[128 + half * 32 + i] >> (2 * part) & 3) << 4;
        }
        std::memcpy(u.sub, b + 192, 16);
        u.scale[0] = load_u16(b + 208);
    }
};

struct IQ4_NL {
    static constexpr Layout layout{.name = "IQ4_NL",
                                   .gguf_block = 32,
                                   .gguf_bytes = 18,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::iq4nl,
                                   .offset = 0,
                                   .max_code = 127,
                                   .scale_block = 32,
                                   .scale = Scale::f16,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) { Q4_0::unpack(b, u); }
};

struct IQ4_XS {
    static constexpr Layout layout{.name = "IQ4_XS",
                                   .gguf_block = 256,
                                   .gguf_bytes = 136,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::iq4nl,
                                   .offset = 0,
                                   .max_code = 127,
                                   .scale_block = 256,
                                   .scale = Scale::f16,
                                   .sub = Sub::i8,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = load_u16(b);
        uint16_t high = load_u16(b + 2);
        for (int i = 0; i < 8; ++i) {
            int low = b[4 + i / 2] >> (i % 2 * 4) & 15;
            u.sub[i] = static_cast<uint8_t>((low | (high >> (2 * i) & 3) << 4) - 32);
            unpack_nibbles<16>(b + 8 + i * 16, u.codes + i * 32);
        }
    }
};

struct MXFP4 {
    static constexpr Layout layout{.name = "MXFP4",
                                   .gguf_block = 32,
                                   .gguf_bytes = 17,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::e2m1,
                                   .offset = 12,
                                   .max_code = 24,
                                   .scale_block = 32,
                                   .scale = Scale::e8m0,
                                   .sub = Sub::none,
                                   .sub_block = 32,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        u.scale[0] = b[0];
        unpack_nibbles<16>(b + 1, u.codes);
    }
};

struct NVFP4 {
    static constexpr Layout layout{.name = "NVFP4",
                                   .gguf_block = 64,
                                   .gguf_bytes = 36,
                                   .low_bits = 4,
                                   .high_bits = 0,
                                   .values = Values::e2m1,
                                   .offset = 12,
                                   .max_code = 24,
                                   .scale_block = 16,
                                   .scale = Scale::ue4m3,
                                   .sub = Sub::none,
                                   .sub_block = 16,
                                   .minimum = Minimum::none};
    static void unpack(const uint8_t* b, Unpacked& u) {
        for (int i = 0; i < 4; ++i) {
            u.scale[i] = b[i];
            unpack_nibbles<8>(b + 4 + i * 8, u.codes + i * 16);
        }
    }
};

using Formats = std::tuple<Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, IQ4_NL, IQ4_XS,
                           MXFP4, NVFP4, IQ1_S, IQ1_M, IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S>;
inline constexpr int kNumFormats = std::tuple_size_v<Formats>;

}  // namespace strata
