// Choice of the instruction set at run time, by a table of functions.
#include "tk.h"

const tk_kernels *tk_kernels_of(int isa) {
    if (isa == TK_GENERIC) return &tk_generic;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (isa == TK_AVX2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c"))
        return tk_avx2.attend ? &tk_avx2 : 0;
    if (isa == TK_AVX512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni"))
        return tk_avx512.attend ? &tk_avx512 : 0;
#endif
    return 0;
}
