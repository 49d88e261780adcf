// What each operation of a program does in one unit of work, on top of one instruction set's kernels.
// A unit is a row, a group of 16 outputs, or what attention.c makes of it; units of one operation may
// run in any order on any thread.
#include "tk.h"
#include "scalar.h"
#include "../sum/sum.h"

#pragma GCC diagnostic error "-Wswitch"  // row_op has a case for every kind

const tk_kind_info tk_kinds[TK_NKINDS] = {
#define TK_INFO(kind, by_row, name) [TK_##kind] = {name, by_row},
    TK_KINDS(TK_INFO)
#undef TK_INFO
};

static int rows_of(const tk_prog *p, const tk_op *op) { return op->wanted ? p->pass.nwanted : p->pass.rows; }

#ifdef TK_BROKEN
// The kernel that must be caught (docs/kernels.md): in passes of several rows, one scale for up to 256 activations.
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
#endif

void tk_fill(const tk_prog *p, const tk_act *a, int row, int k0, int n, const float *y) {
    int rows = a->wanted ? p->pass.nwanted : p->pass.rows;
    tk_panel t = tk_panel_of(rows, row);
    int r = row - t.r0;
    size_t at = (size_t)t.r0 * (a->dim / 32) + (size_t)(k0 / 32) * t.h + r;
    if (a->q) p->k->quantize(y, n, a->q + at, t.h);
#ifdef TK_BROKEN
    if (a->q && rows > 1) quantize_wide(y, n, a->q + at, t.h);
#endif
    if (a->q256) p->k->quantize256(y, n, a->q256 + at, t.h);
    if (a->x) {
        float *x = a->x + (size_t)t.r0 * a->dim + (size_t)k0 * t.h + r;
        if (t.h == 1) memcpy(x, y, sizeof(float) * n);
        else for (int k = 0; k < n; k++) x[(size_t)k * t.h] = y[k];
    }
}

// Panels that a call takes: so many that their activations stay in the second-level cache.
static int most_panels(int type, int k) {
    size_t panel = (size_t)TK_TILE * k * 2;
    return tk_is_float(type) ? 1 : imax(1, imin(TK_PANELS, (int)((size_t)(512 << 10) / panel)));
}

static void all_panels(const tk_prog *p, tk_mm m, int type) {
    int panels = tk_panels(m.rows), most = most_panels(type, m.k);
    for (m.p0 = 0; m.p0 < panels; m.p0 = m.p1) {
        m.p1 = imin(panels, m.p0 + most);
        p->k->mm(type, &m);
    }
}

void tk_products(const tk_prog *p, tk_mm m, int type) {
    for (int i = 1; i < p->repeat; i++) {  // all rows' results go to the same place
        tk_mm again = m;
        again.out = p->dummy;
        again.ldo = again.add = 0;
        all_panels(p, again, type);
    }
    all_panels(p, m, type);
}

// Compares n groups of weights with their checksums.
static void compare(tk_prog *p, const tk_op *op, int g, int n) {
    for (int i = g; i < g + n; i++)
        if (tk_sum_of(op->w + i * op->gbytes, op->gbytes) != op->sums[i])
            __atomic_store_n(&p->wrong, (int32_t)(op - p->ops) + 1, __ATOMIC_RELAXED);
}

// If a call does not take all rows, or compares checksums, then some groups of weights at a time, which stay in the cache too.
static void matmul(tk_prog *p, const tk_op *op, int from, int to) {
    int rows = rows_of(p, op), k = op->dim, whole = tk_panels(rows) <= most_panels(op->type, k) && !op->sums;
    int step = whole ? to - from : imax(4, (int)((size_t)(256 << 10) / op->gbytes) / 4 * 4);
    tk_mm m = {.gbytes = op->gbytes, .k = k, .rows = rows, .ldo = op->ldo, .add = op->add, .out = op->out, .x = op->src.x,
               .q = op->src.q256 ? op->src.q256 : op->src.q};
    for (int g = op->g0 + from; g < op->g0 + to; g += m.ng) {
        m.ng = imin(step, op->g0 + to - g);
        if (op->sums) compare(p, op, g, m.ng);
        m.w = op->w + g * op->gbytes;
        m.cols = op->cols - 16 * g;
        m.out = op->out + 16 * g;
        tk_products(p, m, op->type);
    }
}

