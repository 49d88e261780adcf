// A driver without a GPU, for tests: memory is the processor's, and a kernel named "add" adds the 8-byte number at pass to that at op.
// Whatever is asynchronous waits in a queue until something is waited for, so that a copy from memory that has been overwritten too
// early shows. Environment: FAKE_FAIL=function:code makes a function fail, FAKE_COUNT, FAKE_INTEGRATED and FAKE_MEMORY are what their
// names say, FAKE_VERSION is the driver's, FAKE_MAJOR the first number of the GPU's.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default"))) int
enum { deferred = 1 << 16 };

static struct call {
    enum { set, copy, add, mark } what;
    void *to, *from;
    size_t bytes;
} queue[deferred], *graph;
static size_t head, tail, graphed;
static int capturing, sharedAllowed = 48 << 10;
static __thread int current;
static void *registered;
static long left = -1;

static long number(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value != NULL ? atol(value) : otherwise;
}

// fails returns the code with which a function shall fail.
static int fails(const char *function) {
    const char *wanted = getenv("FAKE_FAIL");
    size_t n = strlen(function);
    return wanted != NULL && strncmp(wanted, function, n) == 0 && wanted[n] == ':' ? atoi(wanted + n + 1) : 0;
}
#define CHECK                                                                                                                            \
    do {                                                                                                                                 \
        int code = fails(__func__);                                                                                                      \
        if (code != 0) return code;                                                                                                      \
    } while (0)
#define CHECK_CONTEXT                                                                                                                    \
    do {                                                                                                                                 \
        CHECK;                                                                                                                           \
        if (!current) return 201;                                                                                                        \
    } while (0)

static void run(struct call c) {
    switch (c.what) {
    case set: memset(c.to, 0, c.bytes); break;
    case copy: memcpy(c.to, c.from, c.bytes); break;
    case add: *(uint64_t *)c.to += *(uint64_t *)c.from; break;
    case mark: break;
    }
}

static void runTo(size_t end) {
    for (; head < end; head++) run(queue[head % deferred]);
}

static int later(struct call c) {
    if (capturing) {
        graph[graphed++] = c;
        return 0;
    }
    if (tail - head == deferred) runTo(head + 1);
    queue[tail++ % deferred] = c;
    return 0;
}

