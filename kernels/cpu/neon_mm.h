// Integer matrix kernels for ARM, once for each way to sum int8 products. The includer defines
//   TARGET        the target attribute of its functions
//   NAME(f)       the name of an exported function
//   MAXR          the most rows at once, 4 or 8, and BY_MAXR, the cases up to it
//   dot           adds to sum[r], for row r < R, the products of 4 outputs' weights in n inputs, 16 or 32, with
//                 the int8 at q + r*sizeof(tk_qblock); w[j] holds inputs 4j to 4j+3 of each of the outputs
//
// A packed vector of 64 bytes is [16 outputs][4 inputs]. A quarter of it, 4 outputs of 4 inputs, is one ARM
// register and just what one sdot by a lane of the activation takes: lanes are outputs, no sum ever crosses
// them, and 16 bytes of activation serve four products. So the layout is the one of x86, read by quarters:
// all four at once for a row or two, when weights must come from memory in order; one at a time, out of the
// level-1 cache, where the accumulators of up to 8 rows need the registers.
#define ROWS for (int r = 0; r < R; r++)
#define INLINE_T static inline __attribute__((always_inline)) TARGET

// A 16-byte quarter of each 64-byte vector of a block of 32 inputs, as signed codes, less what start returns.
INLINE_T void open_codes(const int type, const uint8_t *q, int8x16_t *w) {
    const uint8x16_t low = vdupq_n_u8(15), six = vdupq_n_u8(63), three = vdupq_n_u8(3);
    if (type == TK_Q2_K) {  // four codes of each half
        for (int i = 0; i < 2; i++, w += 4) {
            uint8x16_t v = vld1q_u8(q + 64 * i);
            w[0] = vreinterpretq_s8_u8(vandq_u8(v, three));
            w[1] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(v, 2), three));
            w[2] = vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(v, 4), three));
            w[3] = vreinterpretq_s8_u8(vshrq_n_u8(v, 6));
        }
        return;
    }
    if (type == TK_Q3_K) {  // two codes of each half, and the low bits of its last one; one code of each, and the last ones' high bits
        const uint8x16_t seven = vdupq_n_u8(7), four = vdupq_n_u8(4);
        uint8x16_t u = vld1q_u8(q + 128);
        for (int i = 0; i < 2; i++, w += 4) {
            uint8x16_t v = vld1q_u8(q + 64 * i), high = vandq_u8(i ? vshrq_n_u8(u, 5) : vshrq_n_u8(u, 4), four);
            uint8x16_t c[4] = {vandq_u8(v, seven), vandq_u8(vshrq_n_u8(v, 3), seven), vandq_u8(i ? vshrq_n_u8(u, 3) : u, seven),
                               vorrq_u8(vshrq_n_u8(v, 6), high)};
            for (int j = 0; j < 4; j++) w[j] = vsubq_s8(vreinterpretq_s8_u8(c[j]), vreinterpretq_s8_u8(four));
        }
        return;
    }
    if (tk_code_bytes(type) == 512) {
        uint8x16_t flip = vdupq_n_u8(0x80);
        for (int j = 0; j < 8; j++) w[j] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(q + 64 * j), flip));
        return;
    }
    if (tk_code_bytes(type) == 384) {  // three codes of 6 bits, and in their upper bits a fourth
        for (int j = 0; j < 8; j += 4, q += 192) {
            uint8x16_t a = vld1q_u8(q), b = vld1q_u8(q + 64), c = vld1q_u8(q + 128);
            w[j] = vreinterpretq_s8_u8(vandq_u8(a, six));
            w[j + 1] = vreinterpretq_s8_u8(vandq_u8(b, six));
            w[j + 2] = vreinterpretq_s8_u8(vandq_u8(c, six));
            w[j + 3] = vreinterpretq_s8_u8(vshrq_n_u8(vsriq_n_u8(vsriq_n_u8(c, b, 2), a, 4), 2));
        }
        return;
    }
    if (tk_code_bytes(type) == 320) {  // five codes of 5 bits, and in their upper bits three more
        uint8x16_t v[5];
        for (int j = 0; j < 5; j++) {
            v[j] = vld1q_u8(q + 64 * j);
            w[j] = vreinterpretq_s8_u8(vandq_u8(v[j], vdupq_n_u8(31)));
        }
        uint8x16_t top[3] = {vandq_u8(vshrq_n_u8(v[1], 2), vdupq_n_u8(24)), vandq_u8(vshrq_n_u8(v[3], 2), vdupq_n_u8(24)),
                             vorrq_u8(vshlq_n_u8(vshrq_n_u8(v[1], 7), 3), vshlq_n_u8(vshrq_n_u8(v[3], 7), 4))};
        for (int j = 0; j < 3; j++) w[5 + j] = vreinterpretq_s8_u8(vorrq_u8(vshrq_n_u8(v[2 * j], 5), top[j]));
        return;
    }
    const int8x16_t e2m1 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};  // twice what MXFP4's nibbles stand for
    const int8x16_t iq4 = {TK_IQ4}, table = type == TK_MXFP4 ? e2m1 : iq4;
    const int numbers = type == TK_MXFP4 || tk_is_iq4(type);
    for (int j = 0; j < 4; j++) {
        uint8x16_t v = vld1q_u8(q + 64 * j), high = vshrq_n_u8(v, 4), below = vandq_u8(v, low);
        w[j + 4] = numbers ? vqtbl1q_s8(table, high) : vreinterpretq_s8_u8(high);
        w[j] = numbers ? vqtbl1q_s8(table, below) : vreinterpretq_s8_u8(below);
    }
}