static void norm(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    p->k->rmsnorm(op->in + (size_t)row * op->dim, op->vec, op->dim, op->eps, scratch);
    tk_fill(p, &op->dst, row, 0, op->dim, scratch);
}

static void norm_add(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    float *y = op->out + (size_t)row * op->dim;
    p->k->rmsnorm(op->in + (size_t)row * op->dim, op->vec, op->dim, op->eps, scratch);
    for (int i = 0; i < op->dim; i++) y[i] = y[i] + scratch[i];
}

static void add_silu(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    float *y = op->out + (size_t)row * op->dim;
    p->k->silu_mul(op->in + (size_t)row * op->dim, op->vec, op->dim, scratch);
    for (int i = 0; i < op->dim; i++) y[i] = y[i] + scratch[i];
}

static void position_scale(const tk_prog *p, const tk_op *op, int row) {
    float f = op->vec[imin(p->pass.turn[row] / op->every, op->steps - 1)], *x = op->out + (size_t)row * op->dim;
    for (int i = 0; i < op->dim; i++) x[i] = x[i] * f;
}

static void add_scaled(const tk_op *op, int row) {
    const float *x = op->in + (size_t)row * op->dim;
    float *y = op->out + (size_t)row * op->dim;
    for (int i = 0; i < op->dim; i++) y[i] = y[i] + x[i] * op->scale;
}

static void sigmoid_scale(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    int n = (int)op->ldo, each = n / op->dim;
    float *x = op->out + (size_t)row * n;
    memset(scratch, 0, sizeof(float) * op->dim);
    p->k->blend(op->in + (size_t)row * op->dim, op->vec, op->dim, scratch);
    for (int g = 0; g < op->dim; g++)
        for (int i = g * each; i < (g + 1) * each; i++) x[i] = x[i] * scratch[g];
}

static void copy_heads(const tk_op *op, int row) {
    int from = op->dim / op->heads, to = (int)op->ldo / op->heads;
    const float *in = op->in + (size_t)row * op->dim + op->from;
    float *out = op->out + (size_t)row * op->ldo + op->to;
    for (int h = 0; h < op->heads; h++) memcpy(out + (size_t)h * to, in + (size_t)h * from, sizeof(float) * op->head_dim);
}

// It reads other rows of in, so all of them must be there: no chain of row operations has it.
static void block_conv(const tk_prog *p, const tk_op *op, int row) {
    int n = op->dim, groups = n / op->group, taps = imin(op->taps, imax(p->pass.pos[row] - p->pass.prefix[row], 0) + 1);
    const float *base = op->vec, *w = op->in2 + (size_t)row * op->ld2 + op->from;
    float *y = op->out + (size_t)row * n;
    for (int k = 0; k < taps; k++, base += n, w += groups) {
        const float *x = op->in + (size_t)(row - k) * n;
        for (int g = 0; g < groups; g++)
            for (int i = g * op->group; i < (g + 1) * op->group; i++) {
                float v = (base[i] + w[g]) * x[i];
                y[i] = k ? y[i] + v : v;
            }
    }
}

static void head_norm(const tk_prog *p, const tk_op *op, int row) {
    float *x = op->out + (size_t)row * op->dim;
    for (int h = 0; h < op->heads; h++, x += op->head_dim) p->k->rmsnorm(x, op->vec, op->head_dim, op->eps, x);
}

// Head h of out is head h/(how many times more heads) of in.
static void angles(const tk_prog *p, const tk_op *op, int row) {
    int n = op->rope_dim / 2;
    float *c = op->angles + (size_t)row * op->rope_dim;
    for (int i = 0; i < n; i++) tk_rope_angle(p->pass.turn[row] + op->ahead, op->freq[i], c + i, c + n + i);
    for (int i = 0; i < 2 * n; i++) c[i] = c[i] * op->scale;
}

static void rope(const tk_prog *p, const tk_op *op, int row) {
    const float *c = op->angles + (size_t)row * op->rope_dim;
    float *x = op->out + (size_t)row * op->dim;
    for (int h = 0; h < op->heads; h++)
        p->k->rope(x + h * op->head_dim, c, c + op->rope_dim / 2, op->rope_dim, op->halves);
}

static int gated(const tk_op *op) { return op->kind == TK_SILU || op->kind == TK_GELU || op->kind == TK_CLAMPED; }

