// Matrix kernels for AVX-512 with VNNI. One vector is 4 inputs of 16 outputs. A segment of 256 inputs of a few groups
// of quantised weights is multiplied with all panels of rows. Its codes are unpacked in each product, or once for all panels
// if there are several and vectors of 512 bits have two ports (TK_STREAMS).
#include "tk.h"
#if defined(__x86_64__)
#include <immintrin.h>
#include "avx512.h"
#include "mm_x86.h"
#include "avx512_codes.h"

// G, PAIR: most groups at once, and with more than two rows; AHEAD: how many segments ahead is fetched.
enum { G = 4, PAIR = 2, AHEAD = 4 };
#define ROWS for (int r = 0; r < R; r++)

// One segment of G groups, and one panel of rows.
typedef struct {
    const uint8_t *header[G], *code[G], *ahead[G];
    int lines;               // of the cache, fetched from ahead with each block and group; 0: none
    int near;                // into the first-level cache
    int blocks;
    const tk_qblock *x;      // (blocks, R)
    size_t start;            // start_of
    float (*total)[G][16];   // (R)
    const float (*scale)[16][16];  // (G): SUPER, HALVES and SCALES: the weights' scales
    const __m512i (*factor)[16];   // (G): WHOLE and LEVELS: integer scales, 16 bits of 32
    const __m512i (*level)[8];     // (G): SUPER: pairs of minima of 4 pairs of blocks; WHOLE, LEVELS: of the halves of 8 blocks
    const __m512 *unit, *step;     // (G): of factor; of level
} segment;

INLINE void fetch(const uint8_t *p, int lines, int near) {
    if (near) for (; lines > 0; lines--, p += 64) _mm_prefetch((const char *)p, _MM_HINT_T0);
    else for (; lines > 0; lines--, p += 64) _mm_prefetch((const char *)p, _MM_HINT_T1);
}

// sum += the products of word j of a block, whose codes are v.
INLINE void word_products(const __m512i *v, const tk_qblock *x, const int R, const int C, const int j, __m512i *sum) {
    _Pragma("GCC unroll 8") ROWS {
        __m512i b = bcast(x[r].q + 4 * j);
        for (int g = 0; g < C; g++) sum[r * C + g] = _mm512_dpbusd_epi32(sum[r * C + g], v[g], b);
    }
}

// sum += the products of words [from, to) of a block. Words of nibbles come in pairs, j and j+4, which are loaded once.
INLINE void products(const int form, const uint8_t *const *q, const tk_qblock *x,
                     const int R, const int C, const int from, const int to, __m512i *sum) {
    __m512i v[G], high[G];
    if (R < 5 && (form == NIBBLES || form == FLOATS || form == SIXBIT || form == CURVE)) {
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
            for (int g = 0; g < C; g++) {
                __m512i both = _mm512_loadu_si512(q[g] + 64 * j);
                __asm__("" : "+v"(both));  // gcc would load it again
                v[g] = nibbles(form, both);
                high[g] = nibbles(form, _mm512_srli_epi16(both, 4));
            }
            word_products(v, x, R, C, j, sum);
            word_products(high, x, R, C, j + 4, sum);
        }
        return;
    }
    _Pragma("GCC unroll 8") for (int j = from; j < to; j++) {
        for (int g = 0; g < C; g++) v[g] = code(form, q[g], j);
        word_products(v, x, R, C, j, sum);
    }
}

