// Says which thread of a pool stopped, and where.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <source_location>
#include <thread>

namespace strata {

// What one thread of a pool does. The thread alone writes it, with relaxed stores to a cache line of its own,
// so that watching costs the work nothing.
struct alignas(64) Seat {
    std::atomic<uint32_t> steps{0};  // odd while it computes a range
    std::atomic<int> begin{0}, end{0};
    std::atomic<std::source_location> loop{};  // the parallel_for that the range belongs to
    std::atomic<int> thread_id{0};
};

// Looks at the seats of a pool from a thread of its own; a range that takes longer than `patience` is
// reported on standard error, and so is its end.
class Watchdog {
public:
    Watchdog(const Seat* seats, int num_seats, std::chrono::milliseconds patience);
    ~Watchdog();
    Watchdog(const Watchdog&) = delete;
    Watchdog& operator=(const Watchdog&) = delete;

private:
    void watch();

    const Seat* seats_;
    int num_seats_;
    std::chrono::milliseconds patience_;
    std::mutex mutex_;  // of `stop_` alone: no working thread ever takes it
    std::condition_variable stopped_;
    bool stop_ = false;
    std::thread thread_;
};

}  // namespace strata
