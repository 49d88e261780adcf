// Matrix kernels for AVX-512 with VNNI. One vector is 4 inputs of 16 outputs; sums and accumulators of
// up to 8 rows stay in registers while a group's weights pass by once.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx512.h"

#define ROWS for (int r = 0; r < R; r++)

// Calls f with the number of rows as a constant, so that every count has its own code.
#define BY_ROWS(f, a)                                                                                   \
    switch ((a)->h) {                                                                                   \
    case 1: f(a, 1); break; case 2: f(a, 2); break; case 3: f(a, 3); break; case 4: f(a, 4); break;     \
    case 5: f(a, 5); break; case 6: f(a, 6); break; case 7: f(a, 7); break; case 8: f(a, 8); break;     \
    }

INLINE __m512i bcast(const void *p) { return _mm512_set1_epi32(load_i32(p)); }
INLINE __m512 half16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }

INLINE void put(const tk_mm *a, int g, int r, __m512 total) {
    float *out = a->out + (size_t)r * a->ldo + 16 * g;
    int n = a->cols - 16 * g;
    __mmask16 m = n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1);
    if (a->add) total = _mm512_add_ps(_mm512_maskz_loadu_ps(m, out), total);
    _mm512_mask_storeu_ps(out, m, total);
}

INLINE const uint8_t *fetch(const uint8_t *ahead, int lines) {
    for (; lines > 0; lines--, ahead += 64) _mm_prefetch((const char *)ahead, _MM_HINT_T1);
    return ahead;
}

// acc = fma(float(sum), ws*scale, acc)
INLINE __m512 scaled(__m512i sum, __m512 ws, float scale, __m512 acc) {
    return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(ws, _mm512_set1_ps(scale)), acc);
}

INLINE void q8_0_rows(const tk_mm *a, const int R) {
    const uint8_t *ahead = a->ahead;
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *w = a->w + g * a->gbytes;
        const tk_qblock *x = a->x;
        __m512 total[TK_TILE], acc[TK_TILE];
        ROWS total[r] = _mm512_setzero_ps();
        for (int left = a->k / 32; left > 0; left -= 8) {
            int nb = left < 8 ? left : 8;
            const uint8_t *q = w + (32 * nb + 63) / 64 * 64;
            ROWS acc[r] = _mm512_setzero_ps();
            for (int b = 0; b < nb; b++, q += 512, x += R) {
                ahead = fetch(ahead, a->lines);
                __m512i sum[TK_TILE];
                ROWS sum[r] = bcast(&x[r].off128);
                _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
                    __m512i v = _mm512_loadu_si512(q + 64 * j);
                    ROWS sum[r] = _mm512_dpbusd_epi32(sum[r], v, bcast(x[r].q + 4 * j));
                }
                __m512 d = half16(w + 32 * b);
                ROWS acc[r] = scaled(sum[r], d, x[r].scale, acc[r]);
            }
            w = q;
            ROWS total[r] = _mm512_add_ps(total[r], acc[r]);
        }
        ROWS put(a, g, r, total[r]);
    }
}

// sum += the 32 products of a block of nibbles.
INLINE void nibbles(const uint8_t *q, const tk_qblock *x, const int R, __m512i *sum) {
    const __m512i low = _mm512_set1_epi8(15);
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
        __m512i v = _mm512_loadu_si512(q + 64 * j);
        __m512i lo = _mm512_and_si512(v, low), hi = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
        ROWS sum[r] = _mm512_dpbusd_epi32(sum[r], lo, bcast(x[r].q + 4 * j));
        ROWS sum[r] = _mm512_dpbusd_epi32(sum[r], hi, bcast(x[r].q + 16 + 4 * j));
    }
}

