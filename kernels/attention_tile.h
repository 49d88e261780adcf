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
//   v_keep(a, from, to)   lanes [from, to) of a, zeros elsewhere
//   v_sum16(a)            the sum of 16/VL vectors in the order of reductions
//   v_top(a)              the largest lane
//   v_fetch(p)            asks for a cache line
//
// Scores: lanes are keys, so that a query's product with 16 of them runs in order over the dimensions and
// nothing is added across lanes. Values: lanes are dimensions. A tile of queries shares each loaded vector.
// Each query has its own range of positions; what all of a tile see is done for all at once, the rest
// (the causal edge, a window's edge, ancestors) per row, in order of position.
#include "tk.h"
#include "scalar.h"

enum { NV = 16 / VL, ROW = TK_SEG + 16, MAXRUNS = TK_SEG + 8 };

#define UNROLL _Pragma("GCC unroll 16")

typedef struct { const uint8_t *v, *scale; int at, n; } run;  // n values, one behind the other, from position at on

typedef struct {
    const tk_attn *a;
    int t, n;                    // queries [t, t+n) of the block
    int r0, r1;                  // their rows
    int all0, all1;              // positions of the prefix that all of them see; none if all0 ≥ all1
    const float *q[QT];
    float *o[QT];
    float *s;                    // (QT, ROW): scores, then weights
} tile;

// Scores of N queries and G groups of 16 keys, to s. Meanwhile `fetch` bytes per dimension are fetched.
INLINE void score_groups(const tk_attn *a, const uint8_t *k, const float *const *q, float *s, size_t lds,
                         const uint8_t *ahead, size_t fetch, const int type, const int N, const int G) {
    vf acc[QT][64 / VL], x[64 / VL], scale[64 / VL];
    const size_t group = a->kv->key_group;
    UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < G * NV; c++) acc[i][c] = v_zero();
    for (int d = 0, dim = a->kv->head_dim; d < dim;) {
        int end = dim;
        if (type == TK_KV_Q8_0) {
            UNROLL for (int c = 0; c < G * NV; c++) scale[c] = v_half(k + c / NV * group + c % NV * VL * 2);
            k += 32;
            end = d + 32;
        }
        for (; d < end; d++) {
            UNROLL for (int c = 0; c < G * NV; c++) {
                const uint8_t *at = k + c / NV * group;
                if (type == TK_KV_Q8_0) x[c] = v_mul(v_codes(at + c % NV * VL), scale[c]);
                else x[c] = v_half(at + c % NV * VL * 2);
            }
            k += type == TK_KV_Q8_0 ? 16 : 32;
            for (size_t b = 0; b < fetch; b += 64) v_fetch(ahead + b);
            ahead += fetch;
            UNROLL for (int i = 0; i < N; i++) {
                vf y = v_set(q[i][d]);
                UNROLL for (int c = 0; c < G * NV; c++) acc[i][c] = v_fma(y, x[c], acc[i][c]);
            }
        }
    }
    const vf f = v_set(a->scale);
    UNROLL for (int i = 0; i < N; i++)
        UNROLL for (int c = 0; c < G * NV; c++) v_store(s + i * lds + c * VL, v_mul(f, acc[i][c]));
}

// Scores of N queries and the groups of 16 keys of a page, of which `count` are wanted and the page's others
// may be computed too; meanwhile their values are fetched from v on, unless v is NULL.
INLINE void scores_of(const tk_attn *a, const uint8_t *k, int count, const float *const *q, float *s, size_t lds,
                      const uint8_t *v, const int type, const int N) {
    const int G = TV(N) / NV;
    const size_t each = v ? a->kv->value_row * 16 / a->kv->head_dim : 0;
    for (int g, at = 0; at < count; at += g, s += 16 * g, k += g * a->kv->key_group) {
        const uint8_t *ahead = v ? v + at * 16 * a->kv->value_row : k;
        g = G >= 4 && count - at > 2 ? 4 : G >= 2 && count - at > 1 ? 2 : 1;
        if (G >= 4 && g == 4) score_groups(a, k, q, s, lds, ahead, 4 * each, type, N, 4);
        else if (G >= 2 && g == 2) score_groups(a, k, q, s, lds, ahead, 2 * each, type, N, 2);
        else score_groups(a, k, q, s, lds, ahead, each, type, N, 1);
    }
}

