// What each operation of a program does in one unit of work, on top of one instruction set's kernels.
// A unit is a row, a group of 16 outputs, or what attention.c makes of it; units of one operation may
// run in any order on any thread.
#include "tk.h"
#include "scalar.h"

static int rows_of(const tk_prog *p, const tk_op *op) { return op->wanted ? p->pass.nwanted : p->pass.rows; }

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

void tk_fill(const tk_prog *p, const tk_act *a, int row, int k0, int n, const float *y) {
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
    int rows = rows_of(p, op), k = op->dim, panels = tk_panels(rows);
    tk_mm m = {.gbytes = op->gbytes, .k = k, .ldo = op->ldo, .add = op->add};
    // Some groups stay in the cache while all panels of rows pass over them; each panel fetches its
    // share of the groups that come next.
    int step = imax(1, (int)((size_t)(128 << 10) / op->gbytes));
    size_t per_block = op->gbytes / imax(1, k / 32) / panels;
    for (int g = op->g0 + from; g < op->g0 + to; g += m.ng) {
        m.ng = imin(step, op->g0 + to - g);
        m.w = op->w + g * op->gbytes;
        m.cols = op->cols - 16 * g;
        m.lines = g + m.ng < op->g0 + to ? (int)((per_block + 63) / 64) : 0;
        for (int i = 0; i < panels; i++) {
            tk_panel t = tk_panel_at(rows, i);
            m.h = t.h;
            m.out = op->out + t.r0 * op->ldo + 16 * g;
            m.x = op->src.q ? (const void *)(op->src.q + (size_t)t.r0 * (k / 32)) : op->src.x + (size_t)t.r0 * k;
            m.ahead = m.w + m.ng * op->gbytes + (size_t)i * m.ng * (op->gbytes / panels);
            p->k->mm[op->type](&m);
        }
    }
}

static void norm(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    p->k->rmsnorm(op->in + (size_t)row * op->dim, op->vec, op->dim, op->eps, scratch);
    tk_fill(p, &op->dst, row, 0, op->dim, scratch);
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

static void store(const tk_prog *p, const tk_op *op, int row) {
    const tk_kv *kv = &p->kv;
    for (int h = 0; h < kv->kv_heads; h++) {
        uint16_t *k = tk_cell(kv, op->layer, h, p->pass.store[row]);
        p->k->narrow(op->in + (size_t)row * op->dim + h * kv->head_dim, kv->head_dim, k);
        p->k->narrow(op->in2 + (size_t)row * op->dim + h * kv->head_dim, kv->head_dim, k + tk_value_offset(kv));
    }
}

static void silu(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    int chunks = (op->dim + 1023) / 1024, row = unit / chunks, k0 = unit % chunks * 1024;
    int n = imin(1024, op->dim - k0);
    size_t at = (size_t)row * op->dim + k0;
    p->k->silu_mul(op->in + at, op->in2 + at, n, scratch);
    tk_fill(p, &op->dst, row, k0, n, scratch);
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
    if (from == to) return;  // a pass without wanted rows
    if (op->kind == TK_MATMUL) { matmul(p, op, from, to); return; }
    for (int u = from; u < to; u++) {
        if (op->kind == TK_ATTEND) tk_attend(p, op, u, scratch);
        else if (op->kind == TK_SILU) silu(p, op, u, scratch);
        else for (int i = 0; i <= op->chain; i++) row_op(p, op + i, u, scratch);
    }
}

size_t tk_scratch_floats(const tk_prog *p) {
    size_t rows = imax(p->max_dim, 1024), attn = tk_attend_floats(p);
    return rows > attn ? rows : attn;
}

void tk_plan_pass(tk_prog *p, int threads) {
    for (int i = 0; i < p->nops; i++) {
        tk_op *op = p->ops + i;
        op->units = rows_of(p, op);
        op->grain = 1;
        if (op->kind == TK_ATTEND) op->units = p->nspans * p->kv.kv_heads;
        if (op->kind == TK_SILU) op->units *= (op->dim + 1023) / 1024;
        if (op->kind == TK_MATMUL && op->units) {
            // Enough chunks to even out the threads, but none of less than a microsecond or so.
            size_t bytes = op->gbytes * tk_panels(op->units);
            int least = (int)((32 << 10) / bytes) + 1, most = imax(1, (int)((512 << 10) / op->gbytes));
            op->units = op->g1 - op->g0;
            op->grain = imax(imin(op->units / (6 * threads), most), least);
        }
    }
}
