// Attention over the paged KV cache: how a pass is cut into units, where the keys of a row are, and how
// blocks of 256 positions become one result.
//
// Neighbouring rows of one session see the same prefix, so the whole blocks of it are computed for
// several rows at once, and keys are fetched and widened once for all of them. What is left of a row,
// its last block with the ancestors in it, is computed for that row. Every block's result is kept; the
// thread that finishes a row's last block combines them in order of position.
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "tk.h"
#include "scalar.h"

enum { QUERIES = 32, RUN = 8 };  // most queries, and rows, that share one fetch of keys

static int blocks_of(const tk_pass *a, int row) { return a->pos[row] / TK_SEG + 1; }

uint16_t *tk_cell(const tk_kv *kv, int layer, int head, int32_t at) {
    size_t plane = (size_t)kv->kv_heads * TK_PAGE * kv->head_dim;
    uint16_t *page = (uint16_t *)kv->arena + (size_t)(at / TK_PAGE) * kv->layers * 2 * plane;
    return page + layer * 2 * plane + ((size_t)head * TK_PAGE + at % TK_PAGE) * kv->head_dim;
}

ptrdiff_t tk_value_offset(const tk_kv *kv) { return (ptrdiff_t)kv->kv_heads * TK_PAGE * kv->head_dim; }

static void gather_keys(const tk_prog *p, int layer, int head, int row, int from, int n, const uint16_t **key) {
    const tk_pass *a = &p->pass;
    const int32_t *pages = a->pages + a->table[row], *anc = a->anc + a->anc_off[row];
    for (int j = 0; j < n; j++) {
        int pos = from + j;
        if (pos >= a->prefix[row]) key[j] = tk_cell(&p->kv, layer, head, anc[pos - a->prefix[row]]);
        else if (pos % TK_PAGE && j) key[j] = key[j - 1] + p->kv.head_dim;
        else key[j] = tk_cell(&p->kv, layer, head, pages[pos / TK_PAGE] * TK_PAGE + pos % TK_PAGE);
    }
}

// Where the results of one (row, KV head, block) lie: max, sum (group each), then o (group, dim).
static float *partial(const tk_prog *p, int group, int row, int head, int block) {
    size_t one = (size_t)group * (p->kv.head_dim + 2);
    return p->partial + p->partial_at[row] + ((size_t)head * blocks_of(&p->pass, row) + block) * one;
}

static void combine(const tk_prog *p, const tk_op *op, int row, int head, int group) {
    int d = p->kv.head_dim, blocks = blocks_of(&p->pass, row);
    for (int h = 0; h < group; h++) {
        float *o = p->attn_out + ((size_t)row * op->heads + head * group + h) * d, m = -bits_f32(0x7f800000), l = 0;
        memset(o, 0, sizeof(float) * d);
        for (int b = 0; b < blocks; b++) {
            float mb = partial(p, group, row, head, b)[h];
            if (mb > m) m = mb;
        }
        for (int b = 0; b < blocks; b++) {
            const float *t = partial(p, group, row, head, b);
            float c = p->k->expf1(t[h] - m);
            p->k->axpy(c, t + group + h, 1, &l);
            p->k->axpy(c, t + 2 * group + (size_t)h * d, d, o);
        }
        for (int i = 0; i < d; i++) o[i] = o[i] / l;
    }
}

static size_t round16(size_t n) { return (n + 15) / 16 * 16; }
static int run_rows(int group) { return imax(1, imin(RUN, QUERIES / group)); }

size_t tk_attend_floats(const tk_prog *p) {
    if (!p->max_group) return 0;
    size_t d = p->kv.head_dim, queries = (size_t)run_rows(p->max_group) * p->max_group;
    if (queries < QUERIES) queries = QUERIES;  // an operation with fewer heads may take more rows
    return 16 * round16(d) + queries * (TK_SEG + 2 * d + 2);
}

static void attend_block(const tk_prog *p, tk_attn *a, tk_span s, int head, int block, float *results) {
    int group = a->heads / s.rows, d = a->dim;
    float *t = s.rows == 1 ? partial(p, group, s.row, head, block) : results;
    a->max = t;
    a->sum = t + a->heads;
    a->o = a->sum + a->heads;
    p->k->attend(a);
    for (int r = 0; r < s.rows && s.rows > 1; r++) {
        float *to = partial(p, group, s.row + r, head, block);
        memcpy(to, a->max + r * group, sizeof(float) * group);
        memcpy(to + group, a->sum + r * group, sizeof(float) * group);
        memcpy(to + 2 * group, a->o + (size_t)r * group * d, sizeof(float) * group * d);
    }
}

