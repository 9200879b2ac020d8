// strata.native._core: what Python sees. Buffers are numpy arrays or anything with DLPack, on the CPU.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "experts.hpp"

namespace nb = nanobind;
using namespace nb::literals;
using namespace strata;

namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ReadFloats = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

void expect(const char* what, size_t got, size_t want) {
    if (got != want)
        fail(std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(want));
}

int format_index(const std::string& name) {
    int index = find_format(name.c_str());
    if (index < 0) fail("no native kernel for quant format " + name);
    return index;
}

// Checks the shape of a matrix against its format; sizes then fit in int and size_t.
int checked_format(const std::string& name, int64_t n, int64_t k) {
    int index = format_index(name);
    int block = format_entry(index).layout.gguf_block;
    constexpr int64_t limit = std::numeric_limits<int>::max() / 64;
    if (n < 1 || k < 1 || n > limit || k > limit || k % block)
        fail("a " + name + " matrix of shape [" + std::to_string(n) + ", " + std::to_string(k) +
             "]: rows must be 1 to " + std::to_string(limit) + " and columns a multiple of " +
             std::to_string(block) + " up to " + std::to_string(limit));
    return index;
}

size_t plane_bytes(const std::string& name, int64_t n, int64_t k) {
    int index = checked_format(name, n, k);
    return plan_tile(format_entry(index).layout, k).bytes * num_tiles(static_cast<int>(n));
}

void pack(const std::string& name, int64_t n, int64_t k, ReadBytes blocks, Bytes planes) {
    int index = checked_format(name, n, k);
    const FormatEntry& entry = format_entry(index);
    size_t row_bytes = static_cast<size_t>(k) / entry.layout.gguf_block * entry.layout.gguf_bytes;
    size_t tile_bytes = plan_tile(entry.layout, k).bytes;
    expect("size of the blocks in bytes", blocks.size(), row_bytes * n);
    expect("size of the planes in bytes", planes.size(), plane_bytes(name, n, k));
    const uint8_t* from = blocks.data();
    uint8_t* to = planes.data();
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    runtime().pool->parallel_for(num_tiles(static_cast<int>(n)), 1, [&](int begin, int end) {
        for (int t = begin; t < end; ++t) {
            int rows = std::min(kTileRows, static_cast<int>(n) - t * kTileRows);
            entry.pack(from + t * kTileRows * row_bytes, rows, static_cast<int>(k), to + t * tile_bytes);
        }
    });
}

// A matrix that keeps its planes' buffer alive.
struct BoundMatrix {
    ReadBytes planes;
    Matrix matrix;

    BoundMatrix(const std::string& name, int64_t n, int64_t k, ReadBytes planes)
        : planes(planes),
          matrix(checked_format(name, n, k), static_cast<int>(n), static_cast<int>(k), planes.data()) {
        expect("size of the planes in bytes", planes.size(), matrix.bytes());
    }

    void multiply(const Activations& x, Floats out) const {
        expect("number of activations in a row", x.k(), matrix.k);
        expect("rows of the output", out.shape(0), x.rows());
        expect("columns of the output", out.shape(1), matrix.n);
        float* to = out.data();
        nb::gil_scoped_release release;
        std::lock_guard lock(runtime().mutex);
        const Kernels& kernels = *runtime().kernels;
        runtime().pool->parallel_for(num_tiles(matrix.n), 1, [&](int begin, int end) {
            multiply_tiles(kernels, matrix, x, to, matrix.n, begin, end);
        });
    }
};

using Ids = nb::ndarray<const int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ReadPlanes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

ExpertMatrices expert_matrices(const std::string& name, int64_t n, int64_t k, const ReadPlanes& planes) {
    Matrix first(checked_format(name, n, k), static_cast<int>(n), static_cast<int>(k), planes.data());
    expect("size of an expert's planes in bytes", planes.shape(1), first.bytes());
    return {first, planes.shape(1), static_cast<int>(planes.shape(0))};
}

// The experts of a layer; keeps the buffers of their planes, uint8 [experts, plane bytes], alive.
struct BoundExperts {
    ReadPlanes gate_planes, up_planes, down_planes;
    ExpertLayer layer;

    BoundExperts(int64_t width, int64_t ff, const std::string& gate_format, ReadPlanes gate,
                 const std::string& up_format, ReadPlanes up, const std::string& down_format, ReadPlanes down)
        : gate_planes(gate),
          up_planes(up),
          down_planes(down),
          layer{expert_matrices(gate_format, ff, width, gate), expert_matrices(up_format, ff, width, up),
                expert_matrices(down_format, width, ff, down)} {
        expect("number of up experts", layer.up.count, layer.gate.count);
        expect("number of down experts", layer.down.count, layer.gate.count);
    }

