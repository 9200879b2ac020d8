// The vector operations that kernel.hpp asks for, in plain C++. Other ISAs offer the same names.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>

namespace strata {

struct Portable {
    static constexpr const char* name = "portable";
    static constexpr int lanes = 8;

    struct Word {
        uint32_t v[lanes];
    };  // four bytes of one row in each lane
    struct Int {
        int32_t v[lanes];
    };
    struct Float {
        float v[lanes];
    };
    struct Bytes16 {
        uint8_t v[16];
    };  // one byte for each row of a tile
    using Subs = Bytes16;
    struct Rows {
        uint16_t v[16];
    };  // one uint16 for each row of a tile
    using Dot = Int;  // products on the way to an Int
    struct Signed {
        uint32_t v[lanes];
    };  // four signed bytes

    // What prepare() and apply_signs() add to signed codes; the sums of activation codes take it off again.
    static constexpr int signed_offset = 0;

    // How many dots may be added up before `Dot` could overflow, for codes of magnitude `max_code`.
    static constexpr int run(int) { return 8; }

    template <class V, class F>
    static V each(F f) {
        V r;
        for (int i = 0; i < lanes; ++i) r.v[i] = f(i);
        return r;
    }
    static int byte(uint32_t w, int i) { return w >> (8 * i) & 255; }
    static int signed_byte(uint32_t w, int i) { return static_cast<int8_t>(w >> (8 * i)); }
    static int low16(uint32_t w) { return static_cast<int16_t>(w); }
    static int high16(uint32_t w) { return static_cast<int16_t>(w >> 16); }

    static Word load(const uint8_t* p) {
        Word r;
        std::memcpy(&r, p, sizeof r);
        return r;
    }
    static void prefetch(const uint8_t*) {}
    static Bytes16 load_bytes(const uint8_t* p) {
        Bytes16 r;
        std::memcpy(&r, p, 16);
        return r;
    }
    static Subs load_subs(const uint8_t* p) { return load_bytes(p); }
    // Bits [shift, shift + 4) of each byte; `shift` is 0 or 4.
    static Subs nibbles(Subs b, int shift) {
        for (auto& x : b.v) x = x >> shift & 15;
        return b;
    }
    // 2 * b + 1 in each byte.
    static Subs odd(Subs b) {
        for (auto& x : b.v) x = static_cast<uint8_t>(2 * x + 1);
        return b;
    }

    static Rows load_rows(const uint8_t* p) {
        Rows r;
        std::memcpy(&r, p, sizeof r);
        return r;
    }
    static void store_rows(uint16_t* p, Rows a) { std::memcpy(p, a.v, sizeof a.v); }
    static Rows widen(Bytes16 b) {
        Rows r;
        for (int i = 0; i < 16; ++i) r.v[i] = b.v[i];
        return r;
    }
    static Subs narrow(Rows a) {
        Subs r;
        for (int i = 0; i < 16; ++i) r.v[i] = static_cast<uint8_t>(a.v[i]);
        return r;
    }
    static Rows shr_rows(Rows a, int n) {
        for (auto& x : a.v) x >>= n;
        return a;
    }
    static Rows and_rows(Rows a, int mask) {
        for (auto& x : a.v) x &= mask;
        return a;
    }
    static Rows either_rows(Rows a, Rows b) {
        for (int i = 0; i < 16; ++i) a.v[i] |= b.v[i];
        return a;
    }
    // low | high << 8.
    static Rows join_rows(Rows low, Rows high) {
        for (int i = 0; i < 16; ++i) low.v[i] |= high.v[i] << 8;
        return low;
    }

