// Attention of one block of 256 positions, and joining blocks, written once over vectors of VL floats.
//
// The file that includes this defines TARGET and INLINE; VL, a divisor of 16; QT, the most queries in a
// tile, 6 or 1; TV(n), the accumulators that a tile of n queries has for each of them: a multiple of 16/VL
// that comes to 16, 32 or 64 floats; and operations on vf, a vector:
//   v_zero() v_set(x) v_load(p) v_store(p, a) v_add v_sub v_mul v_div v_fma(a, b, c)
//   v_max(x, m)           the larger lanes, m where x is NaN
//   v_exp(a)              docs/kernels.md
//   v_half(p) v_half1(p)  VL halves widened; one half in all lanes
//   v_codes(p)            VL int8 as floats
//   v_only(a, from, to)   lanes [from, to) of a, -Inf elsewhere
//   v_sum16(a)            the sum of 16/VL vectors in the order of reductions
//   v_top(a)              the largest lane
//   v_fetch(p)            asks for a cache line
//
// Scores: lanes are keys, so that a query's product with VL of them runs in order over the dimensions and
// nothing is added across lanes. Values: lanes are dimensions. A tile of queries shares each loaded vector.
// The queries of a block go through it page by page. Each query has its own range of positions: positions that all queries
// of a tile see are done for all at once, the others (at the causal edge or a window's edge, ancestors) per row, in order of position.
#include "tk.h"
#include "scalar.h"

enum {
    NV = 16 / VL, ROW = TK_SEG + 16, SLOTS = TK_PAGE + 16, BATCH = 64, MAXRUNS = TK_SEG + 8,
    CELLS = QT == 6 ? 12 : 1,                // queries that share a vector of a tree's keys
    SHARES = 4,                              // tiles that share in fetching what comes next
};

#define UNROLL _Pragma("GCC unroll 16")

// n values, one after the other at v, of positions [at, at+n); the first is in `slot` of its page. scale is
// that of the page's first position.
typedef struct { const uint8_t *v, *scale; int at, slot, n; } run;

// What a tile of queries asks for while it computes: the k-th of n parts of what lies at the pages of `from`, or nothing if that is NULL.
typedef struct { const uint8_t *const *from; int k, n; } share;

// The share of tile k of n. Spread over many tiles, most fetches would ask for a line again.
static share share_of(const uint8_t *const *from, int k, int n) {
    n = imin(n, SHARES);
    return (share){k < n ? from : NULL, k, n};
}

typedef struct {
    const tk_attn *a;
    int t, n;                    // queries [t, t+n) of the block
    int row[BATCH];              // of each
    const float *q[BATCH];
    float *o[BATCH];
    float *s;                    // (n, ROW): scores, then weights
} batch;

// Prefetches the n bytes at p; all beyond two lines is left to the processor's own prefetcher.
INLINE void fetch_piece(const uint8_t *p, size_t n) {
    v_fetch(p);
    if (n > 64) v_fetch(p + 64);
}

// Scores of N queries and C vectors of keys, from vector `part` of the page at k on; to s. Meanwhile
// `fetch` bytes per dimension are fetched.
INLINE void score_vectors(const tk_attn *a, const uint8_t *k, int part, const float *const *q, float *s, size_t lds,
                          const uint8_t *ahead, size_t fetch, const int type, const int N, const int C) {
    vf acc[CELLS][64 / VL], x[64 / VL];
    const int q8 = type == TK_KV_Q8_0, dim = a->kept->dim;
    const vf f = v_set(a->scale);
    for (int d = 0; d < dim;) {
        const uint8_t *scale = k + part * VL * 2;
        const int block = d, end = q8 ? d + 32 : dim;
        if (q8) k += 2 * TK_PAGE;
        UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < C; c++) acc[i][c] = v_zero();
        for (; d < end; d++) {
            UNROLL for (int c = 0; c < C; c++) x[c] = q8 ? v_codes(k + (part + c) * VL) : v_half(k + (part + c) * VL * 2);
            k += q8 ? TK_PAGE : 2 * TK_PAGE;
            if (fetch) fetch_piece(ahead, fetch);
            ahead += fetch;
            UNROLL for (int i = 0; i < N; i++) {
                vf y = v_set(q[i][d]);
                UNROLL for (int c = 0; c < C; c++) acc[i][c] = v_fma(y, x[c], acc[i][c]);
            }
        }
        if (q8) UNROLL for (int c = 0; c < C; c++) {
            vf by = v_half(scale + c * VL * 2);
            UNROLL for (int i = 0; i < N; i++) {
                float *at = s + i * lds + c * VL;
                acc[i][c] = v_fma(by, acc[i][c], block ? v_load(at) : v_zero());
                v_store(at, end == dim ? v_mul(f, acc[i][c]) : acc[i][c]);
            }
        } else UNROLL for (int i = 0; i < N; i++)
            UNROLL for (int c = 0; c < C; c++) v_store(s + i * lds + c * VL, v_mul(f, acc[i][c]));
    }
}

