// Codebook formats (IQ1, IQ2, IQ3), rearranged for 16 rows at once.
#pragma once

#include "repack_rows.hpp"

namespace strata {

// As the function of this name in grids.hpp.
template <class Word>
Word even_signs(Word seven) {
    Word parity = (seven ^ seven >> 4) & 0x0F0F0F0F;
    parity ^= parity >> 2;
    parity = (parity ^ parity >> 1) & 0x01010101;
    return mask_to_plane(seven | parity << 7);
}
template <class Word>
Word even_sign_word(Word packed) {
    return even_signs((packed & 0x7F) | (packed << 1 & 0x7F00) | (packed << 2 & 0x7F0000) |
                      (packed << 3 & 0x7F000000));
}

// 32 bytes with a bit for each of 256 weights.
template <class I>
void signs(const Rows<I>& r, int offset, uint8_t* plane) {
    lines<8>(r, plane, [&](int h, typename I::Word* out) {
        r.template words<8>(offset, h, out);
        for (int i = 0; i < 8; ++i) out[i] = mask_to_plane(out[i]);
    });
}

// Eight 16-bit numbers as they are.
template <class I>
void copy_halves(const Rows<I>& r, int offset, uint8_t* plane) {
    typename Rows<I>::Tall t[4];
    for (int h = 0; h < Rows<I>::halves; ++h) {
        typename I::Word w[4];
        r.template words<4>(offset, h, w);
        for (int i = 0; i < 4; ++i) t[i].half[h] = w[i];
    }
    for (int i = 0; i < 4; ++i) I::store_halves(plane + i * 64, t[i].half);
}

// Two passes, so that lines of two planes do not take turns: they may lie a multiple of 4 KiB apart, which
// makes stores past the caches slow.
template <class I>
void block(IQ2_XXS, const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    scale(r, 0, to.scale);
    for (int i = 0; i < 4; ++i)  // twice four indices, then their signs and the sub-scale
        bytes_of<2>(r, 2 + 16 * i, to.low + i * 128, [](const Word* w, Word* out) {
            out[0] = w[0];
            out[1] = w[2];
        });
    typename Rows<I>::Tall subs{};
    lines<8>(r, to.high, [&](int h, Word* out) {
        for (int i = 0; i < 4; ++i) {
            Word w[4];
            r.template words<4>(2 + 16 * i, h, w);
            out[2 * i] = even_sign_word(w[1]);
            out[2 * i + 1] = even_sign_word(w[3]);
            subs.half[h] |= (w[1] >> 28 | w[3] >> 28 << 4) << (8 * i);
        }
    });
    I::store_bytes(to.sub, subs.half);
}

// The low byte of each half of a and b.
template <class Word>
Word low_bytes(Word a, Word b) {
    a &= 0x00FF00FF;
    b &= 0x00FF00FF;
    return ((a | a >> 8) & 0xFFFF) | (b | b >> 8) << 16;
}

template <class I>
void block(IQ2_XS, const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    scale(r, 0, to.scale);
    for (int i = 0; i < 4; ++i)  // eight 16-bit codes: nine bits of index, seven of signs
        bytes_of<2>(r, 2 + 16 * i, to.low + i * 128, [](const Word* w, Word* out) {
            out[0] = low_bytes(w[0], w[1]);
            out[1] = low_bytes(w[2], w[3]);
        });
    typename Rows<I>::Tall ninth{};
    lines<8>(r, to.high, [&](int h, Word* out) {
        for (int i = 0; i < 4; ++i) {
            Word w[4];
            r.template words<4>(2 + 16 * i, h, w);
            for (int j = 0; j < 2; ++j) {
                Word a = w[2 * j], b = w[2 * j + 1];
                out[2 * i + j] = even_signs(low_bytes(a >> 9 & 0x007F007F, b >> 9 & 0x007F007F));
                Word bits = (a >> 8 & 0x00010001) | (b >> 6 & 0x00040004);
                ninth.half[h] |= ((bits | bits >> 15) & 0x0F) << (8 * i + 4 * j);
            }
        }
    });
    I::store_bytes(to.extra, ninth.half);
    copy_bytes<2>(r, 58, to.sub);
}

template <class I>
void block(IQ2_S, const Rows<I>& r, const PlanePointers& to) {
    scale(r, 0, to.scale);
    copy_bytes(r, 2, to.low);
    copy_bytes(r, 18, to.low + 4 * 64);
    signs(r, 34, to.high);
    copy_bytes<2>(r, 58, to.extra);
    copy_bytes<2>(r, 66, to.sub);
}

template <class I>
void block(IQ3_XXS, const Rows<I>& r, const PlanePointers& to) {
    using Tall = typename Rows<I>::Tall;
    using Word = typename I::Word;
    scale(r, 0, to.scale);
    for (int i = 0; i < 4; ++i) copy_bytes(r, 2 + 16 * i, to.low + i * 4 * 64);
    Tall subs{};
    lines<8>(r, to.high, [&](int h, Word* out) {  // words of signs and a sub-scale
        r.template words<8>(66, h, out);
        for (int i = 0; i < 8; ++i) {
            subs.half[h] |= out[i] >> 28 << (4 * i);
            out[i] = even_sign_word(out[i]);
        }
    });
    I::store_bytes(to.sub, subs.half);
}

template <class I>
void block(IQ3_S, const Rows<I>& r, const PlanePointers& to) {
    scale(r, 0, to.scale);
    for (int i = 0; i < 4; ++i) copy_bytes(r, 2 + 16 * i, to.low + i * 4 * 64);
    copy_bytes<2>(r, 58, to.extra);
    signs(r, 74, to.high);
    copy_bytes<3>(r, 94, to.sub);
}

template <class I>
void block(IQ1_S, const Rows<I>& r, const PlanePointers& to) {
    scale(r, 0, to.scale);
    copy_bytes(r, 2, to.low);
    copy_bytes(r, 18, to.low + 4 * 64);
    copy_halves(r, 34, to.extra);
}

template <class I>
void block(IQ1_M, const Rows<I>& r, const PlanePointers& to) {
    using Tall = typename Rows<I>::Tall;
    using Word = typename I::Word;
    copy_bytes(r, 0, to.low);
    copy_bytes(r, 16, to.low + 4 * 64);
    copy_halves(r, 32, to.extra);
    Tall scales{};
    for (int h = 0; h < Rows<I>::halves; ++h) {
        Word w[4];
        r.template words<4>(40, h, w);
        scales.half[h] =
            (w[2] >> 12 & 0x000F) | (w[2] >> 24 & 0x00F0) | (w[3] >> 4 & 0x0F00) | (w[3] >> 16 & 0xF000);
    }
    I::store_low_halves(to.scale, scales.half);
    bytes_of<2>(r, 40, to.sub, [](const Word* w, Word* out) {
        for (int i = 0; i < 2; ++i) {  // two words with two times four sub-scales of three bits
            Word x = w[2 + i];
            out[i] = (x & 0x00070007) | (x << 1 & 0x00700070) | (x << 2 & 0x07000700) | (x << 3 & 0x70007000);
        }
    });
}

}  // namespace strata
