// The thread pool. One call runs an operation list or a part of it; the caller is one of the threads.
//
// An operation's units are claimed in runs (claim) from one atomic word that also carries the
// generation of the pass, and it is over when all its units are done, not when all threads have
// arrived: a worker that the system has descheduled delays the others only if it holds a unit, and one that
// comes late sees another generation and leaves. So two processes may share the same cores.
// Waiting spins for some tens of microseconds, then sleeps on a futex; an idle pool uses no time.
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "tk.h"

// A thread spins for SPIN_NS before it sleeps. If it waits for the other half of a pass, which is under way on cores of its own, it first
// goes on for MEET_NS, giving way to whoever else wants the core.
enum { SPIN_NS = 40000, MEET_NS = 1000000 };

typedef struct { pthread_t thread; tk_pool *pool; int index; float *scratch; size_t floats; } worker;

struct tk_sync {
    _Alignas(64) _Atomic uint64_t next;           // generation << 32 | first unclaimed unit
    _Alignas(64) _Atomic uint32_t done;           // units finished, ever: only grows (modulo 2^32), so that a
                                                  // thread late by a pass never finds the value it wants to sleep on
    _Atomic uint32_t target;                      // value of done at the end of this pass
};

size_t tk_sync_bytes(void) { return sizeof(struct tk_sync); }

struct tk_pool {
    int threads;
    const tk_kernels *k;
    worker *workers;                              // threads-1 of them, after the caller's own
    cpu_set_t *own;                               // the caller's core; NULL: wherever it is
    int quit;
    _Alignas(64) _Atomic uint32_t gen;            // generation of the newest pass; workers sleep on it
    _Atomic(tk_prog *) prog;                      // NULL between passes
    _Alignas(64) _Atomic int idle;                // threads asleep on gen
    _Atomic int waiting;                          // threads asleep on an operation
    _Alignas(64) _Atomic int inside;              // workers that may hold a program
};

static void futex_wait(void *word, uint32_t seen) { syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0); }
static void futex_wake_all(void *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0); }

static void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static int64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// Waits while *word == seen: first spinning, then giving way until `yielding` after the start, then asleep and counted in sleepers.
static void wait_long(void *at, uint32_t seen, _Atomic int *sleepers, int64_t yielding) {
    _Atomic uint32_t *word = at;
    int64_t begin = 0, waited = 0;
    do {
        for (int i = 0; i < 64; i++) {
            if (atomic_load(word) != seen) return;
            relax();
        }
        if (!begin) begin = now_ns();
        waited = now_ns() - begin;
        if (waited >= SPIN_NS && waited < yielding) sched_yield();
    } while (waited < SPIN_NS || waited < yielding);
    atomic_fetch_add(sleepers, 1);
    while (atomic_load(word) == seen) futex_wait(at, seen);
    atomic_fetch_sub(sleepers, 1);
}

static void wait_change(void *at, uint32_t seen, _Atomic int *sleepers) { wait_long(at, seen, sleepers, 0); }

static void wake(void *at, _Atomic int *sleepers) {
    if (atomic_load(sleepers)) futex_wake_all(at);
}

static tk_time *time_of(const tk_prog *p, const worker *w, int i) {
    return w->index < p->timed ? p->times + (size_t)w->index * p->nops + i : NULL;
}

// How many of the units that are left a thread claims: fewer towards the end, so that all threads end together.
static int claim(const tk_pool *pool, const tk_op *op, int left) {
    int n = left / (3 * pool->threads) / op->grain * op->grain;
    n = imax(op->grain, imin(n, op->most));
    return imin(n, left);
}

