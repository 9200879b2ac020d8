// The Python face of products.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace strata {

void bind_products(nanobind::module_& m);

}  // namespace strata