// The codes' offset times the sum of the activations: what a sum of products begins with.
INLINE_T int32_t start(const int type, const tk_qblock *x, int half) {
    switch (type) {
    case TK_Q4_0: return x->off8;
    case TK_Q5_0: return x->off16;
    case TK_Q6_K: return x->off32[half];
    }
    return 0;
}

INLINE_T int small_blocks(const int type) { return type == TK_Q6_K; }  // a float scale per 16 inputs
INLINE_T int has_levels(const int type) { return type == TK_Q4_K || type == TK_Q5_K; }

// A segment's header, opened as far as it serves all quarters: scales and levels are those of Q4_K, Q5_K and Q2_K, scales those of Q3_K
// and IQ4_XS.
typedef struct {
    const uint8_t *at;
    uint8_t scale[16 * 16], level[16 * 16];
} header;

INLINE_T void open_whole(const int type, const uint8_t *at, header *h) {
    const uint8x16_t low = vdupq_n_u8(15), top = vdupq_n_u8(0x30), bias = vdupq_n_u8(32);
    for (int s = 0; type == TK_Q2_K && s < 16; s++) {
        uint8x16_t v = vld1q_u8(at + 64 + 16 * s);
        vst1q_u8(h->scale + 16 * s, vandq_u8(v, low));
        vst1q_u8(h->level + 16 * s, vshrq_n_u8(v, 4));
    }
    for (int s = 0; type == TK_Q3_K && s < 4; s++) {  // scales s, s+4, s+8 and s+12
        uint8x16_t a = vld1q_u8(at + 64 + 16 * s), b = vld1q_u8(at + 128 + 16 * s), c = vld1q_u8(at + 192 + 16 * s);
        uint8_t *to = h->scale + 16 * s;
        vst1q_u8(to, vsubq_u8(vbslq_u8(top, vshlq_n_u8(c, 4), vandq_u8(a, low)), bias));
        vst1q_u8(to + 64, vsubq_u8(vbslq_u8(top, vshlq_n_u8(c, 2), vandq_u8(b, low)), bias));
        vst1q_u8(to + 128, vsubq_u8(vbslq_u8(top, c, vshrq_n_u8(a, 4)), bias));
        vst1q_u8(to + 192, vsubq_u8(vbslq_u8(top, vshrq_n_u8(c, 2), vshrq_n_u8(b, 4)), bias));
    }
}

