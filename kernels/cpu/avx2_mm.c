// Matrix kernels for AVX2: half a packed vector is 4 inputs of 8 outputs. A span of a few segments of one
// group at a time is multiplied with all panels of rows, one panel after the other: the sums of a block for its 8 rows
// are in registers, the totals over blocks in memory.
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx2.h"
#include "mm_x86.h"
#include "avx2_codes.h"

// SPAN: segments in a span; MAXR, FLOATR: most rows at once, quantised and float; AHEAD: how many segments ahead is fetched.
enum { SPAN = 4, MAXR = TK_TILE, FLOATR = 4, AHEAD = 4, MAXROWS = TK_TILE * TK_PANELS };
enum { FLOAT_AHEAD = 4096 };  // bytes
enum { FAR = 1, NEAR };
#define ROWS for (int r = 0; r < R; r++)

// A span of one group and a panel of rows, with C halves of 8 outputs: one or both of the group, or both of two groups.
typedef struct {
    const uint8_t *w;      // the first segment's header
    size_t gbytes;         // to the second group
    int half;              // 1: the upper 8 outputs
    int fetch;             // fetch AHEAD, NEAR: into the first-level cache; each half fetches every second line
    int blocks;
    const tk_qblock *x;    // (blocks, R)
    float (*total)[16];    // (groups, MAXROWS), from the first output on
    const float (*scale)[16];  // SUPER: the weights' scales, 8 a segment, 8·SPAN a group
    const __m256i *factor;     // WHOLE and LEVELS: integer scales twice in 32 bits, 32 a segment: [half a block][half of the outputs]
    const __m256i *level;      // pairs of minima, 16·SPAN a group: [block's halves, SUPER: pair of blocks][half of the outputs]
} span;

// Keeps gcc from adding up in another order, which needs more registers than there are.
#define AS_WRITTEN(x) __asm__("" : "+x"(x))

// sum += the products of words [from, to) of a block. Products of unsigned codes below 2^b add up in 16 bits without overflow: 8 pairs
// for b = 4, 4 for 5, 2 for 6. Those of FLOATS, up to 28, may overflow on the way. But sum is their start in 16 bits here, tk_qblock.lanes,
// and what the codes stand for is at most 12 in magnitude, so that the end fits.
INLINE void products(const int form, const uint8_t *q, size_t gbytes, const tk_qblock *x,
                     const int R, const int C, const int from, const int to, __m256i *sum) {
    const __m256i one = _mm256_set1_epi16(1);
    const int most = form == NIBBLES || form == FLOATS ? 8 : form == FIVES ? 4 : 2;
    _Pragma("GCC unroll 4") for (int j = from; j < to; j += most) {
        __m256i t[MAXR], v[8];
        if (most == 8 || C > 1) {  // a word at a time: few codes and many sums in registers
            _Pragma("GCC unroll 8") for (int m = 0; m < most; m++) {
                for (int c = 0; c < C; c++) v[c] = code(form, q + c / 2 * gbytes + c % 2 * 32, j + m);
                _Pragma("GCC unroll 8") ROWS {
                    __m256i b = bcast(x[r].q + 4 * (j + m));
                    _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {
                        int i = r * C + c;
                        __m256i p = _mm256_maddubs_epi16(v[c], b);
                        t[i] = m ? _mm256_add_epi16(t[i], p) : form == FLOATS ? _mm256_add_epi16(sum[i], p) : p;
                        AS_WRITTEN(t[i]);
                    }
                }
            }
            _Pragma("GCC unroll 8") for (int i = 0; i < R * C; i++) {
                t[i] = _mm256_madd_epi16(t[i], one);
                sum[i] = form == FLOATS ? t[i] : _mm256_add_epi32(sum[i], t[i]);
                AS_WRITTEN(sum[i]);
            }
            continue;
        }
        _Pragma("GCC unroll 4") for (int m = 0; m < most; m++) v[m] = code(form, q, j + m);
        _Pragma("GCC unroll 8") ROWS {
            t[0] = _mm256_maddubs_epi16(v[0], bcast(x[r].q + 4 * j));
            _Pragma("GCC unroll 4")
            for (int m = 1; m < most; m++)
                t[0] = _mm256_add_epi16(t[0], _mm256_maddubs_epi16(v[m], bcast(x[r].q + 4 * (j + m))));
            sum[r] = _mm256_add_epi32(sum[r], _mm256_madd_epi16(t[0], one));
            AS_WRITTEN(sum[r]);
        }
    }
}

