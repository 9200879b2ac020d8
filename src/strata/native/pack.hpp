// GGUF blocks to planes and the sizes of planes.
#pragma once

#include "formats.hpp"

namespace strata {

using PackTile = void (*)(const uint8_t* blocks, int rows, int k, uint8_t* tile);

struct FormatEntry {
    Layout layout;
    PackTile pack;  // up to 16 rows of GGUF blocks -> one tile; missing rows become zeros
};

// The entry at the index of the format in `Formats`.
const FormatEntry& format_entry(int index);

// Index of a format by ggml's name, or -1.
int find_format(const char* name);

inline int num_tiles(int n) { return (n + kTileRows - 1) / kTileRows; }

}  // namespace strata
