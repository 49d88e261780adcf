// Choice of the instruction set at run time, by a table of functions.
#include "tk.h"
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

int tk_reading = TK_ALONE;
int tk_no_permutes;
int tk_assume_avxvnni;

// Intel's prefetchers follow a single stream too slowly to keep the memory busy: one thread of a Sapphire Rapids reads 9.7 GB/s
// from one stream, 13 to 15 from four that are fetched ahead. On AMD up to Zen 4 (families 23 and 25) one stream is the fastest;
// AVX-512 leaves it to the prefetcher, AVX2, which computes longer between two reads, fetches quantised weights ahead. Zen 5
// (family 26) computes so much between two reads of Q4_K that it no longer takes them for a stream: fetched ahead, a 8192×2048
// matrix takes 222 instead of 527 µs with one row (measured on a 2-core machine, November 2026).
int tk_reading_known(void) {
#if defined(__x86_64__)
    __builtin_cpu_init();
    unsigned a, b, c, d;
    if (__builtin_cpu_is("intel")) return TK_STREAMS;
    if (!__builtin_cpu_is("amd") || !__get_cpuid(1, &a, &b, &c, &d)) return -1;
    unsigned family = (a >> 8 & 15) + (a >> 20 & 255);
    if (family == 26) return TK_AHEAD;
    return family < 26 ? TK_ALONE : -1;
#else
    return TK_ALONE;  // the NEON kernels know no other
#endif
}

int tk_permutes(void) {
#if defined(__x86_64__)
    return !tk_no_permutes && __builtin_cpu_supports("avx512vbmi");
#else
    return 0;
#endif
}

#if TK_HAS_AVXVNNI
// Dot products of 256 bits without AVX-512: leaf 7, subleaf 1, EAX bit 4. Whoever has them has AVX2.
static int has_avxvnni(void) {
    unsigned a, b, c, d;
    return tk_assume_avxvnni || (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1));
}
#endif

const tk_kernels *tk_kernels_of(int isa) {
    if (isa == TK_GENERIC) return &tk_generic;
#if defined(__x86_64__)
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (isa == TK_AVX2 && avx2) return &tk_avx2;
#if TK_HAS_AVXVNNI
    if (isa == TK_AVXVNNI && avx2 && has_avxvnni()) return &tk_avxvnni;
#endif
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

void tk_read_product(int isa, const uint8_t *w, int ng, int k, float *out, const tk_qblock *q) {
    const size_t gbytes = tk_group_bytes(TK_Q4_K, k);
    for (int g = 0; g < ng; g += 32) {  // in chunks, as threads claim them
        int n = imin(32, ng - g);
        tk_mm m = {.w = w + g * gbytes, .gbytes = gbytes, .ng = n, .k = k, .rows = 1, .p1 = 1, .q = q, .out = out + 16 * g,
                   .ldo = 16 * (size_t)ng, .cols = 16 * n};
        tk_kernels_of(isa)->mm(TK_Q4_K, &m);
    }
}
