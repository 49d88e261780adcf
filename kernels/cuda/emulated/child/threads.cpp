#include "threads.h"
#include "switch.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include <utility>
#include <vector>

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emu {

unsigned char *shared;

static const unsigned MOST = 1024;            // threads of a block
static const size_t MOST_SHARED = 256 << 10;  // bytes of shared memory

// A thread of the block.
struct Warp;
struct Thread {
    uint3 at;
    Warp *warp;
    Fiber *fiber; // what it runs on; null until it starts
    bool begun, ended;
    const Place *waits; // where, while it does
};

struct Barrier {
    const Place *place; // of the first that has arrived
    int arrived;
};

struct Warp {
    Thread *first;
    int size, turn;
    Barrier barrier;
    uint64_t values[2][32]; // of this exchange and the one before, which some lanes may still read
};

static struct {
    const char *name;
    Kernel kernel;
    uint64_t op, pass;
    size_t shared;
    int threads, warps;
} launch = {"none", nullptr, 0, 0, 0, 0, 0};

static Thread threads[MOST];
static Warp warps[MOST / 32];
static Barrier block_barrier;
static int ended;
static Thread *self;
static std::vector<Fiber *> idle; // fibers without a thread

// The queue of threads that can run: a ring, in which each is at most once.
static Thread *queue[MOST];
static unsigned head, queued;
static bool mixed; // of this block: warps that have waited go to the queue's end, so that warps take turns

static uint64_t rng;
static const char *drop_file;
static int drop_line;

uint32_t random_below(uint32_t n) {
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (uint32_t)((rng * 0x2545f4914f6cdd1dull >> 32) * n >> 32);
}

static void shuffle(int *a, int n) {
    for (int i = n; i > 1; i--) std::swap(a[i - 1], a[random_below((uint32_t)i)]);
}

void grid_begin() { self->begun = true; }
bool begun() { return self->begun; }

int lane() { return (int)(self - self->warp->first); }

// queue_warp puts a warp's threads into the queue, in an order of its own each time.
static void queue_warp(const Warp &w, bool front) {
    unsigned n = (unsigned)w.size, from = head + queued;
    if (front) from = head = (head + MOST - n) % MOST;
    queued += n;
    if (n == 32) { // an affine order is as good here as any, and quicker
        uint32_t r = random_below(1 << 9);
        for (unsigned i = 0; i < 32; i++) queue[(from + i) % MOST] = w.first + ((i * (r >> 5 << 1 | 1) + r) & 31);
        return;
    }
    int lanes[32];
    for (int i = 0; i < w.size; i++) lanes[i] = i;
    shuffle(lanes, w.size);
    for (unsigned i = 0; i < n; i++) queue[(from + i) % MOST] = w.first + lanes[i];
}

static void queue_block() {
    int order[MOST / 32];
    for (int w = 0; w < launch.warps; w++) order[w] = w;
    shuffle(order, launch.warps);
    for (int i = 0; i < launch.warps; i++) queue_warp(warps[order[i]], false);
    mixed = random_below(8) == 0;
}

static inline bool same_place(const Place &a, const Place &b) {
    return a.line == b.line && a.what == b.what && (a.file == b.file || !strcmp(a.file, b.file));
}

static void describe(char *to, size_t n, const Thread &t) {
    if (t.ended) {
        snprintf(to, n, "thread (%u,%u,%u) has ended", t.at.x, t.at.y, t.at.z);
    } else {
        snprintf(to, n, "thread (%u,%u,%u) waits at %s, %s:%d", t.at.x, t.at.y, t.at.z, t.waits->what, t.waits->file, t.waits->line);
    }
}

// stuck: all threads that have not ended wait.
[[noreturn]] static void stuck() {
    const Thread *waiting = nullptr, *other = nullptr;
    for (int i = 0; i < launch.threads; i++) {
        Thread &t = threads[i];
        if (!waiting && !t.ended) waiting = &t;
    }
    bool warp = strcmp(waiting->waits->what, "__syncthreads") != 0;
    for (int i = 0; i < launch.threads; i++) {
        Thread &t = threads[i];
        bool same = !t.ended && same_place(*t.waits, *waiting->waits);
        if (!other && !same && (!warp || t.warp == waiting->warp)) other = &t;
    }
    char a[300], b[300];
    describe(a, sizeof a, *waiting);
    if (!other) fail("deadlock: %s", a);
    describe(b, sizeof b, *other);
    fail("deadlock: %s, but %s", a, b);
}

// take returns the next thread that can run.
static inline Thread *take() {
    if (queued == 0) stuck();
    Thread *t = queue[head];
    head = (head + 1) % MOST, queued--;
    return t;
}

static inline void become(Thread *t) {
    self = t;
    threadIdx = t->at;
}

// run_threads is what a fiber does: thread after thread, until one that another fiber runs is next, or none is.
static void run_threads() {
    for (;;) {
        launch.kernel(launch.op, launch.pass);
        if (!self->begun) fail("the thread ends without a grid_begin");
        Fiber *mine = self->fiber;
        self->ended = true;
        if (++ended == launch.threads) {
            idle.push_back(mine);
            switch_fiber(mine, &home);
            continue; // with a thread of a later block
        }
        Thread *next = take();
        bool fresh = !next->fiber;
        become(next);
        if (fresh) {
            next->fiber = mine;
            continue;
        }
        idle.push_back(mine);
        switch_fiber(mine, next->fiber);
    }
}

static Fiber *idle_fiber() {
    if (idle.empty()) return new_fiber();
    Fiber *f = idle.back();
    idle.pop_back();
    return f;
}

// wait lets others run until the thread's turn comes again.
static inline void wait(const Place &p) {
    Thread *me = self;
    me->waits = &p;
    Thread *next = take();
    if (next != me) {
        if (!next->fiber) next->fiber = idle_fiber();
        become(next);
        switch_fiber(me->fiber, next->fiber);
    }
}

// arrive counts the thread and tells whether it is the last of n.
static inline bool arrive(Barrier &b, const Place &p, int n) {
    if (b.arrived == 0) b.place = &p;
    if (!same_place(*b.place, p)) {
        fail("the thread waits at %s, %s:%d, but others wait at %s, %s:%d", p.what, p.file, p.line, b.place->what, b.place->file,
             b.place->line);
    }
    if (++b.arrived < n) return false;
    b.arrived = 0;
    return true;
}

static inline bool dropped(const Place &p) {
    if (p.line != drop_line) return false;
    const char *slash = strrchr(p.file, '/');
    return !strcmp(slash ? slash + 1 : p.file, drop_file);
}

void wait_block(const Place &p) {
    if (dropped(p)) return;
    if (arrive(block_barrier, p, launch.threads)) queue_block();
    wait(p);
}

static inline void meet(Warp &w, const Place &p, unsigned mask) {
    if (mask != 0xffffffffu) fail("%s, %s:%d: mask %08x: want all 32 lanes", p.what, p.file, p.line, mask);
    if (arrive(w.barrier, p, w.size)) {
        queue_warp(w, !mixed);
        w.turn ^= 1;
    }
    wait(p);
}

void wait_warp(const Place &p, unsigned mask) {
    if (!dropped(p)) meet(*self->warp, p, mask);
}

const uint64_t *exchange(const Place &p, unsigned mask, uint64_t mine) {
    Warp &w = *self->warp;
    uint64_t *values = w.values[w.turn];
    values[self - w.first] = mine;
    meet(w, p, mask);
    return values;
}

// fill_shared fills the block's shared memory with what no kernel can mistake for data: NaNs, or large numbers.
static void fill_shared() {
    uint16_t pattern = random_below(2) ? 0xffa5 : 0x7b7b;
    for (size_t i = 0; i < launch.shared; i++) shared[i] = (unsigned char)(pattern >> i % 2 * 8);
}

void run_block(uint32_t x, uint32_t y, uint32_t z) {
    blockIdx = {x, y, z};
    fill_shared();
    for (int i = 0; i < launch.threads; i++) threads[i].fiber = nullptr, threads[i].begun = threads[i].ended = false;
    for (int w = 0; w < launch.warps; w++) memset(warps[w].values, 0xff, sizeof warps[w].values);
    ended = 0;
    queue_block();
    Thread *first = take();
    first->fiber = idle_fiber();
    become(first);
    switch_fiber(&home, first->fiber);
    self = nullptr;
}

static pid_t parent;
static int limit;                        // seconds that a launch may take
static volatile sig_atomic_t ticks = -1; // seconds since the launch began; -1 between launches

void end_launch() { ticks = -1; }

void begin_launch(const char *name, Kernel k, uint64_t op, uint64_t pass, const uint32_t grid[3], const uint32_t block[3],
                  size_t shared_bytes) {
    static unsigned char *end;
    if (!end) end = map_guarded(MOST_SHARED) + MOST_SHARED;
    launch = {name, k, op, pass, shared_bytes, (int)(block[0] * block[1] * block[2]), 0};
    launch.warps = (launch.threads + 31) / 32;
    if (launch.threads > (int)MOST || shared_bytes > MOST_SHARED) {
        fail("%d threads and %zu bytes of shared memory", launch.threads, shared_bytes);
    }
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], block[2]};
    for (int i = 0; i < launch.threads; i++) {
        uint32_t n = (uint32_t)i;
        threads[i].at = {n % block[0], n / block[0] % block[1], n / block[0] / block[1]};
        threads[i].warp = &warps[i / 32];
    }
    for (int w = 0; w < launch.warps; w++) {
        int left = launch.threads - w * 32;
        warps[w].size = left < 32 ? left : 32;
        warps[w].first = &threads[w * 32];
    }
    shared = end - (shared_bytes + 15) / 16 * 16;
    POISON(end - MOST_SHARED, MOST_SHARED);
    UNPOISON(shared, shared_bytes);
    ticks = 0;
}