// Scores of N queries and `count` groups of 16 keys of a page from `first` on; meanwhile a share of their values is fetched.
INLINE void keys_of(const tk_attn *a, const uint8_t *k, int first, int count, const float *const *q, float *s,
                    share want, const int type, const int N) {
    const int G = TV(N) / NV;
    const size_t sixteen = a->kept->value_row * 16, dim = a->kept->dim;
    for (int g, at = 0; at < count; at += g, s += 16 * g) {
        g = imin(G, count - at > 3 ? 4 : count - at > 1 ? 2 : 1);
        const size_t all = want.from ? g * sixteen / want.n : 0, fetch = (all + dim - 1) / dim;
        const uint8_t *ahead = want.from ? *want.from + at * sixteen + all * want.k : k;
        int part = (first + at) * NV;
        if (G >= 4 && g == 4) score_vectors(a, k, part, q, s, ROW, ahead, fetch, type, N, 4 * NV);
        else if (G >= 2 && g == 2) score_vectors(a, k, part, q, s, ROW, ahead, fetch, type, N, 2 * NV);
        else score_vectors(a, k, part, q, s, ROW, ahead, fetch, type, N, NV);
    }
}

// Weights times the scales of a block of 32 dimensions, to w by slot.
INLINE void scaled(const run *u, int block, const float *p, float *w) {
    const uint8_t *scale = u->scale + 2 * TK_PAGE * block;
    if (u->at % 16 == u->slot % 16)
        for (int j = u->slot / VL * VL; j < u->slot + u->n; j += VL)
            v_store(w + j, v_mul(v_load(p + u->at - u->slot + j), v_half(scale + 2 * j)));
    else
        for (int j = 0; j < u->n; j++) v_store(w + u->slot + j, v_mul(v_set(p[u->at + j]), v_half1(scale + 2 * (u->slot + j))));
}

// o[i] += Σ p·v over the runs, for N queries and NT vectors from dimension d on. Meanwhile a share of the keys of as many positions
// of the next block is fetched, from first to last: NT·VL of dim dimensions fetch that part of the share.
INLINE void value_columns(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o, int d,
                          share want, const int type, const int N, const int NT) {
    vf acc[QT][64 / VL], x[64 / VL], y[2];
    float by[QT * 2 * SLOTS];
    const int q8 = type == TK_KV_Q8_0, B = q8 ? (NT * VL + 31) / 32 : 1, d16 = tk_round16(a->kept->value_dim);
    const size_t size = q8 ? 1 : 2, next = a->kept->value_row;
    const size_t key = a->kept->values / TK_PAGE, fetch = want.from ? key * NT * VL / d16 / want.n : 0;
    const size_t page = a->kept->values, first = runs->at / TK_PAGE;
    size_t next_key = 0;
    for (int r = 0; fetch && r < nruns; r++) next_key += key * runs[r].n;
    if (fetch) next_key = next_key * want.k / want.n + next_key / want.n * d / d16;
    UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < NT; c++) acc[i][c] = v_load(o[i] + d + c * VL);
    for (int r = 0; r < nruns; r++) {
        const uint8_t *v = runs[r].v + size * d, *keys = v;
        if (fetch) keys = want.from[first + next_key / page] + next_key % page;
        next_key += runs[r].n * fetch;
        const float *w = q8 ? by + runs[r].slot : p + runs[r].at;
        const int of_query = q8 ? 2 * SLOTS : ROW;
        for (int i = 0; q8 && i < N; i++)
            for (int b = 0; b < B; b++) scaled(runs + r, d / 32 + b, p + i * ROW, by + (2 * i + b) * SLOTS);
        for (int j = 0; j < runs[r].n; j++, v += next, w++) {
            UNROLL for (int c = 0; c < NT; c++) x[c] = q8 ? v_codes(v + c * VL) : v_half(v + c * VL * 2);
            if (fetch) fetch_piece(keys, fetch);
            keys += fetch;
            UNROLL for (int i = 0; i < N; i++) {
                UNROLL for (int b = 0; b < B; b++) y[b] = v_set(w[i * of_query + b * SLOTS]);
                UNROLL for (int c = 0; c < NT; c++) acc[i][c] = v_fma(y[q8 ? c * VL / 32 : 0], x[c], acc[i][c]);
            }
        }
    }
    UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < NT; c++) v_store(o[i] + d + c * VL, acc[i][c]);
}