API cuInit(unsigned flags) { CHECK; return flags != 0; }
API cuDriverGetVersion(int *v) { *v = number("FAKE_VERSION", 11040); return 0; }
API cuGetErrorString(int code, const char **text) { *text = code == 2 ? "out of memory" : "what the driver says"; return 0; }
API cuDeviceGetCount(int *n) { CHECK; *n = number("FAKE_COUNT", 1); return 0; }
API cuDeviceGet(int *d, int i) { CHECK; *d = i + 40; return 0; }
API cuDeviceGetName(char *name, int n, int d) { CHECK; snprintf(name, n, "Fake %d", d - 40); return 0; }
API cuDeviceTotalMem_v2(size_t *n, int d) { CHECK; *n = (size_t)8 << 30; return d < 40; }
API cuDeviceGetAttribute(int *v, int a, int d) {
    CHECK;
    *v = a == 18 ? number("FAKE_INTEGRATED", 0) : a == 75 ? number("FAKE_MAJOR", 8) : a == 76 ? 7 : a == 16 ? 16
         : a == 99 ? number("FAKE_REGISTERS", 1) : a == 113 ? number("FAKE_READ_ONLY", 1) : 0;
    return d < 40;
}
API cuDevicePrimaryCtxSetFlags_v2(int d, unsigned flags) { CHECK; return d < 40 || flags != 4; }
API cuDevicePrimaryCtxRetain(void **c, int d) { CHECK; *c = &head; left = number("FAKE_MEMORY", 64 << 20); return d < 40; }
API cuDevicePrimaryCtxRelease_v2(int d) { CHECK; return d < 40; }
API cuCtxSetCurrent(void *c) { CHECK; current = c != NULL; return 0; }
API cuModuleLoadData(void **m, const void *image) { CHECK_CONTEXT; *m = &graph; return *(const unsigned *)image != 0xba55ed50; }
API cuModuleUnload(void *m) { CHECK_CONTEXT; return m != &graph; }
API cuModuleGetFunction(void **f, void *m, const char *name) {
    CHECK_CONTEXT;
    *f = m;
    return strcmp(name, "add") == 0 || strcmp(name, "sizes") == 0 ? 0 : 500;
}
API cuFuncSetAttribute(void *f, int a, int v) { CHECK_CONTEXT; sharedAllowed = v; return a != 8 || f == NULL || v > 200 << 10; }
API cuStreamCreate(void **s, unsigned flags) { CHECK_CONTEXT; *s = &tail; return flags != 1; }
API cuStreamDestroy_v2(void *s) { CHECK_CONTEXT; return s != &tail; }
API cuStreamSynchronize(void *s) { CHECK_CONTEXT; if (s != &tail || capturing) return 1; runTo(tail); return 0; }
API cuStreamQuery(void *s) { CHECK_CONTEXT; return s != &tail ? 1 : head != tail ? 600 : 0; }
API cuEventCreate(void **e, unsigned flags) { CHECK_CONTEXT; *e = calloc(1, sizeof(size_t)); return flags != 2; }
API cuEventRecord(size_t *e, void *s) { CHECK_CONTEXT; later((struct call){.what = mark}); *e = tail; return s != &tail; }
API cuEventSynchronize(size_t *e) { CHECK_CONTEXT; runTo(*e); return 0; }
API cuEventDestroy_v2(void *e) { CHECK_CONTEXT; free(e); return 0; }
API cuMemHostAlloc(void **p, size_t n, unsigned flags) {
    CHECK_CONTEXT;
    *p = aligned_alloc(4096, (n + 4095) & ~(size_t)4095);
    memset(*p, 0xff, n);
    return flags & ~2u ? 1 : 0;
}
// Registered memory is what the flags say, at an address of its own. Unregistering twice is an error.
API cuMemHostRegister_v2(void *p, size_t n, unsigned flags) {
    CHECK_CONTEXT;
    if (registered != NULL) return 712;
    if (flags & 8 && !number("FAKE_READ_ONLY", 1)) return 801;
    registered = p;
    return flags != (number("FAKE_READ_ONLY", 1) ? 10 : 2) || n == 0;
}
API cuMemHostUnregister(void *p) { CHECK_CONTEXT; if (p != registered) return 713; registered = NULL; return 0; }
API cuMemFreeHost(void *p) { CHECK_CONTEXT; free(p); return 0; }
API cuMemHostGetDevicePointer_v2(void **at, void *p, unsigned flags) { CHECK_CONTEXT; *at = p; return flags != 0; }
API cuMemGetInfo_v2(size_t *free, size_t *total) { CHECK_CONTEXT; *free = left; *total = (size_t)8 << 30; return 0; }
API cuMemAlloc_v2(void **p, size_t n) {
    CHECK_CONTEXT;
    if ((long)n > left) return 2;
    left -= n;
    *p = aligned_alloc(256, (n + 255) & ~(size_t)255);
    memset(*p, 0xff, n);
    return 0;
}
API cuMemFree_v2(void *p) { CHECK_CONTEXT; free(p); return 0; }
API cuMemsetD8Async(void *to, unsigned char v, size_t n, void *s) {
    CHECK_CONTEXT;
    return v != 0 || s != &tail || later((struct call){set, to, NULL, n});
}
static int copies(void *to, void *from, size_t n, void *s) { return s != &tail || later((struct call){copy, to, from, n}); }
API cuMemcpyHtoDAsync_v2(void *to, void *from, size_t n, void *s) { CHECK_CONTEXT; return copies(to, from, n, s); }
API cuMemcpyDtoHAsync_v2(void *to, void *from, size_t n, void *s) { CHECK_CONTEXT; return copies(to, from, n, s); }
static int launched(const unsigned n[7], void *s, void *f, void ***parameters, void **extra) {
    if (n[0] * n[1] * n[2] * n[3] * n[4] * n[5] == 0 || (int)n[6] > sharedAllowed || s != &tail || extra != NULL || f == NULL) return 1;
    return later((struct call){add, *parameters[0], *parameters[1], 8});
}
API cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *s,
                   void ***parameters, void **extra) {
    CHECK_CONTEXT;
    return launched((unsigned[]){gx, gy, gz, bx, by, bz, shared}, s, f, parameters, extra);
}
struct config {
    unsigned n[7];
    void *stream;
    struct {
        int id, pad, value[16];
    } *attributes;
    unsigned count;
};
API cuLaunchKernelEx(const struct config *c, void *f, void ***parameters, void **extra) {
    CHECK_CONTEXT;
    const int programmatic = 6;
    if (c->count != 1 || c->attributes->id != programmatic || c->attributes->value[0] != 1) return 1;
    return launched(c->n, c->stream, f, parameters, extra);
}
API cuStreamBeginCapture_v2(void *s, int mode) {
    CHECK_CONTEXT;
    graph = calloc(deferred, sizeof *graph), graphed = 0, capturing = 1;
    return s != &tail || mode != 1;
}
API cuStreamEndCapture(void *s, void **g) { CHECK_CONTEXT; capturing = 0, *g = graph; return s != &tail; }
API cuGraphInstantiateWithFlags(void **exec, void *g, unsigned long long flags) {
    CHECK_CONTEXT;
    size_t bytes = graphed * sizeof *graph;
    *exec = malloc(sizeof graphed + bytes);
    memcpy(*exec, &graphed, sizeof graphed);
    memcpy((char *)*exec + sizeof graphed, g, bytes);
    return flags != 0;
}
API cuGraphDestroy(void *g) { free(g); return 0; }
API cuGraphExecDestroy(void *exec) { free(exec); return 0; }
API cuGraphLaunch(void *exec, void *s) {
    CHECK_CONTEXT;
    for (size_t i = 0; i < *(size_t *)exec; i++) later(((struct call *)((size_t *)exec + 1))[i]);
    return s != &tail;
}
