// Attention and delta nets in portable C: vectors of one float.
#include "tk.h"
#include "scalar.h"

#define TARGET
#define INLINE static inline
#define VL 1
#define QT 1
#define TV(n) 16

typedef float vf;
INLINE vf v_zero(void) { return 0; }
INLINE vf v_set(float x) { return x; }
INLINE vf v_load(const float *p) { return *p; }
INLINE void v_store(float *p, vf a) { *p = a; }
INLINE vf v_add(vf a, vf b) { return a + b; }
INLINE vf v_sub(vf a, vf b) { return a - b; }
INLINE vf v_mul(vf a, vf b) { return a * b; }
INLINE vf v_div(vf a, vf b) { return a / b; }
INLINE vf v_fma(vf a, vf b, vf c) { return soft_fma(a, b, c); }
INLINE vf v_max(vf x, vf m) { return x > m ? x : m; }
INLINE vf v_exp(vf a) { return soft_exp(a); }
INLINE vf v_half(const uint8_t *p) { return f16_f32(load_u16(p)); }
INLINE vf v_half1(const uint8_t *p) { return f16_f32(load_u16(p)); }
INLINE vf v_codes(const uint8_t *p) { return (float)(int8_t)*p; }
INLINE vf v_only(vf a, int from, int to) { return from <= 0 && to > 0 ? a : -bits_f32(0x7f800000); }
INLINE float v_sum16(const vf *a) {
    float r8[8], r4[4];
    for (int i = 0; i < 8; i++) r8[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++) r4[i] = r8[i] + r8[i + 4];
    return (r4[0] + r4[2]) + (r4[1] + r4[3]);
}
INLINE float v_top(vf a) { return a; }
INLINE void v_fetch(const uint8_t *p) { (void)p; }
#include "attention_tile.h"
#define DELTA_BLOCKS 1
INLINE float v_root(float x) { return soft_root(x); }
#include "delta_tile.h"

void tk_generic_attend(const tk_attn *a) { attend_block(a); }
void tk_generic_join(const float *part, int blocks, int group, int dim, const float *sinks, float *out) {
    join_blocks(part, blocks, group, dim, sinks, out);
}
TARGET void tk_generic_gate(const float *g, int n, float *y) { gate_by(g, n, y); }
TARGET void tk_generic_delta_inputs(const tk_delta *d, const float *const *tap, const float *alpha, const float *beta, int head,
                               float *row) {
    delta_inputs(d, tap, alpha, beta, head, row);
}
TARGET void tk_generic_delta_walk(const tk_delta *d, const tk_walk *w, const tk_step *steps, const float *rows, int head, int first,
                             float *out, float *scratch) {
    delta_walk(d, w, steps, rows, head, first, out, scratch);
}
