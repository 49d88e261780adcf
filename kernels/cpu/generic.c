// Portable kernels: the definition once more, in C, for machines without the vector units below.
#include "tk.h"
#include "scalar.h"

static float tanh_one(float x) {
    float a = bits_f32(f32_bits(x) & 0x7fffffff), t = 1 - 2 / (soft_exp(2 * a) + 1);
    if (a < TANH_SMALL) {
        float z = a * a, p = soft_fma(TANH_C5, z, TANH_C4);
        p = soft_fma(p, z, TANH_C3);
        p = soft_fma(p, z, TANH_C2);
        p = soft_fma(p, z, TANH_C1);
        t = soft_fma(p * z, a, a);
    }
    return bits_f32((f32_bits(t) & 0x7fffffff) | (f32_bits(x) & 0x80000000));
}

static float reduce16(const float *a) {
    float r8[8], r4[4];
    for (int i = 0; i < 8; i++) r8[i] = a[i] + a[i + 8];
    for (int i = 0; i < 4; i++) r4[i] = r8[i] + r8[i + 4];
    return (r4[0] + r4[2]) + (r4[1] + r4[3]);
}

static float dot16(const float *x, const float *y, int n) {
    float a[16] = {0};
    for (int i = 0; i < n; i++) a[i & 15] = soft_fma(x[i], y[i], a[i & 15]);
    return reduce16(a);
}

static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    float s = 1 / soft_root(dot16(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++) y[i] = (x[i] * s) * w[i];
}

static void silu_mul(const float *g, const float *u, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = (g[i] / (1 + soft_exp(-g[i]))) * u[i];
}

static void gelu_mul(const float *g, const float *u, int n, float *y) {
    for (int i = 0; i < n; i++) {
        float z = g[i] * soft_fma(g[i] * g[i], GELU_CUBIC, GELU_LINEAR);
        y[i] = (g[i] / (1 + soft_exp(-z))) * u[i];
    }
}

static void clamped_mul(const float *g, const float *u, int n, float *y) {
    for (int i = 0; i < n; i++) {
        float a = g[i] > CLAMP_LIMIT ? CLAMP_LIMIT : g[i], b = u[i] > CLAMP_LIMIT ? CLAMP_LIMIT : u[i] < -CLAMP_LIMIT ? -CLAMP_LIMIT : u[i];
        float z = CLAMP_SLOPE * a, t = a / (1 + soft_exp(-z)), v = b + 1;
        y[i] = t * v;
    }
}

static void blend(const float *g, const float *x, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = soft_fma(1 / (1 + soft_exp(-g[i])), x[i] - y[i], y[i]);
}

static void soft_cap(float *x, int n, float cap) {
    float inv = 1 / cap;
    for (int i = 0; i < n; i++) x[i] = cap * tanh_one(x[i] * inv);
}

static void rope(float *x, const float *c, const float *s, int n, int halves) {
    for (int i = 0; i < n / 2; i++) {
        int i0 = halves ? i : 2 * i, i1 = halves ? i + n / 2 : 2 * i + 1;
        float x0 = x[i0], x1 = x[i1], t0 = x1 * s[i], t1 = x1 * c[i];
        x[i0] = soft_fma(x0, c[i], -t0);
        x[i1] = soft_fma(x0, s[i], t1);
    }
}

static void narrow(const float *x, int n, uint16_t *y) {
    for (int i = 0; i < n; i++) y[i] = f32_f16(x[i]);
}

static float max_of(const float *x, int n) {
    float m = -bits_f32(0x7f800000);
    for (int i = 0; i < n; i++) if (x[i] > m) m = x[i];
    return m;
}

static float sum_exp(const float *x, int n, float max) {
    float a[16] = {0};
    for (int i = 0; i < n; i++) {
        float v = x[i] != x[i] ? -bits_f32(0x7f800000) : x[i];
        a[i & 15] = a[i & 15] + soft_exp(v - max);
    }
    return reduce16(a);
}

static int above(const float *x, int from, int n, float limit) {
    while (from < n && !(x[from] > limit)) from++;
    return from;
}

static void read_all(const uint8_t *p, size_t n) {
    uint64_t s[4] = {0}, v[4];
    for (size_t at = 0; at < n; at += sizeof v) {
        memcpy(v, p + at, sizeof v);
        for (int i = 0; i < 4; i++) s[i] ^= v[i];
    }
    volatile uint64_t sink = s[0] ^ s[1] ^ s[2] ^ s[3];
    (void)sink;
}

// The rates of what the loops above are made of: integer products, and one rounding in software.
static double float_macs(int rounds) {
    float s[16];
    for (int i = 0; i < 16; i++) s[i] = (float)i;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < 16; i++) s[i] = soft_fma(s[i], 0.5f, 0.25f);
    volatile float sink = reduce16(s);
    (void)sink;
    return 16.0 * rounds;
}

const tk_kernels tk_generic = {
    .mm = tk_generic_mm, .quantize = tk_generic_quantize, .quantize256 = tk_generic_quantize256,
    .rmsnorm = rmsnorm, .silu_mul = silu_mul, .gelu_mul = gelu_mul, .clamped_mul = clamped_mul,
    .blend = blend, .soft_cap = soft_cap, .rope = rope, .narrow = narrow,
    .gate = tk_generic_gate, .delta_inputs = tk_generic_delta_inputs, .delta_walk = tk_generic_delta_walk, .delta_blocks = 1,
    .attend = tk_generic_attend, .join = tk_generic_join, .max = max_of, .sum_exp = sum_exp, .above = above,
    .read = read_all, .int_macs = tk_generic_int_macs, .float_macs = float_macs,
};