static void curve(const tk_kernels *k, int kind, const float *g, const float *u, int n, float *y) {
    if (kind == TK_GELU) k->gelu_mul(g, u, n, y);
    else if (kind == TK_CLAMPED) k->clamped_mul(g, u, n, y);
    else k->silu_mul(g, u, n, y);
}

static void gate(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    int chunks = (op->dim + 1023) / 1024, row = unit / chunks, k0 = unit % chunks * 1024;
    int n = imin(1024, op->dim - k0);
    size_t at = (size_t)row * op->dim + k0;
    curve(p->k, op->kind, op->in + at, op->in2 + at, n, scratch);
    tk_fill(p, &op->dst, row, k0, n, scratch);
}

void tk_best(const tk_kernels *kernels, const float *x, int n, int k, int32_t *ids, float *best) {
    int have = 0;
    float inf = bits_f32(0x7f800000);
    for (int i = 0; k > 0 && i < n; i++) {
        if (have == k && (i = kernels->above(x, i, n, best[k - 1])) == n) break;
        float v = x[i] != x[i] ? -inf : x[i];
        int at = have < k ? have++ : k - 1;
        for (; at > 0 && v > best[at - 1]; at--) { best[at] = best[at - 1]; ids[at] = ids[at - 1]; }
        best[at] = v;
        ids[at] = i;
    }
}

static void topk(const tk_prog *p, const tk_op *op, int row) {
    const float *x = op->in + (size_t)row * op->dim;
    int n = op->dim;
    tk_best(p->k, x, n, imin(p->pass.topk, n), p->top_ids + (size_t)row * TK_MAXTOP, p->top_logits + (size_t)row * TK_MAXTOP);
    p->top_max[row] = p->k->max(x, n);
    p->top_sum[row] = p->k->sum_exp(x, n, p->top_max[row]);
}

static void row_op(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    const tk_pass *a = &p->pass;
    size_t at = (size_t)row * op->dim;
    switch (op->kind) {
    case TK_EMBED: {
        int t = a->tokens[row];
        if (t < 0 && op->blank) memset(op->out + at, 0, sizeof(float) * op->dim);
        else if (t < 0) memcpy(op->out + at, a->given + (size_t)(-1 - t) * op->dim, sizeof(float) * op->dim);
        else tk_unpack_row(op->type, op->w + (size_t)(t / 16) * op->gbytes, t % 16, op->dim, op->out + at);
        break;
    }
    case TK_NORM: norm(p, op, row, scratch); break;
    case TK_BIAS: for (int i = 0; i < op->dim; i++) op->out[at + i] = op->out[at + i] + op->vec[i]; break;
    case TK_NORM_ADD: norm_add(p, op, row, scratch); break;
    case TK_HEAD_NORM: head_norm(p, op, row); break;
    case TK_COPY: memcpy(op->out + at, op->in + at, sizeof(float) * op->dim); break;
    case TK_FEED: tk_fill(p, &op->dst, row, 0, op->dim, op->in + at); break;
    case TK_ADD_SILU: add_silu(p, op, row, scratch); break;
    case TK_BLEND: p->k->blend(op->in + at, op->in2 + at, op->dim, op->out + at); break;
    case TK_SIGMOID_SCALE: sigmoid_scale(p, op, row, scratch); break;
    case TK_COPY_HEADS: copy_heads(op, row); break;
    case TK_POSITION_SCALE: position_scale(p, op, row); break;
    case TK_ADD_SCALED: add_scaled(op, row); break;
    case TK_JOIN: tk_join_row(p, op, row); break;
    case TK_CHOOSE: tk_choose(p, op, row, scratch); break;
    case TK_JOIN_EXPERTS: tk_join_experts(p, op, row, scratch); break;
    case TK_SCALE: for (int i = 0; i < op->dim; i++) op->out[at + i] = op->out[at + i] * op->scale; break;
    case TK_SOFT_CAP: p->k->soft_cap(op->out + at, op->dim, op->scale); break;
    case TK_ANGLES: angles(p, op, row); break;
    case TK_ROPE: rope(p, op, row); break;
    case TK_STORE: tk_store(p, op, row); break;
    case TK_GATHER: memcpy(op->out + at, op->in + (size_t)a->wanted[row] * op->dim, sizeof(float) * op->dim); break;
    case TK_TOPK: topk(p, op, row); break;
    case TK_PROBE_READ: p->k->read(op->w + (size_t)row * op->gbytes, op->gbytes); break;
    case TK_PROBE_INT: p->k->int_macs(op->dim); break;
    case TK_PROBE_FLOAT: p->k->float_macs(op->dim); break;
    case TK_MATMUL: case TK_EXPERTS: case TK_ATTEND: case TK_ATTEND_BLOCKS: case TK_SILU: case TK_GELU: case TK_CLAMPED: case TK_MEET:
    case TK_DELTA_IN: case TK_DELTA: case TK_BLOCK_CONV: case TK_NKINDS: break;  // not by row: tk_run_units
    }
}

