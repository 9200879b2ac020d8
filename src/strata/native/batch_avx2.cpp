#include "batch.hpp"
#include "isa_avx2.hpp"

namespace strata {

template void multiply_batch<Avx2>(int, const Tile&, const Panel*, int, int, float*);

}  // namespace strata