// sum = the products of a block of 8-bit codes, those of CURVE looked up. Unsigned codes would saturate maddubs, so it multiplies |code| ≤ 128 with
// the activation, at most 127 in magnitude, given the code's sign.
INLINE void byte_products(const int form, const uint8_t *q, size_t gbytes, const tk_qblock *x, const int R, const int C, __m256i *sum) {
    const __m256i one = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)128);
    _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++)
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {
            __m256i v = code(form, q + c / 2 * gbytes + c % 2 * 32, j), u;
            if (form == BYTES) v = _mm256_xor_si256(v, flip);
            u = _mm256_abs_epi8(v);
            _Pragma("GCC unroll 8") ROWS {
                int i = r * C + c;
                __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(u, _mm256_sign_epi8(bcast(x[r].q + 4 * j), v)), one);
                sum[i] = j ? _mm256_add_epi32(sum[i], p) : p;
                AS_WRITTEN(sum[i]);
            }
        }
}

// Where in tk_qblock a block's sum starts.
static inline size_t start_at(const int form, const int kind) {
    if (kind == HALVES) return offsetof(tk_qblock, off32);
    return form == FLOATS ? offsetof(tk_qblock, lanes) : form == FIVES ? offsetof(tk_qblock, off16) : offsetof(tk_qblock, off8);
}

// The scales of 8 outputs in block b of a segment at w, or in half of it; o is 8 for the upper outputs.
INLINE __m256 scale_of(const int kind, const uint8_t *w, const float (*scale)[16], int b, int half, int o) {
    if (kind == SMALL) return half8(w + 32 * b + 2 * o);
    if (kind == MINIMA) return half8(w + 64 * b + 2 * o);
    if (kind == SUPER || kind == SCALES) return _mm256_load_ps(scale[b] + o);
    return _mm256_mul_ps(half8(w + 2 * o), _mm256_cvtepi32_ps(i8_8(w + 64 + 16 * (2 * b + half) + o)));
}

// A segment's sums enter the totals.
INLINE void end_segment(const int kind, const int R, const int C, const span *s, const uint8_t *w,
                        const __m256i *level, const tk_qblock *x, const __m256 *acc) {
    _Pragma("GCC unroll 8") for (int i = 0; i < R * C; i++) {
        int r = i / C, c = i % C;
        float *total = s->total[c / 2 * MAXROWS + r] + c % 2 * 8;
        __m256 t = _mm256_load_ps(total), a = acc[i];
        if (by_block(kind)) {
            _mm256_store_ps(total, _mm256_add_ps(t, a));
            continue;
        }
        if (kind == SUPER) {
            __m256i m = _mm256_setzero_si256();
            for (int j = 0; j < 4; j++)
                m = _mm256_add_epi32(m, _mm256_madd_epi16(level[c / 2 * 16 * SPAN + 2 * j + c % 2], bcast(x[2 * j * R + r].pair)));
            a = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), half8(w + c / 2 * s->gbytes + 32 + 16 * (c % 2 + s->half)), a);
        }
        _mm256_store_ps(total, _mm256_fmadd_ps(a, _mm256_set1_ps(x[r].scale), t));
    }
}

// acc += the products of half a block of codes of 2 or 3 bits, times its scale: four of them add up in 16 bits.
INLINE void whole_products(const int form, const uint8_t *q, size_t gbytes, const __m256i *factor, const tk_qblock *x,
                           const int R, const int C, const int half, __m256i *acc) {
    __m256i v[4], f;
    for (int c = 0; c < C; c++) {
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) v[j] = code(form, q + c / 2 * gbytes + c % 2 * 32, 4 * half + j);
        f = factor[c / 2 * 32 * SPAN + c % 2];
        _Pragma("GCC unroll 8") ROWS {
            const int8_t *a = x[r].q + 16 * half;
            __m256i t = _mm256_add_epi16(_mm256_maddubs_epi16(v[0], bcast(a)), _mm256_maddubs_epi16(v[1], bcast(a + 4)));
            __m256i u = _mm256_add_epi16(_mm256_maddubs_epi16(v[2], bcast(a + 8)), _mm256_maddubs_epi16(v[3], bcast(a + 12)));
            acc[r * C + c] = _mm256_add_epi32(acc[r * C + c], _mm256_madd_epi16(_mm256_add_epi16(t, u), f));
            AS_WRITTEN(acc[r * C + c]);
        }
    }
}

