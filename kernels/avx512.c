// Everything but the matrix products for AVX-512: 16 lanes are the 16 lanes of the definition.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx512.h"
#include "fused.h"

INLINE __mmask16 first(int n) { return n >= 16 ? 0xffff : (__mmask16)((1u << n) - 1); }
INLINE __m512 neg(__m512 x) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000))); }

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

INLINE float reduce(__m512 a) {
    __m256 r8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_movehdup_ps(r2)));
}

// reduce() of 16 vectors at once: lane j of the result is the sum of v[j].
INLINE __m512 reduce16(const __m512 *v) {
    __m512 a[8], b[4], c[2];
    for (int i = 0; i < 8; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0x44), _mm512_shuffle_f32x4(v[2 * i], v[2 * i + 1], 0xee));
    for (int i = 0; i < 4; i++)
        b[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88), _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++)
        c[i] = _mm512_add_ps(_mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44), _mm512_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee));
    __m512 s = _mm512_add_ps(_mm512_shuffle_ps(c[0], c[1], 0x88), _mm512_shuffle_ps(c[0], c[1], 0xdd));
    return _mm512_permutexvar_ps(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), s);
}

TARGET static void quantize(const float *x, int n, tk_qblock *q, size_t stride) {
    const __m512i mag = _mm512_set1_epi32(0x7fffffff);
    for (int b = 0; b < n / 32; b++, x += 32, q += stride) {
        __m512 x0 = _mm512_loadu_ps(x), x1 = _mm512_loadu_ps(x + 16);
        __m512i m = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(x0), mag), _mm512_and_si512(_mm512_castps_si512(x1), mag));
        uint32_t top = _mm512_reduce_max_epu32(m);
        float a = bits_f32(top);
        __m512i q0 = _mm512_setzero_si512(), q1 = q0;
        q->scale = 0;
        if (top >= 0x7f800000) q->scale = bits_f32(0x7fc00000);
        else if (!(a < 1e-30f)) {
            __m512 inv = _mm512_set1_ps(127 / a);
            q->scale = a / 127;
            q0 = _mm512_cvtps_epi32(_mm512_mul_ps(x0, inv));
            q1 = _mm512_cvtps_epi32(_mm512_mul_ps(x1, inv));
        }
        _mm_storeu_si128((__m128i *)q->q, _mm512_cvtepi32_epi8(q0));
        _mm_storeu_si128((__m128i *)(q->q + 16), _mm512_cvtepi32_epi8(q1));
        int s0 = _mm512_reduce_add_epi32(q0), s1 = _mm512_reduce_add_epi32(q1);
        q->xsum = q->scale * (float)(s0 + s1);
        q->off8 = -8 * (s0 + s1);
        q->off128 = -128 * (s0 + s1);
        q->off32[0] = -32 * s0;
        q->off32[1] = -32 * s1;
    }
}

TARGET static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    __m512 acc = _mm512_setzero_ps();
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512 v = _mm512_loadu_ps(x + i);
        acc = _mm512_fmadd_ps(v, v, acc);
    }
    if (i < n) {
        __m512 v = _mm512_maskz_loadu_ps(first(n - i), x + i);
        acc = _mm512_mask3_fmadd_ps(v, v, acc, first(n - i));
    }
    __m128 mean = _mm_set_ss(reduce(acc) / (float)n + eps);
    float s = 1 / _mm_cvtss_f32(_mm_sqrt_ss(mean));
    for (i = 0; i < n; i++) y[i] = (x[i] * s) * w[i];
}

TARGET static void silu_mul(const float *g, const float *u, int n, float *y) {
    const __m512 one = _mm512_set1_ps(1);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m512 a = _mm512_maskz_loadu_ps(m, g + i), b = _mm512_maskz_loadu_ps(m, u + i);
        __m512 t = _mm512_div_ps(a, _mm512_add_ps(one, exp16(neg(a))));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(t, b));
    }
}

TARGET static void narrow(const float *x, int n, uint16_t *y) {
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m256i h = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(y + i, m, h);
    }
}

