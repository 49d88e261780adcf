// Kernels that the compiler turns into vectors itself, for any instruction set with fused multiply-adds.
// Included where TARGET names it.
TARGET static void rope(float *x, const float *c, const float *s, int n, int halves) {
    int step = halves ? 1 : 2, other = halves ? n / 2 : 1;
    for (int i = 0; i < n / 2; i++) {
        float x0 = x[i * step], x1 = x[i * step + other], t0 = x1 * s[i], t1 = x1 * c[i];
        x[i * step] = __builtin_fmaf(x0, c[i], -t0);
        x[i * step + other] = __builtin_fmaf(x0, s[i], t1);
    }
}
