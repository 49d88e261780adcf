// Sine and cosine in double precision without fused operations, so that every machine finds the same
// rotation. Absolute error below 1e-9 for positions below 2^20; kernels/ref repeats it step by step.
#include "tk.h"
#include "scalar.h"

// pi/2 in three parts of at most 33 bits, so that n*part is exact for n < 2^20 (Cody and Waite).
#define PIO2_1 0x1.921fb544p+0
#define PIO2_2 0x1.0b4611a6p-34
#define PIO2_3 0x1.3198a2ep-69

static double poly_sin(double r) {
    double z = r * r, p = -1.0 / 39916800;
    p = p * z + 1.0 / 362880;
    p = p * z + -1.0 / 5040;
    p = p * z + 1.0 / 120;
    p = p * z + -1.0 / 6;
    return r + r * z * p;
}

static double poly_cos(double r) {
    double z = r * r, p = 1.0 / 479001600;
    p = p * z + -1.0 / 3628800;
    p = p * z + 1.0 / 40320;
    p = p * z + -1.0 / 720;
    p = p * z + 1.0 / 24;
    p = p * z + -0.5;
    return 1 + z * p;
}

void tk_rope_angle(int32_t pos, double freq, float *c, float *s) {
    double angle = (double)pos * freq;
    double t = angle * 0x1.45f306dc9c883p-1;  // 2/pi
    double n = (t + 0x1.8p52) - 0x1.8p52;
    double r = ((angle - n * PIO2_1) - n * PIO2_2) - n * PIO2_3;
    double sn = poly_sin(r), cs = poly_cos(r);
    switch ((int64_t)n & 3) {
    case 0: *c = (float)cs; *s = (float)sn; break;
    case 1: *c = (float)-sn; *s = (float)cs; break;
    case 2: *c = (float)-cs; *s = (float)-sn; break;
    default: *c = (float)sn; *s = (float)-cs;
    }
}