// Widens n ≤ 16 rows of f16: columns 16c to 16c+15 of row j go to out[(16c+j)*16], so that all 16 rows
// are at fixed distances. Absent rows and columns become zeros.
INLINE void widen(const uint16_t *const *row, ptrdiff_t off, int n, int dim, float *out) {
    for (int j = 0; j < n; j++)
        for (int d = 0; d < dim; d += 16) {
            __m256i h = dim - d >= 16 ? _mm256_loadu_si256((const __m256i *)(row[j] + off + d))
                                      : _mm256_maskz_loadu_epi16(first(dim - d), row[j] + off + d);
            _mm512_store_ps(out + d * 16 + j * 16, _mm512_cvtph_ps(h));
        }
    for (int j = n; j < 16; j++)
        for (int d = 0; d < dim; d += 16) _mm512_store_ps(out + d * 16 + j * 16, _mm512_setzero_ps());
}

// Scores of 16 widened keys.
INLINE __m512 scores(const float *q, const float *k, int dim) {
    __m512 acc[16];
    for (int j = 0; j < 16; j++) acc[j] = _mm512_setzero_ps();
    int d = 0;
    for (; d + 16 <= dim; d += 16) {
        __m512 v = _mm512_loadu_ps(q + d);
        _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) acc[j] = _mm512_fmadd_ps(v, _mm512_load_ps(k + d * 16 + j * 16), acc[j]);
    }
    if (d < dim) {
        __mmask16 m = first(dim - d);
        __m512 v = _mm512_maskz_loadu_ps(m, q + d);
        _Pragma("GCC unroll 16") for (int j = 0; j < 16; j++) acc[j] = _mm512_mask3_fmadd_ps(v, _mm512_load_ps(k + d * 16 + j * 16), acc[j], m);
    }
    return reduce16(acc);
}

// For H queries: o[0:16*N] += p[j] * v[j] over n keys in order; m masks the last vector.
INLINE void add_values(const tk_attn *a, int h, int j0, int n, int d, const int H, const int N, __mmask16 m) {
    const float *p = a->p + h * TK_SEG + j0, *v = a->widened + d * 16;
    float *o = a->o + (size_t)h * a->dim + d;
    __m512 acc[8];
    for (int i = 0; i < H * N; i++) acc[i] = _mm512_maskz_loadu_ps(i % N == N - 1 ? m : 0xffff, o + i / N * a->dim + 16 * (i % N));
    for (int j = 0; j < n; j++)
        _Pragma("GCC unroll 4") for (int g = 0; g < H; g++) {
            __m512 c = _mm512_set1_ps(p[g * TK_SEG + j]);
            _Pragma("GCC unroll 4") for (int i = 0; i < N; i++)
                acc[g * N + i] = _mm512_fmadd_ps(c, _mm512_load_ps(v + i * 256 + j * 16), acc[g * N + i]);
        }
    for (int i = 0; i < H * N; i++) _mm512_mask_storeu_ps(o + i / N * a->dim + 16 * (i % N), i % N == N - 1 ? m : 0xffff, acc[i]);
}

// 8 independent chains where there are enough queries: two for 64 columns, four for 32.
INLINE void values(const tk_attn *a, int j0, int n) {
    int d = 0;
    for (; d + 64 <= a->dim; d += 64) {
        int h = 0;
        for (; h + 2 <= a->heads; h += 2) add_values(a, h, j0, n, d, 2, 4, 0xffff);
        for (; h < a->heads; h++) add_values(a, h, j0, n, d, 1, 4, 0xffff);
    }
    for (; d + 32 <= a->dim; d += 32) {
        int h = 0;
        for (; h + 4 <= a->heads; h += 4) add_values(a, h, j0, n, d, 4, 2, 0xffff);
        for (; h < a->heads; h++) add_values(a, h, j0, n, d, 1, 2, 0xffff);
    }
    for (; d < a->dim; d += 16)
        for (int h = 0; h < a->heads; h++) add_values(a, h, j0, n, d, 1, 1, first(a->dim - d));
}