void tk_attend(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    const tk_kv *kv = &p->kv;
    tk_span s = p->spans[unit / kv->kv_heads];
    int head = unit % kv->kv_heads, group = op->heads / kv->kv_heads, d = kv->head_dim;
    const uint16_t *key[TK_SEG];
    tk_attn a = {.key = key, .voff = tk_value_offset(kv), .heads = s.rows * group, .dim = d, .scale = op->scale,
                 .widened = scratch, .p = scratch + 16 * round16(d)};
    float *q = a.p + (size_t)a.heads * TK_SEG;
    for (int r = 0; r < s.rows; r++)
        memcpy(q + (size_t)r * group * d, op->in + ((size_t)(s.row + r) * op->heads + head * group) * d, sizeof(float) * group * d);
    a.q = q;
    for (int b = s.b0; b < s.b1; b++) {
        a.n = imin(TK_SEG, p->pass.pos[s.row] + 1 - b * TK_SEG);
        gather_keys(p, op->layer, head, s.row, b * TK_SEG, a.n, key);
        attend_block(p, &a, s, head, b, q + (size_t)a.heads * d);
    }
    for (int row = s.row; row < s.row + s.rows; row++) {
        _Atomic int32_t *left = (_Atomic int32_t *)(p->row_left + row);
        if (atomic_fetch_sub(left, 1) != 1) continue;
        for (int h = 0; h < kv->kv_heads; h++) combine(p, op, row, h, group);
        atomic_store(left, p->row_units[row]);  // for the next layer
        tk_fill(p, &op->dst, row, 0, op->heads * d, p->attn_out + (size_t)row * op->heads * d);
    }
}

// Appends spans of at most `per` blocks that cover [b0, b1) for some rows.
static void cut(tk_prog *p, int row, int rows, int b0, int b1, int per) {
    for (; b0 < b1; b0 += per) {
        p->spans[p->nspans++] = (tk_span){row, rows, b0, imin(b0 + per, b1)};
        for (int r = row; r < row + rows; r++) p->row_units[r] += p->kv.kv_heads;
    }
}

// The rows from `row` on that share their first *shared blocks.
static int run_from(const tk_prog *p, int row, int *shared) {
    const tk_pass *a = &p->pass;
    int n = 1, least = a->prefix[row], most = run_rows(p->max_group);
    while (n < most && row + n < a->rows && a->table[row + n] == a->table[row] && a->prefix[row + n] >= TK_SEG) {
        least = imin(least, a->prefix[row + n]);
        n++;
    }
    *shared = n == 1 ? 0 : least / TK_SEG;
    return *shared ? n : 1;
}

static void cut_pass(tk_prog *p, int per) {
    p->nspans = 0;
    memset(p->row_units, 0, sizeof(int32_t) * p->pass.rows);
    for (int row = 0, n, shared; row < p->pass.rows; row += n) {
        n = run_from(p, row, &shared);
        cut(p, row, n, 0, shared, per);
        for (int r = row; r < row + n; r++) cut(p, r, 1, shared, blocks_of(&p->pass, r), per);
    }
    memcpy(p->row_left, p->row_units, sizeof(int32_t) * p->pass.rows);
}

static int grow(void **mem, size_t *cap, size_t need, size_t size) {
    if (need <= *cap) return 0;
    free(*mem);
    *mem = NULL;
    *cap = 0;
    need += need / 2;
    if (posix_memalign(mem, 64, need * size)) return ENOMEM;
    *cap = need;
    return 0;
}

int tk_prepare_pass(tk_prog *p, int threads) {
    if (!p->max_group) return 0;
    size_t floats = 0, blocks = 0, one = (size_t)p->max_group * p->kv.kv_heads * (p->kv.head_dim + 2);
    for (int r = 0; r < p->pass.rows; r++) {
        p->partial_at[r] = floats;
        floats += blocks_of(&p->pass, r) * one;
        blocks += blocks_of(&p->pass, r);
    }
    void *partial = p->partial, *spans = p->spans;
    int err = grow(&partial, &p->partial_cap, floats, sizeof(float));
    if (!err) err = grow(&spans, &p->spans_cap, blocks, sizeof(tk_span));
    p->partial = partial;
    p->spans = spans;
    if (err) return err;
    cut_pass(p, 1);
    int per = imin(8, (int)((int64_t)p->nspans * p->kv.kv_heads / (16 * threads)));
    if (per > 1) cut_pass(p, per);
    return 0;
}

void tk_prog_release(tk_prog *p) {
    free(p->partial);
    free(p->spans);
}
