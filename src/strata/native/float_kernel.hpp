// Products with float matrices: one template for all formats and instruction sets.
#pragma once

#include <algorithm>
#include <array>
#include <memory>

#include "floats.hpp"
#include "inline.hpp"

namespace strata {

template <class F, class I>
struct FloatKernel {
    static constexpr int bytes = F::layout.gguf_bytes;
    static constexpr int halves = kTileRows / I::lanes;
    static constexpr bool scaled = F::layout.scale == Scale::f32;
    // Activation rows at once: with eight sums in flight no addition waits for the one before it.
    static constexpr int max_rows = 8 / halves;
    // Weights of a row at once: a piece of a tile stays in the first-level cache, one of 256 activation rows
    // in the second. It is also the block of a scale.
    static constexpr int piece = kActivationBlock;
    static constexpr int batch_rows = 256;

    using Float = typename I::Float;

    // sums[m][16] += products of n weights of each of 16 rows with activation rows m < M.
    template <class From, int M>
    static void add_products(const uint8_t* w, const float* x, size_t stride, int n, float* sums) {
        Float s[halves][M];
        for (int h = 0; h < halves; ++h)
            for (int m = 0; m < M; ++m)
                s[h][m] = I::load_f32(reinterpret_cast<const uint8_t*>(sums + m * kTileRows + h * I::lanes));
        for (int i = 0; i < n; ++i) {
            Float v[halves];
            From::template load<I>(w + i * kTileRows * From::layout.gguf_bytes, v);
            STRATA_UNROLL
            for (int m = 0; m < M; ++m) {
                Float a = I::broadcast(x[m * stride + i]);
                STRATA_UNROLL
                for (int h = 0; h < halves; ++h) s[h][m] = I::add(s[h][m], I::mul(v[h], a));
            }
        }
        for (int h = 0; h < halves; ++h)
            for (int m = 0; m < M; ++m) I::store(sums + m * kTileRows + h * I::lanes, s[h][m]);
    }

    template <class From, int M = max_rows>
    static void add_rows(const uint8_t* w, const float* x, size_t stride, int rows, int n, float* sums) {
        int m = 0;
        for (; m + M <= rows; m += M)
            add_products<From, M>(w, x + m * stride, stride, n, sums + m * kTileRows);
        if constexpr (M > 1)
            if (m < rows) add_rows<From, M / 2>(w, x + m * stride, stride, rows - m, n, sums + m * kTileRows);
    }

    // The piece of a tile that begins at weight `first` of its rows.
    static void add_piece(const uint8_t* tile, const TilePlan& plan, int first, int n, const float* x,
                          size_t stride, int rows, float* sums) {
        const uint8_t* w = tile + plan.low + static_cast<size_t>(first) * kTileRows * bytes;
        if (rows <= max_rows) {
            // A page ahead: the hardware's own prefetching ends with each page.
            for (int i = 0; i < piece * kTileRows * bytes; i += 64) __builtin_prefetch(w + 4096 + i);
            return add_rows<F>(w, x, stride, rows, n, sums);
        }
        alignas(64) float wide[piece * kTileRows];  // decoded once for all rows
        for (int i = 0; i < n; ++i) {
            Float v[halves];
            F::template load<I>(w + i * kTileRows * bytes, v);
            for (int h = 0; h < halves; ++h) I::store(wide + i * kTileRows + h * I::lanes, v[h]);
        }
        add_rows<F32>(reinterpret_cast<const uint8_t*>(wide), x, stride, rows, n, sums);
    }

    // The same for weights with a scale: the piece is summed up from 0 and then scaled.
    static void add_scaled_piece(const uint8_t* tile, const TilePlan& plan, int first, int n, const float* x,
                                 size_t stride, int rows, float* sums) {
        alignas(64) float part[batch_rows * kTileRows];
        std::fill(part, part + rows * kTileRows, 0.0f);
        add_piece(tile, plan, first, n, x, stride, rows, part);
        const uint8_t* scales = tile + plan.scale + static_cast<size_t>(first / piece) * kTileRows * 4;
        for (int h = 0; h < halves; ++h) {
            Float scale = I::load_f32(scales + h * I::lanes * 4);
            for (int m = 0; m < rows; ++m) {
                float* s = sums + m * kTileRows + h * I::lanes;
                Float p = I::load_f32(reinterpret_cast<const uint8_t*>(part + m * kTileRows + h * I::lanes));
                I::store(s, I::add(I::load_f32(reinterpret_cast<const uint8_t*>(s)), I::mul(p, scale)));
            }
        }
    }

    // Tiles [begin, end) times `rows` rows of p.x from `first_row` on. A batch goes piece by piece, so that
    // each piece of its rows, copied to `near`, is used for all tiles while it is in the cache.
    static void multiply_rows(const FloatProduct& p, int first_row, int rows, int begin, int end, float* sums,
                              float* near) {
        std::fill(sums, sums + static_cast<size_t>(end - begin) * rows * kTileRows, 0.0f);
        for (int first = 0; first < p.k; first += piece) {
            int n = std::min(piece, p.k - first);
            const float* x = p.x + first_row * p.x_stride + first;
            size_t stride = p.x_stride;
            if (near) {
                for (int m = 0; m < rows; ++m)
                    std::copy(x + m * stride, x + m * stride + n, near + m * piece);
                x = near;
                stride = piece;
            }
            for (int t = begin; t < end; ++t) {
                const uint8_t* tile = p.planes + t * p.plan.bytes;
                float* s = sums + static_cast<size_t>(t - begin) * rows * kTileRows;
                if constexpr (scaled)
                    add_scaled_piece(tile, p.plan, first, n, x, stride, rows, s);
                else
                    add_piece(tile, p.plan, first, n, x, stride, rows, s);
            }
        }
        for (int t = begin; t < end; ++t) {
            const float* s = sums + static_cast<size_t>(t - begin) * rows * kTileRows;
            int columns = std::min(kTileRows, p.n - t * kTileRows);
            for (int m = 0; m < rows; ++m)
                std::copy(s + m * kTileRows, s + m * kTileRows + columns,
                          p.out + (first_row + m) * p.out_stride + t * kTileRows);
        }
    }

    static void multiply(const FloatProduct& p, int begin, int end) {
        if (p.rows <= max_rows) {  // each tile is one stream from memory
            alignas(64) float sums[max_rows * kTileRows];
            for (int t = begin; t < end; ++t) multiply_rows(p, 0, p.rows, t, t + 1, sums, nullptr);
            return;
        }
        constexpr int tiles = 8;
        int most = std::min(p.rows, batch_rows);
        auto sums = std::make_unique_for_overwrite<float[]>(tiles * most * kTileRows);
        auto near = std::make_unique_for_overwrite<float[]>(most * piece);
        for (int row = 0; row < p.rows; row += batch_rows)
            for (int t = begin; t < end; t += tiles)
                multiply_rows(p, row, std::min(batch_rows, p.rows - row), t, std::min(t + tiles, end),
                              sums.get(), near.get());
    }
};

template <class I, class... F>
constexpr std::array<MultiplyFloats, kNumFloatFormats> make_float_kernels(std::tuple<F...>*) {
    return {&FloatKernel<F, I>::multiply...};
}

}  // namespace strata
