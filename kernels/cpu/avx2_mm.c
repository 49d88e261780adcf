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
    const tk_mm *whole;    // of whole groups of one panel: their totals begin here, and go to `out`; else NULL
    float *out;            // of row 0, from the first output on
    // WHOLE and LEVELS: integer scales twice in 32 bits, 32 a segment: [half a block][half of the outputs]; and pairs of minima, 16·SPAN a
    // group: [block's halves][half of the outputs].
    const __m256i *factor, *level;
} span;

// Keeps gcc from adding up in another order, which needs more registers than there are.
#define AS_WRITTEN(x) __asm__("" : "+x"(x))

// t += the products of a word of codes with R rows; t = them, if first.
INLINE void add_word(const __m256i *v, const tk_qblock *x, const int at, const int R, const int C, const int first, __m256i *t) {
    _Pragma("GCC unroll 8") ROWS {
        __m256i b = bcast(x[r].q + at);
        _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {
            __m256i p = _mm256_maddubs_epi16(v[c], b);
            t[r * C + c] = first ? p : _mm256_add_epi16(t[r * C + c], p);
            AS_WRITTEN(t[r * C + c]);
        }
    }
}

// t = the products of words [from, to) of a block, or, if started, t += them. They add up in 16 bits. Unsigned codes below 2^b do so
// without overflow in 8 words for b = 4, and in 4 for b = 5. All others may overflow on the way, but t starts with what their offset takes
// away (tk_qblock.lanes, lanes32), so that the end fits: 16 products of codes of at most 16 in magnitude, or 8 of at most 32. The last word
// of FIVES and SIXES takes the longest to unpack, so it comes first: the sum waits for the word that comes last. Where registers suffice, a
// word is unpacked while the one before it is multiplied.
INLINE void add_words(const int form, const uint8_t *q, size_t gbytes, const tk_qblock *x, const int R, const int C,
                      const int from, const int to, const int started, __m256i *t) {
    __m256i v[4], high[4];
    if (form == NIBBLES || form == FLOATS) {  // a vector of both nibbles is loaded once
        _Pragma("GCC unroll 4") for (int j = 0; j < 4; j++) {
            for (int c = 0; c < C; c++) {
                __m256i both = load(q + c / 2 * gbytes + c % 2 * 32 + 64 * j);
                v[c] = nibbles(form, both);
                high[c] = nibbles(form, _mm256_srli_epi16(both, 4));
            }
            add_word(v, x, 4 * j, R, C, j == 0 && !started, t);
            add_word(high, x, 4 * j + 16, R, C, 0, t);
        }
        return;
    }
    const int early = C == 1 || R < 4;
    _Pragma("GCC unroll 9") for (int j = to - 1; j >= from - early; j--) {
        for (int c = 0; c < C && j >= from; c++) {
            high[c] = code(form, q + c / 2 * gbytes + c % 2 * 32, j);
            if (early) AS_WRITTEN(high[c]);
        }
        if (j + early < to) add_word(early ? v : high, x, 4 * (j + early), R, C, j + early == to - 1 && !started, t);
        for (int c = 0; c < C; c++) v[c] = high[c];
    }
}

// sum = the products of a block of 8-bit codes, or of those that CURVE's nibbles stand for. Unsigned codes would saturate maddubs, so it
// multiplies |code| ≤ 128 with the activation, at most 127 in magnitude, given the code's sign.
INLINE void byte_products(const int form, const uint8_t *q, size_t gbytes, const tk_qblock *x, const int R, const int C,
                          __m256i *sum) {
    const __m256i one = _mm256_set1_epi16(1), flip = _mm256_set1_epi8((char)128);
    _Pragma("GCC unroll 8") for (int j = 0; j < 8; j++) {
        __m256i v[4], u[4];
        for (int c = 0; c < C; c++) {
            v[c] = code(form, q + c / 2 * gbytes + c % 2 * 32, j);
            if (form == BYTES) v[c] = _mm256_xor_si256(v[c], flip);
            u[c] = _mm256_abs_epi8(v[c]);
        }
        _Pragma("GCC unroll 8") ROWS {
            __m256i b = bcast(x[r].q + 4 * j);
            _Pragma("GCC unroll 4") for (int c = 0; c < C; c++) {
                int i = r * C + c;
                __m256i p = _mm256_madd_epi16(_mm256_maddubs_epi16(u[c], _mm256_sign_epi8(b, v[c])), one);
                sum[i] = j ? _mm256_add_epi32(sum[i], p) : p;
                AS_WRITTEN(sum[i]);
            }
        }
    }
}

