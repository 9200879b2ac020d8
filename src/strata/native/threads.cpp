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

#include <cstdio>
#include <cstdlib>
#include <cstring>
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

// With C's functions: streams of the C++ library crash where torch has brought another version of it along.
Whereabouts find_thread(int id) {
    char text[1024];
    std::snprintf(text, sizeof text, "/proc/self/task/%d/stat", id);
    std::FILE* file = std::fopen(text, "r");
    if (!file) return {};
    text[std::fread(text, 1, sizeof text - 1, file)] = 0;
    std::fclose(file);
    const char* at = std::strrchr(text, ')');  // a name may hold spaces
    if (!at || std::strlen(at) < 3) return {};
    Whereabouts found;
    found.state = at[2];
    for (int field = 3; at && field < 39; ++field)  // proc(5): the state is field 3, the CPU field 39
        at = std::strchr(at + (field == 3 ? 3 : 1), ' ');
    if (at) found.cpu = std::atoi(at);
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
