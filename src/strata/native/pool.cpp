#include "pool.hpp"

#include <algorithm>

namespace strata {

Pool::Pool(int num_threads, std::vector<Core> cores, Patience patience)
    : patience_(patience), seats_(std::make_unique<Seat[]>(num_threads)) {
    cores.resize(num_threads);
    float speed = 0;
    for (const Core& core : cores) speed += core.speed;
    for (const Core& core : cores) shares_.push_back(core.speed / (4 * speed));
    try {
        for (int i = 1; i < num_threads; ++i)
            workers_.emplace_back([this, i, core = cores[i]] {
                pin_this_thread(core);
                name_this_thread("strata-worker");
                work_loop(i);
            });
        if (num_threads > 1)
            watchdog_ = std::make_unique<Watchdog>(seats_.get(), num_threads, patience.stall);
    } catch (...) {  // the system gives no more threads
        stop();
        throw;
    }
}

Pool::~Pool() { stop(); }

void Pool::stop() {
    stop_.store(true);
    state_.fetch_add(kEpoch);
    state_.notify_all();
    for (auto& worker : workers_) worker.join();
}

// Ranges shrink with what is left of the job, and with the speed of the core that takes them, so that all
// threads end together even where one started late, is slow, or shares its core.
void Pool::take_ranges(int index) {
    Seat& seat = seats_[index];
    seat.thread_id.store(this_thread_id(), std::memory_order_relaxed);
    seat.loop.store(job_.loop, std::memory_order_relaxed);
    uint32_t steps = seat.steps.load(std::memory_order_relaxed);
    int begin = next_.load(std::memory_order_relaxed);
    while (begin < job_.n) {
        int left = job_.n - begin;
        int size = std::min(std::max(static_cast<int>(left * shares_[index]), job_.grain), left);
        if (!next_.compare_exchange_weak(begin, begin + size, std::memory_order_relaxed)) continue;
        seat.begin.store(begin, std::memory_order_relaxed);
        seat.end.store(begin + size, std::memory_order_relaxed);
        seat.steps.store(++steps, std::memory_order_relaxed);
        job_.call(job_.work, begin, begin + size);
        seat.steps.store(++steps, std::memory_order_relaxed);
        begin = next_.load(std::memory_order_relaxed);
    }
}

void Pool::run(const Job& job) {
    job_ = job;
    next_.store(0, std::memory_order_relaxed);
    state_.fetch_add(kEpoch + kOpen);  // sequentially consistent, as is `parked_`: no wake-up is lost
    if (parked_.load() > 0) state_.notify_all();
    take_ranges(0);
    state_.fetch_sub(kOpen);
    wait_for_workers();
}

void Pool::wait_for_workers() {
    Spin spin(patience_.spin);
    for (;;) {
        uint32_t state = state_.load(std::memory_order_acquire);
        if (!(state & kInside)) break;
        if (spin.again()) continue;
        state = state_.fetch_or(kAsleep) | kAsleep;
        if (!(state & kInside)) break;
        state_.wait(state);
    }
    state_.fetch_and(~kAsleep);
}

// Returns when there is a job that this worker has not been in, or the pool ends (false).
bool Pool::wait_for_job(uint32_t joined) {
    Spin spin(patience_.spin);
    for (;;) {
        uint32_t state = state_.load(std::memory_order_acquire);
        if (stop_.load(std::memory_order_relaxed)) return false;
        if (has_job(state, joined)) return true;
        if (spin.again()) continue;
        parked_.fetch_add(1);
        state = state_.load();
        if (!has_job(state, joined) && !stop_.load()) state_.wait(state);
        parked_.fetch_sub(1);
        spin = Spin(patience_.spin);
    }
}

void Pool::work_loop(int index) {
    uint32_t joined = 0;  // the last job this worker took part in
    while (wait_for_job(joined)) {
        uint32_t state = state_.load(std::memory_order_relaxed);
        if (!has_job(state, joined)) continue;
        if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire)) continue;
        joined = state / kEpoch;
        take_ranges(index);
        state = state_.fetch_sub(1, std::memory_order_release);
        if ((state & kInside) == 1 && (state & kAsleep)) state_.notify_all();
    }
}

}  // namespace strata
