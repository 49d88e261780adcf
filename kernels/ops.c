// What each operation of a program does in one unit of work, on top of one instruction set's kernels.
// A unit is a row, a group of 16 outputs, or (row, KV head, some key blocks); units of one operation
// may run in any order on any thread.
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include "tk.h"
#include "scalar.h"

static int rows_of(const tk_prog *p, const tk_op *op) { return op->wanted ? p->pass.nwanted : p->pass.rows; }
static int imin(int a, int b) { return a < b ? a : b; }
static int imax(int a, int b) { return a > b ? a : b; }
static size_t round16(size_t n) { return (n + 15) / 16 * 16; }

// The kernel that must be caught: in passes of several rows, one scale for up to 256 activations.
static void quantize_wide(const float *x, int n, tk_qblock *q, size_t stride) {
    for (int k0 = 0; k0 < n; k0 += TK_SEG) {
        int end = imin(n, k0 + TK_SEG);
        uint32_t top = 0;
        for (int i = k0; i < end; i++) {
            uint32_t u = f32_bits(x[i]) & 0x7fffffff;
            if (u > top) top = u;
        }
        for (int k = k0; k < end; k += 32) tk_quantize_block(x + k, bits_f32(top), q + k / 32 * stride);
    }
}

// Writes y, elements [k0, k0+n) of a row, in the forms the activation's readers want. For an int8 form
// k0 and n are multiples of 32.
static void fill(const tk_prog *p, const tk_act *a, int row, int k0, int n, const float *y) {
    int rows = a->wanted ? p->pass.nwanted : p->pass.rows;
    tk_panel t = tk_panel_of(rows, row);
    int r = row - t.r0;
    if (a->q) {
        tk_qblock *q = a->q + (size_t)t.r0 * (a->dim / 32) + (size_t)(k0 / 32) * t.h + r;
        if (p->broken && rows > 1) quantize_wide(y, n, q, t.h);
        else p->k->quantize(y, n, q, t.h);
    }
    if (a->x) {
        float *x = a->x + (size_t)t.r0 * a->dim + (size_t)k0 * t.h + r;
        if (t.h == 1) memcpy(x, y, sizeof(float) * n);
        else for (int k = 0; k < n; k++) x[(size_t)k * t.h] = y[k];
    }
}

static void matmul(const tk_prog *p, const tk_op *op, int from, int to) {
    int rows = rows_of(p, op), k = op->dim;
    tk_mm m = {.gbytes = op->gbytes, .k = k, .ldo = op->ldo, .add = op->add};
    // Some groups stay in the cache while all panels of rows pass over them.
    int step = imax(1, (int)((size_t)(256 << 10) / op->gbytes));
    for (int g = op->g0 + from; g < op->g0 + to; g += m.ng) {
        m.ng = imin(step, op->g0 + to - g);
        m.w = op->w + g * op->gbytes;
        m.cols = op->cols - 16 * g;
        for (int i = 0; i < tk_panels(rows); i++) {
            tk_panel t = tk_panel_at(rows, i);
            m.h = t.h;
            m.out = op->out + t.r0 * op->ldo + 16 * g;
            m.x = op->src.q ? (const void *)(op->src.q + (size_t)t.r0 * (k / 32)) : op->src.x + (size_t)t.r0 * k;
            p->k->mm[op->type](&m);
        }
    }
}

static void norm(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    p->k->rmsnorm(op->in + (size_t)row * op->dim, op->vec, op->dim, op->eps, scratch);
    fill(p, &op->dst, row, 0, op->dim, scratch);
}

static void angles(const tk_prog *p, const tk_op *op, int row) {
    int n = op->rope_dim / 2;
    float *c = op->angles + (size_t)row * op->rope_dim;
    for (int i = 0; i < n; i++) tk_rope_angle(p->pass.pos[row], op->freq[i], c + i, c + n + i);
}

static void rope(const tk_prog *p, const tk_op *op, int row) {
    const float *c = op->angles + (size_t)row * op->rope_dim;
    float *x = op->out + (size_t)row * op->dim;
    for (int h = 0; h < op->heads; h++)
        p->k->rope(x + h * op->head_dim, c, c + op->rope_dim / 2, op->rope_dim, op->halves);
}

static uint16_t *cell(const tk_kv *kv, int layer, int head, int32_t at) {
    size_t plane = (size_t)kv->kv_heads * TK_PAGE * kv->head_dim;
    uint16_t *page = (uint16_t *)kv->arena + (size_t)(at / TK_PAGE) * kv->layers * 2 * plane;
    return page + layer * 2 * plane + ((size_t)head * TK_PAGE + at % TK_PAGE) * kv->head_dim;
}

static ptrdiff_t value_offset(const tk_kv *kv) { return (ptrdiff_t)kv->kv_heads * TK_PAGE * kv->head_dim; }

