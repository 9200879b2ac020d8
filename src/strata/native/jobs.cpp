#include "jobs.hpp"

#include <chrono>
#include <cstring>

namespace strata {

namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;

// Between two layers of a decode step threads spin; 20 ms after the last job there is no decode step.
constexpr microseconds kSpin{20'000};
// Then the doorbell is looked at ever more rarely: nobody can wake a thread through memory that a GPU writes.
constexpr microseconds kFirstSleep{50}, kLongestSleep{1000};

constexpr size_t kLine = 64;

size_t round_up(size_t bytes) { return (bytes + kLine - 1) / kLine * kLine; }

// Other processors write the memory: not C++ objects, but words that the compiler must not guess about.
uint32_t acquire(const uint32_t& word) { return __atomic_load_n(&word, __ATOMIC_ACQUIRE); }
void release(uint32_t& word, uint32_t value) { __atomic_store_n(&word, value, __ATOMIC_RELEASE); }
int32_t read(const int32_t& word) { return __atomic_load_n(&word, __ATOMIC_RELAXED); }

}  // namespace

JobLayout::JobLayout(int width, int max_rows, int max_entries)
    : width(width), max_rows(max_rows), max_entries(max_entries) {
    size_t list = round_up(sizeof(int32_t) * max_entries), row = sizeof(float) * width;
    experts = sizeof(JobHeader);
    rows = experts + list;
    weights = rows + list;
    x = weights + list;
    out = x + round_up(row * max_rows);
    bytes = out + round_up(row * max_entries);
}

JobServer::JobServer(std::vector<ExpertLayer> layers, uint8_t* memory, int count, const JobLayout& layout,
                     const Kernels& kernels, int num_threads, std::vector<Core> cores)
    : layers_(std::move(layers)),
      memory_(memory),
      count_(count),
      layout_(layout),
      kernels_(kernels),
      experts_(layout.max_entries),
      rows_(layout.max_entries),
      core_(cores.empty() ? Core{} : cores[0]),
      pool_(num_threads, std::move(cores), Patience{.spin = kSpin}),
      thread_([this] { serve(); }) {}

JobServer::~JobServer() {
    stop_.store(true);
    thread_.join();
}

void JobServer::serve() {
    pin_this_thread(core_);
    name_this_thread("strata-jobs");
    Spin spin(kSpin);
    microseconds sleep = kFirstSleep;
    while (!stop_.load(std::memory_order_relaxed)) {
        bool rung = false;
        for (int i = 0; i < count_; ++i) rung |= answer_if_rung(memory_ + i * layout_.bytes);
        if (rung) {
            spin = Spin(kSpin);
            sleep = kFirstSleep;
        } else if (!spin.again()) {
            std::this_thread::sleep_for(sleep);
            sleep = std::min(sleep * 2, kLongestSleep);
        }
    }
}

bool JobServer::answer_if_rung(uint8_t* job) {
    auto& header = *reinterpret_cast<JobHeader*>(job);
    uint32_t epoch = acquire(header.doorbell);
    if (epoch == header.done) return false;
    auto start = Clock::now();
    int32_t detail = 0;
    JobStatus status;
    try {
        status = compute(job, detail);
    } catch (const std::exception&) {  // no memory left
        status = JobStatus::kFailed;
    }
    header.status = static_cast<int32_t>(status);
    header.detail = detail;
    header.nanoseconds = static_cast<uint32_t>(std::chrono::nanoseconds(Clock::now() - start).count());
    release(header.done, epoch);
    return true;
}

// Nothing in the memory is trusted, and nothing is read twice: the client may be wrong, and may be writing.
JobStatus JobServer::compute(uint8_t* job, int32_t& detail) {
    const auto& header = *reinterpret_cast<const JobHeader*>(job);
    if (header.magic != kJobMagic || header.version != kJobVersion) return JobStatus::kBadMagic;
    int layer = detail = read(header.layer);
    if (layer < 0 || layer >= static_cast<int>(layers_.size())) return JobStatus::kBadLayer;
    int num_rows = detail = read(header.num_rows);
    if (num_rows < 0 || num_rows > layout_.max_rows) return JobStatus::kBadRows;
    num_entries_ = detail = read(header.num_entries);
    if (num_entries_ < 0 || num_entries_ > layout_.max_entries) return JobStatus::kBadEntries;
    const ExpertLayer& experts = layers_[layer];
    JobStatus status = check_entries(job, experts.gate.count, num_rows, detail);
    if (status != JobStatus::kDone) return status;
    detail = 0;
    run_entries(kernels_, pool_, experts, reinterpret_cast<const float*>(job + layout_.x), experts_.data(),
                rows_.data(), num_entries_, reinterpret_cast<float*>(job + layout_.out));
    return JobStatus::kDone;
}

JobStatus JobServer::check_entries(const uint8_t* job, int num_experts, int num_rows, int32_t& detail) {
    std::memcpy(experts_.data(), job + layout_.experts, num_entries_ * sizeof(int32_t));
    std::memcpy(rows_.data(), job + layout_.rows, num_entries_ * sizeof(int32_t));
    for (detail = 0; detail < num_entries_; ++detail) {
        if (experts_[detail] < 0 || experts_[detail] >= num_experts) return JobStatus::kBadExpert;
        if (rows_[detail] < 0 || rows_[detail] >= num_rows) return JobStatus::kBadRow;
    }
    return JobStatus::kDone;
}

}  // namespace strata