// WHOLE and LEVELS: the sum of half a block fits 16 bits, so that one instruction adds it times its scale to that of the segment.
INLINE void run_whole(const int form, const int kind, const int R, const int C, const segment *s) {
    __m512i acc[TK_TILE * G];
    const uint8_t *q[G];
    const tk_qblock *x = s->x;
    for (int g = 0; g < C; g++) q[g] = s->code[g];
    for (int i = 0; i < R * C; i++) acc[i] = _mm512_setzero_si512();
    for (int b = 0; b < 8; b++, x += R) {
        for (int g = 0; g < C; g++) fetch(s->ahead[g] + 64 * s->lines * b, s->lines, s->near);
        if (form == BYTES) products(form, q, x, R, C, 0, 8, acc);  // multiplied by their scales
        else _Pragma("GCC unroll 2") for (int half = 0; half < 2; half++) {
            __m512i sum[TK_TILE * G];
            for (int i = 0; i < R * C; i++) sum[i] = _mm512_setzero_si512();
            products(form, q, x, R, C, 4 * half, 4 * half + 4, sum);
            for (int g = 0; g < C; g++) {
                __m512i f = s->factor[g][2 * b + half];
                _Pragma("GCC unroll 8") ROWS acc[r * C + g] = _mm512_dpwssd_epi32(acc[r * C + g], sum[r * C + g], f);
            }
        }
        for (int g = 0; g < C; g++) q[g] += piece(form);
    }
    x = s->x;
    _Pragma("GCC unroll 8") ROWS for (int g = 0; g < C; g++) {
        __m512i m = kind == WHOLE ? acc[r * C + g] : _mm512_setzero_si512();
        for (int b = 0; b < 8; b++) m = _mm512_dpwssd_epi32(m, s->level[g][b], bcast(x[b * R + r].half));
        __m512 a = _mm512_mul_ps(_mm512_cvtepi32_ps(kind == WHOLE ? m : acc[r * C + g]), s->unit[g]);
        if (kind == LEVELS) a = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m), s->step[g], a);
        _mm512_store_ps(s->total[r][g], _mm512_fmadd_ps(a, _mm512_set1_ps(x[r].scale), _mm512_load_ps(s->total[r][g])));
    }
}

INLINE void run(const int form, const int kind, const int R, const int C, const segment *s) {
    if (kind == WHOLE || kind == LEVELS) {
        run_whole(form, kind, R, C, s);
        return;
    }
    __m512 acc[TK_TILE * G];
    const uint8_t *q[G];
    const tk_qblock *x = s->x;
    for (int g = 0; g < C; g++) q[g] = s->code[g];
    ROWS for (int g = 0; g < C; g++) acc[r * C + g] = _mm512_setzero_ps();
    const int zero = kind == SUPER || kind == MINIMA;
    for (int b = 0; b < s->blocks; b++, x += R) {
        for (int g = 0; g < C; g++) fetch(s->ahead[g] + 64 * s->lines * b, s->lines, s->near);
        __m512i sum[TK_TILE * G];
        for (int half = 0; half < (kind == HALVES ? 2 : 1); half++) {
            ROWS for (int g = 0; g < C; g++)
                sum[r * C + g] = zero ? _mm512_setzero_si512() : bcast((const char *)&x[r] + s->start + 4 * half);
            if (kind != HALVES) products(form, q, x, R, C, 0, 8, sum);
            else if (half == 0) products(form, q, x, R, C, 0, 4, sum);
            else products(form, q, x, R, C, 4, 8, sum);
            for (int g = 0; g < C; g++) {
                const uint8_t *h = s->header[g];
                __m512 d;
                if (kind == SMALL) d = half16(h + 32 * b);
                else if (kind == MINIMA) d = half16(h + 64 * b);
                else if (kind == POWERS) d = powers16(h + 16 * b);
                else d = _mm512_load_ps(s->scale[g][kind == HALVES ? 2 * b + half : b]);
                _Pragma("GCC unroll 8") ROWS {
                    __m512 w = by_block(kind) ? _mm512_mul_ps(d, _mm512_set1_ps(x[r].scale)) : d;
                    acc[r * C + g] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r * C + g]), w, acc[r * C + g]);
                }
                if (kind != MINIMA) continue;
                __m512 m = half16(h + 64 * b + 32);
                _Pragma("GCC unroll 8") ROWS acc[r * C + g] = _mm512_fmadd_ps(m, _mm512_set1_ps(x[r].xsum), acc[r * C + g]);
            }
        }
        for (int g = 0; g < C; g++) q[g] += piece(form);
    }
    x = s->x;
    _Pragma("GCC unroll 8") ROWS for (int g = 0; g < C; g++) {
        __m512 t = _mm512_load_ps(s->total[r][g]), a = acc[r * C + g];
        if (by_block(kind)) {
            _mm512_store_ps(s->total[r][g], _mm512_add_ps(t, a));
            continue;
        }
        if (kind == SUPER) {
            __m512i m = _mm512_setzero_si512();
            for (int i = 0; i < 4; i++) m = _mm512_dpwssd_epi32(m, s->level[g][i], bcast(x[2 * i * R + r].pair));
            a = _mm512_fnmadd_ps(_mm512_cvtepi32_ps(m), s->step[g], a);
        }
        _mm512_store_ps(s->total[r][g], _mm512_fmadd_ps(a, _mm512_set1_ps(x[r].scale), t));
    }
}

