#define STRATA_PORTABLE
#include "batch.hpp"
#include "isa_portable.hpp"

namespace strata {

template void multiply_batch<Portable>(int, const Tile&, const Panel*, int, int, float*);

}  // namespace strata
