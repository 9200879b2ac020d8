#include "pool.hpp"

#include <algorithm>
#include <chrono>

#if defined(STRATA_X86)
#include <immintrin.h>
#endif

namespace strata {

namespace {

// Longer than the gap between two products of a decode step, short enough to leave an idle machine idle.
constexpr auto kSpin = std::chrono::microseconds(200);

inline void pause() {
#if defined(STRATA_X86)
    _mm_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace

Pool::Pool(int num_threads) {
    for (int i = 1; i < num_threads; ++i) workers_.emplace_back([this] { work_loop(); });
}

Pool::~Pool() {
    stop_.store(true);
    state_.fetch_add(kEpoch);
    state_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::take_ranges() {
    for (;;) {
        int begin = next_.fetch_add(grain_, std::memory_order_relaxed);
        if (begin >= job_.n) return;
        job_.call(job_.work, begin, std::min(begin + grain_, job_.n));
    }
}

void Pool::run(Job job, int grain) {
    // About eight ranges for each thread: late or slow workers then cost an eighth of their share.
    job_ = job;
    grain_ = std::max(grain, job.n / (8 * num_threads()));
    next_.store(0, std::memory_order_relaxed);
    state_.fetch_add(kEpoch + kOpen);  // sequentially consistent, as is `parked_`: no wake-up is lost
    if (parked_.load() > 0) state_.notify_all();
    take_ranges();
    state_.fetch_sub(kOpen);
    while (state_.load(std::memory_order_acquire) & kInside) pause();
}

void Pool::work_loop() {
    uint64_t joined = 0;  // the last job this worker took part in
    for (;;) {
        uint64_t seen = state_.load(std::memory_order_acquire);
        auto since = std::chrono::steady_clock::now();
        for (int spins = 0; !((seen & kOpen) && seen / kEpoch != joined); ++spins) {
            if (stop_.load(std::memory_order_relaxed)) return;
            pause();
            seen = state_.load(std::memory_order_acquire);
            if (spins % 64 == 63 && std::chrono::steady_clock::now() - since > kSpin) {
                parked_.fetch_add(1);
                seen = state_.load();
                if (!((seen & kOpen) && seen / kEpoch != joined) && !stop_.load()) state_.wait(seen);
                parked_.fetch_sub(1);
                seen = state_.load(std::memory_order_acquire);
                since = std::chrono::steady_clock::now();
            }
        }
        if (!state_.compare_exchange_strong(seen, seen + 1, std::memory_order_acquire)) continue;
        joined = seen / kEpoch;
        take_ranges();
        state_.fetch_sub(1, std::memory_order_release);
    }
}

}  // namespace strata