// Works on an operation until no unit is left to claim; returns 0 if the pass is no longer gen.
static int work(worker *w, tk_prog *p, int i, uint32_t gen) {
    tk_pool *pool = w->pool;
    tk_op *op = p->ops + i;
    tk_sync *s = p->sync + i;
    tk_time *t = time_of(p, w, i);
    int64_t begin = t ? now_ns() : 0;
    int did = 0;
    uint64_t seen = atomic_load(&s->next);
    for (;;) {
        if ((uint32_t)(seen >> 32) != gen) return 0;
        int from = (int)(uint32_t)seen;
        if (from >= op->units) break;
        int to = from + claim(pool, op, op->units - from);
        if (!atomic_compare_exchange_weak(&s->next, &seen, (uint64_t)gen << 32 | (uint32_t)to)) continue;
        tk_run_units(p, op, from, to, w->scratch);
        did += to - from;
        seen = atomic_load(&s->next);
    }
    if (!did) return 1;
    if (t) t->busy += now_ns() - begin;
    uint32_t target = atomic_load(&s->target);  // of this pass, which cannot end before did is added
    if (atomic_fetch_add(&s->done, did) + did == target) wake(&s->done, &pool->waiting);
    return 1;
}

static int finished(worker *w, tk_prog *p, int i, uint32_t gen) {
    tk_sync *s = p->sync + i;
    tk_time *t = time_of(p, w, i);
    int64_t begin = t ? now_ns() : 0;
    for (;;) {
        uint32_t done = atomic_load(&s->done);
        if ((uint32_t)(atomic_load(&s->next) >> 32) != gen) return 0;
        if (done == atomic_load(&s->target)) break;
        wait_change(&s->done, done, &w->pool->waiting);
    }
    if (t) t->wait += now_ns() - begin;
    return 1;
}

static void run_list(worker *w, tk_prog *p, uint32_t gen) {
    for (int i = p->first, first = i, end = p->end; i < end; i += 1 + p->ops[i].chain) {
        if (!work(w, p, i, gen)) return;
        if (p->ops[i].concurrent && i + 1 < end) continue;
        for (; first <= i; first += 1 + p->ops[first].chain)
            if (!finished(w, p, first, gen)) return;
    }
}

static void *worker_main(void *arg) {
    worker *w = arg;
    tk_pool *pool = w->pool;
    for (uint32_t seen = 0;;) {
        wait_change(&pool->gen, seen, &pool->idle);
        atomic_fetch_add(&pool->inside, 1);
        tk_prog *p = atomic_load(&pool->prog);
        seen = atomic_load(&pool->gen);
        if (p) run_list(w, p, seen);
        int quit = pool->quit;
        atomic_fetch_sub(&pool->inside, 1);
        if (quit) return NULL;
    }
}

void tk_pool_quiet(tk_pool *pool) {
    while (atomic_load(&pool->inside)) sched_yield();
}

static int ensure_scratch(worker *w, size_t floats) {
    if (floats <= w->floats) return 0;
    void *mem;
    if (posix_memalign(&mem, 64, floats * sizeof(float))) return ENOMEM;
    free(w->scratch);
    w->scratch = mem;
    w->floats = floats;
    return 0;
}

static void run_alone(worker *w, tk_prog *p) {
    for (int i = p->first; i < p->end; i += 1 + p->ops[i].chain) {
        tk_time *t = time_of(p, w, i);
        int64_t begin = t ? now_ns() : 0;
        tk_run_units(p, p->ops + i, 0, p->ops[i].units, w->scratch);
        if (t) t->busy += now_ns() - begin;
    }
}

static void open_pass(tk_pool *pool, tk_prog *p, uint32_t gen) {
    // A late worker of the last pass must not see new sizes under the old generation. Operations that this call does not run
    // keep theirs, and their sizes.
    for (int i = p->first; i < p->end; i++) atomic_store(&p->sync[i].next, (uint64_t)gen << 32 | INT_MAX);
    tk_divide_pass(p, pool->threads);
    for (int i = p->first; i < p->end; i++) {
        atomic_store(&p->sync[i].target, atomic_load(&p->sync[i].done) + (uint32_t)p->ops[i].units);
        atomic_store(&p->sync[i].next, (uint64_t)gen << 32);
    }
}

