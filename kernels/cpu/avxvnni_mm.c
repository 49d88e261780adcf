// Matrix kernels for AVX2 with VNNI in 256 bits (AVX-VNNI): half a packed vector is 4 inputs of 8 outputs, and one instruction adds their
// products to sums of 32 bits. A segment of 256 inputs of a group, or of two groups for one row, is multiplied with all panels of rows.
#include "tk.h"
#if TK_HAS_AVXVNNI
#include <immintrin.h>
#include "avx2.h"
#include "mm_x86.h"
#include "avx2_codes.h"

#define VNNI __attribute__((target("avx2,fma,f16c,avxvnni")))
#define VNNI_INLINE static inline __attribute__((always_inline)) VNNI
#define ROWS for (int r = 0; r < R; r++)

enum { G = 2, AHEAD = 4, MAXROWS = TK_TILE * TK_PANELS };  // most groups at once; how many segments ahead is fetched

// What a segment's header says of 16 outputs.
typedef struct {
    _Alignas(32) uint8_t scale[OPENED], min[OPENED];  // SUPER, SCALES: integer scales; pairs of minima of 4 pairs of blocks
    __m256i factor[16][2], level[8][2];               // WHOLE, LEVELS: integer scales; pairs of minima of the halves of 8 blocks
} opened;

// One segment of C/2 groups, or of half of one, and one panel of rows.
typedef struct {
    const uint8_t *w;          // its header
    size_t gbytes;             // to the second group
    int half;                  // 1: the upper 8 outputs
    int blocks;
    const uint8_t *ahead;      // fetched with each block: so many lines of the cache
    int lines, near;           // near: into the first-level cache
    const tk_qblock *x;        // (blocks, R)
    size_t start;              // start_of
    float (*total)[G][16];     // (R)
    const opened *open;        // (G)
} segment;

// Codes of inputs [4j, 4j+4) of a block, unsigned.
INLINE __m256i unsigned_code(const int form, const uint8_t *q, const int j) {
    const __m256i v = code(form, q, j);
    return form == CURVE ? _mm256_xor_si256(v, _mm256_set1_epi8((char)128)) : v;
}

// sum += the products of words [from, to) of a block.
VNNI_INLINE void products(const int form, const segment *s, const uint8_t *q, const tk_qblock *x, const int R, const int C,
                          const int from, const int to, __m256i *sum) {
    _Pragma("GCC unroll 8") for (int j = from; j < to; j++) {
        __m256i v[2 * G];
        for (int c = 0; c < C; c++) v[c] = unsigned_code(form, q + c / 2 * s->gbytes + c % 2 * 32, j);
        _Pragma("GCC unroll 8") ROWS {
            __m256i b = bcast(x[r].q + 4 * j);
            for (int c = 0; c < C; c++) sum[r * C + c] = _mm256_dpbusd_avx_epi32(sum[r * C + c], v[c], b);
        }
    }
}

// The scales of 8 outputs in block b, or in half of it; o is 8 for the upper outputs. h: the group's header.
INLINE __m256 scale_of(const int kind, const uint8_t *h, const opened *open, int b, int half, int o) {
    if (kind == SMALL) return half8(h + 32 * b + 2 * o);
    if (kind == MINIMA) return half8(h + 64 * b + 2 * o);
    if (kind == POWERS) return powers8(h + 16 * b + o);
    if (kind == HALVES) return _mm256_mul_ps(half8(h + 2 * o), _mm256_cvtepi32_ps(i8_8(h + 64 + 16 * (2 * b + half) + o)));
    const uint8_t *at = open->scale + 16 * b + o;
    return _mm256_mul_ps(half8(h + 2 * o), _mm256_cvtepi32_ps(kind == SUPER ? u8_8(at) : i8_8(at)));
}