// A segment's sums enter the totals. x: the segment's first block.
INLINE void end_whole(const int kind, const int R, const int C, const span *s, const uint8_t *w,
                      const __m256i *level, const tk_qblock *x, const __m256i *acc) {
    _Pragma("GCC unroll 8") for (int i = 0; i < R * C; i++) {
        const int r = i / C, c = i % C, o = 8 * (c % 2 + s->half);
        float *total = s->total[c / 2 * MAXROWS + r] + c % 2 * 8;
        const uint8_t *h = w + c / 2 * s->gbytes + 2 * o;
        __m256i m = kind == WHOLE ? acc[i] : _mm256_setzero_si256();
        for (int b = 0; b < 8; b++)
            m = _mm256_add_epi32(m, _mm256_madd_epi16(level[c / 2 * 16 * SPAN + c % 2 + 2 * b], bcast(x[b * R + r].half)));
        __m256 a = _mm256_mul_ps(_mm256_cvtepi32_ps(kind == WHOLE ? m : acc[i]), half8(h));
        if (kind == LEVELS) a = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), half8(h + 32), a);
        _mm256_store_ps(total, _mm256_fmadd_ps(a, _mm256_set1_ps(x[r].scale), _mm256_load_ps(total)));
    }
}

INLINE void fetch(const span *s, const uint8_t *ahead, const int lines, int b, const int C) {
    const char *p = (const char *)ahead + 64 * (lines * b + s->half);
    const int every = C == 1 ? 2 : 1;
    for (int c = 0; c < C; c += 2, p += s->gbytes) {
        if (s->fetch == NEAR) _Pragma("GCC unroll 9") for (int i = 0; i < lines; i += every) _mm_prefetch(p + 64 * i, _MM_HINT_T0);
        else _Pragma("GCC unroll 9") for (int i = 0; i < lines; i += every) _mm_prefetch(p + 64 * i, _MM_HINT_T1);
    }
}

INLINE void run_whole(const int form, const int kind, const int R, const int C, const span *s) {
    const uint8_t *w = s->w;
    const tk_qblock *x = s->x;
    const size_t full = header_of(kind, 8) + 8 * piece(form);
    for (int k = 0; k < s->blocks; k += 8, w += full) {
        __m256i acc[MAXR];
        const __m256i *factor = s->factor + 4 * k + s->half;
        const uint8_t *q = w + header_of(kind, 8) + 32 * s->half;
        for (int i = 0; i < R * C; i++) acc[i] = _mm256_setzero_si256();
        for (int b = 0; b < 8; b++, x += R, q += piece(form), factor += 4) {
            if (s->fetch) fetch(s, w + AHEAD * full, lines_of(form, kind), b, C);
            whole_products(form, q, s->gbytes, factor, x, R, C, 0, acc);
            whole_products(form, q, s->gbytes, factor + 2, x, R, C, 1, acc);
        }
        end_whole(kind, R, C, s, w, s->level + 2 * k + s->half, x - 8 * R, acc);
    }
}

