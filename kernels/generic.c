// Portable kernels: the definition once more, in C, for machines without the vector units below.
#include "tk.h"
#include "scalar.h"

static float exp_one(float x) {
    if (x < EXP_LO) return 0;
    if (x > EXP_HI) x = EXP_HI;
    if (x != x) return x;
    float n = rne_f32(x * EXP_LOG2E);
    float r = soft_fma(-n, EXP_LN2HI, x);
    r = soft_fma(-n, EXP_LN2LO, r);
    float p = soft_fma(EXP_C6, r, EXP_C5);
    p = soft_fma(p, r, EXP_C4);
    p = soft_fma(p, r, EXP_C3);
    p = soft_fma(p, r, EXP_C2);
    p = soft_fma(p, r, 1);
    p = soft_fma(p, r, 1);
    return p * bits_f32((uint32_t)((int32_t)n + 127) << 23);
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

// Correctly rounded square root of x ≥ 0, by the digits of the integer root of the mantissa.
static float sqrt_one(float x) {
    uint32_t u = f32_bits(x);
    if (u == 0 || u >= 0x7f800000) return u == 0x80000000 || u <= 0x7f800000 ? x : bits_f32(0x7fc00000);
    int e = (int)(u >> 23);
    uint64_t m = u & 0x7fffff;
    if (e) m |= 0x800000;
    else { e = 1; while (!(m & 0x800000)) { m <<= 1; e--; } }
    e -= 150;                      // x = m * 2^e
    if (e & 1) { m <<= 1; e--; }
    uint64_t v = m << 26, root = 0;
    for (uint64_t bit = (uint64_t)1 << 50; bit; bit >>= 2) {
        if (v >= root + bit) { v -= root + bit; root = (root >> 1) + bit; } else root >>= 1;
    }
    float s = (float)(root << 1 | (v != 0));  // 26 or 27 bits, sticky at the end: rounds once
    return s * bits_f32((uint32_t)(e / 2 - 14 + 127) << 23);
}

// The 32 weights of 16 outputs in block b, less their offset, as w[k/4][output][k%4].
static void open_block(int type, const uint8_t *seg, int blocks, int b, int8_t *w) {
    switch (type) {
    case TK_Q8_0: {
        const uint8_t *q = seg + ((size_t)32 * blocks + 63) / 64 * 64 + (size_t)512 * b;
        for (int i = 0; i < 512; i++) w[i] = (int8_t)(q[i] ^ 0x80);
        return;
    }
    case TK_Q4_0: case TK_Q4_K: {
        const uint8_t *q = seg + (type == TK_Q4_K ? 256 : ((size_t)32 * blocks + 63) / 64 * 64) + (size_t)256 * b;
        int off = type == TK_Q4_K ? 0 : 8;
        for (int i = 0; i < 256; i++) { w[i] = (int8_t)((q[i] & 15) - off); w[i + 256] = (int8_t)((q[i] >> 4) - off); }
        return;
    }
    case TK_Q6_K: {
        const uint8_t *lo = seg + 320 + (size_t)384 * b, *hi = lo + 256;
        for (int v = 0; v < 8; v++)
            for (int i = 0; i < 64; i++) {
                int n = v < 4 ? lo[v * 64 + i] & 15 : lo[(v - 4) * 64 + i] >> 4;
                w[v * 64 + i] = (int8_t)((n | (hi[(v & 1) * 64 + i] >> 2 * (v >> 1) & 3) << 4) - 32);
            }
        return;
    }
    }
}

// The scale (and for Q4_K the offset) of each of 16 outputs in sub-block s of a segment.
static void open_scales(int type, const uint8_t *seg, int s, float *ws, float *wm) {
    for (int l = 0; l < 16; l++) {
        const uint8_t *c = seg + 64 + l;
        switch (type) {
        case TK_Q8_0: case TK_Q4_0: ws[l] = f16_f32(load_u16(seg + 32 * s + 2 * l)); break;
        case TK_Q6_K: ws[l] = f16_f32(load_u16(seg + 2 * l)) * (float)(int8_t)c[16 * s]; break;
        case TK_Q4_K: {
            int sc = s < 4 ? c[16 * s] & 63 : (c[16 * (s + 4)] & 15) | (c[16 * (s - 4)] >> 6) << 4;
            int m = s < 4 ? c[16 * (s + 4)] & 63 : c[16 * (s + 4)] >> 4 | (c[16 * s] >> 6) << 4;
            ws[l] = f16_f32(load_u16(seg + 2 * l)) * (float)sc;
            wm[l] = f16_f32(load_u16(seg + 32 + 2 * l)) * (float)m;
        }
        }
    }
}

static size_t segment_bytes(int type, int k) { return tk_group_bytes(type, k); }

static void put(const tk_mm *a, int g, int r, const float *total) {
    float *out = a->out + (size_t)r * a->ldo + 16 * g;
    int n = a->cols - 16 * g < 16 ? a->cols - 16 * g : 16;
    for (int l = 0; l < n; l++) out[l] = a->add ? out[l] + total[l] : total[l];
}

static void dot_block(const int8_t *w, const int8_t *x, int from, int to, int32_t *sum) {
    for (int l = 0; l < 16; l++) {
        int32_t s = 0;
        for (int j = from; j < to; j++)
            for (int i = 0; i < 4; i++) s += w[j * 64 + l * 4 + i] * x[j * 4 + i];
        sum[l] = s;
    }
}

static void add_block(int type, const tk_qblock *x, const int8_t *w, const float *ws, const float *wm, int half, float *acc) {
    int32_t sum[16];
    if (type == TK_Q6_K) dot_block(w, x->q, 4 * half, 4 * half + 4, sum);
    else dot_block(w, x->q, 0, 8, sum);
    for (int l = 0; l < 16; l++) {
        float t = ws[l] * x->scale;
        acc[l] = soft_fma((float)sum[l], t, acc[l]);
        if (type == TK_Q4_K) acc[l] = soft_fma(-wm[l], x->xsum, acc[l]);
    }
}

static inline void mm_quant(int type, const tk_mm *a) {
    int8_t w[512];
    float total[TK_TILE][16], acc[TK_TILE][16], ws[16], wm[16] = {0};
    int halves = type == TK_Q6_K ? 2 : 1;
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *seg = a->w + g * a->gbytes;
        const tk_qblock *x = a->x;
        memset(total, 0, sizeof total);
        for (int k = 0; k < a->k; k += TK_SEG) {
            int nk = a->k - k < TK_SEG ? a->k - k : TK_SEG;
            memset(acc, 0, sizeof acc);
            for (int b = 0; b < nk / 32; b++, x += a->h) {
                open_block(type, seg, nk / 32, b, w);
                for (int half = 0; half < halves; half++) {
                    open_scales(type, seg, b * halves + half, ws, wm);
                    for (int r = 0; r < a->h; r++) add_block(type, x + r, w, ws, wm, half, acc[r]);
                }
            }
            for (int r = 0; r < a->h; r++)
                for (int l = 0; l < 16; l++) total[r][l] = total[r][l] + acc[r][l];
            seg += segment_bytes(type, nk);
        }
        for (int r = 0; r < a->h; r++) put(a, g, r, total[r]);
    }
}