// The sums of a block, or of half of it, enter those of the segment: acc, or for WHOLE and LEVELS the integers whole.
INLINE void add_sums(const int kind, const segment *s, const tk_qblock *x, const int R, const int C, int b, int half,
                     const __m256i *sum, __m256 *acc, __m256i *whole) {
    for (int c = 0; c < C; c++) {
        const uint8_t *h = s->w + c / 2 * s->gbytes;
        const int i = c % 2 + s->half;
        if (kind == WHOLE || kind == LEVELS) {  // the sum fits in 16 bits
            __m256i f = _mm256_and_si256(s->open[c / 2].factor[2 * b + half][i], _mm256_set1_epi32(0xffff));
            _Pragma("GCC unroll 8") ROWS whole[r * C + c] = _mm256_add_epi32(whole[r * C + c], _mm256_madd_epi16(sum[r * C + c], f));
            continue;
        }
        __m256 d = scale_of(kind, h, s->open + c / 2, b, half, 8 * i);
        _Pragma("GCC unroll 8") ROWS {
            __m256 f = by_block(kind) ? _mm256_mul_ps(d, _mm256_set1_ps(x[r].scale)) : d;
            acc[r * C + c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r * C + c]), f, acc[r * C + c]);
        }
        if (kind != MINIMA) continue;
        __m256 m = half8(h + 64 * b + 32 + 16 * i);
        _Pragma("GCC unroll 8") ROWS acc[r * C + c] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[r].xsum), acc[r * C + c]);
    }
}

// The segment's sums of row r, output half c, enter the totals. x: the segment's first block of the row, R apart.
INLINE void end_segment(const int kind, const segment *s, const tk_qblock *x, const int R, int c, __m256 a, __m256i whole, float *total) {
    const uint8_t *h = s->w + c / 2 * s->gbytes;
    const opened *open = s->open + c / 2;
    const int i = c % 2 + s->half;
    __m256 t = _mm256_load_ps(total);
    if (by_block(kind)) {
        _mm256_store_ps(total, _mm256_add_ps(t, a));
        return;
    }
    __m256i m = kind == WHOLE ? whole : _mm256_setzero_si256();
    if (kind == SUPER)
        for (int j = 0; j < 4; j++) {
            __m256i min = u8_16(open->min + 32 * j + 16 * i);
            m = _mm256_add_epi32(m, _mm256_madd_epi16(min, bcast(x[2 * j * R].pair)));
        }
    if (kind == WHOLE || kind == LEVELS) {
        for (int b = 0; b < 8; b++) m = _mm256_add_epi32(m, _mm256_madd_epi16(open->level[b][i], bcast(x[b * R].half)));
        a = _mm256_mul_ps(_mm256_cvtepi32_ps(kind == WHOLE ? m : whole), half8(h + 16 * i));
    }
    if (kind == SUPER || kind == LEVELS) a = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), half8(h + 32 + 16 * i), a);
    _mm256_store_ps(total, _mm256_fmadd_ps(a, _mm256_set1_ps(x[0].scale), t));
}

INLINE void fetch(const uint8_t *p, int lines, int near) {
    if (near) for (; lines > 0; lines--, p += 64) _mm_prefetch((const char *)p, _MM_HINT_T0);
    else for (; lines > 0; lines--, p += 64) _mm_prefetch((const char *)p, _MM_HINT_T1);
}

VNNI_INLINE void run(const int form, const int kind, const int R, const int C, const segment *s) {
    const int halves = kind == HALVES || kind == WHOLE || kind == LEVELS ? 2 : 1;
    const int zero = kind == SUPER || kind == MINIMA || kind == WHOLE || kind == LEVELS;
    __m256 acc[2 * TK_TILE];
    __m256i whole[2 * TK_TILE];
    const uint8_t *q = s->w + header_of(kind, s->blocks) + 32 * s->half;
    const tk_qblock *x = s->x;
    for (int i = 0; i < R * C; i++) acc[i] = _mm256_setzero_ps(), whole[i] = _mm256_setzero_si256();
    for (int b = 0; b < s->blocks; b++, x += R, q += piece(form)) {
        for (int g = 0; g < (C > 2 ? 2 : 1); g++) fetch(s->ahead + g * s->gbytes + 64 * s->lines * b, s->lines, s->near);
        _Pragma("GCC unroll 2") for (int half = 0; half < halves; half++) {
            __m256i sum[2 * TK_TILE];
            ROWS for (int c = 0; c < C; c++)
                sum[r * C + c] = zero ? _mm256_setzero_si256() : bcast((const char *)&x[r] + s->start + 4 * half);
            products(form, s, q, x, R, C, halves == 2 ? 4 * half : 0, halves == 2 ? 4 * half + 4 : 8, sum);
            add_sums(kind, s, x, R, C, b, half, sum, acc, whole);
        }
    }
    _Pragma("GCC unroll 8") ROWS for (int c = 0; c < C; c++)
        end_segment(kind, s, s->x + r, R, c, acc[r * C + c], whole[r * C + c], s->total[r][c / 2] + 8 * (c % 2 + s->half));
}

