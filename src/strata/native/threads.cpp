#include "threads.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(STRATA_X86)
#include <immintrin.h>
#endif

#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace strata {

namespace {

inline void pause() {
#if defined(STRATA_X86)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");  // `yield` does nothing on most cores
#else
    asm volatile("" ::: "memory");
#endif
}

}  // namespace

#if defined(__linux__)

void pin_this_thread(const Core& core) {
    if (core.cpus.empty()) return;
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int cpu : core.cpus)
        if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &set);
    // Refused where a container took the CPUs away meanwhile: then the thread goes where it may.
    pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

void name_this_thread(const char* name) { pthread_setname_np(pthread_self(), name); }

int this_thread_id() {
    thread_local const int id = static_cast<int>(syscall(SYS_gettid));
    return id;
}

Whereabouts find_thread(int id) {
    std::ifstream file("/proc/self/task/" + std::to_string(id) + "/stat");
    std::string line;
    std::getline(file, line);
    size_t name_end = line.rfind(')');  // a name may hold spaces
    if (name_end == std::string::npos) return {};
    std::istringstream fields(line.substr(name_end + 1));
    Whereabouts found;
    fields >> found.state;
    std::string skipped;
    for (int i = 4; i < 39; ++i) fields >> skipped;  // proc(5): the state is field 3, the CPU field 39
    if (!(fields >> found.cpu)) found.cpu = -1;
    return found;
}

#else

void pin_this_thread(const Core&) {}
void name_this_thread(const char*) {}
int this_thread_id() { return 0; }
Whereabouts find_thread(int) { return {}; }

#endif

bool Spin::again() {
    constexpr unsigned kPauses = 64;
    pause();
    if (++count_ % kPauses) return true;
    auto now = std::chrono::steady_clock::now();
    if (count_ == kPauses) start_ = now;
    if (now - start_ > kGiveWay) std::this_thread::yield();
    return now - start_ < limit_;
}

}  // namespace strata