void tk_run_units(tk_prog *p, tk_op *op, int from, int to, float *scratch) {
    if (from == to) return;  // a pass without wanted rows
    if (op->kind == TK_MATMUL) { matmul(p, op, from, to); return; }
    if (op->kind == TK_EXPERTS) { tk_experts(p, op, from, to, scratch); return; }
    if (op->kind == TK_MEET) { tk_meet(p); return; }
    for (int u = from; u < to; u++) {
        if (op->kind == TK_ATTEND) tk_attend(p, op, u, scratch);
        else if (op->kind == TK_ATTEND_BLOCKS) tk_attend_blocks(p, op, u);
        else if (op->kind == TK_DELTA_IN) tk_delta_in(p, op, u, scratch);
        else if (op->kind == TK_DELTA) tk_delta_walk(p, op, u, scratch);
        else if (op->kind == TK_BLOCK_CONV) block_conv(p, op, u);
        else if (gated(op)) gate(p, op, u, scratch);
        else for (int i = 0; i <= op->chain; i++) row_op(p, op + i, u, scratch);
    }
}

size_t tk_scratch_floats(const tk_prog *p) {
    size_t most = imax(p->max_dim, 1024), need = 0;
    for (int i = p->first;; i++) {
        if (need > most) most = need;
        if (i == p->end) return most;
        const tk_op *op = p->ops + i;
        need = op->kind == TK_CHOOSE ? tk_choose_floats(op) : op->kind == TK_EXPERTS ? tk_experts_floats(p, op) : tk_attend_floats(p, op);
        if (op->delta) need = tk_delta_floats(p, op);
    }
}

// Sets the groups of a product that belong to this side of a divided pass: kernels.Range.Part.
static void part_of(tk_op *op, int left) {
    int cut = (int)(((int64_t)op->groups * left + 2048) / 4096);
    op->g0 = op->first_group + (op->side == TK_RIGHT ? cut : 0);
    op->g1 = op->first_group + (op->side == TK_LEFT ? cut : op->groups);
}

void tk_divide_pass(tk_prog *p, int threads) {
    tk_fixed_routes(p);
    for (int i = p->first; i < p->end; i++) {
        tk_op *op = p->ops + i;
        op->units = rows_of(p, op);
        op->grain = op->most = 1;
        if (op->kind == TK_ATTEND || op->kind == TK_ATTEND_BLOCKS) op->units = p->nspans * (p->kv.layers[op->layer].heads / op->at_once);
        if (op->kind == TK_MEET) op->units = 1;
        if (op->kind == TK_DELTA_IN) op->units = p->pass.nsteps * op->delta->key_heads;
        if (op->kind == TK_DELTA) op->units = p->pass.nwalks * op->delta->value_heads * tk_delta_groups(p, op);
        if (op->kind == TK_DELTA_IN || op->kind == TK_DELTA) op->grain = op->most = imax(1, imin(16, op->units / (8 * threads)));
        if (gated(op)) op->units *= (op->dim + 1023) / 1024;
        if (op->kind == TK_CHOOSE) p->routes[op->route].left = op->units;
        if (op->kind != TK_MATMUL && op->kind != TK_EXPERTS) continue;
        part_of(op, p->pass.left);
        if (op->units) {
            // Enough chunks to even out the threads, but none of less than a microsecond or so.
            size_t bytes = op->gbytes * (op->kind == TK_MATMUL ? tk_panels(op->units) : 1);
            int least = (int)((32 << 10) / bytes) + 1, most = imax(1, (int)((512 << 10) / op->gbytes));
            op->units = (op->g1 - op->g0) * (op->kind == TK_MATMUL ? 1 : tk_experts_used(p, op));
            op->grain = (least + 3) / 4 * 4;  // matrix kernels take up to four groups at once
            op->most = imax(imin(op->units / (6 * threads), most) / 4 * 4, op->grain);
        }
    }
}
