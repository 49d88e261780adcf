#ifndef AVX512_H
#define AVX512_H
#include "tk.h"
#include "scalar.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

void tk_avx512_q8_0(const tk_mm *), tk_avx512_q4_0(const tk_mm *), tk_avx512_q4_k(const tk_mm *), tk_avx512_q6_k(const tk_mm *);
void tk_avx512_f32(const tk_mm *), tk_avx512_f16(const tk_mm *), tk_avx512_bf16(const tk_mm *);
#endif