// Up to four rows take all 16 outputs at once, or 32 (name0, one row), more of them 8.
typedef void (*runner)(const segment *);
#define ONE(name, form, kind, R, C, n) \
    VNNI static void name##n(const segment *s) { run(form, kind, R, C, s); }
#define RUN(name, form, kind)                                                                                        \
    ONE(name, form, kind, 1, 4, 0) ONE(name, form, kind, 1, 2, 1) ONE(name, form, kind, 2, 2, 2)                     \
    ONE(name, form, kind, 3, 2, 3) ONE(name, form, kind, 4, 2, 4) ONE(name, form, kind, 5, 1, 5)                     \
    ONE(name, form, kind, 6, 1, 6) ONE(name, form, kind, 7, 1, 7) ONE(name, form, kind, 8, 1, 8)                     \
    static const runner name[TK_TILE + 1] = {name##0, name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8};

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
    _Alignas(64) float total[MAXROWS][G][16];
    opened open[G];
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

TARGET static void open_header(int kind, const uint8_t *h, opened *to) {
    switch (kind) {
    case SUPER: open_super(h, to->scale, to->min); break;
    case SCALES: open_scales(h, to->scale); break;
    case LEVELS: open_levels(h, to->factor[0], to->level[0]); break;
    case WHOLE: open_whole(h, to->factor[0], to->level[0]); break;
    }
}

// Groups [g, g+count): one, or two of one row. The first panel fetches what comes AHEAD.
TARGET static void groups(const tk_mm *a, int type, const recipe *rc, int g, int count, scratch *t) {
    const size_t full = tk_segment_bytes(type, TK_SEG);
    const int lines = tk_reading == TK_ALONE && t->rows.rows < 3 ? 0 : (int)(full / 8 + 63) / 64;
    segment s = {.w = a->w + g * a->gbytes, .gbytes = a->gbytes, .near = tk_reading == TK_AHEAD, .start = start_of(type), .open = t->open};
    memset(t->total, 0, sizeof t->total[0] * (size_t)t->rows.rows);
    for (int k = 0; k < a->k; k += TK_SEG, s.w += full) {
        s.blocks = imin(a->k - k, TK_SEG) / 32;
        s.ahead = s.w + AHEAD * full;
        for (int c = 0; c < count; c++) open_header(rc->kind, s.w + c * a->gbytes, t->open + c);
        for (int p = 0; p < t->rows.panels; p++) {
            tk_panel panel = t->rows.panel[p];
            s.x = a->q + (size_t)panel.r0 * (a->k / 32) + (size_t)(k / 32) * panel.h;
            s.total = t->total + panel.r0 - t->rows.first;
            s.lines = p == 0 ? lines : 0;
            for (s.half = 0; s.half < (panel.h < 5 ? 1 : 2); s.half++, s.lines = 0) rc->run[count == 2 ? 0 : panel.h](&s);
        }
    }
    for (int i = 0; i < 2 * count * t->rows.rows; i++) {
        int half = i % 2, c = i / 2 % count, r = i / 2 / count;
        if (a->cols > 16 * (g + c) + 8 * half) put(a, g + c, half, t->rows.first + r, _mm256_load_ps(t->total[r][c] + 8 * half));
    }
}

void tk_avxvnni_mm(int type, const tk_mm *a) {
    if (tk_is_float(type)) {
        tk_avx2_mm(type, a);
        return;
    }
    recipe rc = recipe_of(type);
    scratch t;
    t.rows = panels_of(a);
    int g = 0;
    for (; tk_reading == TK_STREAMS && t.rows.rows == 1 && g + 2 <= a->ng; g += 2) groups(a, type, &rc, g, 2, &t);
    for (; g < a->ng; g++) groups(a, type, &rc, g, 1, &t);
}

VNNI double tk_avxvnni_int_macs(int rounds) {
    const __m256i u = _mm256_set1_epi8(3);
    __m256i s[12];
    for (int i = 0; i < 12; i++) s[i] = _mm256_set1_epi32(i);
    for (int r = 0; r < rounds; r++)
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) s[i] = _mm256_dpbusd_avx_epi32(s[i], u, u);
    for (int i = 0; i < 12; i++) __asm__ volatile("" : : "x"(s[i]));
    return 12.0 * 32 * rounds;
}
#endif
