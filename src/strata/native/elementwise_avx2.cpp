#include "elementwise.hpp"
#include "isa_avx2.hpp"

namespace strata {

template void quantize_block<Avx2>(const float*, int, int8_t*, float*);
template void swiglu<Avx2>(float*, const float*, int);

}  // namespace strata