INLINE void run(const int form, const int kind, const int R, const int C, const span *s) {
    if (kind == WHOLE || kind == LEVELS) {
        run_whole(form, kind, R, C, s);
        return;
    }
    const uint8_t *w = s->w;
    const tk_qblock *x = s->x;
    for (int k = 0; k < s->blocks; k += 8) {
        __m256 acc[MAXR];
        const int n = s->blocks - k < 8 ? s->blocks - k : 8, lines = lines_of(form, kind);
        const uint8_t *q = w + header_of(kind, n) + 32 * s->half;
        for (int i = 0; i < R * C; i++) acc[i] = _mm256_setzero_ps();
        for (int b = 0; b < n; b++, x += R, q += piece(form)) {
            if (s->fetch) fetch(s, w + AHEAD * (header_of(kind, 8) + 8 * piece(form)), lines, b, C);
            for (int half = 0; half < (kind == HALVES ? 2 : 1); half++) {
                __m256i sum[MAXR];
                for (int i = 0; i < R * C; i++)
                    sum[i] = kind == SUPER || kind == MINIMA ? _mm256_setzero_si256() : bcast((const char *)&x[i / C] + start_at(form, kind) + 4 * half);
                if (form == BYTES || form == CURVE) byte_products(form, q, s->gbytes, x, R, C, sum);
                else if (kind != HALVES) products(form, q, s->gbytes, x, R, C, 0, 8, sum);
                else if (half == 0) products(form, q, s->gbytes, x, R, C, 0, 4, sum);
                else products(form, q, s->gbytes, x, R, C, 4, 8, sum);
                __m256 d, two[2];
                for (int c = 0; c < C; c++) {
                    const uint8_t *h = w + c / 2 * s->gbytes;
                    if (kind != POWERS) d = scale_of(kind, h, s->scale + c / 2 * 8 * SPAN + k, b, half, 8 * (c % 2 + s->half));
                    else if (C == 1) d = powers8(h + 16 * b + 8 * s->half);
                    else if (c % 2) d = two[1];
                    else powers16(h + 16 * b, two), d = two[0];
                    _Pragma("GCC unroll 8") ROWS {
                        __m256 f = by_block(kind) ? _mm256_mul_ps(d, _mm256_set1_ps(x[r].scale)) : d;
                        acc[r * C + c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r * C + c]), f, acc[r * C + c]);
                    }
                    if (kind != MINIMA) continue;
                    __m256 m = half8(h + 64 * b + 32 + 2 * (8 * (c % 2 + s->half)));
                    _Pragma("GCC unroll 8") ROWS acc[r * C + c] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[r].xsum), acc[r * C + c]);
                }
            }
        }
        end_segment(kind, R, C, s, w, s->level + k + s->half, x - n * R, acc);
        w += header_of(kind, n) + n * piece(form);
    }
}

