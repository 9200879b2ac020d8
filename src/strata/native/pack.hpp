// GGUF blocks to planes and the sizes of planes.
#pragma once

#include "floats.hpp"

namespace strata {

inline constexpr int kNumAllFormats = kNumFormats + kNumFloatFormats;

// The layout of a format by its index: that in `Formats`, then that in `FloatFormats`.
const Layout& format_layout(int index);

// Index of a format by ggml's name, or -1.
int find_format(const char* name);

inline int num_tiles(int n) { return (n + kTileRows - 1) / kTileRows; }

// GGUF blocks (rows of floats, without scales) of a matrix [n, k] to tiles [begin, end) of its planes; rows
// that pad the last one become zeros. `planes` starts at a multiple of 64. The bytes do not depend on the
// instruction set.
void pack_tiles(const Kernels& kernels, int format, int n, int k, const uint8_t* blocks, uint8_t* planes,
                int begin, int end);

#if defined(STRATA_X86)
// Of full tiles, one after the other in the file and in the planes.
using RepackTiles = void (*)(const uint8_t* blocks, int k, const TilePlan& plan, uint8_t* tiles, int count);
RepackTiles avx2_repack(int format);
#endif

}  // namespace strata
