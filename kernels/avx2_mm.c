// Matrix kernels for AVX2: half a packed vector is 4 inputs of 8 outputs. Up to 4 rows at once, as many
// as 16 registers hold.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx2.h"

enum { MAXR = 4 };
#define ROWS for (int r = 0; r < R; r++)

// A call's rows [r0, r0+R), outputs [8*half, 8*half+8) of group g.
typedef struct { const tk_mm *a; int g, half, r0; } part;

INLINE __m256i bcast(const void *p) { return _mm256_set1_epi32(load_i32(p)); }
INLINE __m256i load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
INLINE __m256 half8(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
INLINE __m256 u8_8(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
INLINE __m256 i8_8(const uint8_t *p) { return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }

INLINE void put(const tk_mm *a, int g, int half, int r, __m256 total) {
    float *out = a->out + (size_t)r * a->ldo + 16 * g + 8 * half, t[8];
    int n = a->cols - 16 * g - 8 * half;
    if (n >= 8) {
        if (a->add) total = _mm256_add_ps(_mm256_loadu_ps(out), total);
        _mm256_storeu_ps(out, total);
        return;
    }
    _mm256_storeu_ps(t, total);
    for (int i = 0; i < n; i++) out[i] = a->add ? out[i] + t[i] : t[i];
}

INLINE __m256 scaled(__m256i sum, __m256 ws, float scale, __m256 acc) {
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), _mm256_mul_ps(ws, _mm256_set1_ps(scale)), acc);
}

// Each of the following adds the products of one block of 32, exactly, to sum.

// Codes of 8 bits would saturate maddubs, so the sign moves over to the activation.
INLINE void dot8(const uint8_t *q, const tk_qblock *x, const int R, __m256i *sum) {
    const __m256i flip = _mm256_set1_epi8((char)0x80), one = _mm256_set1_epi16(1);
    _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
        __m256i w = _mm256_xor_si256(load(q + 64 * j), flip), u = _mm256_abs_epi8(w);
        ROWS {
            __m256i p = _mm256_maddubs_epi16(u, _mm256_sign_epi8(bcast(x[r].q + 4 * j), w));
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(p, one));
        }
    }
}

// 8 products of two nibbles fit 16 bits: 8 * 2 * 15 * 127 < 2^15.
INLINE void dot4(const uint8_t *q, const tk_qblock *x, const int R, __m256i *sum) {
    const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    __m256i s[MAXR];
    ROWS s[r] = _mm256_setzero_si256();
    _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
        __m256i v = load(q + 64 * j), lo = _mm256_and_si256(v, low), hi = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
        ROWS s[r] = _mm256_add_epi16(s[r], _mm256_maddubs_epi16(lo, bcast(x[r].q + 4 * j)));
        ROWS s[r] = _mm256_add_epi16(s[r], _mm256_maddubs_epi16(hi, bcast(x[r].q + 16 + 4 * j)));
    }
    ROWS sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(s[r], one));
}

// Half a block of 6-bit codes; two products fit 16 bits: 2 * 2 * 63 * 127 < 2^15.
INLINE void dot6(const uint8_t *q, const int half, const tk_qblock *x, const int R, __m256i *sum) {
    const __m256i low = _mm256_set1_epi8(15), top = _mm256_set1_epi8(0x30), one = _mm256_set1_epi16(1);
    _Pragma("GCC unroll 2") for (int j = 0; j < 4; j += 2) {
        __m256i w[2];
        _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
            __m256i lo = load(q + 64 * (j + i)), hi = load(q + 256 + 64 * i);
            if (half) lo = _mm256_srli_epi16(lo, 4);
            hi = half ? (j < 2 ? hi : _mm256_srli_epi16(hi, 2)) : _mm256_slli_epi16(hi, j < 2 ? 4 : 2);
            w[i] = _mm256_or_si256(_mm256_and_si256(lo, low), _mm256_and_si256(hi, top));
        }
        ROWS {
            const int8_t *y = x[r].q + 16 * half + 4 * j;
            __m256i p = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], bcast(y)), _mm256_maddubs_epi16(w[1], bcast(y + 4)));
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(p, one));
        }
    }
}

