// A GPU's block on a CPU: each thread is a fiber, and fibers take turns where they wait.
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __device__ static
#define __forceinline__ inline
#define __global__
#define __shared__
#define __grid_constant__
#define __align__(n)
#define __launch_bounds__(...)
#define __cluster_dims__(...)

struct uint2 { unsigned x, y; };
struct uint4 { unsigned x, y, z, w; };
struct Index { unsigned x; };
static Index threadIdx, blockIdx;
alignas(1024) unsigned char shared_memory[1 << 18];

namespace host {

struct Copy { void* to; unsigned char bytes[16]; int size; };

struct Fiber {
    ucontext_t context;
    bool done;
    std::vector<Copy> open;
    std::vector<std::vector<Copy>> groups;
};

struct Meeting { int come = 0; unsigned turn = 0; };

static std::vector<Fiber> fibers;
static std::vector<char> stacks;
static ucontext_t scheduler;
static int current, alive;
static long progress;
static Meeting block_meeting, warp_meetings[64], warpgroup_meetings[8], named_meetings[16];
static unsigned long long slots[1024];
static void (*body)(void**);
static void** arguments;
const int STACK = 1 << 17;

static sigjmp_buf undefined;
static void on_trap(int) { siglongjmp(undefined, 1); }

static void yield() { swapcontext(&fibers[current].context, &scheduler); }

static void meet(Meeting& meeting, int count) {
    unsigned turn = meeting.turn;
    if (++meeting.come >= count) {
        meeting.come = 0;
        ++meeting.turn;
        ++progress;
        return;
    }
    while (meeting.turn == turn) yield();
}

static int lane() { return current % 32; }
static int warp_size() { int rest = (int)fibers.size() - current / 32 * 32; return rest < 32 ? rest : 32; }
static void meet_warpgroup() { meet(warpgroup_meetings[current / 128], 128); }
static void meet_warp() { meet(warp_meetings[current / 32], warp_size()); }

static void start() {
    body(arguments);
    fibers[current].done = true;
    ++progress;
    --alive;
    if (block_meeting.come && block_meeting.come >= alive) {  // whoever has ended isn't waited for
        block_meeting.come = 0;
        ++block_meeting.turn;
    }
    swapcontext(&fibers[current].context, &scheduler);
}

static int run(void (*kernel)(void**), void** given, long long blocks, int threads, unsigned seed) {
    // What C++ leaves undefined, an overflow for example, is an invalid instruction.
    struct sigaction trap = {}, outside;
    trap.sa_handler = on_trap;
    sigaction(SIGILL, &trap, &outside);
    if (sigsetjmp(undefined, 1)) {
        sigaction(SIGILL, &outside, nullptr);
        return 2;
    }
    body = kernel;
    arguments = given;
    stacks.resize((size_t)STACK * threads);
    for (long long block = 0; block < blocks; ++block) {
        blockIdx.x = (unsigned)block;
        memset(shared_memory, 0xcd, sizeof(shared_memory));
        fibers.clear();
        fibers.resize(threads);
        block_meeting = Meeting();
        for (Meeting& one : warp_meetings) one = Meeting();
        for (Meeting& one : warpgroup_meetings) one = Meeting();
        for (Meeting& one : named_meetings) one = Meeting();
        alive = threads;
        for (int i = 0; i < threads; ++i) {
            getcontext(&fibers[i].context);
            fibers[i].context.uc_stack.ss_sp = stacks.data() + (size_t)STACK * i;
            fibers[i].context.uc_stack.ss_size = STACK;
            fibers[i].context.uc_link = nullptr;
            makecontext(&fibers[i].context, start, 0);
        }
        int idle = 0;
        while (alive) {
            long before = progress;
            seed = seed * 1664525u + 1013904223u;
            int first = (int)(seed >> 8) % threads / 32 * 32;  // lanes of a warp look at an mbarrier together
            for (int n = 0; n < threads; ++n) {
                current = (first + n) % threads;
                if (fibers[current].done) continue;
                threadIdx.x = (unsigned)current;
                swapcontext(&scheduler, &fibers[current].context);
            }
            idle = progress == before ? idle + 1 : 0;
            if (idle > 3) {  // all wait, and for nothing
                sigaction(SIGILL, &outside, nullptr);
                return 1;
            }
        }
    }
    sigaction(SIGILL, &outside, nullptr);
    return 0;
}

}  // namespace host

inline void __syncthreads() { host::meet(host::block_meeting, host::alive); }
inline void __syncwarp() { host::meet_warp(); }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline double __fma_rn(double a, double b, double c) { return fma(a, b, c); }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline float normcdff(float x) { return (float)(0.5 * erfc((double)x * -0.70710678118654752440)); }
inline double normcdf(double x) { return 0.5 * erfc(x * -0.70710678118654752440); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

template <class T> T changed(T* place, T made) { T old = *place; *place = made; return old; }
template <class T> T atomicAdd(T* p, T v) { return changed(p, (T)(*p + v)); }
inline int atomicAdd(int* p, int v) { return changed(p, (int)((unsigned)*p + (unsigned)v)); }
template <class T> T atomicMin(T* p, T v) { return changed(p, v < *p ? v : *p); }
template <class T> T atomicMax(T* p, T v) { return changed(p, v > *p ? v : *p); }
template <class T> T atomicAnd(T* p, T v) { return changed(p, (T)(*p & v)); }
template <class T> T atomicOr(T* p, T v) { return changed(p, (T)(*p | v)); }
template <class T> T atomicXor(T* p, T v) { return changed(p, (T)(*p ^ v)); }
template <class T> T atomicExch(T* p, T v) { return changed(p, v); }
template <class T> T atomicCAS(T* p, T compare, T v) { return changed(p, *p == compare ? v : *p); }

#define printf(...) host::printed(__VA_ARGS__)
namespace host {
template <class... Values> void printed(const char*, Values...) {}
}  // namespace host
