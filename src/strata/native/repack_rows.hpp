// GGUF blocks to planes with a lane for each row: the dwords of 16 rows' blocks are turned so that a vector
// holds the same dword of every row, and codes, signs and sub-scales are rearranged inside the dwords. The
// result is that of pack.cpp's plain loops, which are easier to read; block layouts: ggml `ggml-common.h`.
//
// An instruction set I offers `Word` (a vector of I::lanes uint32 with C's operators) and the loads and
// stores used here. Blocks are read in pieces of 16 bytes that lie inside them.
#pragma once

#include "formats.hpp"

namespace strata {

// Where the planes of the next block of a tile go.
struct PlanePointers {
    uint8_t *low, *high, *scale, *minimum, *sub, *sub_minimum, *extra;
};

// One block of each of 16 rows, `stride` bytes apart.
template <class I>
struct Rows {
    using Word = typename I::Word;
    static constexpr int halves = kTileRows / I::lanes;
    // The same dword of all 16 rows.
    struct Tall {
        Word half[halves];
    };

    const uint8_t* first;
    size_t stride;

    // The n dwords at `offset` of the rows of a half.
    template <int n>
    void words(int offset, int half, Word* out) const {
        static_assert(n % 4 == 0);
        for (int i = 0; i < n; i += 4)
            I::load4(first + half * I::lanes * stride + offset + i * 4, stride, out + i);
    }
    // Dword `i` of the 16 bytes at `offset`.
    Tall tall(int offset, int i) const {
        Tall t;
        for (int h = 0; h < halves; ++h) {
            Word w[4];
            words<4>(offset, h, w);
            t.half[h] = w[i];
        }
        return t;
    }
};

// n = 4 dwords at a time through f, which makes `out` dwords of them; those become planes of bytes.
template <int out, class F, class I>
void bytes_of(const Rows<I>& r, int offset, uint8_t* plane, const F& f) {
    using Tall = typename Rows<I>::Tall;
    using Word = typename I::Word;
    Tall t[out];
    for (int h = 0; h < Rows<I>::halves; ++h) {
        Word w[4], o[out];
        r.template words<4>(offset, h, w);
        f(w, o);
        for (int i = 0; i < out; ++i) t[i].half[h] = o[i];
    }
    for (int i = 0; i < out; ++i) I::store_bytes(plane + i * 4 * kTileRows, t[i].half);
}

// Bytes as they are: dwords [skip, 4) of 16 bytes.
template <int skip = 0, class I>
void copy_bytes(const Rows<I>& r, int offset, uint8_t* plane) {
    using Word = typename I::Word;
    bytes_of<4 - skip>(r, offset, plane, [](const Word* w, Word* o) {
        for (int i = skip; i < 4; ++i) o[i - skip] = w[i];
    });
}

constexpr uint32_t spread(uint32_t byte) { return byte * 0x01010101u; }

// a's and b's fields of `bits` bits, two by two: even ones to `even`, odd ones to `odd`.
template <int bits, class Word>
void interleave(Word a, Word b, Word& even, Word& odd) {
    constexpr uint32_t mask = spread(bits == 1 ? 0x55 : bits == 2 ? 0x33 : 0x0F);
    even = (a & mask) | (b << bits & ~mask);
    odd = (a >> bits & mask) | (b & ~mask);
}

// Swaps the bits of `mask` with those `shift` above.
template <class Word>
Word swap_bits(Word x, int shift, uint32_t mask) {
    Word t = ((x >> shift) ^ x) & mask;
    return x ^ t ^ (t << shift);
}

// The words that f(half, words) makes of each half, as n cache lines of a plane, each line at once.
template <int n, class I, class F>
void lines(const Rows<I>&, uint8_t* plane, const F& f) {
    typename I::Word w[Rows<I>::halves][n];
    for (int h = 0; h < Rows<I>::halves; ++h) f(h, w[h]);
    for (int i = 0; i < n; ++i)
        for (int h = 0; h < Rows<I>::halves; ++h) I::store(plane + i * 64 + h * 4 * I::lanes, w[h][i]);
}

// Words as they are: 4n bytes at `offset`.
template <int n, class I>
void copy_words(const Rows<I>& r, int offset, uint8_t* plane) {
    lines<n>(r, plane, [&](int h, typename I::Word* out) { r.template words<n>(offset, h, out); });
}

// 4n bytes at `offset` with 8n weights, the low nibbles first.
template <int n, class I>
void nibbles(const Rows<I>& r, int offset, uint8_t* plane) {
    using Word = typename I::Word;
    lines<n>(r, plane, [&](int h, Word* out) {
        Word q[n];
        r.template words<n>(offset, h, q);
        for (int i = 0; i < n / 2; ++i) interleave<4>(q[2 * i], q[2 * i + 1], out[i], out[i + n / 2]);
    });
}

// 32 bytes with 128 weights: bits 0-1 of all bytes first, then bits 2-3, and so on.
template <class I>
void pairs(const Rows<I>& r, int offset, uint8_t* plane) {
    using Word = typename I::Word;
    lines<8>(r, plane, [&](int h, Word* out) {
        Word q[8], even[2], odd[2];
        r.template words<8>(offset, h, q);
        for (int i = 0; i < 2; ++i) {
            interleave<2>(q[4 * i], q[4 * i + 1], even[0], odd[0]);
            interleave<2>(q[4 * i + 2], q[4 * i + 3], even[1], odd[1]);
            interleave<4>(even[0], even[1], out[i], out[4 + i]);
            interleave<4>(odd[0], odd[1], out[2 + i], out[6 + i]);
        }
    });
}

// 32 bytes with 256 weights: bit 0 of all bytes first, then bit 1, and so on.
template <class I>
void bits(const Rows<I>& r, int offset, uint8_t* plane) {
    using Word = typename I::Word;
    lines<8>(r, plane, [&](int h, Word* out) {
        Word q[8], part[2][4];  // even and odd bits
        r.template words<8>(offset, h, q);
        for (int i = 0; i < 4; ++i) interleave<1>(q[2 * i], q[2 * i + 1], part[0][i], part[1][i]);
        for (int odd = 0; odd < 2; ++odd) {
            Word low[2], high[2];
            interleave<2>(part[odd][0], part[odd][1], low[0], high[0]);
            interleave<2>(part[odd][2], part[odd][3], low[1], high[1]);
            interleave<4>(low[0], low[1], out[odd], out[4 + odd]);
            interleave<4>(high[0], high[1], out[2 + odd], out[6 + odd]);
        }
    });
}

// A word with bit i for weight i: four neighbours go to the same bit of four bytes.
template <class Word>
Word mask_to_plane(Word x) {
    x = swap_bits(x, 7, 0x00AA00AA);  // bit j of nibble k of byte m goes to bit m of nibble k of byte j
    x = swap_bits(x, 14, 0x0000CCCC);
    x = swap_bits(x, 2, 0x0C0C0C0C);  // nibbles of a byte take turns
    return swap_bits(x, 1, 0x22222222);
}

// Four nibbles, the low ones of x, as four bytes.
template <class Word>
Word nibbles_to_bytes(Word x) {
    x = (x & 0xFF) | (x << 8 & 0x00FF0000);
    return (x | x << 4) & spread(0x0F);
}

// The float scale in the two bytes at `offset`.
template <class I>
void scale(const Rows<I>& r, int offset, uint8_t* plane) {
    I::store_low_halves(plane, r.tall(offset, 0).half);
}
// The float scale in the last two of the 16 bytes at `offset`.
template <class I>
void last_scale(const Rows<I>& r, int offset, uint8_t* plane) {
    I::store_high_halves(plane, r.tall(offset, 3).half);
}
// Both in dword `i` of the 16 bytes at `offset`.
template <class I>
void scale_and_minimum(const Rows<I>& r, int offset, int i, const PlanePointers& to) {
    using Tall = typename Rows<I>::Tall;
    Tall t = r.tall(offset, i);
    I::store_low_halves(to.scale, t.half);
    I::store_high_halves(to.minimum, t.half);
}

}  // namespace strata
