// Loops over rows of tensors, on the caller or on all threads.
#pragma once

#include <mutex>

#include "runtime.hpp"
#include "tensor.hpp"

namespace strata {

// Sharing a loop costs some microseconds: as long as 64 KiB take one thread.
constexpr int64_t kWorthSharing = 1 << 16;

// Calls work(begin, end) for [0, n), by all threads where the whole touches enough bytes.
template <class Work>
void share(int64_t n, int64_t bytes, const Work& work) {
    if (bytes < kWorthSharing) return work(0, static_cast<int>(n));
    nb::gil_scoped_release release;
    std::lock_guard lock(runtime().mutex);
    runtime().pool->parallel_for(static_cast<int>(n), 1, work);
}

}  // namespace strata
