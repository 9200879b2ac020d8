#include "elementwise.hpp"
#include "isa_portable.hpp"

namespace strata {

template void quantize_block<Portable>(const float*, int, int8_t*, float*);
template void swiglu<Portable>(float*, const float*, int);

}  // namespace strata
