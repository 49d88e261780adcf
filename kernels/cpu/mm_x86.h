// What the matrix kernels of AVX2 and AVX-512 have in common: how packed weights are unpacked, and which
// rows a call computes.
#ifndef MM_X86_H
#define MM_X86_H
#include <stddef.h>
#include "tk.h"

// How a block's codes are stored, and what becomes of its sum.
// FLOATS: nibbles that stand for numbers, E2M1; SIXBIT: the same, looked up by six bits of a byte, of which four count. CURVE: nibbles
// that stand for numbers of 8 bits, IQ4.
enum { BYTES, TWOS, THREES, NIBBLES, FLOATS, SIXBIT, CURVE, FIVES, SIXES };
// SMALL: a scale per 32 in both; MINIMA: and a minimum; SCALES: as SMALL, but with integer scales times one per 256; POWERS: as
// SMALL, but the weights' scales are powers of two. SUPER: integer scales per 32; HALVES: per 16; WHOLE: these, and an integer sum over the
// segment; LEVELS: as WHOLE, with minima.
enum { SMALL, MINIMA, SCALES, SUPER, HALVES, WHOLE, LEVELS, POWERS };

// What the nibbles of FLOATS stand for: twice their values, plus 16.
#define E2M1 16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4

// Whether activations have a scale per 32, so that a segment's sum is added to the total as it is.
static inline int by_block(const int kind) { return kind == SMALL || kind == MINIMA || kind == SCALES || kind == POWERS; }

// Bytes of a block of 32 inputs.
static inline size_t piece(const int form) {
    switch (form) {
    case TWOS: return 128;
    case THREES: return 192;
    case NIBBLES: case FLOATS: case SIXBIT: case CURVE: return 256;
    case FIVES: return 320;
    case SIXES: return 384;
    }
    return 512;
}

// Bytes of the header of a segment of n blocks, as tk_header_bytes but known to the compiler; and cache lines in an eighth
// of a full segment.
static inline size_t header_of(const int kind, int n) {
    if (kind == SUPER || kind == WHOLE) return 256;
    if (kind == MINIMA) return (size_t)n * 64;
    if (kind == SCALES) return 128;
    if (kind == POWERS) return (size_t)(n + 3) / 4 * 64;
    return kind == HALVES || kind == LEVELS ? 320 : (size_t)(n + 1) / 2 * 64;
}
static inline int lines_of(const int form, const int kind) { return (int)((header_of(kind, 8) / 8 + piece(form) + 63) / 64); }

// Where in tk_qblock the sum of a block starts: Σ code·q = Σ stored·q + start. Types without offset do not look.
static inline size_t start_of(int type) {
    switch (type) {
    case TK_Q4_0: return offsetof(tk_qblock, off8);
    case TK_Q5_0: case TK_MXFP4: return offsetof(tk_qblock, off16);
    case TK_Q6_K: return offsetof(tk_qblock, off32);
    }
    return offsetof(tk_qblock, off128);
}

// Whether AVX-512 fetches weights ahead for one or two rows. (AVX2, which computes longer, fetches all types.)
static inline int fetched_for_few(int type) {
    const int slow = tk_code_bytes(type) == 256 || tk_is_super(type);  // to unpack: nibbles and K-quants
    return tk_reading == TK_AHEAD ? slow : tk_reading == TK_STREAMS;
}

// The panels of one call, and its rows: [first, first+rows) of the pass. Cut once, since it takes divisions.
typedef struct {
    tk_panel panel[TK_PANELS];
    int panels, first, rows;
} row_panels;

static inline row_panels panels_of(const tk_mm *a) {
    row_panels t = {.panels = a->p1 - a->p0};
    for (int i = 0; i < t.panels; i++) t.panel[i] = tk_panel_at(a->rows, a->p0 + i);
    t.first = t.panel[0].r0;
    t.rows = t.panel[t.panels - 1].r0 + t.panel[t.panels - 1].h - t.first;
    return t;
}
#endif