// One block of Q8_0 or Q4_0: w its 16 scales, q its codes, both at this half's outputs.
INLINE void block_0(const int type, const uint8_t *w, const uint8_t *q, const tk_qblock *x, const int R, __m256 *acc) {
    __m256i sum[MAXR];
    ROWS sum[r] = type == TK_Q8_0 ? _mm256_setzero_si256() : bcast(&x[r].off8);
    if (type == TK_Q8_0) dot8(q, x, R, sum);
    else dot4(q, x, R, sum);
    __m256 d = half8(w);
    ROWS acc[r] = scaled(sum[r], d, x[r].scale, acc[r]);
}

INLINE void rows_0(const int type, part p, const int R) {
    const tk_mm *a = p.a;
    const uint8_t *w = a->w + p.g * a->gbytes;
    const tk_qblock *x = (const tk_qblock *)a->x + p.r0;
    const int size = type == TK_Q8_0 ? 512 : 256;
    __m256 total[MAXR], acc[MAXR];
    ROWS total[r] = _mm256_setzero_ps();
    for (int left = a->k / 32; left > 0; left -= 8) {
        int nb = left < 8 ? left : 8;
        const uint8_t *q = w + (32 * nb + 63) / 64 * 64;
        ROWS acc[r] = _mm256_setzero_ps();
        for (int b = 0; b < nb; b++, q += size, x += a->h)
            block_0(type, w + 32 * b + 16 * p.half, q + 32 * p.half, x, R, acc);
        w = q;
        ROWS total[r] = _mm256_add_ps(total[r], acc[r]);
    }
    ROWS put(a, p.g, p.half, p.r0 + r, total[r]);
}

// The 6-bit scale and minimum of 8 outputs in sub-block s, from the bytes c that hold eight of each.
INLINE void q4_k_scale(const uint8_t *c, int s, __m256 d, __m256 dmin, __m256 *ws, __m256 *wm) {
    uint8_t sc[8], mn[8];
    for (int l = 0; l < 8; l++) {
        sc[l] = s < 4 ? c[16 * s + l] & 63 : (c[16 * (s + 4) + l] & 15) | (c[16 * (s - 4) + l] >> 6) << 4;
        mn[l] = s < 4 ? c[16 * (s + 4) + l] & 63 : c[16 * (s + 4) + l] >> 4 | (c[16 * s + l] >> 6) << 4;
    }
    *ws = _mm256_mul_ps(d, u8_8(sc));
    *wm = _mm256_mul_ps(dmin, u8_8(mn));
}

INLINE void rows_q4_k(part p, const int R) {
    const tk_mm *a = p.a;
    const uint8_t *w = a->w + p.g * a->gbytes;
    const tk_qblock *x = (const tk_qblock *)a->x + p.r0;
    __m256 total[MAXR], acc[MAXR], ws, wm;
    ROWS total[r] = _mm256_setzero_ps();
    for (int left = a->k; left > 0; left -= TK_SEG, w += 2304) {
        __m256 d = half8(w + 16 * p.half), dmin = half8(w + 32 + 16 * p.half);
        ROWS acc[r] = _mm256_setzero_ps();
        for (int b = 0; b < 8; b++, x += a->h) {
            __m256i sum[MAXR];
            ROWS sum[r] = _mm256_setzero_si256();
            dot4(w + 256 + 256 * b + 32 * p.half, x, R, sum);
            q4_k_scale(w + 64 + 8 * p.half, b, d, dmin, &ws, &wm);
            ROWS acc[r] = scaled(sum[r], ws, x[r].scale, acc[r]);
            ROWS acc[r] = _mm256_fnmadd_ps(wm, _mm256_set1_ps(x[r].xsum), acc[r]);
        }
        ROWS total[r] = _mm256_add_ps(total[r], acc[r]);
    }
    ROWS put(a, p.g, p.half, p.r0 + r, total[r]);
}

INLINE void rows_q6_k(part p, const int R) {
    const tk_mm *a = p.a;
    const uint8_t *w = a->w + p.g * a->gbytes;
    const tk_qblock *x = (const tk_qblock *)a->x + p.r0;
    __m256 total[MAXR], acc[MAXR];
    ROWS total[r] = _mm256_setzero_ps();
    for (int left = a->k; left > 0; left -= TK_SEG, w += 3392) {
        __m256 d = half8(w + 16 * p.half);
        ROWS acc[r] = _mm256_setzero_ps();
        for (int b = 0; b < 8; b++, x += a->h)
            _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
                __m256i sum[MAXR];
                ROWS sum[r] = bcast(&x[r].off32[half]);
                dot6(w + 320 + 384 * b + 32 * p.half, half, x, R, sum);
                __m256 ws = _mm256_mul_ps(d, i8_8(w + 64 + 32 * b + 16 * half + 8 * p.half));
                ROWS acc[r] = scaled(sum[r], ws, x[r].scale, acc[r]);
            }
        ROWS total[r] = _mm256_add_ps(total[r], acc[r]);
    }
    ROWS put(a, p.g, p.half, p.r0 + r, total[r]);
}

