// The Python face of pool.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace strata {

void bind_pool(nanobind::module_& m);

}  // namespace strata
