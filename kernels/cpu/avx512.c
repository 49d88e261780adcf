// Everything but the matrix products for AVX-512: 16 lanes are the 16 lanes of the definition.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx512.h"
#include "fused.h"

INLINE __m512 neg(__m512 x) { return _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000))); }

INLINE __m512 tanh16(__m512 x) {
    const __m512 one = _mm512_set1_ps(1);
    __m512i sign = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0x80000000));
    __m512 a = _mm512_castsi512_ps(_mm512_xor_si512(_mm512_castps_si512(x), sign)), z = _mm512_mul_ps(a, a);
    __m512 t = _mm512_sub_ps(one, _mm512_div_ps(_mm512_set1_ps(2), _mm512_add_ps(exp16(_mm512_add_ps(a, a)), one)));
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(TANH_C5), z, _mm512_set1_ps(TANH_C4));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TANH_C3));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TANH_C2));
    p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(TANH_C1));
    p = _mm512_fmadd_ps(_mm512_mul_ps(p, z), a, a);
    t = _mm512_mask_mov_ps(t, _mm512_cmp_ps_mask(a, _mm512_set1_ps(TANH_SMALL), _CMP_LT_OQ), p);
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(t), sign));  // t ≥ +0
}

INLINE float reduce(__m512 a) {
    __m256 r8 = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_movehdup_ps(r2)));
}

INLINE uint32_t largest(const float *x, int n) {
    const __m512i mag = _mm512_set1_epi32(0x7fffffff);
    __m512i m = _mm512_setzero_si512();
    for (int i = 0; i < n; i += 16) m = _mm512_max_epu32(m, _mm512_and_si512(_mm512_castps_si512(_mm512_loadu_ps(x + i)), mag));
    return _mm512_reduce_max_epu32(m);
}

INLINE void quantize_block(const float *x, float scale, __m512 inv, const int span, tk_qblock *q) {
    __m512i q0 = _mm512_setzero_si512(), q1 = q0;
    if (scale > 0) {  // neither nothing nor NaN
        q0 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x), inv));
        q1 = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(x + 16), inv));
    }
    __m256i codes = _mm256_set_m128i(_mm512_cvtepi32_epi8(q1), _mm512_cvtepi32_epi8(q0));
    _mm256_storeu_si256((__m256i *)q->q, codes);
    // The sums of 8 codes + 128.
    __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80)), _mm256_setzero_si256());
    sums = _mm256_add_epi64(sums, _mm256_bsrli_epi128(sums, 8));
    int s0 = _mm256_extract_epi32(sums, 0) - 16 * 128, s1 = _mm256_extract_epi32(sums, 4) - 16 * 128;
    q->scale = scale;
    q->half[0] = (int16_t)s0;
    q->half[1] = (int16_t)s1;
    q->off8 = -8 * (s0 + s1);
    q->off16 = -16 * (s0 + s1);
    q->off128 = -128 * (s0 + s1);
    if (span == 32) {
        q->xsum = scale * (float)(s0 + s1);
        return;
    }
    q->off32[0] = -32 * s0;
    q->off32[1] = -32 * s1;
}

// Quantises spans of `span` elements with one scale each.
INLINE void quantize_spans(const float *x, int n, const int span, tk_qblock *q, size_t stride) {
    for (int k = 0; k < n; k += span, x += span) {
        uint32_t top = largest(x, span);
        float a = bits_f32(top), scale = 0;
        if (top >= 0x7f800000) scale = bits_f32(0x7fc00000);
        else if (!(a < 1e-30f)) scale = a / 127;
        __m512 inv = _mm512_set1_ps(127 / a);
        tk_qblock *first = q;
        for (int i = 0; i < span; i += 32, q += stride) quantize_block(x + i, scale, inv, span, q);
        for (int i = 0; i < span / 64; i++) tk_pair(first + 2 * i * stride, stride);
    }
}

TARGET static void quantize(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, 32, q, stride); }
TARGET static void quantize256(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, TK_SEG, q, stride); }

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