static int prepare(tk_pool *pool, tk_prog *p) {
    p->k = pool->k;
    int err = tk_prepare_pass(p, pool->threads);
    if (err) return err;
    size_t floats = tk_scratch_floats(p);
    if (floats > pool->workers[0].floats) tk_pool_quiet(pool);
    for (int i = 0; i < pool->threads; i++)
        if (ensure_scratch(pool->workers + i, floats)) return ENOMEM;
    return 0;
}

static void run_here(tk_pool *pool, tk_prog *p) {
    if (pool->threads == 1) {
        tk_divide_pass(p, 1);
        run_alone(pool->workers, p);
        return;
    }
    uint32_t gen = atomic_load(&pool->gen) + 1;
    open_pass(pool, p, gen);
    atomic_store(&pool->prog, p);
    atomic_store(&pool->gen, gen);
    wake(&pool->gen, &pool->idle);
    run_list(pool->workers, p, gen);
    atomic_store(&pool->prog, NULL);
}

// The caller is the thread of the pool's first core, and is given back to where it may run: it is Go's.
static void run_prepared(tk_pool *pool, tk_prog *p) {
    cpu_set_t before;
    int moved = pool->own && !sched_getaffinity(0, sizeof before, &before) && !sched_setaffinity(0, sizeof *pool->own, pool->own);
    run_here(pool, p);
    if (moved) sched_setaffinity(0, sizeof before, &before);
}

int tk_pool_run(tk_pool *pool, tk_prog *p) {
    int err = prepare(pool, p);
    if (!err) run_prepared(pool, p);
    return err;
}

struct tk_meeting {
    struct { _Alignas(64) _Atomic uint32_t came; _Atomic int asleep; } half[2];  // asleep: threads that wait for this half
};

// Meets another device. If it is lost or never comes, this half goes on alone, and its results are of no use.
static void meet_device(tk_prog *p) {
    tk_flags *f = p->flags;
    uint32_t n = ++p->met;
    p->second += (int32_t)(__atomic_load_n(&f->there.came, __ATOMIC_ACQUIRE) - n) >= 0;
    __atomic_store_n(&f->here.came, n, __ATOMIC_SEQ_CST);
    int64_t begin = now_ns(), waited = 0;
    for (int i = 1; (int32_t)(__atomic_load_n(&f->there.came, __ATOMIC_SEQ_CST) - n) < 0; i++) {
        if (__atomic_load_n(&f->there.gone, __ATOMIC_ACQUIRE) || f->here.gone) return;
        relax();
        if (i % 64) continue;
        waited = now_ns() - begin;
        if (waited > f->patience) __atomic_store_n(&f->here.gone, 1, __ATOMIC_RELEASE);
        if (waited > MEET_NS) usleep(20);
        else if (waited > SPIN_NS) sched_yield();
    }
}

// An operation of both halves: neither goes on before the other has come. Both have been prepared, so both will.
void tk_meet(tk_prog *p) {
    if (p->flags) { meet_device(p); return; }
    tk_meeting *m = p->meeting;
    uint32_t n = ++p->met, seen;
    atomic_store(&m->half[p->half].came, n);
    wake(&m->half[p->half].came, &m->half[p->half].asleep);
    while ((int32_t)((seen = atomic_load(&m->half[1 - p->half].came)) - n) < 0)
        wait_long(&m->half[1 - p->half].came, seen, &m->half[1 - p->half].asleep, MEET_NS);
}

struct tk_couple {
    tk_meeting meeting;
    pthread_t thread;
    tk_pool *pool;                          // what the thread runs next, or NULL to end it
    tk_prog *prog;
    _Alignas(64) _Atomic uint32_t begun;    // passes; the thread sleeps on it
    _Atomic int idle;
    _Alignas(64) _Atomic uint32_t ended;    // passes; the caller sleeps on it
    _Atomic int waiting;
};

