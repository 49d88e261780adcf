// Everything but the matrix products for AVX2: two vectors are the 16 lanes of the definition.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx2.h"
#include "fused.h"

INLINE __m256 tanh8(__m256 x) {
    const __m256 sign = _mm256_set1_ps(-0.0f), one = _mm256_set1_ps(1);
    __m256 a = _mm256_andnot_ps(sign, x), z = _mm256_mul_ps(a, a);
    __m256 t = _mm256_sub_ps(one, _mm256_div_ps(_mm256_set1_ps(2), _mm256_add_ps(exp8(_mm256_add_ps(a, a)), one)));
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(TANH_C5), z, _mm256_set1_ps(TANH_C4));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(TANH_C3));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(TANH_C2));
    p = _mm256_fmadd_ps(p, z, _mm256_set1_ps(TANH_C1));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, z), a, a);
    t = _mm256_blendv_ps(t, p, _mm256_cmp_ps(a, _mm256_set1_ps(TANH_SMALL), _CMP_LT_OQ));
    return _mm256_or_ps(_mm256_andnot_ps(sign, t), _mm256_and_ps(sign, x));
}

typedef struct { __m256 lo, hi; } lanes16;

INLINE lanes16 no_lanes(void) { return (lanes16){_mm256_setzero_ps(), _mm256_setzero_ps()}; }

INLINE float reduce(lanes16 a) {
    __m256 r8 = _mm256_add_ps(a.lo, a.hi);
    __m128 r4 = _mm_add_ps(_mm256_castps256_ps128(r8), _mm256_extractf128_ps(r8, 1));
    __m128 r2 = _mm_add_ps(r4, _mm_movehl_ps(r4, r4));
    return _mm_cvtss_f32(_mm_add_ss(r2, _mm_movehdup_ps(r2)));
}

INLINE float dot(const float *x, const float *y, int n) {
    lanes16 a = no_lanes();
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        a.lo = _mm256_fmadd_ps(_mm256_loadu_ps(x + i), _mm256_loadu_ps(y + i), a.lo);
        a.hi = _mm256_fmadd_ps(_mm256_loadu_ps(x + i + 8), _mm256_loadu_ps(y + i + 8), a.hi);
    }
    if (i < n) {
        float t[16];
        _mm256_storeu_ps(t, a.lo);
        _mm256_storeu_ps(t + 8, a.hi);
        for (int l = 0; i < n; i++, l++) t[l] = __builtin_fmaf(x[i], y[i], t[l]);
        a = (lanes16){_mm256_loadu_ps(t), _mm256_loadu_ps(t + 8)};
    }
    return reduce(a);
}

INLINE uint32_t largest(const float *x, int n) {
    const __m256i mag = _mm256_set1_epi32(0x7fffffff);
    __m256i m = _mm256_setzero_si256();
    for (int i = 0; i < n; i += 8) m = _mm256_max_epi32(m, _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(x + i)), mag));
    __m128i h = _mm_max_epi32(_mm256_castsi256_si128(m), _mm256_extracti128_si256(m, 1));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0x4e));
    h = _mm_max_epi32(h, _mm_shuffle_epi32(h, 0xb1));
    return (uint32_t)_mm_cvtsi128_si32(h);
}

INLINE void quantize_block(const float *x, float scale, __m256 inv, const int span, tk_qblock *q) {
    __m256i codes = _mm256_setzero_si256();
    if (scale > 0) {  // neither nothing nor NaN
        __m256i v[4];
        for (int i = 0; i < 4; i++) v[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + 8 * i), inv));
        codes = _mm256_packs_epi16(_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
        codes = _mm256_permutevar8x32_epi32(codes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));  // packs works within halves
    }
    _mm256_storeu_si256((__m256i *)q->q, codes);
    // The sums of 8 codes + 128.
    __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80)), _mm256_setzero_si256());
    sums = _mm256_add_epi64(sums, _mm256_bsrli_epi128(sums, 8));
    int s0 = _mm256_extract_epi32(sums, 0) - 16 * 128, s1 = _mm256_extract_epi32(sums, 4) - 16 * 128;
    q->scale = scale;
    q->half[0] = (int16_t)s0;
    q->half[1] = (int16_t)s1;
    __m256i lanes = _mm256_maddubs_epi16(_mm256_set1_epi8(16), codes);
    lanes = _mm256_add_epi16(lanes, _mm256_bsrli_epi128(lanes, 8));
    lanes = _mm256_add_epi16(lanes, _mm256_bsrli_epi128(lanes, 4));  // of each half
    q->off128 = -128 * (s0 + s1);
    if (span > 32) {
        lanes = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(lanes, lanes));
        q->lanes32[0] = _mm256_extract_epi32(lanes, 0);
        q->lanes32[1] = _mm256_extract_epi32(lanes, 4);
        q->off32[0] = -32 * s0;
        q->off32[1] = -32 * s1;
        return;
    }
    q->off8 = -8 * (s0 + s1);
    q->off16 = -16 * (s0 + s1);
    q->xsum = scale * (float)(s0 + s1);
    q->lanes = _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(),
        _mm_add_epi16(_mm256_castsi256_si128(lanes), _mm256_extracti128_si256(lanes, 1))));
}

