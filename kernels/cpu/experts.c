// Mixtures of experts: which experts the rows of a pass choose, and products with those.
//
// The row that chooses last sorts all choices by expert. A unit of a product is a group of 16 outputs of one expert, for all rows that
// chose it: their activations are gathered into panels of their own, so that the kernels of plain products compute them, and the group's
// weights come from memory once. How many experts a pass uses is known only when it runs, so an operation has units for as many as its
// rows could have chosen. Those that there are not come first, because threads claim fewer units at a time towards the end.
#include <stdatomic.h>
#include "tk.h"
#include "scalar.h"

// Rows of an expert that a call takes, and groups of their outputs, which lie in the scratch before they are handed out.
enum { MOST = TK_TILE * TK_PANELS, GROUPS = 32 };

// The scores of all experts of a row, which choose beside the logits: see kernels/ref. weight is what they are without a bias.
static const float *scores(const tk_prog *p, const tk_op *op, const float *x, float *weight, float *score) {
    int n = op->dim;
    if (!op->sigmoid && !op->vec) return x;
    for (int i = 0; i < n; i++) score[i] = x[i] != x[i] ? -bits_f32(0x7f800000) : x[i];
    if (op->sigmoid) {  // σ(x)·1 + (1-σ(x))·0
        memset(weight, 0, sizeof(float) * n);
        for (int i = 0; i < n; i++) weight[n + i] = 1;
        p->k->blend(score, weight + n, n, weight);
    } else {
        float top = p->k->max(x, n), sum = p->k->sum_exp(x, n, top);
        for (int i = 0; i < n; i++) weight[i] = soft_exp(score[i] - top) / sum;
    }
    for (int i = 0; i < n; i++) score[i] = op->vec ? weight[i] + op->vec[i] : weight[i];
    return score;
}

static void group_by_expert(tk_route *t, int rows) {
    int n = rows * t->used;
    memset(t->first, 0, sizeof *t->first * (t->experts + 1));
    for (int i = 0; i < n; i++) t->first[t->ids[i] + 1]++;
    t->nlist = 0;
    for (int e = 0; e < t->experts; e++) {
        if (t->first[e + 1]) t->list[t->nlist++] = e;
        t->first[e + 1] += t->first[e];
    }
    for (int i = 0; i < n; i++) t->slots[t->first[t->ids[i]]++] = i;
    for (int e = t->experts; e > 0; e--) t->first[e] = t->first[e - 1];
    t->first[0] = 0;
}

void tk_fixed_routes(tk_prog *p) {
    for (int i = 0; i < p->nroutes; i++)
        if (p->routes[i].fixed) group_by_expert(p->routes + i, p->pass.rows);
}

void tk_choose(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    tk_route *t = p->routes + op->route;
    int n = op->dim, used = t->used;
    const float *x = op->in + (size_t)row * n;
    float *weight = scratch, *score = scratch + 2 * n, *w = t->weights + (size_t)row * used, *best = score + n;
    int32_t *ids = t->ids + (size_t)row * used;
    const float *by = scores(p, op, x, weight, score);
    tk_best(p->k, by, n, used, ids, best);
    if (by == x) {
        for (int i = 0; i < used; i++) w[i] = soft_exp(best[i] - best[0]);
        if (!op->normed) {
            float sum = p->k->sum_exp(x, n, best[0]);
            for (int i = 0; i < used; i++) w[i] = w[i] / sum;
        }
    } else {
        for (int i = 0; i < used; i++) w[i] = weight[ids[i]];
    }
    float sum = 0;
    for (int i = 0; i < used; i++) sum = sum + w[i];
    for (int i = 0; i < used; i++) {
        if (op->normed) w[i] = w[i] / sum;
        if (op->scale != 0) w[i] = w[i] * op->scale;
        if (op->each) w[i] = w[i] * op->each[ids[i]];
    }
    if (atomic_fetch_sub((_Atomic int32_t *)&t->left, 1) == 1) group_by_expert(t, p->pass.rows);
}

size_t tk_choose_floats(const tk_op *op) { return (size_t)4 * op->dim; }

void tk_join_experts(const tk_prog *p, const tk_op *op, int row, float *scratch) {
    const tk_route *t = p->routes + op->route;
    int n = (int)op->ldo;
    const float *x = op->in + (size_t)row * op->dim, *w = t->weights + (size_t)row * t->used;
    float *y = op->out + (size_t)row * n;
    memset(scratch, 0, sizeof(float) * n);
    for (int s = 0; s < t->used; s++, x += n)
        for (int i = 0; i < n; i++) scratch[i] = scratch[i] + w[s] * x[i];
    for (int i = 0; i < n; i++) y[i] = op->add ? scratch[i] + y[i] : scratch[i];
}