static inline float widen(int type, const uint8_t *w, size_t i) {
    if (type == TK_F32) return bits_f32((uint32_t)load_i32(w + 4 * i));
    return type == TK_F16 ? f16_f32(load_u16(w + 2 * i)) : bf16_f32(load_u16(w + 2 * i));
}

static inline void mm_float(int type, const tk_mm *a) {
    float total[TK_TILE][16], acc[TK_TILE][16];
    for (int g = 0; g < a->ng; g++) {
        const uint8_t *w = a->w + g * a->gbytes;
        const float *x = a->x;
        memset(total, 0, sizeof total);
        memset(acc, 0, sizeof acc);
        for (int k = 0; k < a->k; k++, x += a->h) {
            for (int l = 0; l < 16; l++) {
                float wk = widen(type, w, (size_t)k * 16 + l);
                for (int r = 0; r < a->h; r++) acc[r][l] = soft_fma(wk, x[r], acc[r][l]);
            }
            if ((k + 1) % TK_SEG == 0 || k + 1 == a->k) {
                for (int r = 0; r < a->h; r++)
                    for (int l = 0; l < 16; l++) total[r][l] = total[r][l] + acc[r][l];
                memset(acc, 0, sizeof acc);
            }
        }
        for (int r = 0; r < a->h; r++) put(a, g, r, total[r]);
    }
}

static void mm_q8_0(const tk_mm *a) { mm_quant(TK_Q8_0, a); }
static void mm_q4_0(const tk_mm *a) { mm_quant(TK_Q4_0, a); }
static void mm_q4_k(const tk_mm *a) { mm_quant(TK_Q4_K, a); }
static void mm_q6_k(const tk_mm *a) { mm_quant(TK_Q6_K, a); }
static void mm_f32(const tk_mm *a) { mm_float(TK_F32, a); }
static void mm_f16(const tk_mm *a) { mm_float(TK_F16, a); }
static void mm_bf16(const tk_mm *a) { mm_float(TK_BF16, a); }

