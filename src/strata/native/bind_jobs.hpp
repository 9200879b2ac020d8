// The Python face of jobs.cpp.
#pragma once

#include <nanobind/nanobind.h>

namespace strata {

void bind_jobs(nanobind::module_& m);

}  // namespace strata