static void store(const tk_prog *p, const tk_op *op, int row) {
    const tk_kv *kv = &p->kv;
    for (int h = 0; h < kv->kv_heads; h++) {
        uint16_t *k = cell(kv, op->layer, h, p->pass.store[row]);
        p->k->narrow(op->in + (size_t)row * op->dim + h * kv->head_dim, kv->head_dim, k);
        p->k->narrow(op->in2 + (size_t)row * op->dim + h * kv->head_dim, kv->head_dim, k + value_offset(kv));
    }
}

static void silu(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    int chunks = (op->dim + 1023) / 1024, row = unit / chunks, k0 = unit % chunks * 1024;
    int n = imin(1024, op->dim - k0);
    size_t at = (size_t)row * op->dim + k0;
    p->k->silu_mul(op->in + at, op->in2 + at, n, scratch);
    fill(p, &op->dst, row, k0, n, scratch);
}

// Attention: the keys of a row by absolute position, in blocks of 256.
static int blocks_of(const tk_pass *a, int row) { return a->pos[row] / TK_SEG + 1; }

static void gather_keys(const tk_prog *p, int layer, int head, int row, int from, int n, const uint16_t **key) {
    const tk_pass *a = &p->pass;
    const int32_t *pages = a->pages + a->table[row], *anc = a->anc + a->anc_off[row];
    for (int j = 0; j < n; j++) {
        int pos = from + j;
        if (pos >= a->prefix[row]) key[j] = cell(&p->kv, layer, head, anc[pos - a->prefix[row]]);
        else if (pos % TK_PAGE && j) key[j] = key[j - 1] + p->kv.head_dim;
        else key[j] = cell(&p->kv, layer, head, pages[pos / TK_PAGE] * TK_PAGE + pos % TK_PAGE);
    }
}

// Where the results of one (row, KV head, block) lie: max, sum (heads each), then o (heads, dim).
static float *partial(const tk_prog *p, int group, int dim, int row, int head, int block) {
    size_t one = (size_t)group * (dim + 2);
    return p->partial + p->partial_at[row] + ((size_t)head * blocks_of(&p->pass, row) + block) * one;
}

static void combine(const tk_prog *p, const tk_op *op, int row, int head, int group) {
    int d = p->kv.head_dim, blocks = blocks_of(&p->pass, row);
    for (int h = 0; h < group; h++) {
        float *o = p->attn_out + ((size_t)row * op->heads + head * group + h) * d, m = -bits_f32(0x7f800000), l = 0;
        memset(o, 0, sizeof(float) * d);
        for (int b = 0; b < blocks; b++) {
            float mb = partial(p, group, d, row, head, b)[h];
            if (mb > m) m = mb;
        }
        for (int b = 0; b < blocks; b++) {
            const float *t = partial(p, group, d, row, head, b);
            float c = p->k->expf1(t[h] - m);
            p->k->axpy(c, t + group + h, 1, &l);
            p->k->axpy(c, t + 2 * group + (size_t)h * d, d, o);
        }
        for (int i = 0; i < d; i++) o[i] = o[i] / l;
    }
}

static int row_of_unit(const tk_prog *p, int unit) {
    int lo = 0, hi = p->pass.rows;  // unit_at[lo] ≤ unit < unit_at[hi]
    while (hi - lo > 1) {
        int mid = (lo + hi) / 2;
        if (p->unit_at[mid] <= unit) lo = mid;
        else hi = mid;
    }
    return lo;
}

static void attend(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    const tk_kv *kv = &p->kv;
    int row = row_of_unit(p, unit), group = op->heads / kv->kv_heads, d = kv->head_dim, per = p->attn_blocks;
    int blocks = blocks_of(&p->pass, row), parts = (blocks + per - 1) / per;
    unit -= p->unit_at[row];
    int head = unit / parts, b0 = unit % parts * per, keys = p->pass.pos[row] + 1;
    const uint16_t *key[TK_SEG];
    tk_attn a = {.key = key, .voff = value_offset(kv), .heads = group, .dim = d, .scale = op->scale, .widened = scratch,
                 .p = scratch + 16 * round16(d), .q = op->in + ((size_t)row * op->heads + head * group) * d};
    for (int b = b0; b < imin(b0 + per, blocks); b++) {
        a.n = imin(TK_SEG, keys - b * TK_SEG);
        gather_keys(p, op->layer, head, row, b * TK_SEG, a.n, key);
        a.max = partial(p, group, d, row, head, b);
        a.sum = a.max + group;
        a.o = a.sum + group;
        p->k->attend(&a);
    }
    // The thread that finishes the row's last unit combines its blocks and fills the activation.
    _Atomic int32_t *left = (_Atomic int32_t *)(p->row_left + row);
    if (atomic_fetch_sub(left, 1) != 1) return;
    for (int h = 0; h < kv->kv_heads; h++) combine(p, op, row, h, group);
    atomic_store(left, kv->kv_heads * parts);  // for the next layer
    fill(p, &op->dst, row, 0, op->heads * d, p->attn_out + (size_t)row * op->heads * d);
}

