// Jobs for the experts of a layer, written into shared memory by whoever wants them done: a GPU, or a test.
// docs/JOBS.md is the format.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

#include "experts.hpp"

namespace strata {

inline constexpr uint32_t kJobMagic = 0x424a5453;  // "STJB"
inline constexpr uint32_t kJobVersion = 1;

enum class JobStatus : int32_t {
    kDone,
    kBadMagic,
    kBadLayer,
    kBadRows,
    kBadEntries,
    kBadExpert,
    kBadRow,
    kFailed
};

// The first two cache lines of a job. The client writes one, the server the other.
struct JobHeader {
    uint32_t magic, version;
    int32_t layer, num_rows, num_entries;
    uint32_t unused[10];
    uint32_t doorbell;  // written last: the job's epoch
    uint32_t done;      // written last: the epoch of the job that the results belong to
    int32_t status;     // a JobStatus
    int32_t detail;     // the value that was out of range; for an expert or a row, the entry it is in
    uint32_t nanoseconds;
    uint32_t more_unused[12];
};
static_assert(sizeof(JobHeader) == 128 && offsetof(JobHeader, doorbell) == 60 &&
              offsetof(JobHeader, done) == 64);

// Where the parts of a job are, in bytes from its header; each starts a cache line.
struct JobLayout {
    int width, max_rows, max_entries;
    size_t experts, rows, weights;  // int32, int32, float32 [max_entries]
    size_t x, out;                  // float32 [max_rows, width], [max_entries, width]
    size_t bytes;                   // of one job

    JobLayout(int width, int max_rows, int max_entries);
};

// Serves jobs in `count` places, each `layout.bytes` long, one after the other in `memory`, from threads of
// its own: no lock, and none of Python, is in a job's way. The memory and the layers' planes must outlive it.
class JobServer {
public:
    // All layers are `layout.width` wide. Worker i keeps to cores[i]; the thread that waits for jobs is the
    // first.
    JobServer(std::vector<ExpertLayer> layers, uint8_t* memory, int count, const JobLayout& layout,
              const Kernels& kernels, int num_threads, std::vector<Core> cores);
    ~JobServer();
    JobServer(const JobServer&) = delete;
    JobServer& operator=(const JobServer&) = delete;

private:
    void serve();
    bool answer_if_rung(uint8_t* job);
    JobStatus compute(uint8_t* job, int32_t& detail);
    JobStatus check_entries(const uint8_t* job, int num_experts, int num_rows, int32_t& detail);

    std::vector<ExpertLayer> layers_;
    uint8_t* memory_;
    int count_;
    JobLayout layout_;
    const Kernels& kernels_;
    std::vector<int32_t> experts_, rows_;  // of the job: checked copies, which the client cannot change
    int num_entries_ = 0;
    Core core_;
    Pool pool_;
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace strata
