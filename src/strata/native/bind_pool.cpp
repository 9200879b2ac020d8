// The threads of this process's pool, as Python sees them.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>
#include <vector>

#include "bind_pool.hpp"
#include "bound.hpp"

namespace strata {

namespace {

using namespace nb::literals;

using CpusAndSpeed = std::pair<std::vector<int>, float>;

void set_num_threads(int n, const std::vector<CpusAndSpeed>& usable, double stall_s) {
    if (n < 1 || n > 1024) fail("number of threads is " + std::to_string(n) + ", expected 1 to 1024");
    std::vector<Core> cores;
    for (const auto& [cpus, speed] : usable) cores.push_back({cpus, speed});
    Patience patience;
    patience.stall = std::chrono::milliseconds(static_cast<int>(stall_s * 1000));
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    auto pool = std::make_unique<Pool>(n, std::move(cores), patience);  // may fail: the old one is then kept
    runtime().pool = std::move(pool);
}

// Calls body(begin, end) on the pool's threads. Python bodies take turns: this shows what a pool does, and
// speeds nothing up.
void parallel_for(int n, int grain, const nb::callable& body) {
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    runtime().pool->parallel_for(n, grain, [&](int begin, int end) {
        nb::gil_scoped_acquire acquire;
        try {
            body(begin, end);
        } catch (nb::python_error& error) {
            error.discard_as_unraisable("parallel_for");
        }
    });
}

}  // namespace

void bind_pool(nb::module_& m) {
    m.def("num_threads", [] { return runtime().pool->num_threads(); });
    m.def("set_num_threads", &set_num_threads, "n"_a, "cores"_a = std::vector<CpusAndSpeed>(),
          "stall_s"_a = 10.0);
    m.def("parallel_for", &parallel_for, "n"_a, "grain"_a, "body"_a);
}

}  // namespace strata