INLINE_T void open_scales(const uint8_t *at, header *h) {  // tk_scale4
    const uint8x16_t low = vdupq_n_u8(15), top = vdupq_n_u8(0x30), bias = vdupq_n_u8(32);
    uint16x8_t first = vld1q_u16((const uint16_t *)(at + 32)), last = vld1q_u16((const uint16_t *)(at + 48));
    for (int b = 0; b < 8; b++) {
        uint8x16_t v = vld1q_u8(at + 64 + 16 * (b / 2)), high = vmovn_high_u16(vmovn_u16(first), last);
        v = vbslq_u8(top, vshlq_n_u8(high, 4), vandq_u8(b % 2 ? vshrq_n_u8(v, 4) : v, low));
        vst1q_u8(h->scale + 16 * b, vsubq_u8(v, bias));
        first = vshrq_n_u16(first, 2);
        last = vshrq_n_u16(last, 2);
    }
}

INLINE_T void open_header(const int type, const uint8_t *at, header *h) {
    h->at = at;
    if (type == TK_IQ4_XS) open_scales(at, h);
    if (tk_is_whole(type)) open_whole(type, at, h);
    if (!has_levels(type)) return;
    const uint8x16_t six = vdupq_n_u8(63), low = vdupq_n_u8(15), top = vdupq_n_u8(0x30);
    for (int b = 0; b < 4; b++) {
        uint8x16_t s = vld1q_u8(at + 64 + 16 * b), m = vld1q_u8(at + 128 + 16 * b), both = vld1q_u8(at + 192 + 16 * b);
        vst1q_u8(h->scale + 16 * b, vandq_u8(s, six));
        vst1q_u8(h->level + 16 * b, vandq_u8(m, six));
        vst1q_u8(h->scale + 16 * (b + 4), vbslq_u8(top, vshrq_n_u8(s, 2), vandq_u8(both, low)));
        vst1q_u8(h->level + 16 * (b + 4), vbslq_u8(top, vshrq_n_u8(m, 2), vshrq_n_u8(both, 4)));
    }
}

INLINE_T uint16x8_t u8_4(const uint8_t *p) { return vmovl_u8(vreinterpret_u8_s32(vdup_n_s32(load_i32(p)))); }
INLINE_T int32x4_t level4(const header *h, int b, int q) {
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(u8_4(h->level + 16 * b + 4 * q))));
}

// The scales of quarter q of the outputs in sub-block s; d is that of the segment.
INLINE_T float32x4_t scale4(const int type, const header *h, int s, int q, float32x4_t d) {
    switch (type) {
    case TK_Q4_K: case TK_Q5_K: return vmulq_f32(d, vcvtq_f32_u32(vmovl_u16(vget_low_u16(u8_4(h->scale + 16 * s + 4 * q)))));
    case TK_Q6_K: return vmulq_f32(d, vcvtq_f32_s32(signed4(h->at + 64 + 16 * s + 4 * q)));
    case TK_IQ4_XS: return vmulq_f32(d, vcvtq_f32_s32(signed4(h->scale + 16 * s + 4 * q)));
    case TK_Q4_1: case TK_Q5_1: return half4(h->at + 64 * s + 8 * q);
    case TK_MXFP4: {  // tk_power_bits
        int32x4_t e = vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(u8_4(h->at + 16 * s + 4 * q))));
        int32x4_t usual = vshlq_n_s32(vsubq_s32(e, vdupq_n_s32(1)), 23), tiny = vshlq_s32(vdupq_n_s32(0x200000), e);
        return vreinterpretq_f32_s32(vbslq_s32(vcltq_s32(e, vdupq_n_s32(2)), tiny, usual));
    }
    }
    return half4(h->at + 32 * s + 8 * q);
}

