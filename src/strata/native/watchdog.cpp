#include "watchdog.hpp"

#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "threads.hpp"

namespace strata {

namespace {

constexpr int kLooks = 4;  // within the patience

std::string seat_name(int index) { return index ? "worker " + std::to_string(index) : "the caller"; }

void report_stall(const Seat& seat, int index, double seconds) {
    int id = seat.thread_id.load(std::memory_order_relaxed);
    Whereabouts at = find_thread(id);
    std::source_location loop = seat.loop.load(std::memory_order_relaxed);
    const char* slash = std::strrchr(loop.file_name(), '/');
    std::fprintf(stderr,
                 "strata: %s (thread %d, CPU %d, state %c) has been in items %d to %d of the loop at %s:%u "
                 "for %.1f s\n",
                 seat_name(index).c_str(), id, at.cpu, at.state, seat.begin.load(std::memory_order_relaxed),
                 seat.end.load(std::memory_order_relaxed), slash ? slash + 1 : loop.file_name(),
                 static_cast<unsigned>(loop.line()), seconds);
}

}  // namespace

Watchdog::Watchdog(const Seat* seats, int num_seats, std::chrono::milliseconds patience)
    : seats_(seats), num_seats_(num_seats), patience_(patience), thread_([this] { watch(); }) {}

Watchdog::~Watchdog() {
    {
        std::lock_guard lock(mutex_);
        stop_ = true;
    }
    stopped_.notify_one();
    thread_.join();
}

void Watchdog::watch() {
    name_this_thread("strata-watchdog");
    // Looks in a row that found a seat at the same step. Time would do worse: it jumps when a machine, or a
    // process, was suspended.
    struct Look {
        uint32_t steps = 0;
        int times = 0;
    };
    std::vector<Look> last(num_seats_);
    std::unique_lock lock(mutex_);
    while (!stopped_.wait_for(lock, patience_ / kLooks, [this] { return stop_; })) {
        for (int i = 0; i < num_seats_; ++i) {
            uint32_t steps = seats_[i].steps.load(std::memory_order_relaxed);
            if (steps % 2 && steps == last[i].steps) {
                if (++last[i].times == kLooks)
                    report_stall(seats_[i], i, std::chrono::duration<double>(patience_).count());
                continue;
            }
            if (last[i].times >= kLooks) std::fprintf(stderr, "strata: %s goes on\n", seat_name(i).c_str());
            last[i] = {steps, 0};
        }
    }
}

}  // namespace strata
