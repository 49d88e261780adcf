// Attention and delta nets for ARM: vectors of 4 floats, and 24 of the 32 registers for sums.
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"

#define TARGET
#define VL 4
#define QT 6
#define TV(n) ((n) > 3 ? 4 : (n) > 1 ? 8 : 16)

typedef float32x4_t vf;
INLINE vf v_zero(void) { return vdupq_n_f32(0); }
INLINE vf v_set(float x) { return vdupq_n_f32(x); }
INLINE vf v_load(const float *p) { return vld1q_f32(p); }
INLINE void v_store(float *p, vf a) { vst1q_f32(p, a); }
INLINE vf v_add(vf a, vf b) { return vaddq_f32(a, b); }
INLINE vf v_sub(vf a, vf b) { return vsubq_f32(a, b); }
INLINE vf v_mul(vf a, vf b) { return vmulq_f32(a, b); }
INLINE vf v_div(vf a, vf b) { return vdivq_f32(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
INLINE vf v_max(vf x, vf m) { return vbslq_f32(vcgtq_f32(x, m), x, m); }
INLINE vf v_exp(vf a) { return exp4(a); }
INLINE vf v_half(const uint8_t *p) { return half4(p); }
INLINE vf v_half1(const uint8_t *p) { return vcvt_f32_f16(vld1_dup_f16((const float16_t *)p)); }
INLINE vf v_codes(const uint8_t *p) { return vcvtq_f32_s32(signed4(p)); }
INLINE vf v_only(vf a, int from, int to) {
    const int32x4_t i = {0, 1, 2, 3};
    uint32x4_t in = vandq_u32(vcgeq_s32(i, vdupq_n_s32(from)), vcltq_s32(i, vdupq_n_s32(to)));
    return vbslq_f32(in, a, vdupq_n_f32(-bits_f32(0x7f800000)));
}
INLINE float v_sum16(const vf *a) { return reduce16(a); }
INLINE float v_top(vf a) { return vmaxvq_f32(a); }
INLINE void v_fetch(const uint8_t *p) { __builtin_prefetch(p, 0, 2); }
#include "attention_tile.h"
#define DELTA_BLOCKS 1
INLINE float v_root(float x) { return vget_lane_f32(vsqrt_f32(vdup_n_f32(x)), 0); }
#include "delta_tile.h"

void tk_neon_attend(const tk_attn *a) { attend_block(a); }
void tk_neon_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out) {
    join_blocks(part, blocks, group, dim, sinks, out);
}
TARGET void tk_neon_gate(const float *g, int n, float *y) { gate_by(g, n, y); }
TARGET void tk_neon_delta_inputs(const tk_delta *d, const float *const *tap, const float *alpha, const float *beta, int head,
                               float *row) {
    delta_inputs(d, tap, alpha, beta, head, row);
}
TARGET void tk_neon_delta_walk(const tk_delta *d, const tk_walk *w, const tk_step *steps, const float *rows, int head, int first,
                             float *out, float *scratch) {
    delta_walk(d, w, steps, rows, head, first, out, scratch);
}
#endif