// acc += a block of 32 inputs from `codes` on, for quarter q.
INLINE_T void add_block(const int type, const header *h, const uint8_t *codes, int b, int q, const tk_qblock *x, float32x4_t d,
                        const int R, float32x4_t *acc) {
    const int parts = small_blocks(type) ? 2 : 1, n = 32 / parts;
    int8x16_t w[8];
    open_codes(type, codes + 16 * q, w);
    _Pragma("GCC unroll 2") for (int i = 0; i < parts; i++) {
        int32x4_t sum[TK_TILE];
        int s = parts * b + i;
        ROWS sum[r] = vdupq_n_s32(start(type, x + r, i));
        dot(w + 4 * i, n, x->q + 16 * i, R, sum);
        float32x4_t ws = scale4(type, h, s, q, d);
        if (tk_is_super(type)) {
            ROWS acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(sum[r]), ws);
            continue;
        }
        ROWS acc[r] = vfmaq_f32(acc[r], vcvtq_f32_s32(sum[r]), vmulq_n_f32(ws, x[r].scale));
        if (tk_has_minima(type)) {
            float32x4_t min = half4(h->at + 64 * s + 32 + 8 * q);
            ROWS acc[r] = vfmaq_n_f32(acc[r], min, x[r].xsum);
        }
    }
}

// acc -= step * the sum over the segment of level * (sum of activations): off8 is -8 times that.
INLINE_T void subtract_minima(const header *h, int q, const tk_qblock *x, int height, const int R, float32x4_t *acc) {
    float32x4_t step = half4(h->at + 32 + 8 * q);
    int32x4_t m[TK_TILE];
    ROWS m[r] = vdupq_n_s32(0);
    for (int b = 0; b < 8; b++, x += height) {
        int32x4_t level = level4(h, b, q);
        ROWS m[r] = vmlsq_n_s32(m[r], level, x[r].off8);
    }
    ROWS acc[r] = vfmsq_f32(acc[r], vcvtq_f32_s32(vshrq_n_s32(m[r], 3)), step);
}

// Q2_K and Q3_K: acc += a block of 32 inputs from `codes` on, for quarter q; m += its minima.
INLINE_T void add_whole(const int type, const header *h, const uint8_t *codes, int b, int q, const tk_qblock *x, const int R,
                        int32x4_t *acc, int32x4_t *m) {
    int8x16_t w[8];
    open_codes(type, codes + 16 * q, w);
    _Pragma("GCC unroll 2") for (int i = 0; i < 2; i++) {
        int32x4_t sum[TK_TILE], scale = signed4(h->scale + 16 * (2 * b + i) + 4 * q);
        ROWS sum[r] = vdupq_n_s32(0);
        dot(w + 4 * i, 16, x->q + 16 * i, R, sum);
        ROWS acc[r] = vmlaq_s32(acc[r], sum[r], scale);
        if (type == TK_Q3_K) continue;
        int32x4_t level = level4(h, 2 * b + i, q);
        ROWS m[r] = vmlaq_n_s32(m[r], level, x[r].half[i]);
    }
}

INLINE_T void whole_segment(const int type, const header *h, const tk_qblock *x, int height, int q0, const int N, const int R,
                            float32x4_t *total) {
    const uint8_t *codes = h->at + tk_header_bytes(type, TK_SEG);
    int32x4_t acc[TK_TILE], m[TK_TILE];
    for (int i = 0; i < N * R; i++) acc[i] = m[i] = vdupq_n_s32(0);
    for (int b = 0; b < 8; b++, codes += tk_code_bytes(type))
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++) add_whole(type, h, codes, b, q0 + i, x + b * height, R, acc + i * R, m + i * R);
    for (int i = 0; i < N; i++) {
        float32x4_t d = half4(h->at + 8 * (q0 + i)), *t = total + (q0 + i) * R;
        ROWS {
            float32x4_t a = vmulq_f32(vcvtq_f32_s32(acc[i * R + r]), d);
            if (type == TK_Q2_K) a = vfmsq_f32(a, vcvtq_f32_s32(m[i * R + r]), half4(h->at + 32 + 8 * (q0 + i)));
            t[r] = vfmaq_n_f32(t[r], a, x[r].scale);
        }
    }
}