// Quantises spans of `span` elements with one scale each.
INLINE void quantize_spans(const float *x, int n, const int span, tk_qblock *q, size_t stride) {
    for (int k = 0; k < n; k += span, x += span) {
        uint32_t top = largest(x, span);
        float a = bits_f32(top), scale = 0;
        if (top >= 0x7f800000) scale = bits_f32(0x7fc00000);
        else if (!(a < 1e-30f)) scale = a / 127;
        __m256 inv = _mm256_set1_ps(127 / a);
        tk_qblock *first = q;
        for (int i = 0; i < span; i += 32, q += stride) quantize_block(x + i, scale, inv, span, q);
        for (int i = 0; i < span / 64; i++) tk_pair(first + 2 * i * stride, stride);
    }
}

TARGET static void quantize(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, 32, q, stride); }
TARGET static void quantize256(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, TK_SEG, q, stride); }

TARGET static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    __m128 mean = _mm_set_ss(dot(x, x, n) / (float)n + eps);
    float s = 1 / _mm_cvtss_f32(_mm_sqrt_ss(mean));
    for (int i = 0; i < n; i++) y[i] = (x[i] * s) * w[i];
}

TARGET static void silu_mul(const float *g, const float *u, int n, float *y) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(g + i);
        __m256 t = _mm256_div_ps(a, _mm256_add_ps(one, exp8(_mm256_xor_ps(a, sign))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(t, _mm256_loadu_ps(u + i)));
    }
    tk_generic.silu_mul(g + i, u + i, n - i, y + i);
}

TARGET static void gelu_mul(const float *g, const float *u, int n, float *y) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 a = _mm256_loadu_ps(g + i);
        __m256 z = _mm256_mul_ps(a, _mm256_fmadd_ps(_mm256_mul_ps(a, a), _mm256_set1_ps(GELU_CUBIC), _mm256_set1_ps(GELU_LINEAR)));
        __m256 t = _mm256_div_ps(a, _mm256_add_ps(one, exp8(_mm256_xor_ps(z, sign))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(t, _mm256_loadu_ps(u + i)));
    }
    tk_generic.gelu_mul(g + i, u + i, n - i, y + i);
}

TARGET static void clamped_mul(const float *g, const float *u, int n, float *y) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
    const __m256 top = _mm256_set1_ps(CLAMP_LIMIT), low = _mm256_set1_ps(-CLAMP_LIMIT);
    int i = 0;
    for (; i + 8 <= n; i += 8) {  // NaN passes min and max
        __m256 a = _mm256_min_ps(top, _mm256_loadu_ps(g + i)), b = _mm256_max_ps(low, _mm256_min_ps(top, _mm256_loadu_ps(u + i)));
        __m256 z = _mm256_mul_ps(_mm256_set1_ps(CLAMP_SLOPE), a);
        __m256 t = _mm256_div_ps(a, _mm256_add_ps(one, exp8(_mm256_xor_ps(z, sign))));
        _mm256_storeu_ps(y + i, _mm256_mul_ps(t, _mm256_add_ps(b, one)));
    }
    tk_generic.clamped_mul(g + i, u + i, n - i, y + i);
}

TARGET static void blend(const float *g, const float *x, int n, float *y) {
    const __m256 one = _mm256_set1_ps(1), sign = _mm256_set1_ps(-0.0f);
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256 s = _mm256_div_ps(one, _mm256_add_ps(one, exp8(_mm256_xor_ps(_mm256_loadu_ps(g + i), sign)))), t = _mm256_loadu_ps(y + i);
        _mm256_storeu_ps(y + i, _mm256_fmadd_ps(s, _mm256_sub_ps(_mm256_loadu_ps(x + i), t), t));
    }
    tk_generic.blend(g + i, x + i, n - i, y + i);
}

TARGET static void soft_cap(float *x, int n, float cap) {
    const __m256 c = _mm256_set1_ps(cap), inv = _mm256_set1_ps(1 / cap);
    int i = 0;
    for (; i + 8 <= n; i += 8) _mm256_storeu_ps(x + i, _mm256_mul_ps(c, tanh8(_mm256_mul_ps(_mm256_loadu_ps(x + i), inv))));
    tk_generic.soft_cap(x + i, n - i, cap);
}

TARGET static void narrow(const float *x, int n, uint16_t *y) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        _mm_storeu_si128((__m128i *)(y + i), h);
    }
    tk_generic.narrow(x + i, n - i, y + i);
}

