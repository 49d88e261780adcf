// Integer matrix kernels for ARM with the dot product instructions (ARMv8.2 dotprod).
#include "tk.h"
#if defined(__aarch64__)
#include "neon.h"
#define TARGET __attribute__((target("arch=armv8.2-a+dotprod")))
#define NAME(f) tk_neon_dot_##f

static inline __attribute__((always_inline)) TARGET void dot(const int8x16_t *w, const int n, const int8_t *q,
        const int R, int32x4_t *sum) {
    for (int r = 0; r < R; r++, q += sizeof(tk_qblock))
        for (int j = 0; j < n / 4; j += 4) {
            int8x16_t x = vld1q_s8(q + 4 * j);
            sum[r] = vdotq_laneq_s32(sum[r], w[j], x, 0);
            sum[r] = vdotq_laneq_s32(sum[r], w[j + 1], x, 1);
            sum[r] = vdotq_laneq_s32(sum[r], w[j + 2], x, 2);
            sum[r] = vdotq_laneq_s32(sum[r], w[j + 3], x, 3);
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
        _Pragma("GCC unroll 16") for (int i = 0; i < 16; i++) s[i] = vdotq_laneq_s32(s[i], u, u, 1);
    for (int i = 0; i < 16; i++) __asm__ volatile("" : : "w"(s[i]));
    return 16.0 * 16 * rounds;
}
#endif