typedef void (*runner)(const span *);
// Up to two rows take all 16 outputs at once, or 32 (name0, one row), more of them 8.
#define RUN(name, form, kind)                                                   \
    TARGET static void name##0(const span *s) { run(form, kind, 1, 4, s); }  \
    TARGET static void name##1(const span *s) { run(form, kind, 1, 2, s); }  \
    TARGET static void name##2(const span *s) { run(form, kind, 2, 2, s); }  \
    TARGET static void name##3(const span *s) { run(form, kind, 3, 1, s); }  \
    TARGET static void name##4(const span *s) { run(form, kind, 4, 1, s); }  \
    TARGET static void name##5(const span *s) { run(form, kind, 5, 1, s); }  \
    TARGET static void name##6(const span *s) { run(form, kind, 6, 1, s); }  \
    TARGET static void name##7(const span *s) { run(form, kind, 7, 1, s); }  \
    TARGET static void name##8(const span *s) { run(form, kind, 8, 1, s); }  \
    static const runner name[MAXR + 1] = {name##0, name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8};

RUN(small_bytes, BYTES, SMALL)
RUN(small_nibbles, NIBBLES, SMALL)
RUN(small_fives, FIVES, SMALL)
RUN(small_curve, CURVE, SMALL)
RUN(scales_curve, CURVE, SCALES)
RUN(minima_nibbles, NIBBLES, MINIMA)
RUN(minima_fives, FIVES, MINIMA)
RUN(powers_floats, FLOATS, POWERS)
RUN(super_nibbles, NIBBLES, SUPER)
RUN(super_fives, FIVES, SUPER)
RUN(halves_sixes, SIXES, HALVES)
RUN(levels_twos, TWOS, LEVELS)
RUN(whole_threes, THREES, WHOLE)

typedef struct {
    const runner *run;
    int kind;
} recipe;

static recipe recipe_of(int type) {
    switch (type) {
    case TK_Q4_0: return (recipe){small_nibbles, SMALL};
    case TK_Q4_1: return (recipe){minima_nibbles, MINIMA};
    case TK_Q5_0: return (recipe){small_fives, SMALL};
    case TK_Q5_1: return (recipe){minima_fives, MINIMA};
    case TK_IQ4_NL: return (recipe){small_curve, SMALL};
    case TK_IQ4_XS: return (recipe){scales_curve, SCALES};
    case TK_MXFP4: return (recipe){powers_floats, POWERS};
    case TK_Q4_K: return (recipe){super_nibbles, SUPER};
    case TK_Q5_K: return (recipe){super_fives, SUPER};
    case TK_Q6_K: return (recipe){halves_sixes, HALVES};
    case TK_Q2_K: return (recipe){levels_twos, LEVELS};
    case TK_Q3_K: return (recipe){whole_threes, WHOLE};
    }
    return (recipe){small_bytes, SMALL};
}

typedef struct {
    _Alignas(64) float scale[2][8 * SPAN][16];  // of a group, 8 a segment
    float total[2][MAXROWS][16];
    __m256i factor[2][32 * SPAN], level[2][16 * SPAN];
    row_panels rows;
} scratch;

INLINE void put(const tk_mm *a, int g, int half, int row, __m256 total) {
    float *out = a->out + (size_t)row * a->ldo + 16 * g + 8 * half, t[8];
    int n = a->cols - 16 * g - 8 * half;
    if (n >= 8) {
        if (a->add) total = _mm256_add_ps(_mm256_loadu_ps(out), total);
        _mm256_storeu_ps(out, total);
        return;
    }
    _mm256_storeu_ps(t, total);
    for (int i = 0; i < n; i++) out[i] = a->add ? out[i] + t[i] : t[i];
}

// One span over all panels. The first panel fetches what comes AHEAD.
TARGET static void span_rows(const tk_mm *a, const recipe *rc, span s, int k, int count, scratch *t) {
    const int fetch = s.fetch;
    for (int p = 0; p < t->rows.panels; p++) {
        tk_panel panel = t->rows.panel[p];
        s.x = a->q + (size_t)panel.r0 * (a->k / 32) + (size_t)(k / 32) * panel.h;
        s.fetch = fetch && p == 0;
        for (s.half = 0; s.half < (panel.h < 3 ? 1 : 2); s.half++) {
            s.total = (float (*)[16])(t->total[0][panel.r0 - t->rows.first] + 8 * s.half);
            rc->run[count == 2 ? 0 : panel.h](&s);
        }
    }
}

// Groups [g, g+count): one, or two of one row.
TARGET static void groups(const tk_mm *a, int type, const recipe *rc, int g, int count, scratch *t) {
    int rows = t->rows.rows;
    const uint8_t *w = a->w + g * a->gbytes;
    const size_t full = tk_segment_bytes(type, TK_SEG);
    for (int i = 0; i < count; i++) memset(t->total[i], 0, sizeof t->total[0][0] * rows);
    const int fetch = tk_reading == TK_AHEAD ? NEAR : rows > 2 || tk_reading == TK_STREAMS ? FAR : 0;
    const int segments = fetch ? SPAN : 1;  // headers read ahead of their codes would break a single stream
    for (int k = 0; k < a->k; k += segments * TK_SEG, w += segments * full) {
        int n = imin(a->k - k, segments * TK_SEG);
        for (int c = 0; c < count; c++)
            for (int i = 0; i * TK_SEG < n; i++) {
                const uint8_t *h = w + c * a->gbytes + i * full;
                if (rc->kind == SUPER) open_super(h, t->scale[c] + 8 * i, t->level[c] + 8 * i);
                if (rc->kind == SCALES) open_scales(h, t->scale[c] + 8 * i);
                if (rc->kind == LEVELS) open_levels(h, t->factor[c] + 32 * i, t->level[c] + 16 * i);
                if (rc->kind == WHOLE) open_whole(h, t->factor[c] + 32 * i, t->level[c] + 16 * i);
            }
        span s = {.w = w, .gbytes = a->gbytes, .blocks = n / 32, .fetch = fetch,
                  .scale = (const float (*)[16])t->scale, .factor = t->factor[0],
                  .level = t->level[0]};
        span_rows(a, rc, s, k, count, t);
    }
    for (int i = 0; i < 2 * count * rows; i++) {
        int half = i % 2, c = i / 2 % count, r = i / 2 / count;
        if (a->cols > 16 * (g + c) + 8 * half) put(a, g + c, half, t->rows.first + r, _mm256_load_ps(t->total[c][r] + 8 * half));
    }
}

INLINE __m256 widen8(const int type, const uint8_t *w, size_t k) {
    if (type == TK_F32) return _mm256_loadu_ps((const float *)w + 16 * k);
    if (type == TK_F16) return half8(w + 32 * k);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(w + 32 * k))), 16));
}

