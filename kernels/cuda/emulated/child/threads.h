// The threads of a block.
//
// They are fibers on one thread of the system. Warps run in a shuffled order, and the lanes of each too, shuffled again whenever
// threads have waited for each other; so what a kernel computes without a barrier that it needs differs from run to run of the seed.
// A fiber runs one thread after the other until one must wait; only then another fiber is taken. So a kernel that never waits costs a
// call per thread.
#pragma once
#include "emu.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#define POISON(at, n) __asan_poison_memory_region(at, n)
#define UNPOISON(at, n) __asan_unpoison_memory_region(at, n)
#else
#define POISON(at, n) ((void)(at), (void)(n))
#define UNPOISON(at, n) ((void)(at), (void)(n))
#endif

namespace emu {

typedef void (*Kernel)(uint64_t op, uint64_t pass);

// begin is called once. A launch may take so many seconds. The barrier at a file and line, if any, is left out.
void begin(uint64_t seed, int seconds, const char *drop_file, int drop_line);
// begin_launch says what run_block runs until end_launch.
void begin_launch(const char *name, Kernel k, uint64_t op, uint64_t pass, const uint32_t grid[3], const uint32_t block[3], size_t shared);
void end_launch();
void run_block(uint32_t x, uint32_t y, uint32_t z);

uint32_t random_below(uint32_t n);

// fail ends the process with a message that names the kernel, the block and the thread that run.
[[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

} // namespace emu
