// What the operating system does for threads, and says about them. Where it cannot, nothing happens.
#pragma once

#include <chrono>
#include <vector>

namespace strata {

// A physical core that may be used: its logical CPUs, and how fast it is beside the fastest (0 to 1].
struct Core {
    std::vector<int> cpus;  // empty where the system does not say: a thread then goes where it likes
    float speed = 1;
};

// Keeps the calling thread on the CPUs of `core`.
void pin_this_thread(const Core& core);
void name_this_thread(const char* name);
int this_thread_id();

// Where a thread of this process is: the CPU it last ran on, and its state as in /proc ('R' runs, 'D' waits
// for a disk, ...). -1 and '?' where that is unknown.
struct Whereabouts {
    int cpu = -1;
    char state = '?';
};
Whereabouts find_thread(int id);

// Waiting for another thread without sleeping.
class Spin {
public:
    explicit Spin(std::chrono::microseconds limit) : limit_(limit) {}

    // Waits a moment; false once the limit has passed. After a while it gives way again and again: the thread
    // that it waits for may be in the queue of this same CPU. (At once would be wrong: another program may be
    // in that queue, and would stay for milliseconds.)
    bool again();

private:
    static constexpr std::chrono::microseconds kGiveWay{50};

    std::chrono::microseconds limit_;
    std::chrono::steady_clock::time_point start_;
    unsigned count_ = 0;
};

}  // namespace strata
