// Matrices and experts as Python holds them: the planes they read stay alive as long as they do.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <limits>
#include <string>

#include "experts.hpp"

namespace strata {

namespace nb = nanobind;

using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ReadBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using FloatArray = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ReadFloatArray = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

[[noreturn]] inline void fail(const std::string& message) { throw nb::value_error(message.c_str()); }

inline void expect(const char* what, size_t got, size_t want) {
    if (got != want)
        fail(std::string(what) + " is " + std::to_string(got) + ", expected " + std::to_string(want));
}

inline int format_index(const std::string& name) {
    int index = find_format(name.c_str());
    if (index < 0) fail("no native kernel for quant format " + name);
    return index;
}

// Checks the shape of a matrix against its format; sizes then fit in int and size_t.
inline int checked_format(const std::string& name, int64_t n, int64_t k) {
    int index = format_index(name);
    int block = format_layout(index).gguf_block;
    constexpr int64_t limit = std::numeric_limits<int>::max() / 64;
    if (n < 1 || k < 1 || n > limit || k > limit || k % block)
        fail("a " + name + " matrix of shape [" + std::to_string(n) + ", " + std::to_string(k) +
             "]: rows must be 1 to " + std::to_string(limit) + " and columns a multiple of " +
             std::to_string(block) + " up to " + std::to_string(limit));
    return index;
}

// Rows of float32, kept alive, and quantised when a quantised matrix asks for them first.
struct BoundActivations {
    ReadFloatArray x;
    Activations activations;
    bool quantized = false;

    explicit BoundActivations(ReadFloatArray x)
        : x(x), activations(checked_rows(x), static_cast<int>(x.shape(1))) {
        activations.set_floats(x.data(), x.shape(1));
    }

    // The caller holds the runtime's mutex.
    void quantize_once() {
        if (!quantized) activations.quantize(x.data(), x.shape(1), *runtime().kernels, *runtime().pool);
        quantized = true;
    }

private:
    static int checked_rows(const ReadFloatArray& x) {
        size_t rows = x.shape(0), k = x.shape(1);
        if (k == 0 || k > std::numeric_limits<int>::max() / 64 || rows > 1 << 24)
            fail("activations of shape [" + std::to_string(rows) + ", " + std::to_string(k) +
                 "] are too many");
        return static_cast<int>(rows);
    }
};

// A matrix that keeps its planes' buffer alive.
struct BoundMatrix {
    ReadBytes planes;
    Matrix matrix;

    BoundMatrix(const std::string& name, int64_t n, int64_t k, ReadBytes planes, float scale)
        : planes(planes),
          matrix(checked_format(name, n, k), static_cast<int>(n), static_cast<int>(k), planes.data()) {
        expect("size of the planes in bytes", planes.size(), matrix.bytes());
        matrix.scale = scale;
    }

    void multiply(BoundActivations& bound, FloatArray out) const {
        Activations& x = bound.activations;
        expect("number of activations in a row", x.k(), matrix.k);
        expect("rows of the output", out.shape(0), x.rows());
        expect("columns of the output", out.shape(1), matrix.n);
        float* to = out.data();
        nb::gil_scoped_release release;
        std::lock_guard lock(runtime().mutex);
        const Kernels& kernels = *runtime().kernels;
        if (!is_float(matrix.format)) bound.quantize_once();
        runtime().pool->parallel_for(num_tiles(matrix.n), 1, [&](int begin, int end) {
            multiply_tiles(kernels, matrix, x, to, matrix.n, begin, end);
        });
    }
};

// uint8 [experts, plane bytes]; experts may lie apart.
using ReadPlanes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::device::cpu>;

inline ExpertMatrices expert_matrices(const std::string& name, int64_t n, int64_t k, const ReadPlanes& planes,
                                      const std::vector<float>& scales) {
    Matrix first(checked_format(name, n, k), static_cast<int>(n), static_cast<int>(k), planes.data());
    expect("size of an expert's planes in bytes", planes.shape(1), first.bytes());
    if (!scales.empty()) expect("number of scales", scales.size(), planes.shape(0));
    expect("distance of neighbouring bytes of an expert's planes", planes.stride(1), 1);
    int64_t stride = planes.shape(0) > 1 ? planes.stride(0) : 0;
    if (stride % 64)
        fail("experts' planes are " + std::to_string(stride) + " bytes apart, which is no multiple of 64");
    return {first, static_cast<size_t>(stride), static_cast<int>(planes.shape(0)), scales};
}

// The experts of a layer; keeps the buffers of their planes, uint8 [experts, plane bytes], alive.
struct BoundExperts {
    ReadPlanes gate_planes, up_planes, down_planes;
    ExpertLayer layer;

    BoundExperts(int64_t width, int64_t ff, const std::string& gate_format, ReadPlanes gate,
                 const std::vector<float>& gate_scales, const std::string& up_format, ReadPlanes up,
                 const std::vector<float>& up_scales, const std::string& down_format, ReadPlanes down,
                 const std::vector<float>& down_scales)
        : gate_planes(gate),
          up_planes(up),
          down_planes(down),
          layer{expert_matrices(gate_format, ff, width, gate, gate_scales),
                expert_matrices(up_format, ff, width, up, up_scales),
                expert_matrices(down_format, width, ff, down, down_scales)} {
        expect("number of up experts", layer.up.count, layer.gate.count);
        expect("number of down experts", layer.down.count, layer.gate.count);
    }
};

}  // namespace strata