INLINE void q4_0_rows(const tk_mm *a, const int R) {
    const uint8_t *ahead = a->ahead;
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *w = a->w + g * a->gbytes;
        const tk_qblock *x = a->x;
        __m512 total[TK_TILE], acc[TK_TILE];
        ROWS total[r] = _mm512_setzero_ps();
        for (int left = a->k / 32; left > 0; left -= 8) {
            int nb = left < 8 ? left : 8;
            const uint8_t *q = w + (32 * nb + 63) / 64 * 64;
            ROWS acc[r] = _mm512_setzero_ps();
            for (int b = 0; b < nb; b++, q += 256, x += R) {
                ahead = fetch(ahead, a->lines);
                __m512i sum[TK_TILE];
                ROWS sum[r] = bcast(&x[r].off8);
                nibbles(q, x, R, sum);
                __m512 d = half16(w + 32 * b);
                ROWS acc[r] = scaled(sum[r], d, x[r].scale, acc[r]);
            }
            w = q;
            ROWS total[r] = _mm512_add_ps(total[r], acc[r]);
        }
        ROWS put(a, g, r, total[r]);
    }
}

// The eight 6-bit scales and minima of 16 outputs, from 12 bytes each.
INLINE void q4_k_scales(const uint8_t *w, uint8_t *sc, uint8_t *mn) {
    const __m512i six = _mm512_set1_epi8(63), low = _mm512_set1_epi8(15), top = _mm512_set1_epi8(0x30);
    __m512i a = _mm512_loadu_si512(w), b = _mm512_loadu_si512(w + 64), c = _mm512_loadu_si512(w + 128);
    __m512i at = _mm512_and_si512(_mm512_srli_epi16(a, 2), top), bt = _mm512_and_si512(_mm512_srli_epi16(b, 2), top);
    _mm512_store_si512(sc, _mm512_and_si512(a, six));
    _mm512_store_si512(mn, _mm512_and_si512(b, six));
    _mm512_store_si512(sc + 64, _mm512_or_si512(_mm512_and_si512(c, low), at));
    _mm512_store_si512(mn + 64, _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi16(c, 4), low), bt));
}

INLINE __m512 u8_16(const uint8_t *p) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_load_si128((const __m128i *)p))); }

INLINE void q4_k_rows(const tk_mm *a, const int R) {
    _Alignas(64) uint8_t sc[128], mn[128];
    const uint8_t *ahead = a->ahead;
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *w = a->w + g * a->gbytes;
        const tk_qblock *x = a->x;
        __m512 total[TK_TILE], acc[TK_TILE];
        ROWS total[r] = _mm512_setzero_ps();
        for (int left = a->k; left > 0; left -= TK_SEG, w += 2304) {
            __m512 d = half16(w), dmin = half16(w + 32);
            q4_k_scales(w + 64, sc, mn);
            ROWS acc[r] = _mm512_setzero_ps();
            for (int b = 0; b < 8; b++, x += R) {
                ahead = fetch(ahead, a->lines);
                __m512i sum[TK_TILE];
                ROWS sum[r] = _mm512_setzero_si512();
                nibbles(w + 256 + 256 * b, x, R, sum);
                __m512 ws = _mm512_mul_ps(d, u8_16(sc + 16 * b)), wm = _mm512_mul_ps(dmin, u8_16(mn + 16 * b));
                ROWS acc[r] = scaled(sum[r], ws, x[r].scale, acc[r]);
                ROWS acc[r] = _mm512_fnmadd_ps(wm, _mm512_set1_ps(x[r].xsum), acc[r]);
            }
            ROWS total[r] = _mm512_add_ps(total[r], acc[r]);
        }
        ROWS put(a, g, r, total[r]);
    }
}

INLINE __m512i q6_code(__m512i lo, __m512i hi) {
    return _mm512_or_si512(_mm512_and_si512(lo, _mm512_set1_epi8(15)), _mm512_and_si512(hi, _mm512_set1_epi8(0x30)));
}