INLINE void rows_q8_0(part p, const int R) { rows_0(TK_Q8_0, p, R); }
INLINE void rows_q4_0(part p, const int R) { rows_0(TK_Q4_0, p, R); }

#define QUANTIZED(name, f)                                                  \
    TARGET void name(const tk_mm *a) {                                      \
        for (part p = {.a = a}; p.g < a->ng; p.g++)                         \
            for (p.r0 = 0; p.r0 < a->h; p.r0 += MAXR)                       \
                for (p.half = 0; p.half < 2; p.half++) switch (a->h - p.r0) { \
                    case 1: f(p, 1); break;                                 \
                    case 2: f(p, 2); break;                                 \
                    case 3: f(p, 3); break;                                 \
                    default: f(p, 4);                                       \
                    }                                                       \
    }

QUANTIZED(tk_avx2_q8_0, rows_q8_0)
QUANTIZED(tk_avx2_q4_0, rows_q4_0)
QUANTIZED(tk_avx2_q4_k, rows_q4_k)
QUANTIZED(tk_avx2_q6_k, rows_q6_k)

INLINE __m256 widen8(const int type, const uint8_t *w, size_t i) {
    if (type == TK_F32) return _mm256_loadu_ps((const float *)w + i);
    if (type == TK_F16) return half8(w + 2 * i);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(w + 2 * i))), 16));
}

// G groups, two halves each, against rows [r0, r0+R): 2*G*R independent chains.
INLINE void float_groups(const int type, const tk_mm *a, int g, const int G, int r0, const int R) {
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = (const float *)a->x + r0;
    __m256 total[8], acc[8];
    for (int i = 0; i < 2 * G * R; i++) total[i] = _mm256_setzero_ps();
    for (int k0 = 0; k0 < a->k; k0 += TK_SEG) {
        int end = a->k - k0 < TK_SEG ? a->k : k0 + TK_SEG;
        for (int i = 0; i < 2 * G * R; i++) acc[i] = _mm256_setzero_ps();
        for (int k = k0; k < end; k++, x += a->h)
            _Pragma("GCC unroll 8") for (int i = 0; i < 2 * G; i++) {
                __m256 v = widen8(type, w + i / 2 * a->gbytes, (size_t)k * 16 + i % 2 * 8);
                ROWS acc[i * R + r] = _mm256_fmadd_ps(v, _mm256_set1_ps(x[r]), acc[i * R + r]);
            }
        for (int i = 0; i < 2 * G * R; i++) total[i] = _mm256_add_ps(total[i], acc[i]);
    }
    for (int i = 0; i < 2 * G; i++) ROWS put(a, g + i / 2, i % 2, r0 + r, total[i * R + r]);
}

INLINE void float_rows(const int type, const tk_mm *a, int r0, const int R) {
    const int G = 4 / R;
    int g = 0;
    for (; g + G <= a->ng; g += G) float_groups(type, a, g, G, r0, R);
    for (; g < a->ng; g++) float_groups(type, a, g, 1, r0, R);
}

INLINE void float_all(const int type, const tk_mm *a) {
    for (int r0 = 0; r0 < a->h; r0 += MAXR) switch (a->h - r0) {
        case 1: float_rows(type, a, r0, 1); break;
        case 2: float_rows(type, a, r0, 2); break;
        case 3: float_rows(type, a, r0, 3); break;
        default: float_rows(type, a, r0, 4);
        }
}

TARGET void tk_avx2_f32(const tk_mm *a) { float_all(TK_F32, a); }
TARGET void tk_avx2_f16(const tk_mm *a) { float_all(TK_F16, a); }
TARGET void tk_avx2_bf16(const tk_mm *a) { float_all(TK_BF16, a); }
#endif
