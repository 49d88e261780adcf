#ifndef AVX512_H
#define AVX512_H
#include <immintrin.h>
#include "tk.h"
#include "scalar.h"

#define TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

void tk_avx512_mm(int type, const tk_mm *);

INLINE __mmask16 first(int n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }

INLINE __m512 exp16(__m512 x) {
    const __m512 magic = _mm512_set1_ps(0x1.8p23f);
    __mmask16 low = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_LO), _CMP_LT_OQ);
    x = _mm512_min_ps(_mm512_set1_ps(EXP_HI), x);  // NaN passes
    __m512 n = _mm512_sub_ps(_mm512_add_ps(_mm512_mul_ps(x, _mm512_set1_ps(EXP_LOG2E)), magic), magic);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2HI), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(EXP_LN2LO), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C6), r, _mm512_set1_ps(EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1));
    __m512i e = _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
    return _mm512_maskz_mul_ps((__mmask16)~low, p, _mm512_castsi512_ps(e));
}
#endif
