#ifndef NEON_H
#define NEON_H
#include <arm_neon.h>
#include "tk.h"
#include "scalar.h"

#define INLINE static inline __attribute__((always_inline))

INLINE float32x4_t exp4(float32x4_t x) {
    const float32x4_t magic = vdupq_n_f32(0x1.8p23f);
    uint32x4_t low = vcltq_f32(x, vdupq_n_f32(EXP_LO));
    x = vminq_f32(x, vdupq_n_f32(EXP_HI));  // NaN passes
    float32x4_t n = vsubq_f32(vaddq_f32(vmulq_f32(x, vdupq_n_f32(EXP_LOG2E)), magic), magic);
    float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(EXP_LN2HI));
    r = vfmsq_f32(r, n, vdupq_n_f32(EXP_LN2LO));
    float32x4_t p = vfmaq_f32(vdupq_n_f32(EXP_C5), vdupq_n_f32(EXP_C6), r);
    p = vfmaq_f32(vdupq_n_f32(EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(EXP_C2), p, r);
    p = vfmaq_f32(vdupq_n_f32(1), p, r);
    p = vfmaq_f32(vdupq_n_f32(1), p, r);
    int32x4_t e = vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23);
    p = vmulq_f32(p, vreinterpretq_f32_s32(e));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(p), low));
}

// The sum of 16 lanes in the order of reductions: lanes 8 apart, then 4, 2, 1.
INLINE float reduce16(const float32x4_t *a) {
    float32x4_t r4 = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
    return vpadds_f32(vadd_f32(vget_low_f32(r4), vget_high_f32(r4)));
}

INLINE float32x4_t half4(const uint8_t *p) { return vcvt_f32_f16(vld1_f16((const float16_t *)p)); }
INLINE int32x4_t signed4(const uint8_t *p) { return vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(load_i32(p)))))); }

// Calls f with the number of rows as a constant last argument, so that every count has its own code.
#define BY_4(f, ...)                                                                  \
    case 1: f(__VA_ARGS__, 1); break;                                                       \
    case 2: f(__VA_ARGS__, 2); break;                                                       \
    case 3: f(__VA_ARGS__, 3); break;                                                       \
    case 4: f(__VA_ARGS__, 4); break;
#define BY_8(f, ...)                                                                  \
    BY_4(f, __VA_ARGS__)                                                              \
    case 5: f(__VA_ARGS__, 5); break;                                                       \
    case 6: f(__VA_ARGS__, 6); break;                                                       \
    case 7: f(__VA_ARGS__, 7); break;                                                       \
    case 8: f(__VA_ARGS__, 8); break;

// Writes outputs [4*quarter, 4*quarter+4) of group g.
INLINE void tk_neon_put(const tk_mm *a, int g, int quarter, int row, float32x4_t total) {
    float *out = a->out + (size_t)row * a->ldo + 16 * g + 4 * quarter, t[4];
    int n = a->cols - 16 * g - 4 * quarter;
    if (n >= 4) {
        if (a->add) total = vaddq_f32(vld1q_f32(out), total);
        vst1q_f32(out, total);
        return;
    }
    vst1q_f32(t, total);
    for (int i = 0; i < n; i++) out[i] = a->add ? out[i] + t[i] : t[i];
}

void tk_neon_attend(const tk_attn *);
void tk_neon_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out);

// Matrix products: neon_mm.h, included by neon_base.c, neon_dot.c and neon_i8mm.c. Float weights are the same
// for all three.
void tk_neon_float(int type, const tk_mm *);
void tk_neon_mm(int type, const tk_mm *), tk_neon_dot_mm(int type, const tk_mm *), tk_neon_i8mm_mm(int type, const tk_mm *);
double tk_neon_int_macs(int rounds), tk_neon_dot_int_macs(int rounds), tk_neon_i8mm_int_macs(int rounds);
#endif