void tk_quantize_block(const float *x, float a, tk_qblock *q) {
    float inv = 0;
    q->scale = 0;
    if (f32_bits(a) >= 0x7f800000) q->scale = bits_f32(0x7fc00000);
    else if (!(a < 1e-30f)) { q->scale = a / 127; inv = 127 / a; }
    int32_t sum[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int v = inv == 0 ? 0 : (int)rne_f32(x[i] * inv);
        q->q[i] = (int8_t)v;
        sum[i / 16] += v;
    }
    q->xsum = q->scale * (float)(sum[0] + sum[1]);
    q->off8 = -8 * (sum[0] + sum[1]);
    q->off128 = -128 * (sum[0] + sum[1]);
    q->off32[0] = -32 * sum[0];
    q->off32[1] = -32 * sum[1];
}

static void quantize(const float *x, int n, tk_qblock *q, size_t stride) {
    for (int b = 0; b < n / 32; b++, x += 32, q += stride) {
        uint32_t top = 0;
        for (int i = 0; i < 32; i++) {
            uint32_t u = f32_bits(x[i]) & 0x7fffffff;
            if (u > top) top = u;
        }
        tk_quantize_block(x, bits_f32(top), q);
    }
}

static void rmsnorm(const float *x, const float *w, int n, float eps, float *y) {
    float s = 1 / sqrt_one(dot16(x, x, n) / (float)n + eps);
    for (int i = 0; i < n; i++) y[i] = (x[i] * s) * w[i];
}

static void silu_mul(const float *g, const float *u, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = (g[i] / (1 + exp_one(-g[i]))) * u[i];
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

static void attend_head(const tk_attn *a, int h) {
    const float *q = a->q + (size_t)h * a->dim;
    float *o = a->o + (size_t)h * a->dim, *p = a->p + (size_t)h * TK_SEG, lanes[16] = {0};
    float m = -bits_f32(0x7f800000);
    for (int j = 0; j < a->n; j++) {
        for (int d = 0; d < a->dim; d++) a->widened[d] = f16_f32(a->key[j][d]);
        p[j] = a->scale * dot16(q, a->widened, a->dim);
        if (p[j] > m) m = p[j];
    }
    for (int d = 0; d < a->dim; d++) o[d] = 0;
    for (int j = 0; j < a->n; j++) {
        const uint16_t *v = a->key[j] + a->voff;
        p[j] = exp_one(p[j] - m);
        lanes[j & 15] = lanes[j & 15] + p[j];
        for (int d = 0; d < a->dim; d++) o[d] = soft_fma(p[j], f16_f32(v[d]), o[d]);
    }
    a->max[h] = m;
    a->sum[h] = reduce16(lanes);
}

static void attend(const tk_attn *a) {
    for (int h = 0; h < a->heads; h++) attend_head(a, h);
}

static void axpy(float c, const float *x, int n, float *y) {
    for (int i = 0; i < n; i++) y[i] = soft_fma(c, x[i], y[i]);
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
        a[i & 15] = a[i & 15] + exp_one(v - max);
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
static double int_macs(int rounds) {
    int8_t w[512], x[32];
    int32_t sum[16];
    memset(w, 3, sizeof w);
    memset(x, 2, sizeof x);
    for (int r = 0; r < rounds; r++) {
        x[r & 31] = (int8_t)r;
        dot_block(w, x, 0, 8, sum);
        w[r & 511] = (int8_t)sum[r & 15];
    }
    return 512.0 * rounds;
}

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
    .mm = {[TK_F32] = mm_f32, [TK_F16] = mm_f16, [TK_BF16] = mm_bf16, [TK_Q8_0] = mm_q8_0,
           [TK_Q4_0] = mm_q4_0, [TK_Q4_K] = mm_q4_k, [TK_Q6_K] = mm_q6_k},
    .quantize = quantize, .rmsnorm = rmsnorm, .silu_mul = silu_mul, .rope = rope, .narrow = narrow,
    .attend = attend, .axpy = axpy, .expf1 = exp_one, .max = max_of, .sum_exp = sum_exp, .above = above,
    .read = read_all, .int_macs = int_macs, .float_macs = float_macs,
};
