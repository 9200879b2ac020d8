// Tables of kernels, one for each instruction set.
#pragma once

#include <array>

#include "formats.hpp"

namespace strata {

using MultiplyTile = void (*)(const Tile&, const Panel&, int k, float* out);

// The same for all panels of a batch: out is [panels][16][16].
using MultiplyBatch = void (*)(int format, const Tile&, const Panel* panels, int num_panels, int k,
                               float* out);

using QuantizeBlock = void (*)(const float* x, int n, int8_t* codes, float* scale);

using Swiglu = void (*)(float* gate, const float* up, int n);

struct Kernels {
    const char* name;
    QuantizeBlock quantize;
    Swiglu swiglu;
    // [format][log2 of the rows in the panel]
    std::array<std::array<MultiplyTile, 4>, kNumFormats> multiply;
    MultiplyBatch multiply_batch;
};

const Kernels& portable_kernels();
#if defined(STRATA_X86)
const Kernels& avx2_kernels();
const Kernels& avxvnni_kernels();  // these two only if the compiler knows them: STRATA_AVXVNNI, STRATA_AVX512
const Kernels& avx512_kernels();
const Kernels& amx_kernels();  // STRATA_AMX
#endif

// The tables this processor can run, best first; the last one is portable.
struct Isas {
    const Kernels* tables[8];
    int count;
};
const Isas& available_isas();

}  // namespace strata
