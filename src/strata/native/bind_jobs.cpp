// Job memory and its server, as Python sees them.
#include "bind_jobs.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <string>

#include "bound.hpp"
#include "jobs.hpp"

namespace strata {

namespace {

using namespace nb::literals;

using Words = nb::ndarray<uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

JobLayout checked_layout(int64_t width, int64_t max_rows, int64_t max_entries) {
    if (width < 1 || width > 1 << 20 || max_rows < 1 || max_rows > 1 << 16 || max_entries < 1 ||
        max_entries > 1 << 20)
        fail("jobs of " + std::to_string(max_rows) + " rows of " + std::to_string(width) + " and " +
             std::to_string(max_entries) + " entries: expected 1 to 65536, 1048576, 1048576");
    return JobLayout(static_cast<int>(width), static_cast<int>(max_rows), static_cast<int>(max_entries));
}

// Checks a server's arguments and starts it. The binding keeps `experts` and `memory` alive.
void start_server(JobServer* at, const std::vector<const BoundExperts*>& experts, Bytes memory,
                  const JobLayout& layout, int num_threads,
                  const std::vector<std::pair<std::vector<int>, float>>& usable) {
    std::vector<ExpertLayer> layers;
    for (const BoundExperts* e : experts) {
        expect("width of a layer", e->layer.gate.first.k, layout.width);
        layers.push_back(e->layer);
    }
    expect("address of the memory modulo 64", reinterpret_cast<uintptr_t>(memory.data()) % 64, 0);
    if (memory.size() == 0 || memory.size() % layout.bytes)
        fail("memory of " + std::to_string(memory.size()) + " bytes: expected a multiple of " +
             std::to_string(layout.bytes));
    if (num_threads < 1 || num_threads > 1024)
        fail("number of threads is " + std::to_string(num_threads) + ", expected 1 to 1024");
    std::vector<Core> cores;
    for (const auto& [cpus, speed] : usable) cores.push_back({cpus, speed});
    new (at) JobServer(std::move(layers), memory.data(), static_cast<int>(memory.size() / layout.bytes),
                       layout, *runtime().kernels, num_threads, std::move(cores));
}

}  // namespace

void bind_jobs(nb::module_& m) {
    m.attr("JOB_MAGIC") = kJobMagic;
    m.attr("JOB_VERSION") = kJobVersion;
    nb::class_<JobLayout>(m, "JobLayout")
        .def(
            "__init__",
            [](JobLayout* at, int64_t width, int64_t max_rows, int64_t max_entries) {
                new (at) JobLayout(checked_layout(width, max_rows, max_entries));
            },
            "width"_a, "max_rows"_a, "max_entries"_a)
        .def_ro("width", &JobLayout::width)
        .def_ro("max_rows", &JobLayout::max_rows)
        .def_ro("max_entries", &JobLayout::max_entries)
        .def_ro("experts", &JobLayout::experts)
        .def_ro("rows", &JobLayout::rows)
        .def_ro("weights", &JobLayout::weights)
        .def_ro("x", &JobLayout::x)
        .def_ro("out", &JobLayout::out)
        .def_ro("bytes", &JobLayout::bytes);
    nb::class_<JobServer>(m, "JobServer")
        .def("__init__", &start_server, "experts"_a, "memory"_a, "layout"_a, "num_threads"_a, "cores"_a,
             nb::keep_alive<1, 2>(), nb::keep_alive<1, 3>());
    m.def("load_acquire",
          [](Words words, size_t i) { return __atomic_load_n(&words.data()[i], __ATOMIC_ACQUIRE); });
    m.def("store_release", [](Words words, size_t i, uint32_t value) {
        __atomic_store_n(&words.data()[i], value, __ATOMIC_RELEASE);
    });
}

}  // namespace strata