TARGET static void attend(const tk_attn *a) {
    int n = a->n;
    for (int j = 0; j < n; j += 16) {
        widen(a->key + j, 0, n - j < 16 ? n - j : 16, a->dim, a->widened);
        for (int h = 0; h < a->heads; h++) {
            __m512 s = _mm512_mul_ps(_mm512_set1_ps(a->scale), scores(a->q + (size_t)h * a->dim, a->widened, a->dim));
            _mm512_store_ps(a->p + h * TK_SEG + j, s);
        }
    }
    for (int h = 0; h < a->heads; h++) {
        float *p = a->p + h * TK_SEG;
        __m512 m = _mm512_set1_ps(-bits_f32(0x7f800000)), sum = _mm512_setzero_ps();
        for (int j = 0; j < n; j += 16) m = _mm512_mask_max_ps(m, first(n - j), _mm512_load_ps(p + j), m);
        float top = _mm512_reduce_max_ps(m);
        for (int j = 0; j < n; j += 16) {
            __m512 e = exp16(_mm512_sub_ps(_mm512_load_ps(p + j), _mm512_set1_ps(top)));
            sum = _mm512_mask_add_ps(sum, first(n - j), sum, e);
            _mm512_store_ps(p + j, e);
        }
        a->max[h] = top;
        a->sum[h] = reduce(sum);
        for (int d = 0; d < a->dim; d++) a->o[(size_t)h * a->dim + d] = 0;
    }
    for (int j = 0; j < n; j += 16) {
        int c = n - j < 16 ? n - j : 16;
        widen(a->key + j, a->voff, c, a->dim, a->widened);
        values(a, j, c);
    }
}

TARGET static float exp_one(float x) { return _mm512_cvtss_f32(exp16(_mm512_set1_ps(x))); }

TARGET static float max_of(const float *x, int n) {
    __m512 m = _mm512_set1_ps(-bits_f32(0x7f800000));
    for (int i = 0; i < n; i += 16) m = _mm512_mask_max_ps(m, first(n - i), _mm512_maskz_loadu_ps(first(n - i), x + i), m);
    return _mm512_reduce_max_ps(m);
}

TARGET static float sum_exp(const float *x, int n, float max) {
    const __m512 low = _mm512_set1_ps(-bits_f32(0x7f800000)), top = _mm512_set1_ps(max);
    __m512 sum = _mm512_setzero_ps();
    for (int i = 0; i < n; i += 16) {
        __m512 v = _mm512_maskz_loadu_ps(first(n - i), x + i);
        v = _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q), low);
        sum = _mm512_mask_add_ps(sum, first(n - i), sum, exp16(_mm512_sub_ps(v, top)));
    }
    return reduce(sum);
}

TARGET static int above(const float *x, int from, int n, float limit) {
    const __m512 l = _mm512_set1_ps(limit);
    for (int i = from; i < n; i += 16) {
        __mmask16 m = _mm512_mask_cmp_ps_mask(first(n - i), _mm512_maskz_loadu_ps(first(n - i), x + i), l, _CMP_GT_OQ);
        if (m) return i + __builtin_ctz(m);
    }
    return n;
}

TARGET static void read_all(const uint8_t *p, size_t n) {
    __m512i s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm512_setzero_si512();
    for (size_t at = 0; at < n; at += 512)
        for (int i = 0; i < 8; i++) s[i] = _mm512_xor_si512(s[i], _mm512_loadu_si512(p + at + 64 * i));
    for (int i = 1; i < 8; i++) s[0] = _mm512_xor_si512(s[0], s[i]);
    __asm__ volatile("" : : "v"(s[0]));
}

TARGET static double int_macs(int rounds) {
    __m512i s[12], u = _mm512_set1_epi8(3);
    for (int i = 0; i < 12; i++) s[i] = _mm512_set1_epi32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = _mm512_dpbusd_epi32(s[i], u, u);
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "v"(s[i]));
    return 12.0 * 64 * rounds;
}

TARGET static double float_macs(int rounds) {
    __m512 s[12], u = _mm512_set1_ps(0.5f);
    for (int i = 0; i < 12; i++) s[i] = _mm512_set1_ps((float)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = _mm512_fmadd_ps(s[i], u, u);
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "v"(s[i]));
    return 12.0 * 16 * rounds;
}

const tk_kernels tk_avx512 = {
    .mm = {[TK_F32] = tk_avx512_f32, [TK_F16] = tk_avx512_f16, [TK_BF16] = tk_avx512_bf16, [TK_Q8_0] = tk_avx512_q8_0,
           [TK_Q4_0] = tk_avx512_q4_0, [TK_Q4_K] = tk_avx512_q4_k, [TK_Q6_K] = tk_avx512_q6_k},
    .quantize = quantize, .rmsnorm = rmsnorm, .silu_mul = silu_mul, .rope = rope, .narrow = narrow,
    .attend = attend, .axpy = axpy, .expf1 = exp_one, .max = max_of, .sum_exp = sum_exp, .above = above,
    .read = read_all, .int_macs = int_macs, .float_macs = float_macs,
};
#endif