INLINE void values_of(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o,
                      share want, const int type, const int N) {
    const int T = TV(N) * VL;
    int dim = tk_round16(a->kept->value_dim), d = 0;
    for (; d + T <= dim; d += T) value_columns(a, runs, nruns, p, o, d, want, type, N, TV(N));
    if (T >= 64 && d + 32 <= dim) { value_columns(a, runs, nruns, p, o, d, want, type, N, 32 / VL); d += 32; }
    if (T >= 32 && d < dim) value_columns(a, runs, nruns, p, o, d, want, type, N, NV);
}

// f with the number of queries as a constant.
#if QT == 6
#define CASES(n, f, t) switch (n) { case 1: f(t, 1); break; case 2: f(t, 2); break; case 3: f(t, 3); break; \
                                    case 4: f(t, 4); break; case 5: f(t, 5); break; default: f(t, 6); }
#define FOURS(n, f, t) if (n > 8) { f(t, 12); } else if (n > 4) { f(t, 8); } else { f(t, 4); }
#else
#define CASES(n, f, t) (void)(n); f(t, 1)
#define FOURS(n, f, t) (void)(n); f(t, 1)
#endif
#define KEYS(type, N) keys_of(a, k, first, count, q, s, want, type, N)
#define CELL(type, N) score_vectors(a, k, part, q, s, VL, k, 0, type, N, 1)
#define VALUES(type, N) values_of(a, runs, nruns, p, o, want, type, N)
#define DEFINE(name, type)                                                                                              \
    TARGET static void keys_##name(const tk_attn *a, const uint8_t *k, int first, int count, const float *const *q, int n, \
                                   float *s, share want) { CASES(n, KEYS, type); }        \
    TARGET static void values_##name(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o,     \
                                     share want, int n) { CASES(n, VALUES, type); }
#define DEFINE_CELLS(name, type)                                                                                        \
    TARGET static void cells_##name(const tk_attn *a, const uint8_t *k, int part, const float *const *q, int n,         \
                                    float *s) { FOURS(n, CELL, type); }
DEFINE(f16, TK_KV_F16)
DEFINE(q8, TK_KV_Q8_0)
DEFINE_CELLS(f16, TK_KV_F16)
DEFINE_CELLS(q8, TK_KV_Q8_0)

static void (*const keys_by[])(const tk_attn *, const uint8_t *, int, int, const float *const *, int, float *, share) = {
    [TK_KV_F16] = keys_f16, [TK_KV_Q8_0] = keys_q8};
static void (*const values_by[])(const tk_attn *, const run *, int, const float *, float *const *, share, int) = {
    [TK_KV_F16] = values_f16, [TK_KV_Q8_0] = values_q8};

// What any of queries [i, i+n) sees of a page of the prefix; returns 0 if it is nothing.
static int page_seen(const batch *t, int i, int n, int page, int *lo, int *hi) {
    *lo = TK_SEG;
    *hi = 0;
    for (int r = t->row[i]; r <= t->row[i + n - 1]; r++) {
        int from = imax(t->a->see[r].lo, page * TK_PAGE), to = imin(t->a->see[r].mid, (page + 1) * TK_PAGE);
        if (from >= to) continue;
        *lo = imin(*lo, from);
        *hi = imax(*hi, to);
    }
    return *lo < *hi;
}