static void *couple_main(void *arg) {
    tk_couple *c = arg;
    for (uint32_t seen = 0;;) {
        wait_change(&c->begun, seen, &c->idle);
        seen = atomic_load(&c->begun);
        if (!c->pool) return NULL;
        run_prepared(c->pool, c->prog);
        atomic_store(&c->ended, seen);
        wake(&c->ended, &c->waiting);
    }
}

static void begin(tk_couple *c, tk_pool *pool, tk_prog *p) {
    c->pool = pool;
    c->prog = p;
    atomic_fetch_add(&c->begun, 1);
    wake(&c->begun, &c->idle);
}

int tk_couple_run(tk_couple *c, tk_pool *left, tk_prog *l, tk_pool *right, tk_prog *r) {
    int err = prepare(left, l);
    if (err) return err;
    tk_share_parts(r, l);
    if ((err = prepare(right, r))) return err;
    l->meeting = r->meeting = &c->meeting;
    l->half = 0;
    r->half = 1;
    l->met = r->met = atomic_load(&c->meeting.half[0].came);
    begin(c, right, r);
    uint32_t pass = atomic_load(&c->begun);
    run_prepared(left, l);
    for (uint32_t seen; (seen = atomic_load(&c->ended)) != pass;) wait_long(&c->ended, seen, &c->waiting, MEET_NS);
    return 0;
}

tk_couple *tk_couple_new(int *err) {
    tk_couple *c = NULL;
    if ((*err = posix_memalign((void **)&c, 64, sizeof *c))) return NULL;
    *c = (tk_couple){0};
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);  // signals belong to the Go runtime's threads
    *err = pthread_create(&c->thread, NULL, couple_main, c);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (*err) { free(c); return NULL; }
    return c;
}

void tk_couple_free(tk_couple *c) {
    begin(c, NULL, NULL);
    pthread_join(c->thread, NULL);
    free(c);
}

static int start_worker(worker *w, const int32_t *cores) {
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 512 << 10);
    int err = 0;
    if (cores) {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cores[w->index], &one);
        err = pthread_attr_setaffinity_np(&attr, sizeof one, &one);
    }
    if (!err) err = pthread_create(&w->thread, &attr, worker_main, w);
    pthread_attr_destroy(&attr);
    return err;
}

tk_pool *tk_pool_new(int threads, const int32_t *cores, int isa, int *err) {
    const tk_kernels *k = tk_kernels_of(isa);
    tk_pool *pool = NULL;
    *err = k ? ENOMEM : ENOTSUP;
    if (!k || posix_memalign((void **)&pool, 64, sizeof *pool)) return NULL;
    *pool = (tk_pool){.threads = 1, .k = k, .workers = calloc(threads, sizeof(worker)), .own = cores ? calloc(1, sizeof(cpu_set_t)) : NULL};
    if (!pool->workers || (cores && !pool->own)) { tk_pool_free(pool); return NULL; }
    if (cores) CPU_SET(cores[0], pool->own);
    pool->workers[0].pool = pool;
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);  // signals belong to the Go runtime's threads
    for (*err = 0; pool->threads < threads && !*err;) {
        worker *w = pool->workers + pool->threads;
        w->pool = pool;
        w->index = pool->threads;
        if (!(*err = start_worker(w, cores))) pool->threads++;
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (*err) { tk_pool_free(pool); return NULL; }
    return pool;
}

void tk_pool_free(tk_pool *pool) {
    pool->quit = 1;
    atomic_fetch_add(&pool->gen, 1);
    futex_wake_all(&pool->gen);
    for (int i = 1; i < pool->threads; i++) pthread_join(pool->workers[i].thread, NULL);
    for (int i = 0; pool->workers && i < pool->threads; i++) free(pool->workers[i].scratch);
    free(pool->workers);
    free(pool->own);
    free(pool);
}