    template <int n>
    static Word shr(Word a) {
        return each<Word>([&](int i) { return a.v[i] >> n; });
    }
    template <int n>
    static Word shl(Word a) {
        return each<Word>([&](int i) { return a.v[i] << n; });
    }
    // `a & mask` with the same mask in every byte.
    static Word mask(Word a, uint8_t m) {
        return each<Word>([&](int i) { return a.v[i] & m * 0x01010101u; });
    }
    static Word either(Word a, Word b) {
        return each<Word>([&](int i) { return a.v[i] | b.v[i]; });
    }
    // table[b] for each byte b < 16.
    static Word lookup(const int8_t* table, Word a) {
        return each<Word>([&](int i) {
            uint32_t r = 0;
            for (int j = 0; j < 4; ++j) r |= uint32_t(uint8_t(table[byte(a.v[i], j)])) << (8 * j);
            return r;
        });
    }

    // Lane i becomes table[index[i]]; indices are uint8 or uint16.
    template <class Index>
    static Word lookup_words(const uint32_t* table, const Index* index) {
        return each<Word>([&](int i) { return table[index[i]]; });
    }
    // Lane i of `low` and `high` becomes the low and the high half of table[index[i]].
    template <class Index>
    static void lookup_pairs(const uint64_t* table, const Index* index, Word& low, Word& high) {
        low = each<Word>([&](int i) { return static_cast<uint32_t>(table[index[i]]); });
        high = each<Word>([&](int i) { return static_cast<uint32_t>(table[index[i]] >> 32); });
    }

    static Int zero() { return Int{}; }
    static Int add(Int a, Int b) {
        return each<Int>([&](int i) { return a.v[i] + b.v[i]; });
    }

    static Signed prepare(Word codes) { return std::bit_cast<Signed>(codes); }
    // Four bytes code + n; what prepare() added counts as part of n.
    template <int n>
    static Word biased(Signed codes) {
        return each<Word>([&](int i) {
            uint32_t r = 0;
            for (int j = 0; j < 4; ++j) r |= uint32_t(uint8_t(signed_byte(codes.v[i], j) + n)) << (8 * j);
            return r;
        });
    }
    // Magnitudes (below 128) with the signs in bit g of every byte.
    template <int g>
    static Signed apply_signs(Word magnitudes, Word signs) {
        return each<Signed>([&](int i) {
            uint32_t r = 0;
            for (int j = 0; j < 4; ++j) {
                int x = byte(magnitudes.v[i], j);
                r |= uint32_t(uint8_t(signs.v[i] >> (8 * j + g) & 1 ? -x : x)) << (8 * j);
            }
            return r;
        });
    }
    // Adds, in each lane, the products of four codes with four signed activation codes.
    static void multiply_add(Dot& sum, Word codes, uint32_t a) {
        for (int i = 0; i < lanes; ++i)
            for (int j = 0; j < 4; ++j) sum.v[i] += byte(codes.v[i], j) * signed_byte(a, j);
    }
    static void multiply_add(Dot& sum, Signed codes, uint32_t a) {
        for (int i = 0; i < lanes; ++i)
            for (int j = 0; j < 4; ++j) sum.v[i] += signed_byte(codes.v[i], j) * signed_byte(a, j);
    }
    static const uint32_t* hide(const uint32_t* p) { return p; }  // a hint for other compilers' registers
    static void keep(Int&) {}                                     // likewise
    static Int add_dot(Int sum, Dot d) { return add(sum, d); }
    static Int add_dot(Int sum, Dot d, Int scale) {
        return each<Int>([&](int i) { return sum.v[i] + d.v[i] * scale.v[i]; });
    }
    // A factor for add_dot: the bytes of half `half`.
    template <bool is_signed>
    static Int scale(Subs b, int half) {
        return each<Int>([&](int i) {
            uint8_t x = b.v[half * lanes + i];
            return is_signed ? int8_t(x) : x;
        });
    }

