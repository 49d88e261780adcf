//go:build cuda

// The driver's functions as the program calls them, so that it starts where there is no driver: each jumps to where its variable points.
// That is absent until tandem_cuda_load has found the function in libcuda.so.1. gorgonia.org/cu calls cuInit before main and ends the
// process if it fails; so cuInit does nothing and succeeds until then, and no command pays for a driver that it does not use.
#define _GNU_SOURCE
#include "load.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>

#include "symbols.h"

enum { notInitialized = 3, notFound = 500 }; // CUDA_ERROR_...

static int absent(void) { return notInitialized; }
static int lacking(void) { return notFound; } // by a driver that is older than our headers
static int nothing(void) { return 0; }

#define VARIABLE(f) __attribute__((visibility("hidden"), used)) int (*tandem_at_##f)(void) = absent;
SYMBOLS(VARIABLE)
__attribute__((visibility("hidden"), used)) int (*tandem_at_cuInit)(void) = nothing;

#if defined(__x86_64__)
#define JUMP(f) "jmp *tandem_at_" #f "(%rip)\n"
#define TYPE "@function\n"
#elif defined(__aarch64__)
#define JUMP(f) "adrp x16, tandem_at_" #f "\nldr x16, [x16, :lo12:tandem_at_" #f "]\nbr x16\n"
#define TYPE "%function\n"
#else
#error "CUDA is there on x86-64 and arm64 alone: build without the tag cuda"
#endif
// hidden: the driver's own calls among its functions must not come here
#define FUNCTION(f) ".globl " #f "\n.hidden " #f "\n.type " #f ", " TYPE ".balign 16\n" #f ":\n" JUMP(f) ".size " #f ", .-" #f "\n"
__asm__(".pushsection .text\n" SYMBOLS(FUNCTION) FUNCTION(cuInit) ".popsection\n");

static const struct {
    const char *name;
    int (**at)(void);
} functions[] = {
#define ENTRY(f) {#f, &tandem_at_##f},
    SYMBOLS(ENTRY){"cuInit", &tandem_at_cuInit}};

const char *tandem_cuda_load(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) {
        const char *why = dlerror();
        return why != NULL ? why : "dlopen failed";
    }
    // kernels must be there before a graph is captured, not be loaded by their first launch
    setenv("CUDA_MODULE_LOADING", "EAGER", 0);
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *found = dlsym(driver, functions[i].name);
        *(void **)functions[i].at = found != NULL ? found : (void *)lacking;
    }
    return NULL;
}