// Neighbouring dimensions turn together: even lanes are fma(x0, c, -(x1·s)), odd ones fma(x0, s, x1·c).
TARGET static void rope_pairs(float *x, const float *c, const float *s, int n, int halves) {
    const __m512i both = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    for (; !halves && n >= 16; n -= 16, x += 16, c += 8, s += 8) {
        __m512 a = _mm512_castps256_ps512(_mm256_loadu_ps(c)), b = _mm512_castps256_ps512(_mm256_loadu_ps(s)), v = _mm512_loadu_ps(x);
        __m512 t = _mm512_mul_ps(_mm512_movehdup_ps(v), _mm512_permutex2var_ps(b, both, a));
        _mm512_storeu_ps(x, _mm512_fmaddsub_ps(_mm512_moveldup_ps(v), _mm512_permutex2var_ps(a, both, b), t));
    }
    rope(x, c, s, n, halves);
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

TARGET static void gelu_mul(const float *g, const float *u, int n, float *y) {
    const __m512 one = _mm512_set1_ps(1);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m512 a = _mm512_maskz_loadu_ps(m, g + i), b = _mm512_maskz_loadu_ps(m, u + i);
        __m512 z = _mm512_mul_ps(a, _mm512_fmadd_ps(_mm512_mul_ps(a, a), _mm512_set1_ps(GELU_CUBIC), _mm512_set1_ps(GELU_LINEAR)));
        __m512 t = _mm512_div_ps(a, _mm512_add_ps(one, exp16(neg(z))));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(t, b));
    }
}

TARGET static void clamped_mul(const float *g, const float *u, int n, float *y) {
    const __m512 one = _mm512_set1_ps(1), top = _mm512_set1_ps(CLAMP_LIMIT), low = _mm512_set1_ps(-CLAMP_LIMIT);
    for (int i = 0; i < n; i += 16) {  // NaN passes min and max
        __mmask16 m = first(n - i);
        __m512 a = _mm512_min_ps(top, _mm512_maskz_loadu_ps(m, g + i));
        __m512 b = _mm512_max_ps(low, _mm512_min_ps(top, _mm512_maskz_loadu_ps(m, u + i)));
        __m512 t = _mm512_div_ps(a, _mm512_add_ps(one, exp16(neg(_mm512_mul_ps(_mm512_set1_ps(CLAMP_SLOPE), a)))));
        _mm512_mask_storeu_ps(y + i, m, _mm512_mul_ps(t, _mm512_add_ps(b, one)));
    }
}

TARGET static void blend(const float *g, const float *x, int n, float *y) {
    const __m512 one = _mm512_set1_ps(1);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m512 s = _mm512_div_ps(one, _mm512_add_ps(one, exp16(neg(_mm512_maskz_loadu_ps(m, g + i))))), t = _mm512_maskz_loadu_ps(m, y + i);
        _mm512_mask_storeu_ps(y + i, m, _mm512_fmadd_ps(s, _mm512_sub_ps(_mm512_maskz_loadu_ps(m, x + i), t), t));
    }
}

TARGET static void soft_cap(float *x, int n, float cap) {
    const __m512 c = _mm512_set1_ps(cap), inv = _mm512_set1_ps(1 / cap);
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        _mm512_mask_storeu_ps(x + i, m, _mm512_mul_ps(c, tanh16(_mm512_mul_ps(_mm512_maskz_loadu_ps(m, x + i), inv))));
    }
}

TARGET static void narrow(const float *x, int n, uint16_t *y) {
    for (int i = 0; i < n; i += 16) {
        __mmask16 m = first(n - i);
        __m256i h = _mm512_cvtps_ph(_mm512_maskz_loadu_ps(m, x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm256_mask_storeu_epi16(y + i, m, h);
    }
}

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
    if (tk_reading == TK_STREAMS) {
        const uint8_t *q[4] = {p, p + n / 4, p + n / 2, p + n / 4 * 3};
        for (size_t at = 0; at < n / 4; at += 128)
            for (int i = 0; i < 8; i++) {
                _mm_prefetch((const char *)q[i / 2] + at + 64 * (i % 2) + 1024, _MM_HINT_T0);
                s[i] = _mm512_xor_si512(s[i], _mm512_loadu_si512(q[i / 2] + at + 64 * (i % 2)));
            }
    } else {
        for (size_t at = 0; at < n; at += 512)
            for (int i = 0; i < 8; i++) s[i] = _mm512_xor_si512(s[i], _mm512_loadu_si512(p + at + 64 * i));
    }
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
    .mm = tk_avx512_mm, .quantize = quantize, .quantize256 = quantize256,
    .rmsnorm = rmsnorm, .silu_mul = silu_mul, .gelu_mul = gelu_mul, .clamped_mul = clamped_mul,
    .blend = blend, .soft_cap = soft_cap, .rope = rope_pairs,
    .narrow = narrow,
    .gate = tk_avx512_gate, .delta_inputs = tk_avx512_delta_inputs, .delta_walk = tk_avx512_delta_walk, .delta_blocks = 4,
    .attend = tk_avx512_attend, .join = tk_avx512_join, .max = max_of, .sum_exp = sum_exp, .above = above,
    .read = read_all, .int_macs = int_macs, .float_macs = float_macs,
};
#endif
