// What the parts of strata.native._core beside core.cpp add to it.
#pragma once

#include <nanobind/nanobind.h>

namespace strata {

void bind_ops(nanobind::module_& m);
void bind_products(nanobind::module_& m);
void bind_attention(nanobind::module_& m);
void bind_delta_net(nanobind::module_& m);
void bind_sparse_attention(nanobind::module_& m);

}  // namespace strata
