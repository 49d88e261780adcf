// Portable matrix kernels and the quantisation of their inputs.
#include "tk.h"
#include "scalar.h"

void tk_quantize_block(const float *x, float a, tk_qblock *q) {
    float inv = 0;
    q->scale = 0;
    if (f32_bits(a) >= 0x7f800000) q->scale = bits_f32(0x7fc00000);
    else if (!(a < 1e-30f)) { q->scale = a / 127; inv = 127 / a; }
    int32_t half[2] = {0, 0};
    for (int i = 0; i < 32; i++) {
        int v = inv == 0 ? 0 : (int)rne_f32(x[i] * inv);
        q->q[i] = (int8_t)v;
        half[i / 16] += v;
    }
    int32_t sum = half[0] + half[1];
    q->half[0] = (int16_t)half[0];
    q->half[1] = (int16_t)half[1];
    q->off8 = -8 * sum;
    q->off16 = -16 * sum;
    q->off128 = -128 * sum;
    q->xsum = q->scale * (float)sum;
}

static float largest(const float *x, int n) {
    uint32_t top = 0;
    for (int i = 0; i < n; i++) {
        uint32_t u = f32_bits(x[i]) & 0x7fffffff;
        if (u > top) top = u;
    }
    return bits_f32(top);
}

void tk_generic_quantize(const float *x, int n, tk_qblock *q, size_t stride) {
    for (int b = 0; b < n / 32; b++) tk_quantize_block(x + 32 * b, largest(x + 32 * b, 32), q + b * stride);
}

void tk_generic_quantize256(const float *x, int n, tk_qblock *q, size_t stride) {
    for (int k = 0; k < n; k += TK_SEG) {
        float top = largest(x + k, TK_SEG);
        for (int b = k / 32; b < (k + TK_SEG) / 32; b++) {
            tk_qblock *to = q + b * stride;
            tk_quantize_block(x + 32 * b, top, to);
            to->off32[0] = -32 * to->half[0];
            to->off32[1] = -32 * to->half[1];
        }
        for (int b = k / 32; b < (k + TK_SEG) / 32; b += 2) tk_pair(q + b * stride, stride);
    }
}

// One segment of a group, unpacked: signed codes w[block][k/4][output][k%4], and per sub-block of 32 or 16
// the scale and minimum of each output; of a type with integer minima, their scale (step) and levels. Q2_K and Q3_K have integer
// scales (factor) of one float (unit).
typedef struct {
    int8_t code[TK_SEG * 16];
    float scale[16][16], min[16][16], unit[16], step[16];
    int factor[16][16], level[16][16];
} opened;

// A 5-bit code of word j: five stored words hold words 0 to 4 and, in their upper bits, words 5 to 7.
static int five(const uint8_t *q, int j) {
    const uint8_t *t = q + 128 * (j - 5);
    if (j < 5) return q[64 * j] & 31;
    if (j < 7) return t[0] >> 5 | (t[64] >> 5 & 3) << 3;
    return t[0] >> 5 | (q[64] >> 7) << 3 | (q[192] >> 7) << 4;
}

// A 3-bit code of word j: see put_threes in pack.c.
static int three(const uint8_t *q, int j) {
    const uint8_t *t = q + 64 * (j / 4);
    if (j % 4 < 2) return *t >> 3 * (j % 4) & 7;
    return j % 4 == 2 ? q[128] >> 3 * (j / 4) & 7 : *t >> 6 | (q[128] >> (6 + j / 4) & 1) << 2;
}

static void open_codes(int type, const uint8_t *q, int8_t *w) {
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 64; i++) {
            int c;
            if (type == TK_Q2_K) c = q[64 * (j / 4) + i] >> 2 * (j % 4) & 3;
            else if (type == TK_Q3_K) c = three(q + i, j) - 4;
            else if (tk_code_bytes(type) == 512) c = q[64 * j + i];
            else if (tk_code_bytes(type) == 320) c = five(q + i, j);
            else c = q[64 * (j & 3) + i] >> (j < 4 ? 0 : 4) & 15;
            switch (type) {
            case TK_Q8_0: c -= 128; break;
            case TK_Q4_0: c -= 8; break;
            case TK_Q5_0: c -= 16; break;
            case TK_MXFP4: c = tk_e2m1(c); break;
            case TK_IQ4_NL: case TK_IQ4_XS: c = tk_iq4(c); break;
            case TK_Q6_K: {
                const uint8_t *t = q + 192 * (j / 4) + i;  // three codes, and in their upper bits a fourth
                c = (j % 4 < 3 ? t[64 * (j % 4)] & 63 : t[0] >> 6 | (t[64] >> 6) << 2 | (t[128] >> 6) << 4) - 32;
                break;
            }
            }
            w[64 * j + i] = (int8_t)c;
        }
}