// tell_where writes the kernel, block and thread that run, if any, to standard error.
static void tell_where() {
    if (!launch.kernel) return;
    dprintf(2, "kernel %s, block (%u,%u,%u)", launch.name, blockIdx.x, blockIdx.y, blockIdx.z);
    if (self) dprintf(2, ", thread (%u,%u,%u)", threadIdx.x, threadIdx.y, threadIdx.z);
    dprintf(2, ": ");
}

void fail(const char *format, ...) {
    tell_where();
    va_list args;
    va_start(args, format);
    vdprintf(2, format, args);
    va_end(args);
    dprintf(2, "\n");
    _exit(3);
}

// on_tick runs every second. A kernel that never ends must not outlive the test either.
static void on_tick(int) {
    if (getppid() != parent) _exit(0);
    if (ticks < 0) return;
    ticks = ticks + 1;
    if (ticks > limit) fail("the launch takes more than %d s", limit);
}

#ifdef __SANITIZE_ADDRESS__
// The sanitizers call these before they report.
extern "C" void __asan_on_error() { tell_where(); }
extern "C" void __ubsan_on_report() { tell_where(); }
#else
static void on_fault(int, siginfo_t *info, void *) {
    if (self && in_guard(self->fiber, info->si_addr)) fail("stack overflow: a thread has %zu bytes of stack", STACK);
    fail("%s at address %p", strsignal(info->si_signo), info->si_addr);
}
#endif

static uint32_t delay;  // microseconds that a fence may take at most

void fence() {
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (delay && random_below(2)) usleep(random_below(delay));
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

void rest() { usleep(20); }

uint64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void begin(uint64_t seed, int seconds, const char *file, int line) {
    rng = (seed + 1) * 0x9e3779b97f4a7c15ull;
    parent = getppid();
    limit = seconds;
    drop_file = file, drop_line = line;
    if (const char *most = getenv("TANDEM_EMULATED_DELAY")) delay = (uint32_t)atoi(most);
    struct sigaction a = {};
    a.sa_handler = on_tick;
    a.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &a, nullptr);
    itimerval second = {{1, 0}, {1, 0}};
    setitimer(ITIMER_REAL, &second, nullptr);
#ifndef __SANITIZE_ADDRESS__
    static char stack[1 << 15];
    stack_t alt = {};
    alt.ss_sp = stack, alt.ss_size = sizeof stack;
    sigaltstack(&alt, nullptr);
    a.sa_flags = SA_SIGINFO | SA_ONSTACK;
    a.sa_sigaction = on_fault;
    for (int s : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigaction(s, &a, nullptr);
#endif
}

} // namespace emu