// Scores of the prefix's keys. Lanes of keys that a query does not see are computed and not used.
TARGET static void score_prefix(const batch *t) {
    const tk_attn *a = t->a;
    for (int page = 0, lo, hi; page < TK_SEG / TK_PAGE; page++) {
        if (!page_seen(t, 0, t->n, page, &lo, &hi)) continue;
        const uint8_t *keys = a->page[page], *v;
        int all = (t->n + QT - 1) / QT;
        for (int i = 0, m, parts = all; i < t->n; i += m, parts--) {
            m = (t->n - i + parts - 1) / parts;
            if (!page_seen(t, i, m, page, &lo, &hi)) continue;
            int g = lo / 16, count = (hi + 15) / 16 - g;
            v = keys + a->kept->values + g % 4 * 16 * a->kept->value_row;
            share want = share_of(t->t == 0 ? &v : NULL, all - parts, all);
            keys_by[a->kv->type](a, keys, g % 4, count, t->q + i, m, t->s + i * ROW + 16 * g, want);
        }
    }
}

// Scores of the n queries listed in `of` and cells [id·VL, (id+1)·VL).
TARGET static void score_some(const batch *t, unsigned id, const int *of, int n) {
    _Alignas(64) float some[CELLS * VL];
    const tk_attn *a = t->a;
    const float *q[CELLS];
    if (n < 1 || n > CELLS) return;
    const uint8_t *k = tk_keys(a->kv, a->kept, a->head, id / (TK_PAGE / VL));
    for (int i = 0; i < CELLS; i++) q[i] = t->q[of[i < n ? i : 0]];
    if (a->kv->type == TK_KV_Q8_0) cells_q8(a, k, id % (TK_PAGE / VL), q, n, some);
    else cells_f16(a, k, id % (TK_PAGE / VL), q, n, some);
    for (int i = 0, end; i < n; i = end) {
        const tk_sight *see = a->see + t->row[of[i]];
        for (end = i + 1; end < n && t->row[of[end]] == t->row[of[i]];) end++;
        for (int j = see->mid; j < see->hi; j++) {
            unsigned cell = (unsigned)tk_cell_at(see, j);
            if (cell / VL != id) continue;
            for (int h = i; h < end; h++) t->s[of[h] * ROW + j] = some[h * VL + cell % VL];
        }
    }
}

// Scores of ancestors: cells of a tree lie side by side in order of arrival, so VL of them are computed at
// once, for the queries of all rows that have an ancestor among them (Ghidorah's sparse part: sparse in
// vectors of keys, dense inside).
TARGET static void score_cells(const batch *t, int id, uint64_t rows) {
    int group = t->a->group, all = imin(t->n, __builtin_popcountll(rows) * group), parts = (all + CELLS - 1) / CELLS;
    int of[CELLS], n = 0, most = imin(CELLS, ((all + parts - 1) / parts + 3) / 4 * 4);
    for (; rows; rows &= rows - 1) {
        int r = t->row[0] + __builtin_ctzll(rows), from = imax(0, r * group - t->t), to = imin(t->n, (r + 1) * group - t->t);
        for (int i = from; i < to; i++) {
            of[n++] = i;
            if (n < most) continue;
            score_some(t, id, of, n);
            n = 0;
        }
    }
    if (n) score_some(t, id, of, n);
}

TARGET static void score_tree(const batch *t) {
    struct { int id; uint64_t rows; } want[64];
    int n = 0;
    for (int r = t->row[0]; r <= t->row[t->n - 1]; r++) {
        const tk_sight *see = t->a->see + r;
        for (int j = see->mid; j < see->hi; j++) {
            int id = tk_cell_at(see, j) / VL, i = n - 1;
            while (i >= 0 && want[i].id != id) i--;
            if (i < 0 && n == 64)
                while (n > 0) { n--; score_cells(t, want[n].id, want[n].rows); }  // some may be computed again
            if (i < 0) {
                i = n++;
                want[i].id = id;
                want[i].rows = 0;
            }
            want[i].rows |= (uint64_t)1 << (r - t->row[0]);
        }
    }
    while (n > 0) { n--; score_cells(t, want[n].id, want[n].rows); }
}

// Turns the scores s[lo, hi) into weights exp(s - top), and those beside them in the same vectors into 0 (or
// NaN, if all are); returns their sum in 16 lanes.
INLINE float weigh(const tk_attn *a, float *s, int lo, int hi, float *top) {
    int from = lo / VL * VL;
    if (a->softcap != 0) a->soft_cap(s + from, hi - from, a->softcap);
    vf m = v_set(-bits_f32(0x7f800000)), sum[NV];
    for (int j = from; j < hi; j += VL) {
        vf x = v_load(s + j);
        if (j < lo || j + VL > hi) v_store(s + j, x = v_only(x, lo - j, hi - j));
        m = v_max(x, m);
    }
    *top = v_top(m);
    m = v_set(*top);
    UNROLL for (int c = 0; c < NV; c++) sum[c] = v_zero();
    for (int j = lo / 16 * 16; j < hi; j += 16)
        UNROLL for (int c = 0; c < NV; c++) {
            int at = j + c * VL;
            if (NV > 1 && (at < from || at >= hi)) continue;
            vf x = v_exp(v_sub(v_load(s + at), m));
            v_store(s + at, x);
            sum[c] = v_add(sum[c], x);
        }
    return v_sum16(sum);
}

