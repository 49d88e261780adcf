#ifndef AVX2_H
#define AVX2_H
#include <immintrin.h>
#include "tk.h"
#include "scalar.h"

#define TARGET __attribute__((target("avx2,fma,f16c")))
#define INLINE static inline __attribute__((always_inline)) TARGET

void tk_avx2_mm(int type, const tk_mm *), tk_avxvnni_mm(int type, const tk_mm *);
double tk_avx2_int_macs(int rounds), tk_avxvnni_int_macs(int rounds);

INLINE __m256 exp8(__m256 x) {
    const __m256 magic = _mm256_set1_ps(0x1.8p23f);
    __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(EXP_LO), _CMP_LT_OQ);
    x = _mm256_min_ps(_mm256_set1_ps(EXP_HI), x);  // NaN passes
    __m256 n = _mm256_sub_ps(_mm256_add_ps(_mm256_mul_ps(x, _mm256_set1_ps(EXP_LOG2E)), magic), magic);
    __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2HI), x);
    r = _mm256_fnmadd_ps(n, _mm256_set1_ps(EXP_LN2LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C6), r, _mm256_set1_ps(EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1));
    __m256i e = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
    return _mm256_andnot_ps(low, _mm256_mul_ps(p, _mm256_castsi256_ps(e)));
}
#endif
