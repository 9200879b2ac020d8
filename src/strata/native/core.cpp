// strata.native._core: what Python sees. Buffers are numpy arrays or anything with DLPack, on the CPU.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#if defined(__linux__)
#include <malloc.h>
#endif

#include <algorithm>
#include <cstring>
#include <string>

#include "bind_jobs.hpp"
#include "bind_ops.hpp"
#include "bind_pool.hpp"
#include "bound.hpp"
#include "packed_grids.hpp"

using namespace strata;
using namespace nb::literals;

namespace {

size_t plane_bytes(const std::string& name, int64_t n, int64_t k) {
    int index = checked_format(name, n, k);
    return plan_tile(format_layout(index), k).bytes * num_tiles(static_cast<int>(n));
}

void pack(const std::string& name, int64_t n, int64_t k, ReadBytes blocks, Bytes planes) {
    int index = checked_format(name, n, k);
    const Layout& layout = format_layout(index);
    size_t row_bytes = static_cast<size_t>(k) / layout.gguf_block * layout.gguf_bytes;
    expect("size of the blocks in bytes", blocks.size(), row_bytes * n);
    expect("size of the planes in bytes", planes.size(), plane_bytes(name, n, k));
    expect("address of the planes modulo 64", reinterpret_cast<uintptr_t>(planes.data()) % 64, 0);
    const uint8_t* from = blocks.data();
    uint8_t* to = planes.data();
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    const Kernels& kernels = *runtime().kernels;
    runtime().pool->parallel_for(num_tiles(static_cast<int>(n)), 1, [&](int begin, int end) {
        pack_tiles(kernels, index, static_cast<int>(n), static_cast<int>(k), from, to, begin, end);
    });
}

std::vector<std::string> isas() {
    std::vector<std::string> names;
    for (int i = 0; i < available_isas().count; ++i) names.push_back(available_isas().tables[i]->name);
    return names;
}

void use_isa(const std::string& name) {
    for (int i = 0; i < available_isas().count; ++i) {
        if (name != available_isas().tables[i]->name) continue;
        std::lock_guard lock(runtime().mutex);
        runtime().kernels = available_isas().tables[i];
        return;
    }
    fail("this processor or build has no kernels for " + name);
}

// Fills the codebook `name` from its bytes, in the order of the indices.
void set_grid(const std::string& name, ReadBytes bytes) {
    std::span<uint8_t> table = codebook(name);
    if (table.empty()) fail("no codebook named " + name);
    expect("size of the codebook in bytes", bytes.size(), table.size());
    std::memcpy(table.data(), bytes.data(), table.size());
    pack_grids();
}

std::vector<std::string> formats() {
    std::vector<std::string> names;
    for (int i = 0; i < kNumAllFormats; ++i) names.push_back(format_layout(i).name);
    return names;
}

// Each step of a model frees what the next one allocates again. By default glibc hands large blocks back to the
// system, which clears their pages anew: half of the time of a layer's experts in a prompt on 2 Zen 3 cores.
void keep_freed_memory() {
#if defined(__GLIBC__)
    mallopt(M_MMAP_THRESHOLD, 32 << 20);  // the largest that it takes
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
#endif
}

}  // namespace

NB_MODULE(_core, m) {
    keep_freed_memory();
    bind_products(m);
    bind_pool(m);
    bind_jobs(m);
    m.def("formats", &formats);
    m.def("plane_bytes", &plane_bytes, "format"_a, "num_out"_a, "num_in"_a);
    m.def("pack", &pack, "format"_a, "num_out"_a, "num_in"_a, "blocks"_a, "planes"_a);
    m.def("set_grid", &set_grid, "name"_a, "bytes"_a);
    m.def("isas", &isas);
    m.def("isa", [] { return std::string(runtime().kernels->name); });
    m.def("use_isa", &use_isa, "name"_a);

    nb::class_<BoundActivations>(m, "Activations")
        .def(nb::init<ReadFloatArray>(), "x"_a)
        .def_prop_ro("rows", [](const BoundActivations& a) { return a.activations.rows(); });
    nb::class_<BoundMatrix>(m, "Matrix")
        .def(nb::init<const std::string&, int64_t, int64_t, ReadBytes, float>(), "format"_a, "num_out"_a,
             "num_in"_a, "planes"_a, "scale"_a = 1.0f)
        .def("multiply", &BoundMatrix::multiply, "x"_a, "out"_a);
    nb::class_<BoundExperts>(m, "Experts")
        .def(nb::init<int64_t, int64_t, const std::string&, ReadPlanes, const std::vector<float>&,
                      const std::string&, ReadPlanes, const std::vector<float>&, const std::string&,
                      ReadPlanes, const std::vector<float>&>(),
             "width"_a, "ff"_a, "gate_format"_a, "gate"_a, "gate_scales"_a, "up_format"_a, "up"_a,
             "up_scales"_a, "down_format"_a, "down"_a, "down_scales"_a);
    bind_ops(m);
}
