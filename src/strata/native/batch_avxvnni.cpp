#include "batch.hpp"
#include "isa_avxvnni.hpp"

namespace strata {

template void multiply_batch<AvxVnni>(int, const Tile&, const Panel*, int, int, float*);

}  // namespace strata
