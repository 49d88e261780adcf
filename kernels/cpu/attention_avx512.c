// Attention and delta nets for AVX-512: vectors of 16 floats.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx512.h"

#define VL 16
#define QT 6
#define TV(n) 4

typedef __m512 vf;
INLINE vf v_zero(void) { return _mm512_setzero_ps(); }
INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf x, vf m) { return _mm512_max_ps(x, m); }  // the second operand where one is NaN
INLINE vf v_exp(vf a) { return exp16(a); }
INLINE vf v_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE vf v_half1(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_set1_epi16((short)load_u16(p))); }
INLINE vf v_codes(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE vf v_only(vf a, int from, int to) {
    uint32_t in = (to >= 16 ? 0xffffu : (1u << imax(to, 0)) - 1) & ~(from <= 0 ? 0u : (1u << imin(from, 16)) - 1);
    return _mm512_mask_mov_ps(_mm512_set1_ps(-bits_f32(0x7f800000)), (__mmask16)in, a);
}
INLINE float v_sum16(const vf *a) {
    __m256 r8 = _mm256_add_ps(_mm512_castps512_ps256(*a), _mm512_extractf32x8_ps(*a, 1));
    __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_movehdup_ps(r2)));
}
INLINE float v_top(vf a) { return _mm512_reduce_max_ps(a); }
INLINE void v_fetch(const uint8_t *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }
#include "attention_tile.h"
#define DELTA_BLOCKS 4
INLINE float v_root(float x) { return _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x))); }
#include "delta_tile.h"

TARGET void tk_avx512_attend(const tk_attn *a) { attend_block(a); }
TARGET void tk_avx512_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out) {
    join_blocks(part, blocks, group, dim, sinks, out);
}
TARGET void tk_avx512_gate(const float *g, int n, float *y) { gate_by(g, n, y); }
TARGET void tk_avx512_delta_inputs(const tk_delta *d, const float *const *tap, const float *alpha, const float *beta, int head,
                               float *row) {
    delta_inputs(d, tap, alpha, beta, head, row);
}
TARGET void tk_avx512_delta_walk(const tk_delta *d, const tk_walk *w, const tk_step *steps, const float *rows, int head, int first,
                             float *out, float *scratch) {
    delta_walk(d, w, steps, rows, head, first, out, scratch);
}
#endif