// Every number of rows has its own code, with two groups (name2) and, for few rows, with one (name1) and four (name4).
#define ONE(name, form, kind, R, C) \
    TARGET static void name##C##_##R(const segment *s) { run(form, kind, R, C, s); }
#define RUN(name, form, kind)                                                                            \
    ONE(name, form, kind, 1, 1) ONE(name, form, kind, 2, 1) ONE(name, form, kind, 3, 1) ONE(name, form, kind, 4, 1)  \
    ONE(name, form, kind, 1, 2) ONE(name, form, kind, 2, 2) ONE(name, form, kind, 3, 2) ONE(name, form, kind, 4, 2)  \
    ONE(name, form, kind, 5, 2) ONE(name, form, kind, 6, 2) ONE(name, form, kind, 7, 2) ONE(name, form, kind, 8, 2)  \
    ONE(name, form, kind, 1, 4) ONE(name, form, kind, 2, 4)                                              \
    static const runner name[G + 1][TK_TILE + 1] = {                                                     \
        {0}, {0, name##1_1, name##1_2, name##1_3, name##1_4},                                            \
        {0, name##2_1, name##2_2, name##2_3, name##2_4, name##2_5, name##2_6, name##2_7, name##2_8},  \
        {0}, {0, name##4_1, name##4_2}};

typedef void (*runner)(const segment *);
RUN(small_bytes, BYTES, SMALL)
RUN(small_nibbles, NIBBLES, SMALL)
RUN(small_fives, FIVES, SMALL)
RUN(small_curve, CURVE, SMALL)
RUN(scales_curve, CURVE, SCALES)
RUN(minima_nibbles, NIBBLES, MINIMA)
RUN(minima_fives, FIVES, MINIMA)
RUN(powers_floats, FLOATS, POWERS)
RUN(powers_sixbit, SIXBIT, POWERS)
RUN(super_nibbles, NIBBLES, SUPER)
RUN(super_fives, FIVES, SUPER)
RUN(halves_sixes, SIXES, HALVES)
RUN(levels_twos, TWOS, LEVELS)
RUN(whole_threes, THREES, WHOLE)
// The same for codes that were unpacked once for several panels.
#define OPENED(name, kind)                                                                               \
    ONE(name, BYTES, kind, 4, 2) ONE(name, BYTES, kind, 5, 2) ONE(name, BYTES, kind, 6, 2)                \
    ONE(name, BYTES, kind, 7, 2) ONE(name, BYTES, kind, 8, 2)                                            \
    static const runner name[G + 1][TK_TILE + 1] = {                                                     \
        {0}, {0}, {0, 0, 0, 0, name##2_4, name##2_5, name##2_6, name##2_7, name##2_8}};
OPENED(scales_bytes, SCALES)
OPENED(minima_bytes, MINIMA)
OPENED(super_bytes, SUPER)
OPENED(powers_bytes, POWERS)
OPENED(halves_bytes, HALVES)
OPENED(levels_bytes, LEVELS)
OPENED(whole_bytes, WHOLE)

INLINE void open_codes(const int form, const uint8_t *q, int blocks, uint8_t *to) {
    for (int b = 0; b < blocks; b++, q += piece(form), to += piece(BYTES))
        _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) _mm512_store_si512(to + 64 * j, code(form, q, j));
}
TARGET static void open_nibbles(const uint8_t *q, int blocks, uint8_t *to) { open_codes(NIBBLES, q, blocks, to); }
TARGET static void open_floats(const uint8_t *q, int blocks, uint8_t *to) { open_codes(FLOATS, q, blocks, to); }
TARGET static void open_curve(const uint8_t *q, int blocks, uint8_t *to) { open_codes(CURVE, q, blocks, to); }
TARGET static void open_fives(const uint8_t *q, int blocks, uint8_t *to) { open_codes(FIVES, q, blocks, to); }
TARGET static void open_sixes(const uint8_t *q, int blocks, uint8_t *to) { open_codes(SIXES, q, blocks, to); }

// Codes of 2 and 3 bits times their scales, looked up in tables of four products for each output: those of Q3_K, -124 to 128, have
// EXCESS added, which their levels take away.
enum { EXCESS = 124 };
INLINE void open_products(const int form, const uint8_t *q, const __m512i *factor, __m512i *level, uint8_t *to) {
    const __m512i place = _mm512_set4_epi32(0x0c0c0c0c, 0x08080808, 0x04040404, 0);
    for (int h = 0; h < 16; h++, q += h % 2 ? 0 : piece(form)) {
        __m512i f = _mm512_srai_epi32(_mm512_slli_epi32(factor[h], 16), 16);
        __m512i t = _mm512_mullo_epi32(f, _mm512_set1_epi32(0x03020100)), low = t;
        if (form == THREES) {
            t = _mm512_add_epi32(t, _mm512_set1_epi8(EXCESS));
            low = _mm512_sub_epi32(t, _mm512_mullo_epi32(f, _mm512_set1_epi32(0x04040404)));  // of codes below 4
        }
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++, to += 64) {
            __m512i c = code(form, q, h % 2 * 4 + j), at = pick(place, c, 3), v = _mm512_shuffle_epi8(low, at);
            if (form == THREES) v = _mm512_mask_shuffle_epi8(v, _mm512_test_epi8_mask(c, _mm512_set1_epi8(4)), t, at);
            _mm512_store_si512(to, v);
        }
    }
    for (int b = 0; form == THREES && b < 8; b++) level[b] = _mm512_set1_epi16(-EXCESS);
}
TARGET static void open_twos(const uint8_t *q, const __m512i *f, __m512i *level, uint8_t *to) { open_products(TWOS, q, f, level, to); }
TARGET static void open_threes(const uint8_t *q, const __m512i *f, __m512i *level, uint8_t *to) { open_products(THREES, q, f, level, to); }

typedef struct {
    const runner (*run)[TK_TILE + 1];
    int kind;
    const runner (*opened)[TK_TILE + 1];  // for codes that open has unpacked
    void (*open)(const uint8_t *q, int blocks, uint8_t *to);
    void (*multiply)(const uint8_t *q, const __m512i *factor, __m512i *level, uint8_t *to);  // and has multiplied by their scales
} recipe;

static recipe recipe_of(int type) {
    switch (type) {
    case TK_Q4_0: return (recipe){small_nibbles, SMALL, small_bytes, .open = open_nibbles};
    case TK_Q4_1: return (recipe){minima_nibbles, MINIMA, minima_bytes, .open = open_nibbles};
    case TK_Q5_0: return (recipe){small_fives, SMALL, small_bytes, .open = open_fives};
    case TK_Q5_1: return (recipe){minima_fives, MINIMA, minima_bytes, .open = open_fives};
    case TK_IQ4_NL: return (recipe){small_curve, SMALL, small_bytes, .open = open_curve};
    case TK_IQ4_XS: return (recipe){scales_curve, SCALES, scales_bytes, .open = open_curve};
    case TK_MXFP4: return (recipe){tk_permutes() ? powers_sixbit : powers_floats, POWERS, powers_bytes, .open = open_floats};
    case TK_Q4_K: return (recipe){super_nibbles, SUPER, super_bytes, .open = open_nibbles};
    case TK_Q5_K: return (recipe){super_fives, SUPER, super_bytes, .open = open_fives};
    case TK_Q6_K: return (recipe){halves_sixes, HALVES, halves_bytes, .open = open_sixes};
    case TK_Q2_K: return (recipe){levels_twos, LEVELS, levels_bytes, .multiply = open_twos};
    case TK_Q3_K: return (recipe){whole_threes, WHOLE, whole_bytes, .multiply = open_threes};
    }
    return (recipe){.run = small_bytes, .kind = SMALL};
}

typedef struct {
    float scale[G][16][16];
    float total[TK_TILE * TK_PANELS][G][16];
    __m512i factor[G][16], level[G][8];
    __m512 unit[G], step[G];
    _Alignas(64) uint8_t codes[PAIR][16 * TK_SEG];  // unpacked
    row_panels rows;
} scratch;

INLINE void put(const tk_mm *a, int g, int row, __m512 total) {
    float *out = a->out + (size_t)row * a->ldo + 16 * g;
    int n = a->cols - 16 * g;
    if (n >= 16) {  // a store without a mask is faster
        _mm512_storeu_ps(out, a->add ? _mm512_add_ps(_mm512_loadu_ps(out), total) : total);
        return;
    }
    __mmask16 m = (__mmask16)((1u << n) - 1);
    if (a->add) total = _mm512_add_ps(_mm512_maskz_loadu_ps(m, out), total);
    _mm512_mask_storeu_ps(out, m, total);
}

// Groups [g, g+count) over all panels. If fewer are left, the last one is computed several times. Each panel fetches its part of
// what comes AHEAD; on Zen 5 into the first-level cache, because fetches into the second level alone take longer there at times.
TARGET static void groups(const tk_mm *a, int type, const recipe *rc, int g, int count, scratch *t) {
    int rows = t->rows.rows, valid = imin(count, a->ng - g);
    const int opened = tk_reading == TK_STREAMS && (rc->open || rc->multiply) && t->rows.panels > 1;
    const runner *run = (opened ? rc->opened : rc->run)[count];
    const uint8_t *w[G];
    for (int i = 0; i < count; i++) w[i] = a->w + (g + imin(i, valid - 1)) * a->gbytes;
    const size_t full = tk_segment_bytes(type, TK_SEG);
    segment s = {.scale = (const float (*)[16][16])t->scale, .factor = (const __m512i (*)[16])t->factor,
                 .level = (const __m512i (*)[8])t->level, .unit = t->unit, .step = t->step,
                 .start = start_of(type), .near = tk_reading == TK_AHEAD};
    const int lines = rows > 2 || fetched_for_few(type) ? (int)(full / 8 + 63) / 64 : 0;  // with each block
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < count; i++) _mm512_store_ps(t->total[r][i], _mm512_setzero_ps());
    for (int k = 0; k < a->k; k += TK_SEG) {
        int n = imin(a->k - k, TK_SEG);
        size_t header = tk_header_bytes(type, n), bytes = tk_segment_bytes(type, n);
        s.blocks = n / 32;
        s.lines = (lines + t->rows.panels - 1) / t->rows.panels;
        for (int i = 0; i < count; i++) {
            s.header[i] = w[i];
            s.code[i] = w[i] + header;
            s.ahead[i] = w[i] + AHEAD * full + (k + AHEAD * TK_SEG < a->k ? 0 : (size_t)(count - 1) * a->gbytes);
            if (rc->kind == SUPER) open_super(w[i], t->scale[i], t->level[i], &t->step[i]);
            if (rc->kind == SCALES) open_scales(w[i], t->scale[i]);
            if (rc->kind == HALVES) open_halves(w[i], t->scale[i]);
            if (rc->kind == LEVELS) open_levels(w[i], t->factor[i], t->level[i], &t->unit[i], &t->step[i]);
            if (rc->kind == WHOLE) open_whole(w[i], t->factor[i], t->level[i], &t->unit[i]);
            if (opened) {
                if (rc->multiply) rc->multiply(s.code[i], t->factor[i], t->level[i], t->codes[i]);
                else rc->open(s.code[i], s.blocks, t->codes[i]);
                s.code[i] = t->codes[i];
            }
            w[i] += bytes;
        }
        for (int p = 0; p < t->rows.panels; p++) {
            tk_panel panel = t->rows.panel[p];
            s.x = a->q + (size_t)panel.r0 * (a->k / 32) + (size_t)(k / 32) * panel.h;
            s.total = t->total + panel.r0 - t->rows.first;
            run[panel.h](&s);
            for (int i = 0; i < count; i++) s.ahead[i] += 64 * s.lines * s.blocks;
        }
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < valid; i++) put(a, g + i, t->rows.first + r, _mm512_load_ps(t->total[r][i]));
}

INLINE __m512 widen16(const int type, const uint8_t *w, size_t k) {
    if (type == TK_F32) return _mm512_loadu_ps(w + 64 * k);
    if (type == TK_F16) return half16(w + 32 * k);
    __m256i h = _mm256_loadu_si256((const __m256i *)(w + 32 * k));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

enum { FLOAT_AHEAD = 4096 };  // bytes

// C groups at once give C*R independent chains of fused multiply-adds.
INLINE void float_groups(const int type, const tk_mm *a, int g, const int C, const int R, tk_panel t) {
    const uint8_t *w = a->w + g * a->gbytes;
    const float *x = a->x + (size_t)t.r0 * a->k;
    const int size = type == TK_F32 ? 64 : 32;
    __m512 total[8], acc[8];
    for (int i = 0; i < C * R; i++) total[i] = _mm512_setzero_ps();
    for (int k0 = 0; k0 < a->k; k0 += TK_SEG) {
        int end = a->k - k0 < TK_SEG ? a->k : k0 + TK_SEG;
        for (int i = 0; i < C * R; i++) acc[i] = _mm512_setzero_ps();
        for (int k = k0; k < end; k++, x += R) {
            if (R > 2 && k % (64 / size) == 0)
                for (int i = 0; i < C; i++) _mm_prefetch((const char *)w + i * a->gbytes + (size_t)k * size + FLOAT_AHEAD, _MM_HINT_T0);
            _Pragma("GCC unroll 8") for (int i = 0; i < C; i++) {
                __m512 v = widen16(type, w + i * a->gbytes, k);
                ROWS acc[i * R + r] = _mm512_fmadd_ps(v, _mm512_set1_ps(x[r]), acc[i * R + r]);
            }
        }
        for (int i = 0; i < C * R; i++) total[i] = _mm512_add_ps(total[i], acc[i]);
    }
    for (int i = 0; i < C; i++) ROWS put(a, g + i, t.r0 + r, total[i * R + r]);
}

INLINE void float_rows(const int type, const tk_mm *a, const int R, tk_panel t) {
    const int C = R < 3 ? 4 : R < 5 ? 2 : 1;
    int g = 0;
    for (; g + C <= a->ng; g += C) float_groups(type, a, g, C, R, t);
    for (; g < a->ng; g++) float_groups(type, a, g, 1, R, t);
}

INLINE void floats(const int type, const tk_mm *a) {
    for (int p = a->p0; p < a->p1; p++) {
        tk_panel t = tk_panel_at(a->rows, p);
        switch (t.h) {
        case 1: float_rows(type, a, 1, t); break;
        case 2: float_rows(type, a, 2, t); break;
        case 3: float_rows(type, a, 3, t); break;
        case 4: float_rows(type, a, 4, t); break;
        case 5: float_rows(type, a, 5, t); break;
        case 6: float_rows(type, a, 6, t); break;
        case 7: float_rows(type, a, 7, t); break;
        case 8: float_rows(type, a, 8, t); break;
        }
    }
}

TARGET static void f32(const tk_mm *a) { floats(TK_F32, a); }
TARGET static void f16(const tk_mm *a) { floats(TK_F16, a); }
TARGET static void bf16(const tk_mm *a) { floats(TK_BF16, a); }

void tk_avx512_mm(int type, const tk_mm *a) {
    switch (type) {
    case TK_F32: f32(a); return;
    case TK_F16: f16(a); return;
    case TK_BF16: bf16(a); return;
    }
    recipe rc = recipe_of(type);
    scratch t;
    t.rows = panels_of(a);
    int count = PAIR;  // as measured
    if (tk_reading == TK_STREAMS && a->rows < 3) count = G;
    if (tk_reading != TK_STREAMS && (a->rows < 4 || (a->rows == 4 && rc.run == small_bytes))) count = 1;
    for (int g = 0; g < a->ng; g += count) groups(a, type, &rc, g, count, &t);
}
#endif
