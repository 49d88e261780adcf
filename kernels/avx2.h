#ifndef AVX2_H
#define AVX2_H
#include "tk.h"
#include "scalar.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

void tk_avx2_q8_0(const tk_mm *), tk_avx2_q4_0(const tk_mm *), tk_avx2_q4_k(const tk_mm *), tk_avx2_q6_k(const tk_mm *);
void tk_avx2_f32(const tk_mm *), tk_avx2_f16(const tk_mm *), tk_avx2_bf16(const tk_mm *);
#endif