// Where the activation of a choice begins, in the panels of the pass; *step is from one block or element to the next.
static const void *input(const tk_prog *p, const tk_op *op, int slot, int used, size_t *step) {
    int row = slot / used, from = op->src.dim > op->dim ? slot % used * op->dim : 0;
    tk_panel t = tk_panel_of(p->pass.rows, row);
    *step = t.h;
    if (op->src.x) return op->src.x + (size_t)t.r0 * op->src.dim + (size_t)from * t.h + row - t.r0;
    const tk_qblock *q = op->src.q256 ? op->src.q256 : op->src.q;
    return q + (size_t)t.r0 * (op->src.dim / 32) + (size_t)(from / 32) * t.h + row - t.r0;
}

// Copies the activations of n choices into panels at `to`.
static void gather(const tk_prog *p, const tk_op *op, const int32_t *slots, int n, int used, float *to) {
    for (int i = 0; i < n; i++) {
        size_t step;
        const void *from = input(p, op, slots[i], used, &step);
        tk_panel t = tk_panel_of(n, i);
        if (op->src.x) {
            float *x = to + (size_t)t.r0 * op->dim + i - t.r0;
            for (int k = 0; k < op->dim; k++) x[(size_t)k * t.h] = ((const float *)from)[k * step];
            continue;
        }
        tk_qblock *q = (tk_qblock *)to + (size_t)t.r0 * (op->dim / 32) + i - t.r0;
        for (int b = 0; b < op->dim / 32; b++) q[(size_t)b * t.h] = ((const tk_qblock *)from)[b * step];
    }
}

static float *output(const tk_op *op, int slot, int used, int g) {
    return op->out + (size_t)(slot / used) * op->ldo + (size_t)(slot % used) * op->cols + 16 * g;
}

// Products of groups [g, g+m.ng) of an expert with n choices.
static void products(const tk_prog *p, const tk_op *op, tk_mm m, const int32_t *slots, int used, int expert, int g, float *out) {
    int width = imin(16 * m.ng, m.cols);
    m.out = m.rows == 1 ? output(op, slots[0], used, g) : out;
    m.ldo = 16 * GROUPS;
    tk_products(p, m, op->type);
    for (int i = 0; i < m.rows; i++) {
        float *y = output(op, slots[i], used, g);
        const float *from = m.out + i * m.ldo, *bias = op->vec ? op->vec + (size_t)expert * op->cols + 16 * g : NULL;
        if (bias) for (int c = 0; c < width; c++) y[c] = from[c] + bias[c];
        else if (m.rows > 1) memcpy(y, from, sizeof(float) * width);
    }
}

static size_t gathered_floats(const tk_op *op, int rows) {
    return (size_t)rows * (op->src.x ? op->dim : op->dim / 32 * (int)(sizeof(tk_qblock) / sizeof(float)));
}

// Groups [g0, g1) of the i-th expert of the list.
static void multiply(const tk_prog *p, const tk_op *op, const tk_route *t, int i, int g0, int g1, float *scratch) {
    int e = t->list[i], n = t->first[e + 1] - t->first[e];
    const int32_t *slots = t->slots + t->first[e];
    const uint8_t *w = op->w ? op->w + (size_t)e * op->expert_bytes : op->each_w[i];
    size_t step;
    for (int done = 0; done < n; done += MOST, slots += MOST) {
        tk_mm m = {.gbytes = op->gbytes, .k = op->dim, .rows = imin(MOST, n - done)};
        const void *in = scratch;
        if (p->pass.rows == 1) in = input(p, op, slots[0], t->used, &step);
        else gather(p, op, slots, m.rows, t->used, scratch);
        m.x = in;
        m.q = in;
        for (int g = g0; g < g1; g += GROUPS) {
            m.ng = imin(GROUPS, g1 - g);
            m.w = w + g * op->gbytes;
            m.cols = op->cols - 16 * g;
            products(p, op, m, slots, t->used, e, g, scratch + gathered_floats(op, m.rows));
        }
    }
}

void tk_experts(const tk_prog *p, const tk_op *op, int from, int to, float *scratch) {
    const tk_route *t = p->routes + op->route;
    int groups = op->g1 - op->g0, absent = op->units / groups - t->nlist;
    for (int u = from, end; u < to; u = end) {
        int i = u / groups - absent, g = op->g0 + u % groups;
        end = imin(to, u - u % groups + groups);
        if (i >= 0) multiply(p, op, t, i, g, g + end - u, scratch);
    }
}

size_t tk_experts_floats(const tk_prog *p, const tk_op *op) {
    int rows = imin(MOST, p->pass.rows);
    return gathered_floats(op, rows) + (size_t)rows * 16 * GROUPS + 16;
}

int tk_experts_used(const tk_prog *p, const tk_op *op) {
    const tk_route *t = p->routes + op->route;
    return imin(t->experts, p->pass.rows * t->used);
}