// total += a segment of nb blocks, for N quarters of the outputs from q0 on and R rows of a panel.
INLINE_T void segment(const int type, const header *h, int nb, const tk_qblock *x, int height, int q0, const int N, const int R,
                      float32x4_t *total) {
    if (tk_is_whole(type)) {
        whole_segment(type, h, x, height, q0, N, R, total);
        return;
    }
    const uint8_t *codes = h->at + tk_header_bytes(type, 32 * nb);
    float32x4_t acc[TK_TILE], d[4] = {vdupq_n_f32(0)};
    for (int i = 0; i < N * R; i++) acc[i] = vdupq_n_f32(0);
    if (tk_is_super(type) || type == TK_IQ4_XS) for (int i = 0; i < N; i++) d[i] = half4(h->at + 8 * (q0 + i));
    for (int b = 0; b < nb; b++, codes += tk_code_bytes(type))
        _Pragma("GCC unroll 4") for (int i = 0; i < N; i++) add_block(type, h, codes, b, q0 + i, x + b * height, d[i], R, acc + i * R);
    for (int i = 0; i < N; i++) {
        float32x4_t *t = total + (q0 + i) * R;
        if (has_levels(type)) subtract_minima(h, q0 + i, x, height, R, acc + i * R);
        if (tk_is_super(type)) ROWS t[r] = vfmaq_n_f32(t[r], acc[i * R + r], x[r].scale);
        else ROWS t[r] = vaddq_f32(t[r], acc[i * R + r]);
    }
}

// Rows [from, from+R) of a panel.
INLINE_T void panel_rows(const int type, const tk_mm *a, int g, tk_panel t, int from, const int R) {
    const int N = R <= 2 ? 4 : R <= 4 ? 2 : 1;
    const uint8_t *w = a->w + g * a->gbytes;
    const tk_qblock *x = a->q + (size_t)t.r0 * (a->k / 32) + from;
    float32x4_t total[4 * TK_TILE];
    header h;
    for (int i = 0; i < 4 * R; i++) total[i] = vdupq_n_f32(0);
    for (int k = 0; k < a->k; k += TK_SEG, x += 8 * t.h) {
        int n = a->k - k < TK_SEG ? a->k - k : TK_SEG;
        open_header(type, w, &h);
        for (int q0 = 0; q0 < 4; q0 += N) segment(type, &h, n / 32, x, t.h, q0, N, R, total);
        w += tk_segment_bytes(type, n);
    }
    for (int q = 0; q < 4; q++) ROWS tk_neon_put(a, g, q, t.r0 + from + r, total[q * R + r]);
}

// Every type and number of rows has its own code. Groups outside, so that weights come from memory once.
#define KERNEL(type)                                                                                            \
    TARGET static void mm_##type(const tk_mm *a) {                                                              \
        for (int g = 0; g < a->ng; g++)                                                                         \
            for (int p = a->p0; p < a->p1; p++) {                                                               \
                tk_panel t = tk_panel_at(a->rows, p);                                                           \
                for (int r = 0; r < t.h; r += MAXR) switch (imin(MAXR, t.h - r)) { BY_MAXR(panel_rows, TK_##type, a, g, t, r) } \
            }                                                                                                   \
    }
KERNEL(Q8_0)
KERNEL(Q4_0)
KERNEL(Q5_0)
KERNEL(MXFP4)
KERNEL(Q4_K)
KERNEL(Q5_K)
KERNEL(Q6_K)
KERNEL(Q2_K)
KERNEL(Q3_K)
KERNEL(Q4_1)
KERNEL(Q5_1)
KERNEL(IQ4_NL)
KERNEL(IQ4_XS)

void NAME(mm)(int type, const tk_mm *a) {
    switch (type) {
    case TK_Q8_0: mm_Q8_0(a); break;
    case TK_Q4_0: mm_Q4_0(a); break;
    case TK_Q5_0: mm_Q5_0(a); break;
    case TK_MXFP4: mm_MXFP4(a); break;
    case TK_Q4_K: mm_Q4_K(a); break;
    case TK_Q5_K: mm_Q5_K(a); break;
    case TK_Q6_K: mm_Q6_K(a); break;
    case TK_Q2_K: mm_Q2_K(a); break;
    case TK_Q3_K: mm_Q3_K(a); break;
    case TK_Q4_1: mm_Q4_1(a); break;
    case TK_Q5_1: mm_Q5_1(a); break;
    case TK_IQ4_NL: mm_IQ4_NL(a); break;
    case TK_IQ4_XS: mm_IQ4_XS(a); break;
    default: tk_neon_float(type, a);
    }
}