// sum = or += t, widened to 32 bits and multiplied with the integer scales of 8 outputs at `scale`, if there are any.
INLINE void widen(const int kind, const uint8_t *scale, size_t every, const int R, const int C, const int add,
                  const __m256i *t, __m256i *sum) {
    for (int c = 0; c < C; c++) {
        __m256i f = _mm256_set1_epi16(1);
        if (kind == SUPER || kind == HALVES) f = twice(scale + c / 2 * every + 8 * (c % 2), kind == HALVES);
        _Pragma("GCC unroll 8") ROWS {
            __m256i p = _mm256_madd_epi16(t[r * C + c], f);
            sum[r * C + c] = add ? _mm256_add_epi32(sum[r * C + c], p) : p;
        }
    }
}

// sum = the products of a block, or of half of it, times the integer scale: an integer that a float holds, 256 times as large for HALVES.
INLINE void sums(const int form, const int kind, const uint8_t *q, const uint8_t *scale, const span *s, const tk_qblock *x,
                 const int half, const int R, const int C, __m256i *sum) {
    const size_t every = kind == SUPER ? OPENED : s->gbytes;
    const int N = R * C;
    __m256i t[MAXR];
    if (form == BYTES || form == CURVE) {
        byte_products(form, q, s->gbytes, x, R, C, sum);
    } else if (kind == HALVES) {
        for (int i = 0; i < N; i++) t[i] = bcast(&x[i / C].lanes32[half]);
        add_words(form, q, s->gbytes, x, R, C, 4 * half, 4 * half + 4, 1, t);
        widen(kind, scale, every, R, C, 0, t, sum);
    } else if (kind != SMALL && form == FIVES) {  // without an offset
        add_words(form, q, s->gbytes, x, R, C, 0, 4, 0, t);
        widen(kind, scale, every, R, C, 0, t, sum);
        add_words(form, q, s->gbytes, x, R, C, 4, 8, 0, t);
        widen(kind, scale, every, R, C, 1, t, sum);
    } else if (form == NIBBLES) {
        add_words(form, q, s->gbytes, x, R, C, 0, 8, 0, t);
        if (kind == SMALL) for (int i = 0; i < N; i++) sum[i] = bcast(&x[i / C].off8);
        widen(kind, scale, every, R, C, kind == SMALL, t, sum);
    } else {
        for (int i = 0; i < N; i++) t[i] = bcast(&x[i / C].lanes);
        add_words(form, q, s->gbytes, x, R, C, 0, 8, 1, t);
        widen(kind, scale, every, R, C, 0, t, sum);
    }
}

// The scales of block b in float, of types whose activations have a scale per block too; d: those of a segment.
INLINE __m256 scale_of(const int kind, const int C, const uint8_t *w, const uint8_t *scale, const span *s, int b, int c, __m256 d) {
    const int o = c % 2 + s->half;
    const uint8_t *h = w + c / 2 * s->gbytes;
    if (kind == SMALL) return half8(h + 32 * b + 16 * o);
    if (kind == MINIMA) return half8(h + 64 * b + 16 * o);
    if (kind == SCALES) return _mm256_mul_ps(d, _mm256_cvtepi32_ps(i8_8(scale + c / 2 * OPENED + 8 * (c % 2))));
    if (C == 1) return powers8(h + 16 * b + 8 * o);
    __m256 two[2];
    powers16(h + 16 * b, two);
    return two[c % 2];
}