static void open_levels(const uint8_t *h, int l, opened *o) {
    const uint8_t *c = h + 64 + l;
    float d = f16_f32(load_u16(h + 2 * l));
    o->step[l] = f16_f32(load_u16(h + 32 + 2 * l));
    for (int b = 0; b < 8; b++) {
        int sc = b < 4 ? c[16 * b] & 63 : (c[16 * (b + 4)] & 15) | (c[16 * (b - 4)] >> 6) << 4;
        o->level[b][l] = b < 4 ? c[16 * (b + 4)] & 63 : c[16 * (b + 4)] >> 4 | (c[16 * b] >> 6) << 4;
        o->scale[b][l] = d * (float)sc;
    }
}

static void open_factors(int type, const uint8_t *h, int l, opened *o) {
    const uint8_t *c = h + 64 + l;
    o->unit[l] = f16_f32(load_u16(h + 2 * l));
    if (type == TK_Q2_K) o->step[l] = f16_f32(load_u16(h + 32 + 2 * l));
    for (int s = 0; s < 16; s++) {
        o->factor[s][l] = type == TK_Q2_K ? c[16 * s] & 15 : tk_scale3(c, s);
        if (type == TK_Q2_K) o->level[s][l] = c[16 * s] >> 4;
    }
}

static void open_segment(int type, const uint8_t *seg, int n, opened *o) {
    const uint8_t *q = seg + tk_header_bytes(type, n);
    memset(o->level, 0, sizeof o->level);
    memset(o->step, 0, sizeof o->step);
    for (int b = 0; b < n / 32; b++) open_codes(type, q + b * tk_code_bytes(type), o->code + 512 * b);
    for (int l = 0; l < 16; l++) {
        if (type == TK_Q4_K || type == TK_Q5_K) { open_levels(seg, l, o); continue; }
        if (tk_is_whole(type)) { open_factors(type, seg, l, o); continue; }
        for (int s = 0; s < n / 32 * (type == TK_Q6_K ? 2 : 1); s++) {
            switch (type) {
            case TK_Q6_K: o->scale[s][l] = f16_f32(load_u16(seg + 2 * l)) * (float)(int8_t)seg[64 + 16 * s + l]; break;
            case TK_MXFP4: o->scale[s][l] = bits_f32(tk_power_bits(seg[16 * s + l])); break;
            case TK_IQ4_XS: o->scale[s][l] = f16_f32(load_u16(seg + 2 * l)) * (float)tk_scale4(seg, l, s); break;
            case TK_Q4_1: case TK_Q5_1:
                o->scale[s][l] = f16_f32(load_u16(seg + 64 * s + 2 * l));
                o->min[s][l] = -f16_f32(load_u16(seg + 64 * s + 32 + 2 * l));
                break;
            default: o->scale[s][l] = f16_f32(load_u16(seg + 32 * s + 2 * l));
            }
        }
    }
}

// Σ code·activation of 16 outputs over inputs [4*from, 4*to) of a block.
static void dot_block(const int8_t *w, const int8_t *x, int from, int to, int32_t *sum) {
    for (int l = 0; l < 16; l++) {
        int32_t s = 0;
        for (int j = from; j < to; j++)
            for (int i = 0; i < 4; i++) s += w[j * 64 + l * 4 + i] * x[j * 4 + i];
        sum[l] = s;
    }
}

// One segment of one row: the row's blocks are `stride` apart.
static void small_segment(int type, const opened *o, const tk_qblock *x, size_t stride, int blocks, float *total) {
    float acc[16] = {0};
    for (int s = 0; s < blocks; s++, x += stride) {
        int32_t sum[16];
        dot_block(o->code + 512 * s, x->q, 0, 8, sum);
        for (int l = 0; l < 16; l++) {
            float t = o->scale[s][l] * x->scale;
            acc[l] = soft_fma((float)sum[l], t, acc[l]);
            if (tk_has_minima(type)) acc[l] = soft_fma(-o->min[s][l], x->xsum, acc[l]);
        }
    }
    for (int l = 0; l < 16; l++) total[l] = total[l] + acc[l];
}