static void topk(const tk_prog *p, const tk_op *op, int row) {
    const float *x = op->in + (size_t)row * op->dim;
    int k = imin(p->pass.topk, op->dim), n = op->dim, have = 0;
    int32_t *ids = p->top_ids + (size_t)row * TK_MAXTOP;
    float *best = p->top_logits + (size_t)row * TK_MAXTOP, inf = bits_f32(0x7f800000);
    for (int i = 0; k > 0 && i < n; i++) {
        if (have == k && (i = p->k->above(x, i, n, best[k - 1])) == n) break;
        float v = x[i] != x[i] ? -inf : x[i];
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && v > best[at - 1]; at--) { best[at] = best[at - 1]; ids[at] = ids[at - 1]; }
        best[at] = v;
        ids[at] = i;
    }
    p->top_max[row] = p->k->max(x, n);
    p->top_sum[row] = p->k->sum_exp(x, n, p->top_max[row]);
}

static void row_op(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    const tk_pass *a = &p->pass;
    size_t at = (size_t)row * op->dim;
    switch (op->kind) {
    case TK_EMBED: {
        int t = a->tokens[row];
        tk_unpack_row(op->type, op->w + (size_t)(t / 16) * op->gbytes, t % 16, op->dim, op->out + at);
        break;
    }
    case TK_NORM: norm(p, op, row, scratch); break;
    case TK_BIAS: for (int i = 0; i < op->dim; i++) op->out[at + i] = op->out[at + i] + op->vec[i]; break;
    case TK_ANGLES: angles(p, op, row); break;
    case TK_ROPE: rope(p, op, row); break;
    case TK_STORE: store(p, op, row); break;
    case TK_GATHER: memcpy(op->out + at, op->in + (size_t)a->wanted[row] * op->dim, sizeof(float) * op->dim); break;
    case TK_TOPK: topk(p, op, row); break;
    case TK_PROBE_READ: p->k->read(op->w + (size_t)row * op->gbytes, op->gbytes); break;
    case TK_PROBE_INT: p->k->int_macs(op->dim); break;
    case TK_PROBE_FLOAT: p->k->float_macs(op->dim); break;
    }
}

void tk_run_units(tk_prog *p, tk_op *op, int from, int to, float *scratch) {
    if (op->kind == TK_MATMUL) { matmul(p, op, from, to); return; }
    for (int u = from; u < to; u++) {
        if (op->kind == TK_ATTEND) attend(p, op, u, scratch);
        else if (op->kind == TK_SILU) silu(p, op, u, scratch);
        else for (int i = 0; i <= op->chain; i++) row_op(p, op + i, u, scratch);
    }
}

size_t tk_scratch_floats(const tk_prog *p) {
    size_t d = round16(p->kv.head_dim);
    return round16(imax(p->max_dim, 1024)) + 16 * d + (size_t)p->max_group * TK_SEG;
}

void tk_plan_pass(tk_prog *p, int threads) {
    const tk_pass *a = &p->pass;
    int kvh = p->kv.kv_heads, all = 0, units = 0;
    for (int r = 0; r < a->rows && kvh; r++) all += blocks_of(a, r);
    p->attn_blocks = imax(1, imin(8, (int)((int64_t)all * kvh / (8 * threads))));
    for (int r = 0; r < a->rows && kvh; r++) {
        p->unit_at[r] = units;
        p->row_left[r] = kvh * ((blocks_of(a, r) + p->attn_blocks - 1) / p->attn_blocks);
        units += p->row_left[r];
        p->unit_at[r + 1] = units;
    }
    for (int i = 0; i < p->nops; i++) {
        tk_op *op = p->ops + i;
        op->units = rows_of(p, op);
        op->grain = 1;
        if (op->kind == TK_ATTEND) op->units = units;
        if (op->kind == TK_SILU) op->units *= (op->dim + 1023) / 1024;
        if (op->kind == TK_MATMUL) {
            if (op->units) op->units = op->g1 - op->g0;
            op->grain = imax(1, imin(op->units / (6 * threads), (int)((512 << 10) / op->gbytes)));
        }
    }
}

int tk_prepare_pass(tk_prog *p) {
    int kvh = p->kv.kv_heads, d = p->kv.head_dim;
    if (!kvh) return 0;
    size_t need = 0;
    for (int r = 0; r < p->pass.rows; r++) {
        p->partial_at[r] = need;
        need += (size_t)blocks_of(&p->pass, r) * p->max_group * kvh * (d + 2);
    }
    if (need <= p->partial_cap) return 0;
    free(p->partial);
    p->partial = NULL;
    p->partial_cap = 0;
    void *mem;
    if (posix_memalign(&mem, 64, (need + need / 2) * sizeof(float))) return ENOMEM;
    p->partial = mem;
    p->partial_cap = need + need / 2;
    return 0;
}

void tk_prog_release(tk_prog *p) {
    free(p->partial);
    p->partial = NULL;
    p->partial_cap = 0;
}