// acc += the products of block b, or of half of it. scale: its integer scales; d: the scales of the segment.
INLINE void block(const int form, const int kind, const uint8_t *q, const uint8_t *w, const uint8_t *scale, const span *s,
                  const tk_qblock *x, int b, const int half, const int R, const int C, const __m256 *d, __m256 *acc) {
    __m256i sum[MAXR];
    sums(form, kind, q, scale, s, x, half, R, C, sum);
    for (int c = 0; c < C; c++) {
        __m256 f = by_block(kind) ? scale_of(kind, C, w, scale, s, b, c, d[c]) : d[c];
        _Pragma("GCC unroll 8") ROWS {
            __m256 e = by_block(kind) ? _mm256_mul_ps(f, _mm256_set1_ps(x[r].scale)) : f;
            acc[r * C + c] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[r * C + c]), e, acc[r * C + c]);
        }
        if (kind != MINIMA) continue;
        __m256 m = half8(w + c / 2 * s->gbytes + 64 * b + 32 + 16 * (c % 2 + s->half));
        _Pragma("GCC unroll 8") ROWS acc[r * C + c] = _mm256_fmadd_ps(m, _mm256_set1_ps(x[r].xsum), acc[r * C + c]);
    }
}

// A segment's sums enter the totals. min: the pairs of minima; x: the segment's first block.
INLINE void end_segment(const int kind, const int R, const int C, const span *s, const uint8_t *w, const uint8_t *min, const tk_qblock *x,
                        const __m256 *acc, __m256 *total) {
    for (int c = 0; c < C; c++) {
        __m256i level[4];
        __m256 d;
        if (kind == SUPER) {
            d = half8(w + c / 2 * s->gbytes + 32 + 16 * (c % 2 + s->half));
            for (int j = 0; j < 4; j++) level[j] = u8_16(min + c / 2 * OPENED + 32 * j + 16 * (c % 2 + s->half));
        }
        _Pragma("GCC unroll 8") ROWS {
            __m256 a = acc[r * C + c], *t = total + r * C + c;
            if (kind == SUPER) {
                __m256i m = _mm256_madd_epi16(level[0], bcast(x[r].pair));
                for (int j = 1; j < 4; j++) m = _mm256_add_epi32(m, _mm256_madd_epi16(level[j], bcast(x[2 * j * R + r].pair)));
                a = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(m), d, a);
            }
            *t = by_block(kind) ? _mm256_add_ps(*t, a) : _mm256_fmadd_ps(a, _mm256_set1_ps(x[r].scale), *t);
        }
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

// The totals of output half c of row r: (groups, MAXROWS, 16) floats, of which `total` is the first.
INLINE float *total_of(const span *s, int r, int c) { return s->total[c / 2 * MAXROWS + r] + c % 2 * 8; }

INLINE void run(const int form, const int kind, const int R, const int C, const span *s) {
    if (kind == WHOLE || kind == LEVELS) {
        run_whole(form, kind, R, C, s);
        return;
    }
    _Alignas(32) uint8_t scale[2 * OPENED], min[2 * OPENED];  // SUPER and SCALES: of up to two groups
    const uint8_t *w = s->w;
    const tk_qblock *x = s->x;
    __m256 total[MAXR];
    for (int i = 0; i < R * C; i++) total[i] = s->whole ? _mm256_setzero_ps() : _mm256_load_ps(total_of(s, i / C, i % C));
    for (int k = 0; k < s->blocks; k += 8) {
        __m256 acc[MAXR], d[4];
        const int full = kind == SUPER || kind == HALVES || kind == SCALES, n = full || s->blocks - k > 8 ? 8 : s->blocks - k;
        const uint8_t *q = w + header_of(kind, n) + 32 * s->half, *at = kind == HALVES ? w + 64 : scale;
        for (int i = 0; i < R * C; i++) acc[i] = _mm256_setzero_ps();
        for (int c = 0; kind == SUPER && c < C; c += 2) open_super(w + c / 2 * s->gbytes, scale + c / 2 * OPENED, min + c / 2 * OPENED);
        for (int c = 0; kind == SCALES && c < C; c += 2) open_scales(w + c / 2 * s->gbytes, scale + c / 2 * OPENED);
        for (int c = 0; full && c < C; c++) {
            d[c] = half8(w + c / 2 * s->gbytes + 16 * (c % 2 + s->half));
            if (kind == HALVES) d[c] = _mm256_mul_ps(d[c], _mm256_set1_ps(1.0f / 256));  // as sums are 256 times as large
        }
        at += 8 * s->half;
        for (int b = 0; b < n; b++, x += R, q += piece(form), at += kind == HALVES ? 32 : 16) {
            if (s->fetch) fetch(s, w + AHEAD * (header_of(kind, 8) + 8 * piece(form)), lines_of(form, kind), b, C);
            block(form, kind, q, w, at, s, x, b, 0, R, C, d, acc);
            if (kind == HALVES) block(form, kind, q, w, at + 16, s, x, b, 1, R, C, d, acc);
        }
        end_segment(kind, R, C, s, w, min, x - n * R, acc, total);
        w += header_of(kind, n) + n * piece(form);
    }
    for (int i = 0; i < R * C; i++) {
        if (!s->whole) {
            _mm256_store_ps(total_of(s, i / C, i % C), total[i]);
            continue;
        }
        float *out = s->out + (size_t)(i / C) * s->whole->ldo + i % C * 8;
        _mm256_storeu_ps(out, s->whole->add ? _mm256_add_ps(_mm256_loadu_ps(out), total[i]) : total[i]);
    }
}

typedef void (*runner)(const span *);
typedef struct {
    runner run[MAXR + 1];
    int kind, both;
} recipe;
// Up to `wide` rows take all 16 outputs at once, or 32 (name0, one row), more of them 8.
#define RUN(name, form, kind, wide)                                                      \
    TARGET static void name##0(const span *s) { run(form, kind, 1, 4, s); }              \
    TARGET static void name##1(const span *s) { run(form, kind, 1, 2, s); }              \
    TARGET static void name##2(const span *s) { run(form, kind, 2, 2, s); }              \
    TARGET static void name##3(const span *s) { run(form, kind, 3, wide > 2 ? 2 : 1, s); }  \
    TARGET static void name##4(const span *s) { run(form, kind, 4, wide > 2 ? 2 : 1, s); }  \
    TARGET static void name##5(const span *s) { run(form, kind, 5, 1, s); }              \
    TARGET static void name##6(const span *s) { run(form, kind, 6, 1, s); }              \
    TARGET static void name##7(const span *s) { run(form, kind, 7, 1, s); }              \
    TARGET static void name##8(const span *s) { run(form, kind, 8, 1, s); }              \
    static const recipe name = {{name##0, name##1, name##2, name##3, name##4, name##5, name##6, name##7, name##8}, kind, wide};

RUN(small_bytes, BYTES, SMALL, 4)
RUN(small_nibbles, NIBBLES, SMALL, 4)
RUN(small_fives, FIVES, SMALL, 4)
RUN(small_curve, CURVE, SMALL, 4)
RUN(scales_curve, CURVE, SCALES, 4)
RUN(minima_nibbles, NIBBLES, MINIMA, 4)
RUN(minima_fives, FIVES, MINIMA, 4)
RUN(powers_floats, FLOATS, POWERS, 4)
RUN(super_nibbles, NIBBLES, SUPER, 4)
RUN(super_fives, FIVES, SUPER, 4)
RUN(halves_sixes, SIXES, HALVES, 4)
RUN(levels_twos, TWOS, LEVELS, 2)
RUN(whole_threes, THREES, WHOLE, 2)

static const recipe *recipe_of(int type) {
    switch (type) {
    case TK_Q4_0: return &small_nibbles;
    case TK_Q4_1: return &minima_nibbles;
    case TK_Q5_0: return &small_fives;
    case TK_Q5_1: return &minima_fives;
    case TK_IQ4_NL: return &small_curve;
    case TK_IQ4_XS: return &scales_curve;
    case TK_MXFP4: return &powers_floats;
    case TK_Q4_K: return &super_nibbles;
    case TK_Q5_K: return &super_fives;
    case TK_Q6_K: return &halves_sixes;
    case TK_Q2_K: return &levels_twos;
    case TK_Q3_K: return &whole_threes;
    }
    return &small_bytes;
}

typedef struct {
    _Alignas(64) float total[2][MAXROWS][16];
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
        for (s.half = 0; s.half < (panel.h <= rc->both ? 1 : 2); s.half++) {
            s.total = (float (*)[16])(t->total[0][panel.r0 - t->rows.first] + 8 * s.half);
            rc->run[count == 2 ? 0 : panel.h](&s);
        }
    }
}

// The same for a panel that is alone and groups without padding: totals stay in registers.
TARGET static void whole_groups(const tk_mm *a, const recipe *rc, const uint8_t *w, int g, int count, int fetch, tk_panel panel) {
    span s = {.w = w, .gbytes = a->gbytes, .blocks = a->k / 32, .fetch = fetch, .whole = a};
    const int halves = panel.h <= rc->both ? 1 : 2;
    for (; s.half < halves; s.half++) {
        s.x = a->q + (size_t)panel.r0 * (a->k / 32);
        s.out = a->out + (size_t)panel.r0 * a->ldo + 16 * g + 8 * s.half;
        rc->run[count == 2 ? 0 : panel.h](&s);
    }
}

// Groups [g, g+count): one, or two of one row.
TARGET static void groups(const tk_mm *a, int type, const recipe *rc, int g, int count, scratch *t) {
    int rows = t->rows.rows;
    const uint8_t *w = a->w + g * a->gbytes;
    const size_t full = tk_segment_bytes(type, TK_SEG);
    const int fetch = tk_reading == TK_AHEAD ? NEAR : FAR, opened = rc->kind == LEVELS || rc->kind == WHOLE;
    if (t->rows.panels == 1 && !opened && a->cols >= 16 * (g + count)) {
        whole_groups(a, rc, w, g, count, fetch, t->rows.panel[0]);
        return;
    }
    for (int i = 0; i < count; i++) memset(t->total[i], 0, sizeof t->total[0][0] * rows);
    for (int k = 0; k < a->k; k += SPAN * TK_SEG, w += SPAN * full) {
        int n = imin(a->k - k, SPAN * TK_SEG);
        for (int c = 0; c < count; c++)
            for (int i = 0; opened && i * TK_SEG < n; i++) {
                const uint8_t *h = w + c * a->gbytes + i * full;
                if (rc->kind == LEVELS) open_levels(h, t->factor[c] + 32 * i, t->level[c] + 16 * i);
                if (rc->kind == WHOLE) open_whole(h, t->factor[c] + 32 * i, t->level[c] + 16 * i);
            }
        span s = {.w = w, .gbytes = a->gbytes, .blocks = n / 32, .fetch = fetch, .factor = t->factor[0], .level = t->level[0]};
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
    const recipe *rc = recipe_of(type);
    scratch t;
    t.rows = panels_of(a);
    int g = 0;
    for (; tk_reading == TK_STREAMS && t.rows.rows == 1 && g + 2 <= a->ng; g += 2) groups(a, type, rc, g, 2, &t);
    for (; g < a->ng; g++) groups(a, type, rc, g, 1, &t);
}
#endif