TARGET static float max_of(const float *x, int n) {
    __m256 m = _mm256_set1_ps(-bits_f32(0x7f800000));
    int i = 0;
    for (; i + 8 <= n; i += 8) m = _mm256_max_ps(_mm256_loadu_ps(x + i), m);  // NaN does not pass
    float t[8], top = tk_generic.max(x + i, n - i);
    _mm256_storeu_ps(t, m);
    float other = tk_generic.max(t, 8);
    return other > top ? other : top;
}

TARGET static float sum_exp(const float *x, int n, float max) {
    const __m256 low = _mm256_set1_ps(-bits_f32(0x7f800000)), top = _mm256_set1_ps(max);
    lanes16 sum = no_lanes();
    float tail[16];
    for (int i = 0; i < n; i += 16, x += 16) {
        const float *y = x;
        if (n - i < 16) {
            for (int l = 0; l < 16; l++) tail[l] = l < n - i ? x[l] : -bits_f32(0x7f800000);
            y = tail;
        }
        __m256 a = _mm256_loadu_ps(y), b = _mm256_loadu_ps(y + 8);
        a = _mm256_blendv_ps(a, low, _mm256_cmp_ps(a, a, _CMP_UNORD_Q));
        b = _mm256_blendv_ps(b, low, _mm256_cmp_ps(b, b, _CMP_UNORD_Q));
        sum.lo = _mm256_add_ps(sum.lo, exp8(_mm256_sub_ps(a, top)));
        sum.hi = _mm256_add_ps(sum.hi, exp8(_mm256_sub_ps(b, top)));
    }
    return reduce(sum);
}

TARGET static int above(const float *x, int from, int n, float limit) {
    const __m256 l = _mm256_set1_ps(limit);
    int i = from;
    for (; i + 8 <= n; i += 8) {
        int m = _mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), l, _CMP_GT_OQ));
        if (m) return i + __builtin_ctz((unsigned)m);
    }
    return tk_generic.above(x, i, n, limit);
}

TARGET static void read_all(const uint8_t *p, size_t n) {
    __m256i s[8];
    for (int i = 0; i < 8; i++) s[i] = _mm256_setzero_si256();
    if (tk_reading == TK_STREAMS) {
        const uint8_t *q[4] = {p, p + n / 4, p + n / 2, p + n / 4 * 3};
        for (size_t at = 0; at < n / 4; at += 64)
            for (int i = 0; i < 8; i++) {
                if (i % 2 == 0) _mm_prefetch((const char *)q[i / 2] + at + 1024, _MM_HINT_T0);
                s[i] = _mm256_xor_si256(s[i], _mm256_loadu_si256((const __m256i *)(q[i / 2] + at + 32 * (i % 2))));
            }
    } else {
        for (size_t at = 0; at < n; at += 256)
            for (int i = 0; i < 8; i++) s[i] = _mm256_xor_si256(s[i], _mm256_loadu_si256((const __m256i *)(p + at + 32 * i)));
    }
    for (int i = 0; i < 8; i++) __asm__ volatile("" : : "x"(s[i]));
}

TARGET double tk_avx2_int_macs(int rounds) {
    const __m256i u = _mm256_set1_epi8(3), one = _mm256_set1_epi16(1);
    __m256i s[10];
    for (int i = 0; i < 10; i++) s[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 10") for (int i = 0; i < 10; i++)
            s[i] = _mm256_add_epi32(s[i], _mm256_madd_epi16(_mm256_maddubs_epi16(u, s[i]), one));
    for (int i = 0; i < 10; i++) __asm__ volatile("" : : "x"(s[i]));
    return 10.0 * 32 * rounds;
}

TARGET static double float_macs(int rounds) {
    __m256 s[12], u = _mm256_set1_ps(0.5f);
    for (int i = 0; i < 12; i++) s[i] = _mm256_set1_ps((float)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = _mm256_fmadd_ps(s[i], u, u);
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "x"(s[i]));
    return 12.0 * 8 * rounds;
}

// AVX-VNNI differs in the products with quantised weights alone.
#define TABLE(isa)                                                                                                       \
    const tk_kernels isa = {                                                                                             \
        .mm = isa##_mm, .quantize = quantize, .quantize256 = quantize256,                                                \
        .rmsnorm = rmsnorm, .silu_mul = silu_mul, .gelu_mul = gelu_mul, .clamped_mul = clamped_mul,                      \
        .blend = blend, .soft_cap = soft_cap, .rope = rope,                                                              \
        .narrow = narrow,                                                                                                \
        .gate = tk_avx2_gate, .delta_inputs = tk_avx2_delta_inputs, .delta_walk = tk_avx2_delta_walk, .delta_blocks = 1, \
        .attend = tk_avx2_attend, .join = tk_avx2_join, .max = max_of, .sum_exp = sum_exp, .above = above,               \
        .read = read_all, .int_macs = isa##_int_macs, .float_macs = float_macs,                                          \
    }
TABLE(tk_avx2);
#if TK_HAS_AVXVNNI
TABLE(tk_avxvnni);
#endif
#endif