    void run(ReadFloats x, Ids ids, ReadFloats weights, Floats out) const {
        size_t rows = x.shape(0), slots = ids.shape(1);
        expect("number of activations in a row", x.shape(1), layer.gate.first.k);
        expect("rows of the output", out.shape(0), rows);
        expect("columns of the output", out.shape(1), layer.gate.first.k);
        expect("rows of the expert ids", ids.shape(0), rows);
        expect("rows of the weights", weights.shape(0), rows);
        expect("columns of the weights", weights.shape(1), slots);
        const int32_t* id = ids.data();
        for (size_t i = 0; i < rows * slots; ++i)
            if (id[i] < 0 || id[i] >= layer.gate.count)
                fail("expert id is " + std::to_string(id[i]) + ", expected 0 to " +
                     std::to_string(layer.gate.count - 1));
        const float *from = x.data(), *w = weights.data();
        float* to = out.data();
        nb::gil_scoped_release release;
        std::lock_guard lock(runtime().mutex);
        run_experts(runtime(), layer, from, id, w, static_cast<int>(rows), static_cast<int>(slots), to);
    }
};

Activations quantize(ReadFloats x) {
    size_t rows = x.shape(0), k = x.shape(1);
    if (k == 0 || k % kStep || k > std::numeric_limits<int>::max() / 64 || rows > 1 << 24)
        fail("activations of shape [" + std::to_string(rows) + ", " + std::to_string(k) +
             "]: columns must be a multiple of 32");
    const float* from = x.data();
    nb::gil_scoped_release release;
    Activations a(static_cast<int>(rows), static_cast<int>(k));
    std::lock_guard lock(runtime().mutex);
    a.quantize(from, k, *runtime().kernels, *runtime().pool);
    return a;
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

void set_num_threads(int n) {
    if (n < 1 || n > 1024) fail("number of threads is " + std::to_string(n) + ", expected 1 to 1024");
    std::lock_guard lock(runtime().mutex);
    if (n != runtime().pool->num_threads()) runtime().pool = std::make_unique<Pool>(n);
}

// Fills the codebook `name` from its bytes, in the order of the indices.
void set_grid(const std::string& name, ReadBytes bytes) {
    struct Target {
        const char* name;
        void* table;
        size_t bytes;
    };
    const Target targets[] = {
        {"IQ1_S", grids.iq1, sizeof grids.iq1},           {"IQ2_XXS", grids.iq2_xxs, sizeof grids.iq2_xxs},
        {"IQ2_XS", grids.iq2_xs, sizeof grids.iq2_xs},    {"IQ2_S", grids.iq2_s, sizeof grids.iq2_s},
        {"IQ3_XXS", grids.iq3_xxs, sizeof grids.iq3_xxs}, {"IQ3_S", grids.iq3_s, sizeof grids.iq3_s},
    };
    for (const Target& target : targets) {
        if (name != target.name) continue;
        expect("size of the codebook in bytes", bytes.size(), target.bytes);
        std::memcpy(target.table, bytes.data(), target.bytes);
        return;
    }
    fail("no codebook named " + name);
}

std::vector<std::string> formats() {
    std::vector<std::string> names;
    for (int i = 0; i < kNumFormats; ++i) names.push_back(format_entry(i).layout.name);
    return names;
}

}  // namespace

NB_MODULE(_core, m) {
    m.def("formats", &formats);
    m.def("plane_bytes", &plane_bytes, "format"_a, "num_out"_a, "num_in"_a);
    m.def("pack", &pack, "format"_a, "num_out"_a, "num_in"_a, "blocks"_a, "planes"_a);
    m.def("set_grid", &set_grid, "name"_a, "bytes"_a);
    m.def("isas", &isas);
    m.def("isa", [] { return std::string(runtime().kernels->name); });
    m.def("use_isa", &use_isa, "name"_a);
    m.def("num_threads", [] { return runtime().pool->num_threads(); });
    m.def("set_num_threads", &set_num_threads, "n"_a);

    nb::class_<Activations>(m, "Activations")
        .def_prop_ro("rows", &Activations::rows)
        .def_prop_ro("num_in", &Activations::k);
    m.def("quantize", &quantize, "x"_a);
    nb::class_<BoundMatrix>(m, "Matrix")
        .def(nb::init<const std::string&, int64_t, int64_t, ReadBytes>(), "format"_a, "num_out"_a, "num_in"_a,
             "planes"_a)
        .def("multiply", &BoundMatrix::multiply, "x"_a, "out"_a);
    nb::class_<BoundExperts>(m, "Experts")
        .def(nb::init<int64_t, int64_t, const std::string&, ReadPlanes, const std::string&, ReadPlanes,
                      const std::string&, ReadPlanes>(),
             "width"_a, "ff"_a, "gate_format"_a, "gate"_a, "up_format"_a, "up"_a, "down_format"_a, "down"_a)
        .def("run", &BoundExperts::run, "x"_a, "ids"_a, "weights"_a, "out"_a);
}
