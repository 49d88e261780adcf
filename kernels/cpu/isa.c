// Choice of the instruction set at run time, by a table of functions.
#include "tk.h"
#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

// Intel's prefetchers follow a single stream too slowly to keep the memory busy: one thread of a Sapphire Rapids reads 9.7 GB/s
// from one stream, 13 to 15 from four that are fetched ahead. On AMD (Zen 3, Zen 4) one stream left alone is the fastest.
int tk_streams;
#if defined(__x86_64__)
__attribute__((constructor)) static void choose_streams(void) {
    __builtin_cpu_init();
    tk_streams = __builtin_cpu_is("intel") != 0;
}
#endif

const tk_kernels *tk_kernels_of(int isa) {
    if (isa == TK_GENERIC) return &tk_generic;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == TK_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return &tk_avx2;
    if (isa == TK_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        return &tk_avx512;
#elif defined(__aarch64__)
    int dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0, i8mm = (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
    if (isa == TK_NEON) return &tk_neon;
    if (isa == TK_NEON_DOT && dot) return &tk_neon_dot;
    if (isa == TK_NEON_I8MM && dot && i8mm) return &tk_neon_i8mm;
#endif
    return 0;
}

double tk_int_macs(const tk_kernels *k, int rounds) { return k->int_macs(rounds); }
double tk_float_macs(const tk_kernels *k, int rounds) { return k->float_macs(rounds); }
