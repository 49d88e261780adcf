// Integer matrix kernels for any ARMv8, without the dot product instructions.
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"
#define TARGET
#define NAME(f) tk_neon_##f

// Sums of two products fit 16 bits: 2 * 128 * 127 < 2^15.
INLINE void dot(const int8x16_t *w, const int n, const int8_t *q, const int R, int32x4_t *sum) {
    for (int r = 0; r < R; r++, q += sizeof(tk_qblock)) {
        int32x4_t s01 = vdupq_n_s32(0), s23 = s01;  // outputs 0 0 1 1, and 2 2 3 3
        for (int j = 0; j < n / 4; j += 2) {
            int8x16_t x0 = vreinterpretq_s8_s32(vdupq_n_s32(load_i32(q + 4 * j)));
            int8x16_t x1 = vreinterpretq_s8_s32(vdupq_n_s32(load_i32(q + 4 * j + 4)));
            s01 = vpadalq_s16(s01, vmlal_s8(vmull_s8(vget_low_s8(w[j]), vget_low_s8(x0)), vget_low_s8(w[j + 1]), vget_low_s8(x1)));
            s23 = vpadalq_s16(s23, vmlal_high_s8(vmull_high_s8(w[j], x0), w[j + 1], x1));
        }
        sum[r] = vaddq_s32(sum[r], vpaddq_s32(s01, s23));
    }
}

#define MAXR 4
#define BY_MAXR BY_4
#include "neon_mm.h"

double NAME(int_macs)(int rounds) {
    const int8x8_t u = vdup_n_s8(3);
    int32x4_t s[12];
    for (int i = 0; i < 12; i++) s[i] = vdupq_n_s32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) {
            int8x8_t v = vreinterpret_s8_s32(vget_low_s32(s[i]));
            s[i] = vpadalq_s16(s[i], vmlal_s8(vmull_s8(v, u), u, v));
        }
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "w"(s[i]));
    return 12.0 * 16 * rounds;
}
#endif
