#include "batch.hpp"
#include "decode_avx512.hpp"

namespace strata {

template void multiply_batch<Avx512>(int, const Tile&, const Panel*, int, int, float*);

}  // namespace strata