// o[i] += Σ p·v over the runs, for N queries and NT vectors from dimension d on. Meanwhile keys of the same
// positions in the next block are fetched, if there is one: of each run, the part that d is of all dimensions.
INLINE void value_columns(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o, int d,
                          const uint8_t *const *ahead, const int type, const int N, const int NT) {
    vf acc[QT][64 / VL], x[64 / VL], scale[2];
    const int d16 = tk_round16(a->kv->head_dim);
    const size_t next = a->kv->value_row, key = a->kv->key_group / 16, fetch = ahead ? key * NT * VL / d16 : 0;
    UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < NT; c++) acc[i][c] = v_load(o[i] + d + c * VL);
    for (int r = 0; r < nruns; r++) {
        const uint8_t *v = runs[r].v + (type == TK_KV_Q8_0 ? d : 2 * d), *scales = runs[r].scale + d / 32 * 2;
        const uint8_t *keys = v;
        if (fetch) keys = ahead[runs[r].at / TK_PAGE] + (runs[r].at % TK_PAGE + runs[r].n * d / d16) * key;
        const float *w = p + runs[r].at;
        for (int j = 0; j < runs[r].n; j++, v += next, w++) {
            if (type == TK_KV_Q8_0) {
                UNROLL for (int c = 0; c < (NT * VL + 31) / 32; c++) scale[c] = v_half1(scales + 2 * c);
                scales += a->kv->head_dim / 16;
                UNROLL for (int c = 0; c < NT; c++) x[c] = v_mul(v_codes(v + c * VL), scale[c * VL / 32]);
            } else {
                UNROLL for (int c = 0; c < NT; c++) x[c] = v_half(v + c * VL * 2);
            }
            for (size_t b = 0; b < fetch; b += 64) v_fetch(keys + b);
            keys += fetch;
            UNROLL for (int i = 0; i < N; i++) {
                vf y = v_set(w[i * ROW]);
                UNROLL for (int c = 0; c < NT; c++) acc[i][c] = v_fma(y, x[c], acc[i][c]);
            }
        }
    }
    UNROLL for (int i = 0; i < N; i++) UNROLL for (int c = 0; c < NT; c++) v_store(o[i] + d + c * VL, acc[i][c]);
}

// About a page of values at a time, which stays in the first-level cache for all dimensions.
INLINE void values_of(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o,
                      const uint8_t *const *ahead, const int type, const int N) {
    const int T = TV(N) * VL;
    int dim = tk_round16(a->kv->head_dim);
    for (int n; nruns > 0; runs += n, nruns -= n) {
        int d = 0, positions = 0;
        for (n = 0; n < nruns && positions < TK_PAGE; n++) positions += runs[n].n;
        for (; d + T <= dim; d += T) value_columns(a, runs, n, p, o, d, ahead, type, N, TV(N));
        if (T >= 64 && d + 32 <= dim) { value_columns(a, runs, n, p, o, d, ahead, type, N, 32 / VL); d += 32; }
        if (T >= 32 && d < dim) value_columns(a, runs, n, p, o, d, ahead, type, N, NV);
    }
}

// f with the number of queries as a constant.
#if QT == 6
#define CASES(n, f) switch (n) { case 1: f(1); break; case 2: f(2); break; case 3: f(3); break; case 4: f(4); break; \
                                 case 5: f(5); break; default: f(6); }
#else
#define CASES(n, f) (void)(n); f(1)
#endif

