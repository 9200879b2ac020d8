// Every format's block, rearranged for 16 rows at once.
#pragma once

#include "floats.hpp"
#include "repack_grid.hpp"

namespace strata {

// Blocks of 32 weights of four or five bits: [scale (minimum)] [fifth bits] nibbles.
template <class F, class I>
void small_block(const Rows<I>& r, const PlanePointers& to) {
    using Tall = typename Rows<I>::Tall;
    constexpr Layout f = F::layout;
    constexpr int nibbles_at = f.gguf_bytes - 16;
    if constexpr (f.scale_bytes() == 1)
        I::store_low_bytes(to.scale, r.tall(0, 0).half);
    else if constexpr (f.minimum == Minimum::f16)
        scale_and_minimum(r, 0, 0, to);
    else
        scale(r, 0, to.scale);
    nibbles<4>(r, nibbles_at, to.low);
    if constexpr (f.high_bits > 0) {
        Tall mask = r.tall(nibbles_at - 4, 0);
        lines<1>(r, to.high, [&](int h, typename I::Word* out) { *out = mask_to_plane(mask.half[h]); });
    }
}

template <class I>
void block(Q4_0, const Rows<I>& r, const PlanePointers& to) {
    small_block<Q4_0>(r, to);
}
template <class I>
void block(Q4_1, const Rows<I>& r, const PlanePointers& to) {
    small_block<Q4_1>(r, to);
}
template <class I>
void block(Q5_0, const Rows<I>& r, const PlanePointers& to) {
    small_block<Q5_0>(r, to);
}
template <class I>
void block(Q5_1, const Rows<I>& r, const PlanePointers& to) {
    small_block<Q5_1>(r, to);
}
template <class I>
void block(IQ4_NL, const Rows<I>& r, const PlanePointers& to) {
    small_block<IQ4_NL>(r, to);
}
template <class I>
void block(MXFP4, const Rows<I>& r, const PlanePointers& to) {
    small_block<MXFP4>(r, to);
}

template <class I>
void block(Q8_0, const Rows<I>& r, const PlanePointers& to) {
    scale(r, 0, to.scale);
    copy_words<8>(r, 2, to.low);
}

template <class I>
void block(NVFP4, const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    I::store_bytes(to.scale, r.tall(0, 0).half);
    lines<8>(r, to.low, [&](int h, Word* out) {
        Word q[8];
        r.template words<8>(4, h, q);
        for (int i = 0; i < 8; i += 2) interleave<4>(q[i], q[i + 1], out[i], out[i + 1]);
    });
}

template <class I>
void block(Q2_0, const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    scale(r, 0, to.scale);
    lines<4>(r, to.low, [&](int h, Word* out) {
        r.template words<4>(2, h, out);
        for (int i = 0; i < 4; ++i)  // field i of byte j becomes field j of byte i
            out[i] = swap_bits(swap_bits(out[i], 6, 0x00CC00CC), 12, 0x0000F0F0);
    });
}

template <class I>
void block(Q2_K, const Rows<I>& r, const PlanePointers& to) {
    copy_bytes(r, 0, to.sub);
    pairs(r, 16, to.low);
    pairs(r, 48, to.low + 8 * 64);
    scale_and_minimum(r, 68, 3, to);
}

// Each byte of x, 0..63, minus 32; no byte borrows from the next.
template <class Word>
Word minus_32(Word x) {
    return ((x | spread(0x80)) - spread(0x20)) ^ spread(0x80);
}

// The 14 last bytes of a Q3_K block, behind two others: 8 with nibbles, 4 with upper bits, the scale.
template <class Word>
void six_bits_minus_32(const Word* w, Word* out) {
    Word a = w[0] >> 16 | w[1] << 16, b = w[1] >> 16 | w[2] << 16, top = w[2] >> 16 | w[3] << 16;
    out[0] = minus_32((a & spread(0x0F)) | (top << 4 & spread(0x30)));
    out[1] = minus_32((b & spread(0x0F)) | (top << 2 & spread(0x30)));
    out[2] = minus_32((a >> 4 & spread(0x0F)) | (top & spread(0x30)));
    out[3] = minus_32((b >> 4 & spread(0x0F)) | (top >> 2 & spread(0x30)));
}

template <class I>
void block(Q3_K, const Rows<I>& r, const PlanePointers& to) {
    bits(r, 0, to.high);
    pairs(r, 32, to.low);
    pairs(r, 64, to.low + 8 * 64);
    bytes_of<4>(r, 94, to.sub, six_bits_minus_32<typename I::Word>);
    last_scale(r, 94, to.scale);
}

// The 16 first bytes of a Q4_K or Q5_K block: scale, minimum, and eight 6-bit numbers for each.
template <class I>
void head_of_q45_k(const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    scale_and_minimum(r, 0, 0, to);
    bytes_of<2>(r, 0, to.sub, [](const Word* w, Word* out) {
        out[0] = w[1] & spread(0x3F);
        out[1] = (w[3] & spread(0x0F)) | (w[1] >> 2 & spread(0x30));
    });
    bytes_of<2>(r, 0, to.sub_minimum, [](const Word* w, Word* out) {
        out[0] = w[2] & spread(0x3F);
        out[1] = (w[3] >> 4 & spread(0x0F)) | (w[2] >> 2 & spread(0x30));
    });
}

template <class I>
void block(Q4_K, const Rows<I>& r, const PlanePointers& to) {
    head_of_q45_k(r, to);
    for (int i = 0; i < 4; ++i) nibbles<8>(r, 16 + i * 32, to.low + i * 8 * 64);
}

template <class I>
void block(Q5_K, const Rows<I>& r, const PlanePointers& to) {
    head_of_q45_k(r, to);
    bits(r, 16, to.high);
    for (int i = 0; i < 4; ++i) nibbles<8>(r, 48 + i * 32, to.low + i * 8 * 64);
}

template <class I>
void block(Q6_K, const Rows<I>& r, const PlanePointers& to) {
    nibbles<16>(r, 0, to.low);
    nibbles<16>(r, 64, to.low + 16 * 64);
    pairs(r, 128, to.high);
    pairs(r, 160, to.high + 8 * 64);
    copy_bytes(r, 192, to.sub);
    last_scale(r, 194, to.scale);
}

template <class I>
void block(IQ4_XS, const Rows<I>& r, const PlanePointers& to) {
    using Word = typename I::Word;
    scale(r, 0, to.scale);
    bytes_of<2>(r, 0, to.sub, [](const Word* w, Word* out) {
        for (int i = 0; i < 2; ++i) {  // the four upper pairs of bits in w[0] as the bits 4-5 of bytes
            Word two = w[0] >> (16 + 8 * i) & 0xFF;
            two = (two & 0x0F) | (two << 12 & 0x000F0000);
            two = (two << 4 & 0x00300030) | (two << 10 & 0x30003000);
            out[i] = minus_32(nibbles_to_bytes(w[1] >> (16 * i)) | two);
        }
    });
    for (int i = 0; i < 8; ++i) nibbles<4>(r, 8 + i * 16, to.low + i * 4 * 64);
}

// One tile: 16 rows of blocks, `row_bytes` apart in the file.
template <class F, class I>
void repack_tile(const uint8_t* blocks, size_t row_bytes, int k, const TilePlan& p, uint8_t* tile) {
    constexpr Layout f = F::layout;
    constexpr int n = f.gguf_block, scales = n / f.scale_block * f.scale_bytes();
    constexpr int subs = f.grid.weights ? n * f.grid.sub_bits / 256 : f.has_sub() ? n / f.sub_block : 0;
    // The next tile follows in the file, but in the caches only if it is asked for: these are 16 short
    // streams.
    const uint8_t* next = blocks + kTileRows * row_bytes;
    for (size_t b = 0; b < static_cast<size_t>(k / n); ++b) {
        for (int i = 0; i < kTileRows * f.gguf_bytes; i += 64) I::prefetch(next + i);
        next += kTileRows * f.gguf_bytes;
        size_t at = b * kTileRows;
        block(F{}, Rows<I>{blocks + b * f.gguf_bytes, row_bytes},
              {tile + p.low + at * (n * f.low_bits / 8), tile + p.high + at * (n * f.high_bits / 8),
               tile + p.scale + at * scales, tile + p.minimum + at * 2, tile + p.sub + at * subs,
               tile + p.sub_minimum + at * subs, tile + p.extra + at * (n * f.grid.extra_bits / 256)});
    }
}

// The same for a float format, in pieces of 16 bytes of each row.
template <class F, class I>
void repack_float_tile(const uint8_t* rows, size_t row_bytes, int k, uint8_t* tile) {
    constexpr int bytes = F::layout.gguf_bytes, step = 16 / bytes;
    int at = 0;
    for (; at + step <= k; at += step) {
        for (int i = 0; i < 256; i += 64) I::prefetch(rows + kTileRows * (row_bytes + at * bytes) + i);
        Rows<I> r{rows + at * bytes, row_bytes};
        uint8_t* to = tile + static_cast<size_t>(at) * kTileRows * bytes;
        if constexpr (bytes == 4) copy_words<4>(r, 0, to);
        if constexpr (bytes == 2) copy_halves(r, 0, to);
        if constexpr (bytes == 1) copy_bytes(r, 0, to);
    }
    for (; at < k; ++at)
        for (int row = 0; row < kTileRows; ++row)
            std::memcpy(tile + (static_cast<size_t>(at) * kTileRows + row) * bytes,
                        rows + row * row_bytes + at * bytes, bytes);
}

template <class F, class I>
void repack_tiles(const uint8_t* blocks, int k, const TilePlan& plan, uint8_t* tiles, int count) {
    size_t row_bytes = static_cast<size_t>(k) / F::layout.gguf_block * F::layout.gguf_bytes;
    for (int i = 0; i < count; ++i) {
        const uint8_t* rows = blocks + i * kTileRows * row_bytes;
        if constexpr (F::layout.values == Values::floats)
            repack_float_tile<F, I>(rows, row_bytes, k, tiles + i * plan.bytes);
        else
            repack_tile<F, I>(rows, row_bytes, k, plan, tiles + i * plan.bytes);
    }
    I::finish();
}

}  // namespace strata