static void super_segment(int type, const opened *o, const tk_qblock *x, size_t stride, float *total) {
    float acc[16] = {0};
    int32_t minima[16] = {0}, sum[16];
    int halves = type == TK_Q6_K ? 2 : 1;
    for (int s = 0; s < 8 * halves; s++) {
        const tk_qblock *b = x + (s / halves) * stride;
        int from = halves == 2 ? s % 2 * 4 : 0;
        dot_block(o->code + 512 * (s / halves), b->q, from, halves == 2 ? from + 4 : 8, sum);
        for (int l = 0; l < 16; l++) acc[l] = soft_fma((float)sum[l], o->scale[s][l], acc[l]);
        if (halves == 1)
            for (int l = 0; l < 16; l++) minima[l] += o->level[s][l] * (b->off8 / -8);
    }
    for (int l = 0; l < 16; l++) {
        acc[l] = soft_fma((float)minima[l], -o->step[l], acc[l]);
        total[l] = soft_fma(acc[l], x->scale, total[l]);
    }
}

static void whole_segment(int type, const opened *o, const tk_qblock *x, size_t stride, float *total) {
    int32_t acc[16] = {0}, minima[16] = {0}, sum[16];
    for (int s = 0; s < 16; s++) {
        const tk_qblock *b = x + s / 2 * stride;
        dot_block(o->code + 512 * (s / 2), b->q, s % 2 * 4, s % 2 * 4 + 4, sum);
        for (int l = 0; l < 16; l++) {
            acc[l] += o->factor[s][l] * sum[l];
            minima[l] += o->level[s][l] * b->half[s % 2];
        }
    }
    for (int l = 0; l < 16; l++) {
        float f = (float)acc[l] * o->unit[l];
        if (type == TK_Q2_K) f = soft_fma((float)minima[l], -o->step[l], f);
        total[l] = soft_fma(f, x->scale, total[l]);
    }
}

static void put(const tk_mm *a, int g, int row, const float *total) {
    float *out = a->out + (size_t)row * a->ldo + 16 * g;
    int n = a->cols - 16 * g < 16 ? a->cols - 16 * g : 16;
    for (int l = 0; l < n; l++) out[l] = a->add ? out[l] + total[l] : total[l];
}

static void quant_group(int type, const tk_mm *a, int g) {
    float total[TK_TILE * TK_PANELS][16] = {{0}};
    const uint8_t *seg = a->w + g * a->gbytes;
    opened o;
    int first = tk_panel_at(a->rows, a->p0).r0;
    for (int k = 0; k < a->k; k += TK_SEG) {
        int n = imin(a->k - k, TK_SEG);
        open_segment(type, seg, n, &o);
        seg += tk_segment_bytes(type, n);
        for (int p = a->p0; p < a->p1; p++) {
            tk_panel t = tk_panel_at(a->rows, p);
            const tk_qblock *x = a->q + (size_t)t.r0 * (a->k / 32) + (size_t)(k / 32) * t.h;
            for (int r = 0; r < t.h; r++) {
                float *to = total[t.r0 - first + r];
                if (tk_is_whole(type)) whole_segment(type, &o, x + r, t.h, to);
                else if (tk_is_super(type)) super_segment(type, &o, x + r, t.h, to);
                else small_segment(type, &o, x + r, t.h, n / 32, to);
            }
        }
    }
    for (int p = a->p0; p < a->p1; p++) {
        tk_panel t = tk_panel_at(a->rows, p);
        for (int r = t.r0; r < t.r0 + t.h; r++) put(a, g, r, total[r - first]);
    }
}

static float widen(int type, const uint8_t *w, size_t i) {
    if (type == TK_F32) return bits_f32((uint32_t)load_i32(w + 4 * i));
    return type == TK_F16 ? f16_f32(load_u16(w + 2 * i)) : bf16_f32(load_u16(w + 2 * i));
}

static void float_panel(int type, const tk_mm *a, int g, tk_panel t) {
    float total[TK_TILE][16] = {{0}}, acc[TK_TILE][16] = {{0}};
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = a->x + (size_t)t.r0 * a->k;
    for (int k = 0; k < a->k; k++, x += t.h) {
        for (int l = 0; l < 16; l++) {
            float wk = widen(type, w, (size_t)k * 16 + l);
            for (int r = 0; r < t.h; r++) acc[r][l] = soft_fma(wk, x[r], acc[r][l]);
        }
        if ((k + 1) % TK_SEG == 0 || k + 1 == a->k) {
            for (int r = 0; r < t.h; r++)
                for (int l = 0; l < 16; l++) total[r][l] = total[r][l] + acc[r][l];
            memset(acc, 0, sizeof acc);
        }
    }
    for (int r = 0; r < t.h; r++) put(a, g, t.r0 + r, total[r]);
}

void tk_generic_mm(int type, const tk_mm *a) {
    for (int g = 0; g < a->ng; g++) {
        if (!tk_is_float(type)) { quant_group(type, a, g); continue; }
        for (int p = a->p0; p < a->p1; p++) float_panel(type, a, g, tk_panel_at(a->rows, p));
    }
}

double tk_generic_int_macs(int rounds) {
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