// One function per type, so that each is compiled once.
#define BOTH(a, f, ...) if ((a)->kv->type == TK_KV_Q8_0) f##_q8_0(__VA_ARGS__); else f##_f16(__VA_ARGS__)
#define SCORES_f16(N) scores_of(a, k, count, q, s, lds, v, TK_KV_F16, N)
#define VALUES_f16(N) values_of(a, runs, nruns, p, o, ahead, TK_KV_F16, N)
#define SCORES_q8_0(N) scores_of(a, k, count, q, s, lds, v, TK_KV_Q8_0, N)
#define VALUES_q8_0(N) values_of(a, runs, nruns, p, o, ahead, TK_KV_Q8_0, N)
#define DEFINE(type)                                                                                                    \
    TARGET static void scores_##type(const tk_attn *a, const uint8_t *k, int count, const float *const *q, int n,       \
                                     float *s, size_t lds, const uint8_t *v) { CASES(n, SCORES_##type); }               \
    TARGET static void values_##type(const tk_attn *a, const run *runs, int nruns, const float *p, float *const *o,     \
                                     const uint8_t *const *ahead, int n) { CASES(n, VALUES_##type); }
DEFINE(f16)
DEFINE(q8_0)

// Scores of the prefix's keys. Lanes of keys that a query does not see are computed and not used.
INLINE void score_prefix(tile *t, int first) {
    const tk_attn *a = t->a;
    int lo = TK_SEG, hi = 0;
    for (int r = t->r0; r < t->r1; r++)
        if (a->see[r].lo < a->see[r].mid) {
            lo = imin(lo, a->see[r].lo);
            hi = imax(hi, a->see[r].mid);
        }
    for (int g = lo / 16, end; g * 16 < hi; g = end) {
        const uint8_t *page = a->page[g / 4];
        end = imin(g / 4 * 4 + 4, (hi + 15) / 16);
        BOTH(a, scores, a, page + g % 4 * a->kv->key_group, end - g, t->q, t->n, t->s + 16 * g, ROW,
             first ? page + a->kv->values + g % 4 * 16 * a->kv->value_row : NULL);
    }
}

// Scores of ancestors: cells of a tree lie side by side in order of arrival, so a group of 16 is computed
// whole for all queries of the tile, and each row picks its own (Ghidorah's sparse part, made dense in
// groups: 16 keys cost as many operations as one would with lanes along the dimensions).
INLINE void score_tree(tile *t) {
    const tk_attn *a = t->a;
    _Alignas(64) float some[QT * 16];
    int done[64], ndone = 0;
    for (int r = t->r0; r < t->r1; r++)
        for (int i = a->see[r].mid; i < a->see[r].hi; i++) {
            int group = tk_cell_at(a->see + r, i) / 16, known = 0;
            for (int j = ndone - 1; j >= 0 && !known; j--) known = done[j] == group;
            if (known) continue;
            if (ndone < 64) done[ndone++] = group;  // beyond that a group may be computed again
            const uint8_t *page = tk_keys(a->kv, a->layer, a->head, group / 4);
            BOTH(a, scores, a, page + group % 4 * a->kv->key_group, 1, t->q, t->n, some, 16, NULL);
            for (int k = t->r0; k < t->r1; k++) {
                int from = imax(0, k * a->group - t->t), to = imin(t->n, (k + 1) * a->group - t->t);
                for (int j = a->see[k].mid; j < a->see[k].hi; j++) {
                    int cell = tk_cell_at(a->see + k, j);
                    if (cell / 16 == group)
                        for (int h = from; h < to; h++) t->s[h * ROW + j] = some[h * 16 + cell % 16];
                }
            }
        }
}

// Turns the scores s[lo, hi) into weights exp(s - top); returns their sum in 16 lanes.
INLINE float weigh(const tk_attn *a, float *s, int lo, int hi, float *top) {
    const float inf = bits_f32(0x7f800000);
    int from = lo / 16 * 16;
    if (a->softcap != 0) a->soft_cap(s + from, hi - from, a->softcap);
    for (int j = from; j < lo; j++) s[j] = -inf;
    for (int j = hi; j % 16; j++) s[j] = -inf;
    vf m = v_set(-inf), sum[NV];
    for (int j = from; j < hi; j += VL) m = v_max(v_load(s + j), m);
    *top = v_top(m);
    m = v_set(*top);
    UNROLL for (int c = 0; c < NV; c++) sum[c] = v_zero();
    for (int j = from; j < hi; j += 16)
        UNROLL for (int c = 0; c < NV; c++) {
            int at = j + c * VL;
            vf e = v_exp(v_sub(v_load(s + at), m));
            if (at < lo || at + VL > hi) e = v_keep(e, lo - at, hi - at);
            v_store(s + at, e);
            sum[c] = v_add(sum[c], e);
        }
    return v_sum16(sum);
}

// The values of prefix positions [from, to), page by page.
static int prefix_runs(const tk_attn *a, int from, int to, run *runs) {
    int n = 0;
    for (int end; from < to; from = end) {
        const uint8_t *v = a->page[from / TK_PAGE] + a->kv->values;
        int slot = from % TK_PAGE;
        end = imin(to, from - slot + TK_PAGE);
        runs[n++] = (run){v + slot * a->kv->value_row, v + a->kv->value_scales + slot * (a->kv->head_dim / 16), from, end - from};
    }
    return n;
}

static int tree_runs(const tk_attn *a, const tk_sight *see, run *runs) {
    int n = 0;
    for (int j = see->mid; j < see->hi; j++) {
        int cell = tk_cell_at(see, j), slot = cell % TK_PAGE;
        if (n && slot && cell == tk_cell_at(see, j - 1) + 1) { runs[n - 1].n++; continue; }
        const uint8_t *v = tk_keys(a->kv, a->layer, a->head, cell / TK_PAGE) + a->kv->values;
        runs[n++] = (run){v + slot * a->kv->value_row, v + a->kv->value_scales + slot * (a->kv->head_dim / 16), j, 1};
    }
    return n;
}

// What row r sees before (or after) the positions that the whole tile sees.
INLINE void row_values(tile *t, int r, int before) {
    const tk_attn *a = t->a;
    const tk_sight *see = a->see + r;
    run runs[MAXRUNS];
    float *const *o;
    int n, shared = t->all0 < t->all1;
    if (see->lo == see->hi) return;
    if (before) n = shared ? prefix_runs(a, see->lo, t->all0, runs) : 0;
    else {
        n = prefix_runs(a, shared ? t->all1 : see->lo, see->mid, runs);
        n += tree_runs(a, see, runs + n);
    }
    if (!n) return;
    int from = imax(0, r * a->group - t->t), to = imin(t->n, (r + 1) * a->group - t->t);
    o = t->o + from;
    BOTH(a, values, a, runs, n, t->s + from * ROW, o, NULL, to - from);
}

TARGET static void attend_tile(const tk_attn *a, int first, int n) {
    _Alignas(64) float s[QT * ROW];
    tile t = {.a = a, .t = first, .n = n, .r0 = first / a->group, .r1 = (first + n - 1) / a->group + 1, .all1 = TK_SEG, .s = s};
    int d16 = tk_round16(a->kv->head_dim), group = a->group, none = 1;
    for (int i = 0; i < n; i++) {
        int k = first + i;
        t.q[i] = a->q + k / group * a->ldq + k % group * a->kv->head_dim;
        t.o[i] = a->out + k / group * a->ldout + k % group * (d16 + 2);
        memset(t.o[i], 0, sizeof(float) * d16);
    }
    for (int r = t.r0; r < t.r1; r++)
        if (a->see[r].lo < a->see[r].hi) {
            t.all0 = imax(t.all0, a->see[r].lo);
            t.all1 = imin(t.all1, a->see[r].mid);
            none = 0;
        }
    if (none) return;
    score_prefix(&t, first == 0);
    score_tree(&t);
    for (int i = 0; i < n; i++) {
        int k = first + i;
        t.o[i][d16 + 1] = weigh(a, s + i * ROW, a->see[k / group].lo, a->see[k / group].hi, t.o[i] + d16);
    }
    const uint8_t *const *ahead = first == 0 && a->ahead[0] ? a->ahead : NULL;
    if (t.r1 - t.r0 == 1) {
        run runs[MAXRUNS];
        const tk_sight *see = a->see + t.r0;
        int k = prefix_runs(a, see->lo, see->mid, runs);
        k += tree_runs(a, see, runs + k);
        BOTH(a, values, a, runs, k, s, t.o, ahead, n);
        return;
    }
    for (int r = t.r0; r < t.r1; r++) row_values(&t, r, 1);
    if (t.all0 < t.all1) {
        run runs[8];
        int k = prefix_runs(a, t.all0, t.all1, runs);
        BOTH(a, values, a, runs, k, s, t.o, ahead, n);
    }
    for (int r = t.r0; r < t.r1; r++) row_values(&t, r, 0);
}

TARGET static void attend_block(const tk_attn *a) {
    // A tile is some whole rows, or a part of one.
    int all = a->rows * a->group, parts = (a->group + QT - 1) / QT;
    int most = parts > 1 ? (a->group + parts - 1) / parts : QT / a->group * a->group;
    for (int at = 0, n; at < all; at += n) {
        n = imin(most, (parts > 1 ? at / a->group * a->group + a->group : all) - at);
        attend_tile(a, at, n);
    }
}

// The weighted sums of blocks for one query and NT vectors from dimension d on, divided by Σ exp.
INLINE void join_columns(const float *part, size_t one, int blocks, int sums, float top, float *out, const int NT) {
    vf o[64 / VL], l = v_zero();
    UNROLL for (int c = 0; c < NT; c++) o[c] = v_zero();
    for (int b = 0; b < blocks; b++, part += one) {
        vf w = v_exp(v_sub(v_set(part[sums]), v_set(top)));
        l = v_fma(w, v_set(part[sums + 1]), l);
        UNROLL for (int c = 0; c < NT; c++) o[c] = v_fma(w, v_load(part + c * VL), o[c]);
    }
    UNROLL for (int c = 0; c < NT; c++) v_store(out + c * VL, v_div(o[c], l));
}

TARGET static void join_blocks(const float *part, int blocks, int group, int dim, float *out) {
    int d16 = tk_round16(dim);
    size_t one = tk_part_floats(group, dim);
    for (int h = 0; h < group; h++, out += dim, part += d16 + 2) {
        float top = -bits_f32(0x7f800000), last[16];
        for (int b = 0; b < blocks; b++) if (part[b * one + d16] > top) top = part[b * one + d16];
        int d = 0;
        for (; d + 64 <= dim; d += 64) join_columns(part + d, one, blocks, d16 - d, top, out + d, 64 / VL);
        for (; d + 16 <= dim; d += 16) join_columns(part + d, one, blocks, d16 - d, top, out + d, NV);
        if (d == dim) continue;
        join_columns(part + d, one, blocks, d16 - d, top, last, NV);
        memcpy(out + d, last, sizeof(float) * (dim - d));
    }
}
