// Persistent worker threads that share loops over tiles.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <source_location>
#include <thread>
#include <vector>

#include "threads.hpp"
#include "watchdog.hpp"

namespace strata {

// How long threads spin and wait.
struct Patience {
    // Longer than the gap between two products of a decode step, short enough to leave an idle machine idle.
    std::chrono::microseconds spin{200};
    std::chrono::milliseconds stall{10'000};  // a range that takes longer is reported
};

// `parallel_for` gives out ranges of indices to the caller and to the workers that are awake in time; a
// worker that wakes late finds the job closed and does nothing. One caller at a time. Workers spin briefly,
// then park.
//
// Worker i stays on cores[i]; a worker without a core goes where the system puts it. The caller is not
// pinned: it is somebody else's thread, which would hand its mask on to every thread it starts. The workers
// leave cores[0] to it.
class Pool {
public:
    // The caller counts as one of the threads.
    explicit Pool(int num_threads, std::vector<Core> cores = {}, Patience patience = {});
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(begin, end) for ranges that cover [0, n) once, of at least `grain` indices where n allows.
    template <class Work>
    void parallel_for(int n, int grain, const Work& work,
                      std::source_location loop = std::source_location::current()) {
        if (workers_.empty() || n <= grain) return work(0, n);
        run({[](const void* w, int begin, int end) { (*static_cast<const Work*>(w))(begin, end); }, &work, n,
             grain, loop});
    }

private:
    struct Job {
        void (*call)(const void*, int begin, int end);
        const void* work;
        int n, grain;
        std::source_location loop;
    };

    void stop();
    void run(const Job& job);
    void take_ranges(int index);
    void wait_for_workers();
    void work_loop(int index);
    bool wait_for_job(uint32_t joined);
    static bool has_job(uint32_t state, uint32_t joined) {
        return (state & kOpen) && state / kEpoch != joined;
    }

    // Bits 0-10: workers inside the job. Bit 11: the job is open. Bit 12: the caller sleeps until the last
    // worker leaves. Above: count of jobs, so that each is joined once.
    static constexpr uint32_t kOpen = 1 << 11, kAsleep = 1 << 12, kEpoch = 1 << 13, kInside = kOpen - 1;
    alignas(64) std::atomic<uint32_t> state_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> parked_{0};
    std::atomic<bool> stop_{false};
    Job job_{};
    Patience patience_;
    std::unique_ptr<Seat[]> seats_;  // the caller's, then the workers'
    std::vector<float> shares_;      // of what is left of a job, for each seat
    std::vector<std::thread> workers_;
    std::unique_ptr<Watchdog> watchdog_;
};

}  // namespace strata
