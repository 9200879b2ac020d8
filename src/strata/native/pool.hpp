// Persistent worker threads that share loops over tiles.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace strata {

// `parallel_for` gives out indices in small ranges to the caller and the workers that are awake in time; a
// worker that wakes late finds the job closed and does nothing. One caller at a time. Workers spin briefly,
// then park.
class Pool {
public:
    explicit Pool(int num_threads);  // the caller counts as one
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls work(begin, end) for ranges that cover [0, n) once, of at least `grain` indices where n allows.
    template <class Work>
    void parallel_for(int n, int grain, const Work& work) {
        if (workers_.empty() || n <= grain) return work(0, n);
        run({[](const void* w, int begin, int end) { (*static_cast<const Work*>(w))(begin, end); }, &work, n},
            grain);
    }

private:
    struct Job {
        void (*call)(const void*, int begin, int end);
        const void* work;
        int n;
    };

    void run(Job job, int grain);
    void take_ranges();
    void work_loop();

    // Bits 0-15: workers inside the job. Bit 16: the job is open. Above: count of jobs, so that each is
    // joined once.
    static constexpr uint64_t kOpen = 1 << 16, kEpoch = 1 << 17, kInside = kOpen - 1;
    alignas(64) std::atomic<uint64_t> state_{0};
    alignas(64) std::atomic<int> next_{0};
    alignas(64) std::atomic<int> parked_{0};
    std::atomic<bool> stop_{false};
    Job job_{};
    int grain_ = 1;
    std::vector<std::thread> workers_;
};

}  // namespace strata