INLINE void q6_k_rows(const tk_mm *a, const int R) {
    const uint8_t *ahead = a->ahead;
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *w = a->w + g * a->gbytes;
        const tk_qblock *x = a->x;
        __m512 total[TK_TILE], acc[TK_TILE];
        ROWS total[r] = _mm512_setzero_ps();
        for (int left = a->k; left > 0; left -= TK_SEG, w += 3392) {
            __m512 d = half16(w);
            const uint8_t *q = w + 320;
            ROWS acc[r] = _mm512_setzero_ps();
            for (int b = 0; b < 8; b++, q += 384, x += R) {
                ahead = fetch(ahead, a->lines);
                __m512i h0 = _mm512_loadu_si512(q + 256), h1 = _mm512_loadu_si512(q + 320);
                _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
                    __m512i sum[TK_TILE];
                    ROWS sum[r] = bcast(&x[r].off32[half]);
                    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
                        __m512i lo = _mm512_loadu_si512(q + 64 * j), hi = j & 1 ? h1 : h0;
                        if (half) lo = _mm512_srli_epi16(lo, 4);
                        hi = half ? (j < 2 ? hi : _mm512_srli_epi16(hi, 2)) : _mm512_slli_epi16(hi, j < 2 ? 4 : 2);
                        __m512i v = q6_code(lo, hi);
                        ROWS sum[r] = _mm512_dpbusd_epi32(sum[r], v, bcast(x[r].q + 16 * half + 4 * j));
                    }
                    __m128i sc = _mm_loadu_si128((const __m128i *)(w + 64 + 32 * b + 16 * half));
                    __m512 ws = _mm512_mul_ps(d, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(sc)));
                    ROWS acc[r] = scaled(sum[r], ws, x[r].scale, acc[r]);
                }
            }
            ROWS total[r] = _mm512_add_ps(total[r], acc[r]);
        }
        ROWS put(a, g, r, total[r]);
    }
}

INLINE __m512 widen16(const int type, const uint8_t *w, size_t k) {
    if (type == TK_F32) return _mm512_loadu_ps(w + 64 * k);
    if (type == TK_F16) return half16(w + 32 * k);
    __m256i h = _mm256_loadu_si256((const __m256i *)(w + 32 * k));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

// G groups at once give G*R independent chains of fused multiply-adds.
INLINE void float_groups(const int type, const tk_mm *a, int g, const int G, const int R, const uint8_t *ahead) {
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = a->x;
    __m512 total[8], acc[8];
    for (int i = 0; i < G * R; i++) total[i] = _mm512_setzero_ps();
    for (int k0 = 0; k0 < a->k; k0 += TK_SEG) {
        int end = a->k - k0 < TK_SEG ? a->k : k0 + TK_SEG;
        for (int i = 0; i < G * R; i++) acc[i] = _mm512_setzero_ps();
        for (int k = k0; k < end; k++, x += R) {
            if (k % 32 == 0) ahead = fetch(ahead, G * a->lines);
            _Pragma("GCC unroll 8") for (int i = 0; i < G; i++) {
                __m512 v = widen16(type, w + i * a->gbytes, k);
                ROWS acc[i * R + r] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[r]), acc[i * R + r]);
            }
        }
        for (int i = 0; i < G * R; i++) total[i] = _mm512_add_ps(total[i], acc[i]);
    }
    for (int i = 0; i < G; i++) ROWS put(a, g + i, r, total[i * R + r]);
}

INLINE void float_rows(const int type, const tk_mm *a, const int R) {
    const int G = 8 / R;
    int g = 0;
    const size_t part = (size_t)a->lines * 64 * (a->k / 32);  // fetched with one group
    for (; g + G <= a->ng; g += G) float_groups(type, a, g, G, R, a->ahead + g * part);
    for (; g < a->ng; g++) float_groups(type, a, g, 1, R, a->ahead + g * part);
}

INLINE void f32_rows(const tk_mm *a, const int R) { float_rows(TK_F32, a, R); }
INLINE void f16_rows(const tk_mm *a, const int R) { float_rows(TK_F16, a, R); }
INLINE void bf16_rows(const tk_mm *a, const int R) { float_rows(TK_BF16, a, R); }

TARGET void tk_avx512_q8_0(const tk_mm *a) { BY_ROWS(q8_0_rows, a) }
TARGET void tk_avx512_q4_0(const tk_mm *a) { BY_ROWS(q4_0_rows, a) }
TARGET void tk_avx512_q4_k(const tk_mm *a) { BY_ROWS(q4_k_rows, a) }
TARGET void tk_avx512_q6_k(const tk_mm *a) { BY_ROWS(q6_k_rows, a) }
TARGET void tk_avx512_f32(const tk_mm *a) { BY_ROWS(f32_rows, a) }
TARGET void tk_avx512_f16(const tk_mm *a) { BY_ROWS(f16_rows, a) }
TARGET void tk_avx512_bf16(const tk_mm *a) { BY_ROWS(bf16_rows, a) }
#endif