TARGET __attribute__((noinline)) static void weigh_all(const batch *t) {
    const tk_attn *a = t->a;
    int d16 = tk_round16(a->kept->value_dim);
    for (int i = 0; i < t->n; i++) {
        const tk_sight *see = a->see + t->row[i];
        if (see->lo < see->hi) t->o[i][d16 + 1] = weigh(a, t->s + i * ROW, see->lo, see->hi, t->o[i] + d16);
    }
}

static int tree_runs(const tk_attn *a, const tk_sight *see, run *runs) {
    int n = 0;
    for (int j = see->mid; j < see->hi; j++) {
        int cell = tk_cell_at(see, j), slot = cell % TK_PAGE;
        if (n && slot && cell == tk_cell_at(see, j - 1) + 1) { runs[n - 1].n++; continue; }
        const uint8_t *v = tk_keys(a->kv, a->kept, a->head, cell / TK_PAGE) + a->kept->values;
        runs[n++] = (run){v + slot * a->kept->value_row, v + a->kept->value_scales, j, slot, 1};
    }
    return n;
}

// The values of positions [from, to) of the prefix, for queries [i, i+n). Runs of pages are taken at once for each piece of the dimensions:
// sums stay in registers longer, and a line is read once for a tile.
INLINE void value_range(const batch *t, int i, int n, int from, int to, share want) {
    const tk_attn *a = t->a;
    run runs[TK_SEG / TK_PAGE];
    int k = 0;
    for (int end; from < to; from = end) {
        int page = from / TK_PAGE, slot = from % TK_PAGE;
        const uint8_t *v = a->page[page] + a->kept->values;
        end = imin(to, (page + 1) * TK_PAGE);
        runs[k++] = (run){v + slot * a->kept->value_row, v + a->kept->value_scales, from, slot, end - from};
    }
    if (k) values_by[a->kv->type](a, runs, k, t->s + i * ROW, t->o + i, want, n);
}

// Values for a tile: positions that all its rows see for all at once, the others for each row.
INLINE void value_tile(const batch *t, int i, int n, share want) {
    const tk_sight *see = t->a->see;
    int all0 = 0, all1 = TK_SEG, seen = 0;
    for (int r = t->row[i]; r <= t->row[i + n - 1]; r++) {
        if (see[r].lo >= see[r].hi) continue;
        seen = 1;
        all0 = imax(all0, see[r].lo);
        all1 = imin(all1, see[r].mid);
    }
    if (!seen) return;
    if (all0 >= all1) all0 = all1 = TK_SEG;
    for (int k = i, to; all0 > 0 && k < i + n; k = to) {
        const tk_sight *row = see + t->row[k];
        for (to = k + 1; to < i + n && t->row[to] == t->row[k];) to++;
        value_range(t, k, to - k, row->lo, imin(all0, row->mid), (share){0});
    }
    value_range(t, i, n, all0, all1, want);
    for (int k = i, to; all1 < TK_SEG && k < i + n; k = to) {
        const tk_sight *row = see + t->row[k];
        for (to = k + 1; to < i + n && t->row[to] == t->row[k];) to++;
        value_range(t, k, to - k, imax(all1, row->lo), row->mid, (share){0});
    }
}

// The most queries from i on that make a tile: some whole rows, or a part of one.
INLINE int tile_at(const batch *t, int i) {
    int group = t->a->group, parts = (group + QT - 1) / QT;
    if (parts == 1) return imin(QT / group * group, t->n - i);
    return imin((group + parts - 1) / parts, imin(group - (t->t + i) % group, t->n - i));
}

TARGET static void value_prefix(const batch *t) {
    const uint8_t *const *ahead = t->t == 0 && t->a->ahead[0] ? t->a->ahead : NULL;
    int tiles = 0;
    for (int i = 0; i < t->n; i += tile_at(t, i)) tiles++;
    for (int i = 0, k = 0, n; i < t->n; i += n, k++) {
        n = tile_at(t, i);
        value_tile(t, i, n, share_of(ahead, k, tiles));
    }
}

