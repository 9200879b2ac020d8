#include "runtime.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

#if defined(__unix__)
#include <unistd.h>
#endif
#if defined(STRATA_AMX)
#include <sys/syscall.h>
#endif

namespace strata {

Runtime& runtime() {
    static Runtime r;
    return r;
}

namespace {

#if defined(STRATA_AVX512)
bool has_avx512() {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni") &&
           __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512bitalg");
}
#endif

#if defined(STRATA_AMX)
// Linux saves the tile registers of a process from when it has asked; threads made later inherit that.
bool may_use_tiles() {
    constexpr long request_permission = 0x1023, tile_data = 18;  // arch_prctl(2)
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}
#endif

}  // namespace

const Isas& available_isas() {
    static const Isas isas = [] {
        Isas found{};
        // GCC and Clang also ask the operating system whether it saves the registers.
#if defined(STRATA_AMX)
        if (has_avx512() && __builtin_cpu_supports("amx-int8") && may_use_tiles())
            found.tables[found.count++] = &amx_kernels();
#endif
#if defined(STRATA_AVX512)
        if (has_avx512()) found.tables[found.count++] = &avx512_kernels();
#endif
#if defined(STRATA_AVXVNNI)
        if (__builtin_cpu_supports("avxvnni") && __builtin_cpu_supports("f16c"))
            found.tables[found.count++] = &avxvnni_kernels();
#endif
#if defined(STRATA_X86)
        if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c"))
            found.tables[found.count++] = &avx2_kernels();
#endif
        found.tables[found.count++] = &portable_kernels();
        return found;
    }();
    return isas;
}

namespace {

void store(const Activations& x, int panel, const float* sums, float* out, size_t stride, int columns) {
    for (int m = 0; m < x.panel(panel).rows; ++m)
        std::memcpy(out + (x.first_row(panel) + m) * stride, sums + m * kTileRows, columns * sizeof(float));
}

// Batches are cut so that their activations stay in the second-level cache, in half of it.
int panels_at_once(int k) {
    static const long bytes = [] {
        long half = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
        half = sysconf(_SC_LEVEL2_CACHE_SIZE) / 2;
#endif
        return std::clamp(half, 1L << 18, 1L << 20);
    }();
    return static_cast<int>(std::max(1L, bytes / (static_cast<long>(k) * kBatchRows)));
}

void multiply_quantized(const Kernels& kernels, const Matrix& w, const Activations& x, float* out,
                        size_t stride, int begin, int end) {
    int at_once = x.is_batch() ? std::min(panels_at_once(w.k), x.num_panels()) : 1;
    auto sums = std::make_unique_for_overwrite<float[]>(at_once * kBatchRows * kTileRows);
    for (int first = 0; first < x.num_panels(); first += at_once) {
        int last = std::min(first + at_once, x.num_panels());
        for (int t = begin; t < end; ++t) {
            Tile tile = tile_at(w.planes + t * w.plan.bytes, w.plan);
            if (x.is_batch())
                kernels.multiply_batch(w.format, tile, x.panels() + first, last - first, w.k, sums.get());
            else
                kernels.multiply[w.format][std::countr_zero(static_cast<unsigned>(x.panel(first).rows))](
                    tile, x.panel(first), w.k, sums.get());
            for (int i = first; i < last; ++i)
                store(x, i, sums.get() + (i - first) * kBatchRows * kTileRows, out + t * kTileRows, stride,
                      std::min(kTileRows, w.n - t * kTileRows));
        }
    }
}

void scale_columns(const Matrix& w, int rows, float* out, size_t stride, int begin, int end) {
    for (int row = 0; row < rows; ++row)
        for (int i = begin * kTileRows; i < std::min(end * kTileRows, w.n); ++i) out[row * stride + i] *= w.scale;
}

}  // namespace

void multiply_tiles(const Kernels& kernels, const Matrix& w, const Activations& x, float* out, size_t stride,
                    int begin, int end) {
    if (is_float(w.format)) {
        const FloatProduct p{w.planes, w.plan, w.n, w.k, x.floats(), x.stride(), x.rows(), out, stride};
        float_kernel(kernels, w.format)(p, begin, end);
    } else {
        multiply_quantized(kernels, w, x, out, stride, begin, end);
    }
    if (w.scale != 1) scale_columns(w, x.rows(), out, stride, begin, end);
}

}  // namespace strata
