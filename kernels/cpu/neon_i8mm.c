// Integer matrix kernels for ARM with the matrix instructions (ARMv8.6 i8mm): smmla multiplies 2 outputs
// with 2 rows over 8 inputs, twice what sdot does at once. A zip of two neighbouring quarters of the packed
// layout is its operand, so nothing is packed another way: one zip serves all rows. A row alone leaves half
// of every smmla idle and takes sdot.
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod+i8mm")))
#define NAME(f) tk_neon_i8mm_##f

#define INLINE_I static inline __attribute__((always_inline)) TARGET

INLINE_I void dot_row(const int8x16_t *w, const int n, const int8_t *q, int32x4_t *sum) {
    for (int j = 0; j < n / 4; j += 4) {
        int8x16_t x = vld1q_s8(q + 4 * j);
        *sum = vdotq_laneq_s32(*sum, w[j], x, 0);
        *sum = vdotq_laneq_s32(*sum, w[j + 1], x, 1);
        *sum = vdotq_laneq_s32(*sum, w[j + 2], x, 2);
        *sum = vdotq_laneq_s32(*sum, w[j + 3], x, 3);
    }
}

INLINE_I int8x16_t zip_lo(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
INLINE_I int8x16_t zip_hi(int8x16_t a, int8x16_t b) {
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}
INLINE_I int32x4_t low_halves(int32x4_t a, int32x4_t b) {
    return vreinterpretq_s32_s64(vzip1q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}
INLINE_I int32x4_t high_halves(int32x4_t a, int32x4_t b) {
    return vreinterpretq_s32_s64(vzip2q_s64(vreinterpretq_s64_s32(a), vreinterpretq_s64_s32(b)));
}

INLINE_I void dot(const int8x16_t *w, const int n, const int8_t *q, const int R, int32x4_t *sum) {
    if (R == 1) {
        dot_row(w, n, q, sum);
        return;
    }
    int8x16_t w01[4], w23[4];  // 8 inputs of outputs 0 and 1, of 2 and 3
    for (int j = 0; j < n / 8; j++) {
        w01[j] = zip_lo(w[2 * j], w[2 * j + 1]);
        w23[j] = zip_hi(w[2 * j], w[2 * j + 1]);
    }
    for (int r = 0; r < R; r += 2) {
        const int8_t *q0 = q + r * sizeof(tk_qblock), *q1 = r + 1 < R ? q0 + sizeof(tk_qblock) : q0;
        int32x4_t s01 = vdupq_n_s32(0), s23 = s01;  // row r, outputs 0 and 1; then row r+1
        for (int j = 0; j < n / 8; j++) {
            int8x16_t x = vcombine_s8(vld1_s8(q0 + 8 * j), vld1_s8(q1 + 8 * j));
            s01 = vmmlaq_s32(s01, x, w01[j]);
            s23 = vmmlaq_s32(s23, x, w23[j]);
        }
        sum[r] = vaddq_s32(sum[r], low_halves(s01, s23));
        if (r + 1 < R) sum[r + 1] = vaddq_s32(sum[r + 1], high_halves(s01, s23));
    }
}

#define MAXR 8
#define BY_MAXR BY_8
#include "neon_mm.h"

TARGET double NAME(int_macs)(int rounds) {
    const int8x16_t u = vdupq_n_s8(3);
    int32x4_t s[16];
    for (int i = 0; i < 16; i++) s[i] = vdupq_n_s32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) s[i] = vmmlaq_s32(s[i], u, u);
    for (int i = 0; i < 16; i++) __asm__ volatile("" : : "w"(s[i]));
    return 16.0 * 32 * rounds;
}
#endif