TARGET static void value_tree(const batch *t) {
    const tk_attn *a = t->a;
    run runs[MAXRUNS];
    for (int i = 0, end; i < t->n; i = end) {
        for (end = i + 1; end < t->n && t->row[end] == t->row[i];) end++;
        int k = tree_runs(a, a->see + t->row[i], runs);
        for (int at = i, m; k && at < end; at += m) {
            m = imin(end - at, tile_at(t, at));
            values_by[a->kv->type](a, runs, k, t->s + at * ROW, t->o + at, (share){0}, m);
        }
    }
}

INLINE void attend_batch(batch *t) {
    const tk_attn *a = t->a;
    int dim = a->kept->dim, d16 = tk_round16(a->kept->value_dim), tree = 0;
    for (int i = 0, r = t->t / a->group, h = t->t % a->group; i < t->n; i++) {
        t->row[i] = r;
        t->q[i] = a->q + r * a->ldq + h * dim;
        t->o[i] = a->out + r * a->ldout + h * (d16 + 2);
        for (int d = 0; d < d16; d += 16) UNROLL for (int c = 0; c < 16; c += VL) v_store(t->o[i] + d + c, v_zero());
        tree |= a->see[r].mid < a->see[r].hi;
        if (++h == a->group) { h = 0; r++; }
    }
    score_prefix(t);
    if (tree) score_tree(t);
    weigh_all(t);
    value_prefix(t);
    if (tree) value_tree(t);
}

TARGET static void attend_block(const tk_attn *a) {
    _Alignas(64) float s[BATCH * ROW];
    batch t;  // rows, q and o are filled in per batch
    t.a = a;
    t.s = s;
    t.t = 0;
    for (int all = a->rows * a->group; t.t < all; t.t += t.n) {
        t.n = imin(BATCH, all - t.t);
        attend_batch(&t);
    }
}

// The weighted sums of blocks for one query and NT vectors from dimension d on, divided by Σ exp. A sink comes before them: all but its
// share of the sum is zero.
INLINE void join_columns(const float *part, size_t one, int blocks, int sums, float top, const float *sink, float *out, const int NT) {
    vf o[64 / VL], l = v_zero();
    if (sink) l = v_fma(v_exp(v_sub(v_set(*sink), v_set(top))), v_set(1), l);
    UNROLL for (int c = 0; c < NT; c++) o[c] = v_zero();
    for (int b = 0; b < blocks; b++, part += one) {
        vf w = v_exp(v_sub(v_set(part[sums]), v_set(top)));
        l = v_fma(w, v_set(part[sums + 1]), l);
        UNROLL for (int c = 0; c < NT; c++) o[c] = v_fma(w, v_load(part + c * VL), o[c]);
    }
    UNROLL for (int c = 0; c < NT; c++) v_store(out + c * VL, v_div(o[c], l));
}

TARGET static void join_blocks(const float *part, int blocks, int group, int dim, const float *sinks, float *out) {
    int d16 = tk_round16(dim);
    size_t one = tk_part_floats(group, dim);
    for (int h = 0; h < group; h++, out += dim, part += d16 + 2) {
        float top = -bits_f32(0x7f800000), last[16];
        const float *sink = sinks ? sinks + h : NULL;
        if (sink && *sink > top) top = *sink;
        for (int b = 0; b < blocks; b++) if (part[b * one + d16] > top) top = part[b * one + d16];
        int d = 0;
        // Of one block c = exp(0) = 1: only a negative zero of it changes.
        if (blocks == 1 && !sink && top - top == 0)
            for (vf l = v_set(part[d16 + 1]); d + 16 <= dim; d += 16)
                UNROLL for (int c = d; c < d + 16; c += VL) v_store(out + c, v_div(v_add(v_load(part + c), v_zero()), l));
        for (; d + 64 <= dim; d += 64) join_columns(part + d, one, blocks, d16 - d, top, sink, out + d, 64 / VL);
        for (; d + 16 <= dim; d += 16) join_columns(part + d, one, blocks, d16 - d, top, sink, out + d, NV);
        if (d == dim) continue;
        join_columns(part + d, one, blocks, d16 - d, top, sink, last, NV);
        memcpy(out + d, last, sizeof(float) * (dim - d));
    }
}
