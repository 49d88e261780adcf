// Everything but the matrix products for ARM: four vectors are the 16 lanes of the definition. Also the
// tables, which differ in the integer dot product alone.
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"
#define TARGET
#include "fused.h"

INLINE float32x4_t tanh4(float32x4_t x) {
    const float32x4_t one = vdupq_n_f32(1);
    float32x4_t a = vabsq_f32(x), z = vmulq_f32(a, a);
    float32x4_t t = vsubq_f32(one, vdivq_f32(vdupq_n_f32(2), vaddq_f32(exp4(vaddq_f32(a, a)), one)));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(TANH_C4), vdupq_n_f32(TANH_C5), z);
    p = vfmaq_f32(vdupq_n_f32(TANH_C3), p, z);
    p = vfmaq_f32(vdupq_n_f32(TANH_C2), p, z);
    p = vfmaq_f32(vdupq_n_f32(TANH_C1), p, z);
    p = vfmaq_f32(a, vmulq_f32(p, z), a);
    t = vbslq_f32(vcltq_f32(a, vdupq_n_f32(TANH_SMALL)), p, t);
    return vbslq_f32(vdupq_n_u32(1u << 31), x, t);
}

INLINE float dot(const float *x, const float *y, int n) {
    float32x4_t a[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    int i = 0;
    for (; i + 16 <= n; i += 16)
        for (int l = 0; l < 4; l++) a[l] = vfmaq_f32(a[l], vld1q_f32(x + i + 4 * l), vld1q_f32(y + i + 4 * l));
    if (i < n) {
        float t[16];
        for (int l = 0; l < 4; l++) vst1q_f32(t + 4 * l, a[l]);
        for (int l = 0; i < n; i++, l++) t[l] = __builtin_fmaf(x[i], y[i], t[l]);
        for (int l = 0; l < 4; l++) a[l] = vld1q_f32(t + 4 * l);
    }
    return reduce16(a);
}

INLINE uint32_t largest(const float *x, int n) {
    uint32x4_t m = vdupq_n_u32(0);
    for (int i = 0; i < n; i += 4) m = vmaxq_u32(m, vbicq_u32(vreinterpretq_u32_f32(vld1q_f32(x + i)), vdupq_n_u32(1u << 31)));
    return vmaxvq_u32(m);
}

// inv is 0 where nothing of the block counts: Inf*0 is NaN, which converts to 0.
INLINE void quantize_block(const float *x, float scale, float inv, const int span, tk_qblock *q) {
    int32_t half[2];
    for (int i = 0; i < 2; i++, x += 16) {
        int32x4_t v[4];
        for (int j = 0; j < 4; j++) v[j] = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 4 * j), inv));
        int16x8_t a = vmovn_high_s32(vmovn_s32(v[0]), v[1]), b = vmovn_high_s32(vmovn_s32(v[2]), v[3]);
        vst1q_s8(q->q + 16 * i, vmovn_high_s16(vmovn_s16(a), b));
        half[i] = vaddvq_s16(vaddq_s16(a, b));
    }
    int32_t sum = half[0] + half[1];
    q->scale = scale;
    q->half[0] = (int16_t)half[0];
    q->half[1] = (int16_t)half[1];
    q->off8 = -8 * sum;
    q->off16 = -16 * sum;
    q->off128 = -128 * sum;
    if (span == 32) {
        q->xsum = scale * (float)sum;
        return;
    }
    q->off32[0] = -32 * half[0];
    q->off32[1] = -32 * half[1];
}

// Quantises spans of `span` elements with one scale each.
INLINE void quantize_spans(const float *x, int n, const int span, tk_qblock *q, size_t stride) {
    for (int k = 0; k < n; k += span, x += span) {
        uint32_t top = largest(x, span);
        float a = bits_f32(top), scale = 0, inv = 0;
        if (top >= 0x7f800000) scale = bits_f32(0x7fc00000);
        else if (!(a < 1e-30f)) { scale = a / 127; inv = 127 / a; }
        tk_qblock *first = q;
        for (int i = 0; i < span; i += 32, q += stride) quantize_block(x + i, scale, inv, span, q);
        for (int i = 0; i < span / 64; i++) tk_pair(first + 2 * i * stride, stride);
    }
}

static void quantize(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, 32, q, stride); }
static void quantize256(const float *x, int n, tk_qblock *q, size_t stride) { quantize_spans(x, n, TK_SEG, q, stride); }

static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    float mean = dot(x, x, n) / (float)n + eps;
    float s = 1 / vget_lane_f32(vsqrt_f32(vdup_n_f32(mean)), 0);
    for (int i = 0; i < n; i++) y[i] = (x[i] * s) * w[i];
}

static void silu_mul(const float *g, const float *u, int n, float *y) {
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t a = vld1q_f32(g + i), t = vdivq_f32(a, vaddq_f32(vdupq_n_f32(1), exp4(vnegq_f32(a))));
        vst1q_f32(y + i, vmulq_f32(t, vld1q_f32(u + i)));
    }
    tk_generic.silu_mul(g + i, u + i, n - i, y + i);
}

static void gelu_mul(const float *g, const float *u, int n, float *y) {
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t a = vld1q_f32(g + i);
        float32x4_t z = vmulq_f32(a, vfmaq_f32(vdupq_n_f32(GELU_LINEAR), vmulq_f32(a, a), vdupq_n_f32(GELU_CUBIC)));
        float32x4_t t = vdivq_f32(a, vaddq_f32(vdupq_n_f32(1), exp4(vnegq_f32(z))));
        vst1q_f32(y + i, vmulq_f32(t, vld1q_f32(u + i)));
    }
    tk_generic.gelu_mul(g + i, u + i, n - i, y + i);
}

