// Matrix kernels for ARM with F32, F16 and BF16 weights: a quarter of a packed vector is 4 outputs of one input.
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"

#define ROWS for (int r = 0; r < R; r++)

INLINE float32x4_t widen4(const int type, const uint8_t *w, size_t i) {
    if (type == TK_F32) return vld1q_f32((const float *)w + i);
    if (type == TK_F16) return half4(w + 2 * i);
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)w + i), 16));
}

// Rows come in fours, one register; the last few alone, for beyond them there may be nothing to load.
INLINE float32x4_t add_product(float32x4_t acc, float32x4_t w, const float *x, const int r, const int R) {
    if (r >= R / 4 * 4) return vfmaq_n_f32(acc, w, x[r]);
    float32x4_t four = vld1q_f32(x + r / 4 * 4);
    switch (r % 4) {
    case 0: return vfmaq_laneq_f32(acc, w, four, 0);
    case 1: return vfmaq_laneq_f32(acc, w, four, 1);
    case 2: return vfmaq_laneq_f32(acc, w, four, 2);
    }
    return vfmaq_laneq_f32(acc, w, four, 3);
}

// total += inputs [k0, end) of G groups, N quarters from q0 on: G*N*R chains, at most 16.
INLINE void segment(const int type, const tk_mm *a, const uint8_t *w, int k0, int end, const float *x, int q0, const int N,
                    const int G, const int R, float32x4_t *total) {
    float32x4_t acc[16];
    for (int i = 0; i < G * N * R; i++) acc[i] = vdupq_n_f32(0);
    for (int k = k0; k < end; k++, x += R)
        _Pragma("GCC unroll 16") for (int i = 0; i < G * N; i++) {
            float32x4_t v = widen4(type, w + i / N * a->gbytes, (size_t)k * 16 + 4 * (q0 + i % N));
            ROWS acc[i * R + r] = add_product(acc[i * R + r], v, x, r, R);
        }
    _Pragma("GCC unroll 16") for (int i = 0; i < G * N; i++) {
        float32x4_t *t = total + (i / N * 4 + q0 + i % N) * R;
        ROWS t[r] = vaddq_f32(t[r], acc[i * R + r]);
    }
}

INLINE void groups(const int type, const tk_mm *a, int g, int r0, const int G, const int R) {
    const int N = R <= 4 ? 4 : 2;
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = a->x + (size_t)r0 * a->k;
    float32x4_t total[4 * TK_TILE];
    for (int i = 0; i < 4 * G * R; i++) total[i] = vdupq_n_f32(0);
    for (int k = 0; k < a->k; k += TK_SEG, x += TK_SEG * R) {
        int end = a->k - k < TK_SEG ? a->k : k + TK_SEG;
        for (int q0 = 0; q0 < 4; q0 += N) segment(type, a, w, k, end, x, q0, N, G, R, total);
    }
    for (int i = 0; i < 4 * G; i++) ROWS tk_neon_put(a, g + i / 4, i % 4, r0 + r, total[i * R + r]);
}

// One or two rows take several groups at once, to have chains enough.
INLINE void panel(const int type, const tk_mm *a, int g, int ng, int r0, const int R) {
    const int G = R == 1 ? 4 : R == 2 ? 2 : 1;
    int end = g + ng;
    for (; g + G <= end; g += G) groups(type, a, g, r0, G, R);
    for (; g < end; g++) groups(type, a, g, r0, 1, R);
}

#define KERNEL(type)                                                            \
    static void mm_##type(const tk_mm *a) {                                     \
        for (int g = 0; g < a->ng; g += 4)                                      \
            for (int p = a->p0; p < a->p1; p++) {                               \
                tk_panel t = tk_panel_at(a->rows, p);                           \
                switch (t.h) { BY_8(panel, TK_##type, a, g, imin(4, a->ng - g), t.r0) }  \
            }                                                                   \
    }
KERNEL(F32)
KERNEL(F16)
KERNEL(BF16)

void tk_neon_float(int type, const tk_mm *a) {
    switch (type) {
    case TK_F32: mm_F32(a); break;
    case TK_F16: mm_F16(a); break;
    case TK_BF16: mm_BF16(a); break;
    }
}
#endif