// R rows from r0 on of a panel of h rows, C groups: 2*R*C chains of fused multiply-adds.
INLINE void float_groups(const int type, const tk_mm *a, int g, const int R, const int C, tk_panel t, int r0) {
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = a->x + (size_t)t.r0 * a->k + r0;
    const int size = type == TK_F32 ? 64 : 32, N = 2 * R * C;
    __m256 total[2 * FLOATR], acc[2 * FLOATR];
    for (int i = 0; i < N; i++) total[i] = _mm256_setzero_ps();
    for (int k0 = 0; k0 < a->k; k0 += TK_SEG) {
        int end = a->k - k0 < TK_SEG ? a->k : k0 + TK_SEG;
        for (int i = 0; i < N; i++) acc[i] = _mm256_setzero_ps();
        for (int k = k0; k < end; k++, x += t.h) {
            if ((R > 2 || tk_reading == TK_STREAMS) && k % (64 / size) == 0)
                for (int c = 0; c < C; c++) _mm_prefetch((const char *)w + c * a->gbytes + (size_t)k * size + FLOAT_AHEAD, _MM_HINT_T0);
            _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {
                const uint8_t *v = w + c * a->gbytes;
                __m256 v0 = widen8(type, v, k), v1 = widen8(type, v + size / 2, k);
                _Pragma("GCC unroll 8") ROWS {
                    __m256 b = _mm256_broadcast_ss(x + r);
                    acc[2 * (c * R + r)] = _mm256_fmadd_ps(v0, b, acc[2 * (c * R + r)]);
                    acc[2 * (c * R + r) + 1] = _mm256_fmadd_ps(v1, b, acc[2 * (c * R + r) + 1]);
                }
            }
        }
        for (int i = 0; i < N; i++) total[i] = _mm256_add_ps(total[i], acc[i]);
    }
    for (int i = 0; i < N; i++) {
        int half = i % 2, row = i / 2 % R, group = g + i / 2 / R;
        if (a->cols > 16 * group + 8 * half) put(a, group, half, t.r0 + r0 + row, total[i]);
    }
}

// Groups [g, end) for R rows, as many groups at once as there are registers for.
INLINE void float_rows(const int type, const tk_mm *a, int g, int end, const int R, tk_panel t, int r0) {
    const int C = FLOATR / R;
    for (; g + C <= end; g += C) float_groups(type, a, g, R, C, t, r0);
    for (; g < end; g++) float_groups(type, a, g, R, 1, t, r0);
}

INLINE void floats(const int type, const tk_mm *a) {
    for (int p = a->p0; p < a->p1; p++) {
        tk_panel t = tk_panel_at(a->rows, p);
        const int step = t.h < 3 ? FLOATR : 1;
        for (int g = 0; g < a->ng; g += step)
            for (int r0 = 0, n, end = imin(g + step, a->ng); r0 < t.h; r0 += n) {
                n = t.h - r0 > FLOATR ? (t.h - r0 + 1) / 2 : t.h - r0;
                switch (n) {
                case 1: float_rows(type, a, g, end, 1, t, r0); break;
                case 2: float_rows(type, a, g, end, 2, t, r0); break;
                case 3: float_rows(type, a, g, end, 3, t, r0); break;
                case 4: float_rows(type, a, g, end, 4, t, r0); break;
                }
            }
    }
}

TARGET static void f32(const tk_mm *a) { floats(TK_F32, a); }
TARGET static void f16(const tk_mm *a) { floats(TK_F16, a); }
TARGET static void bf16(const tk_mm *a) { floats(TK_BF16, a); }

void tk_avx2_mm(int type, const tk_mm *a) {
    switch (type) {
    case TK_F32: f32(a); return;
    case TK_F16: f16(a); return;
    case TK_BF16: bf16(a); return;
    }
    recipe rc = recipe_of(type);
    scratch t;
    t.rows = panels_of(a);
    int g = 0;
    for (; tk_reading == TK_STREAMS && t.rows.rows == 1 && g + 2 <= a->ng; g += 2) groups(a, type, &rc, g, 2, &t);
    for (; g < a->ng; g++) groups(a, type, &rc, g, 1, &t);
}
#endif