    // Pairs of int16 in each lane: (a[row], b[row]) for the rows of half `half`.
    template <bool is_signed>
    static Int pairs(Subs a, Subs b, int half) {
        auto widen = [](uint8_t x) {
            return uint32_t(uint16_t(is_signed ? int16_t(int8_t(x)) : int16_t(x)));
        };
        return each<Int>([&](int i) {
            return int32_t(widen(a.v[half * lanes + i]) | widen(b.v[half * lanes + i]) << 16);
        });
    }
    static Int constant_pairs(int low, int high) {
        return each<Int>(
            [&](int) { return int32_t(uint32_t(uint16_t(low)) | uint32_t(uint16_t(high)) << 16); });
    }
    // Both halves of each pair times n, as int16.
    static Int times(Int a, int n) {
        return each<Int>([&](int i) {
            return int32_t(uint32_t(uint16_t(low16(a.v[i]) * n)) | uint32_t(uint16_t(high16(a.v[i]) * n))
                                                                       << 16);
        });
    }
    // sum + low * s_low + high * s_high.
    static Int add_pairs(Int sum, Int p, uint32_t s) {
        return each<Int>(
            [&](int i) { return sum.v[i] + low16(p.v[i]) * low16(s) + high16(p.v[i]) * high16(s); });
    }

    static Float zero_float() { return Float{}; }
    static Float broadcast(float x) {
        return each<Float>([&](int) { return x; });
    }
    static Float to_float(Int a) {
        return each<Float>([&](int i) { return static_cast<float>(a.v[i]); });
    }
    static Float mul(Float a, Float b) {
        return each<Float>([&](int i) { return a.v[i] * b.v[i]; });
    }
    static Float add(Float a, Float b) {
        return each<Float>([&](int i) { return a.v[i] + b.v[i]; });
    }
    static Float sub(Float a, Float b) {
        return each<Float>([&](int i) { return a.v[i] - b.v[i]; });
    }
    static void store(float* p, Float a) { std::memcpy(p, a.v, sizeof a.v); }

    static float half_to_float(uint16_t h) {
        uint32_t sign = uint32_t(h & 0x8000) << 16, rest = h & 0x7FFF;
        if (rest >= 0x7C00) return std::bit_cast<float>(sign | 0x7F800000 | (rest & 0x3FF) << 13);
        // The exponent's bias differs by 112; the product also normalises subnormal halves.
        float magnitude = std::bit_cast<float>(rest << 13) * 0x1p112f;
        return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
    }
    static Float load_f32(const uint8_t* p) {
        Float r;
        std::memcpy(&r, p, sizeof r);
        return r;
    }
    static Float load_bf16(const uint8_t* p) {
        return each<Float>([&](int i) {
            uint16_t h;
            std::memcpy(&h, p + 2 * i, 2);
            return std::bit_cast<float>(uint32_t(h) << 16);
        });
    }
    // 16 rows of E4M3 without infinities; 0x7F and 0xFF are NaN.
    static void load_f8(const uint8_t* p, Float* rows) {
        for (int i = 0; i < 16; ++i) {
            uint32_t sign = uint32_t(p[i] & 128) << 24, rest = p[i] & 127;
            float magnitude = std::bit_cast<float>(rest == 127 ? 0x7FC00000u : rest << 20) * 0x1p120f;
            rows[i / lanes].v[i % lanes] = std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
        }
    }
    static Float load_f16(const uint8_t* p) {
        return each<Float>([&](int i) {
            uint16_t h;
            std::memcpy(&h, p + 2 * i, 2);
            return half_to_float(h);
        });
    }
    // 2^(e - 128): E2M1 values are stored doubled, so the scale is halved.
    static Float load_e8m0(const uint8_t* p) {
        return each<Float>([&](int i) {
            uint32_t e = p[i];
            return std::bit_cast<float>(e >= 2 ? (e - 1) << 23 : 0x00200000u << e);
        });
    }
    // Half of an unsigned E4M3 number, the top bit ignored; 0x7F stands for zero, as in ggml.
    static Float load_ue4m3(const uint8_t* p) {
        return each<Float>([&](int i) {
            uint32_t bits = p[i] == 127 ? 0u : uint32_t(p[i] & 127) << 20;
            return std::bit_cast<float>(bits) * 0x1p119f;
        });
    }
};

}  // namespace strata