static void clamped_mul(const float *g, const float *u, int n, float *y) {
    const float32x4_t one = vdupq_n_f32(1), top = vdupq_n_f32(CLAMP_LIMIT), low = vdupq_n_f32(-CLAMP_LIMIT);
    int i = 0;
    for (; i + 4 <= n; i += 4) {  // NaN passes min and max
        float32x4_t a = vminq_f32(top, vld1q_f32(g + i)), b = vmaxq_f32(low, vminq_f32(top, vld1q_f32(u + i)));
        float32x4_t t = vdivq_f32(a, vaddq_f32(one, exp4(vnegq_f32(vmulq_f32(vdupq_n_f32(CLAMP_SLOPE), a)))));
        vst1q_f32(y + i, vmulq_f32(t, vaddq_f32(b, one)));
    }
    tk_generic.clamped_mul(g + i, u + i, n - i, y + i);
}

static void blend(const float *g, const float *x, int n, float *y) {
    const float32x4_t one = vdupq_n_f32(1);
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t s = vdivq_f32(one, vaddq_f32(one, exp4(vnegq_f32(vld1q_f32(g + i))))), t = vld1q_f32(y + i);
        vst1q_f32(y + i, vfmaq_f32(t, s, vsubq_f32(vld1q_f32(x + i), t)));
    }
    tk_generic.blend(g + i, x + i, n - i, y + i);
}

static void soft_cap(float *x, int n, float cap) {
    float inv = 1 / cap;
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(x + i, vmulq_n_f32(tanh4(vmulq_n_f32(vld1q_f32(x + i), inv)), cap));
    tk_generic.soft_cap(x + i, n - i, cap);
}

static void narrow(const float *x, int n, uint16_t *y) {
    int i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    tk_generic.narrow(x + i, n - i, y + i);
}

static float max_of(const float *x, int n) {
    float32x4_t m = vdupq_n_f32(-bits_f32(0x7f800000));
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        float32x4_t v = vld1q_f32(x + i);
        m = vbslq_f32(vcgtq_f32(v, m), v, m);  // NaN does not pass; vmaxnm lets a signalling one through
    }
    float t[4], top = tk_generic.max(x + i, n - i);
    vst1q_f32(t, m);
    float other = tk_generic.max(t, 4);
    return other > top ? other : top;
}

static float sum_exp(const float *x, int n, float max) {
    const float32x4_t low = vdupq_n_f32(-bits_f32(0x7f800000)), top = vdupq_n_f32(max);
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    float tail[16];
    for (int i = 0; i < n; i += 16, x += 16) {
        const float *y = x;
        if (n - i < 16) {
            for (int l = 0; l < 16; l++) tail[l] = l < n - i ? x[l] : -bits_f32(0x7f800000);
            y = tail;
        }
        for (int l = 0; l < 4; l++) {
            float32x4_t v = vld1q_f32(y + 4 * l);
            v = vbslq_f32(vceqq_f32(v, v), v, low);
            sum[l] = vaddq_f32(sum[l], exp4(vsubq_f32(v, top)));
        }
    }
    return reduce16(sum);
}

static int above(const float *x, int from, int n, float limit) {
    int i = from;
    for (; i + 16 <= n; i += 16) {
        uint32x4_t m = vdupq_n_u32(0);
        for (int l = 0; l < 4; l++) m = vorrq_u32(m, vcgtq_f32(vld1q_f32(x + i + 4 * l), vdupq_n_f32(limit)));
        if (vmaxvq_u32(m)) break;
    }
    return tk_generic.above(x, i, n, limit);
}

static void read_all(const uint8_t *p, size_t n) {
    uint8x16_t s[8];
    for (int i = 0; i < 8; i++) s[i] = vdupq_n_u8(0);
    for (size_t at = 0; at < n; at += 128)
        for (int i = 0; i < 8; i++) s[i] = veorq_u8(s[i], vld1q_u8(p + at + 16 * i));
    for (int i = 0; i < 8; i++) __asm__ volatile("" : : "w"(s[i]));
}

static double float_macs(int rounds) {
    float32x4_t s[16], u = vdupq_n_f32(0.5f);
    for (int i = 0; i < 16; i++) s[i] = vdupq_n_f32((float)i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) s[i] = vfmaq_f32(s[i], u, u);
    for (int i = 0; i < 16; i++) __asm__ volatile("" : : "w"(s[i]));
    return 16.0 * 4 * rounds;
}

#define TABLE(isa)                                                                                                \
    const tk_kernels isa = {                                                                                      \
        .mm = isa##_mm, .quantize = quantize, .quantize256 = quantize256, .rmsnorm = rmsnorm,                     \
        .silu_mul = silu_mul, .gelu_mul = gelu_mul, .blend = blend, .soft_cap = soft_cap, .rope = rope,           \
        .clamped_mul = clamped_mul, .narrow = narrow,                                                             \
        .gate = tk_neon_gate, .delta_inputs = tk_neon_delta_inputs, .delta_walk = tk_neon_delta_walk, .delta_blocks = 1,\
        .attend = tk_neon_attend, .join = tk_neon_join, .max = max_of, .sum_exp = sum_exp, .above = above,      \
        .read = read_all, .int_macs = isa##_int_macs, .float_macs = float_macs,                                   \
    }
TABLE(tk_neon);
TABLE(tk_neon_dot);
TABLE(tk_neon_i8mm);
#endif
