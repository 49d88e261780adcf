// Attention over the paged KV cache: how a pass is cut into units, what a row sees of a block, and who
// joins the blocks of a row.
//
// Neighbouring rows of one session see the same prefix, or nearly: they form a run, and a block's keys and
// values are fetched once for all rows of a run. A unit is some KV heads and a span of a run's blocks. If there
// are runs enough to occupy the threads, a span is all blocks and its results stay in the thread's scratch;
// otherwise runs are cut into several spans, and the thread that finishes the last span of some KV heads joins.
// The KV heads of a layer lie side by side in a page. Where a run is so small that reading takes longer than the
// arithmetic, a unit has all of them, or many, and takes them in turn in each block, so that a page is read in
// one go: only then does the processor's own prefetcher reach the bandwidth of the memory.
// Where a layer has one KV head with many query heads, the last spans are cut by query heads as well: a block of such a head is long
// work, and the threads should end together.
// How a pass is cut changes no result: a block's depends on its row alone (attention_tile.h), and blocks
// are joined in order of position.
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include "tk.h"
#include "scalar.h"

// Limits of a run: queries per KV head, and rows. With at most FEW queries per KV head, reading takes longer than the arithmetic.
// A pass of several threads is cut into UNITS for each.
enum { QUERIES = 64, MOSTROWS = 64, FEW = 16, UNITS = 16 };

static int clamp(int x) { return imax(0, imin(TK_SEG, x)); }

// How many positions a row sees at most, and how many an attention lets it see; blocks, likewise.
static int keys_of(const tk_pass *a, int row) { return a->prefix[row] + a->anc_len[row]; }
static int seen_of(const tk_op *op, const tk_pass *a, int row) { return op->later ? keys_of(a, row) : a->pos[row] + 1; }
static int blocks_of(const tk_pass *a, int row) { return (keys_of(a, row) - 1) / TK_SEG + 1; }
static int seen_blocks(const tk_op *op, const tk_pass *a, int row) { return (seen_of(op, a, row) - 1) / TK_SEG + 1; }

static int first_seen(const tk_op *op, int pos) { return op->window ? imax(0, pos - op->window + 1) : 0; }

// Fills in what each row of a run sees of a block; returns how many of its positions are read from the prefix's pages.
static int sights(const tk_prog *p, const tk_op *op, const tk_run *u, int block, tk_sight *see, int *any) {
    const tk_pass *a = &p->pass;
    int base = block * TK_SEG, used = 0;
    *any = 0;
    for (int i = 0; i < u->rows; i++) {
        int row = u->row + i, prefix = a->prefix[row];
        tk_sight s = {clamp(first_seen(op, a->pos[row]) - base), clamp(prefix - base), clamp(seen_of(op, a, row) - base), NULL};
        if (s.lo >= s.hi) s = (tk_sight){0, 0, 0, NULL};
        s.mid = imax(s.lo, s.mid);
        if (s.lo < s.mid) used = imax(used, s.mid);
        if (s.mid < s.hi) s.anc = a->anc + a->anc_off[row] + (base + s.mid - prefix);
        if (s.lo < s.hi) *any = 1;
        see[i] = s;
    }
    return used;
}

// The keys of those pages of a block that hold its first n positions.
static void block_pages(const tk_prog *p, const tk_kept *kept, int head, int row, int block, int n, const uint8_t **page) {
    const int32_t *table = p->pass.pages + p->pass.table[row] + block * (TK_SEG / TK_PAGE);
    for (int i = 0; i < TK_SEG / TK_PAGE; i++)
        page[i] = i * TK_PAGE < n ? tk_keys(&p->kv, kept, head, table[i]) : NULL;
}

// Whether an operation computes a block of a row for a KV head.
static int mine(const tk_prog *p, const tk_op *op, int row, int block, int head) {
    if (op->side == TK_WHOLE) return 1;
    int cut = p->pass.cut[row], left = block < cut || (block == cut && head < op->shared);
    return left == (op->side == TK_LEFT);
}

// A span has the query heads of a KV head from the first on, so many of them.
static int first_query(tk_span s, int group) { return group * s.k / s.n; }
static int queries_of(tk_span s, int group) { return group * (s.k + 1) / s.n - first_query(s, group); }
static size_t query_floats(int queries, int dim) { return (size_t)queries * (tk_round16(dim) + 2); }

static const tk_kept *kept_of(const tk_prog *p, const tk_op *op) { return p->kv.layers + op->layer; }

// The floats of an attention's parts of a run, for one KV head.
static size_t part_of_rows(const tk_prog *p, const tk_op *op, const tk_run *u) {
    const tk_kept *kept = kept_of(p, op);
    return (size_t)u->rows * u->blocks * tk_part_floats(op->heads / kept->heads, kept->value_dim);
}

static void join(const tk_prog *p, const tk_op *op, const tk_run *u, int head, const float *part) {
    int group = op->heads / kept_of(p, op)->heads, d = kept_of(p, op)->value_dim;
    size_t one = tk_part_floats(group, d);
    for (int i = 0; i < u->rows; i++, part += u->blocks * one) {
        int row = u->row + i, b = first_seen(op, p->pass.pos[row]) / TK_SEG;
        float *out = p->attn_out + ((size_t)row * op->heads + head * group) * d;
        p->k->join(part + b * one, seen_blocks(op, &p->pass, row) - b, group, d, op->vec ? op->vec + head * group : NULL, out);
    }
}

// Counts one of n things done. For the last it returns 1 and resets the counter for the next layer.
static int last_of(int32_t *counter, int n) {
    if (n > 1 && atomic_fetch_add((_Atomic int32_t *)counter, 1) != n - 1) return 0;
    atomic_store((_Atomic int32_t *)counter, 0);
    return 1;
}

// The attention of a row, through its gate if there is one, becomes an activation.
static void fill(const tk_prog *p, const tk_op *op, int row) {
    int n = op->heads * kept_of(p, op)->value_dim;
    float *out = p->attn_out + (size_t)row * n;
    if (op->in2) p->k->gate(op->in2 + (size_t)row * n, n, out);
    tk_fill(p, &op->dst, row, 0, n, out);
}

static int few(const tk_run *u, int group) { return u->rows * group <= FEW; }

// Which block of which KV head the thread takes after block b of a unit's last head, probably; returns -1 if it is not one that the
// prefix fills, or if the run is bound by reading, which the processor's own prefetcher does better.
static int block_after(const tk_prog *p, const tk_op *op, int unit, int b, int *head) {
    int units = kept_of(p, op)->heads / op->at_once, next = unit + p->threads;
    tk_span s = p->spans[unit / units];
    const tk_run *u = p->runs + s.run;
    if (b + 1 < s.b1) b++;
    else if (few(u, op->heads / kept_of(p, op)->heads) || next / units >= p->nspans || p->spans[next / units].run != s.run) return -1;
    else {
        b = p->spans[next / units].b0;
        *head = next % units * op->at_once;
    }
    return (b + 1) * TK_SEG <= p->pass.prefix[u->row] ? b : -1;
}

void tk_attend(const tk_prog *p, const tk_op *op, int unit, float *scratch) {
    const tk_kept *kept = kept_of(p, op);
    int units = kept->heads / op->at_once, head = unit % units * op->at_once, end = head + op->at_once;
    int group = op->heads / kept->heads, dim = kept->dim, d = kept->value_dim, any;
    tk_span s = p->spans[unit / units];
    int first = first_query(s, group);
    tk_run *u = p->runs + s.run;
    tk_sight see[MOSTROWS];
    size_t one = tk_part_floats(group, d), each = part_of_rows(p, op, u);
    float *part = scratch;
    if (u->spans > 1) part = p->part + u->part + head * each;
    tk_attn a = {.kv = &p->kv, .kept = kept, .rows = u->rows, .group = queries_of(s, group), .see = see,
                 .ldq = (size_t)op->heads * dim, .scale = op->scale, .softcap = op->softcap, .soft_cap = p->k->soft_cap,
                 .ldout = u->blocks * one};
    for (int b = s.b0; b < s.b1; b++) {
        int n = sights(p, op, u, b, see, &any);
        if (!any) continue;
        for (int h = head; h < end; h++) {
            int from = head, next = h + 1 == end ? block_after(p, op, unit, b, &from) : b;
            a.head = h;
            a.q = op->in + ((size_t)u->row * op->heads + h * group + first) * dim;
            a.out = part + (h - head) * each + b * one + query_floats(first, d);
            block_pages(p, kept, h, u->row, b, n, a.page);
            // Next is the same block of the next KV head, or another block.
            if (h + 1 < end) block_pages(p, kept, h + 1, u->row, b, n, a.ahead);
            else block_pages(p, kept, from, u->row, imax(next, 0), next < 0 ? 0 : TK_SEG, a.ahead);
            for (int i = imax(1, p->repeat); i > 0; i--) p->k->attend(&a);
        }
    }
    int32_t *done = p->done + (size_t)s.run * (p->max_heads + 1);
    if (!last_of(done + 1 + unit % units, u->spans)) return;
    for (int h = head; h < end; h++) join(p, op, u, h, part + (h - head) * each);
    if (!last_of(done, units)) return;
    for (int row = u->row; row < u->row + u->rows; row++) fill(p, op, row);
}

// A unit of attention whose blocks are handed over: rows that another side computes are left out.
void tk_attend_blocks(const tk_prog *p, const tk_op *op, int unit) {
    const tk_kept *kept = kept_of(p, op);
    int units = kept->heads / op->at_once, head = unit % units * op->at_once, any;
    int group = op->heads / kept->heads, dim = kept->dim;
    tk_span s = p->spans[unit / units];
    tk_run *u = p->runs + s.run;
    tk_sight see[MOSTROWS];
    int first = first_query(s, group);
    tk_attn a = {.kv = &p->kv, .kept = kept, .group = queries_of(s, group), .ldq = (size_t)op->heads * dim, .scale = op->scale,
                 .softcap = op->softcap, .soft_cap = p->k->soft_cap, .ldout = p->blocks * tk_part_floats(group, kept->value_dim)};
    for (int b = s.b0; b < s.b1; b++) {
        int n = sights(p, op, u, b, see, &any);
        for (a.head = head; any && a.head < head + op->at_once; a.head++)
            for (int from = 0, to; from < u->rows; from = to + 1) {
                for (to = from; to < u->rows && see[to].lo < see[to].hi && mine(p, op, u->row + to, b, a.head);) to++;
                if (from == to) continue;
                a.rows = to - from;
                a.see = see + from;
                a.q = op->in + ((size_t)(u->row + from) * op->heads + a.head * group + first) * dim;
                a.out = tk_part_at(p, op->parts, u->row + from, b, a.head * group + first);
                block_pages(p, kept, a.head, u->row, b, n, a.page);
                for (int i = imax(1, p->repeat); i > 0; i--) p->k->attend(&a);
            }
    }
}

float *tk_part_at(const tk_prog *p, int parts, int row, int block, int head) {
    const tk_parts *s = p->parts + parts;
    if (!s->mem) return NULL;
    if (row < 0 || row >= p->pass.rows || block < 0 || block >= blocks_of(&p->pass, row)) return NULL;
    size_t at = ((size_t)(head / s->group) * p->pass.rows + row) * p->blocks + block;
    return s->mem + at * tk_part_floats(s->group, s->dim) + head % s->group * (tk_round16(s->dim) + 2);
}

void tk_share_parts(tk_prog *to, const tk_prog *from) {
    for (int i = 0; i < to->nparts; i++) {
        to->parts[i].mem = from ? from->parts[i].mem : NULL;
        to->parts[i].cap = from ? from->parts[i].cap : 0;
    }
}

void tk_join_row(const tk_prog *p, const tk_op *op, int row) {
    int group = op->heads / kept_of(p, op)->heads, d = kept_of(p, op)->value_dim, b = first_seen(op, p->pass.pos[row]) / TK_SEG;
    float *out = p->attn_out + (size_t)row * op->heads * d;
    for (int h = 0; h < op->heads; h += group)
        p->k->join(tk_part_at(p, op->parts, row, b, h), seen_blocks(op, &p->pass, row) - b, group, d, op->vec ? op->vec + h : NULL,
                   out + (size_t)h * d);
    fill(p, op, row);
}

static int most_of_run(int group) { return imax(1, imin(MOSTROWS, QUERIES / group)); }
static int most_rows(const tk_prog *p) { return imax(1, imin(most_of_run(p->max_group), p->pass.rows)); }

int tk_cut_rows(int rows, int group, int heads, int threads) {
    return threads == 1 ? 0 : imin(rows, (UNITS * threads - 1) / heads * most_of_run(group));
}

size_t tk_attend_floats(const tk_prog *p, const tk_op *op) {
    if (op->kind != TK_ATTEND) return 0;
    size_t floats = 0, one;
    for (int i = 0; i < p->nruns; i++)
        if (p->runs[i].spans == 1 && (one = part_of_rows(p, op, p->runs + i)) > floats) floats = one;
    return floats * op->at_once;
}

// Cuts the pass into runs of at most `most` rows.
static void find_runs(tk_prog *p, int most) {
    const tk_pass *a = &p->pass;
    p->nruns = 0;
    for (int row = 0; row < a->rows;) {
        tk_run u = {.row = row, .spans = 1};
        while (u.rows < most && row < a->rows && a->table[row] == a->table[u.row]) {
            u.blocks = imax(u.blocks, blocks_of(a, row));
            u.rows++;
            row++;
        }
        p->runs[p->nruns++] = u;
    }
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

static int attends(const tk_op *op) { return op->kind == TK_ATTEND || op->kind == TK_ATTEND_BLOCKS; }

// How many KV heads a unit of an attention has: the most that still leave enough units for all threads.
static int heads_at_once(const tk_prog *p, const tk_op *op, int threads) {
    int heads = kept_of(p, op)->heads;
    int64_t blocks = 0;
    for (int i = 0; i < p->nruns; i++) {
        if (p->runs[i].rows * (op->heads / heads) > FEW) return 1;
        blocks += p->runs[i].blocks;
    }
    for (int n = heads; n > 1; n--)
        if (heads % n == 0 && (threads == 1 || blocks * (heads / n) >= 8 * threads)) return n;
    return 1;
}

// The most floats that an attention's parts of a run take.
static size_t most_parts(const tk_prog *p, const tk_run *u) {
    size_t most = 0, all;
    for (const tk_op *op = p->ops; op < p->ops + p->nops; op++)
        if (attends(op) && (all = kept_of(p, op)->heads * part_of_rows(p, op, u)) > most) most = all;
    return most;
}

// How many of the last spans of a run are cut in two by query heads: only the run that is done last has any.
static int halved(const tk_prog *p, int run, int spans, int threads) {
    if (threads == 1 || run + 1 < p->nruns || p->max_heads > 1 || few(p->runs + run, p->max_group)) return 0;
    return imin(spans, threads);
}

// Cuts runs into spans: enough units of every attention for the threads to even out, if there are blocks enough.
static int cut(tk_prog *p, int threads) {
    int units = p->max_heads;
    for (tk_op *op = p->ops; op < p->ops + p->nops; op++) {
        if (!attends(op)) continue;
        op->at_once = heads_at_once(p, op, threads);
        units = imin(units, kept_of(p, op)->heads / op->at_once);
    }
    int per = threads == 1 ? 1 : (UNITS * threads + p->nruns * units - 1) / (p->nruns * units);
    size_t floats = 0, spans = 0;
    p->blocks = 0;
    for (int i = 0; i < p->nruns; i++) {
        tk_run *u = p->runs + i;
        u->spans = imin(u->blocks, per);
        u->spans += halved(p, i, u->spans, threads);
        u->part = floats;
        p->blocks = imax(p->blocks, u->blocks);
        if (u->spans > 1) floats += most_parts(p, u);
        spans += u->spans;
    }
    memset(p->done, 0, sizeof(int32_t) * p->nruns * (p->max_heads + 1));
    void *mem = p->part, *list = p->spans;
    int err = grow(&mem, &p->part_cap, floats, sizeof(float));
    if (!err) err = grow(&list, &p->spans_cap, spans, sizeof(tk_span));
    p->part = mem;
    p->spans = list;
    for (tk_parts *s = p->parts; s < p->parts + p->nparts && !err; s++) {
        void *parts = s->mem;
        err = grow(&parts, &s->cap, (size_t)s->heads * p->pass.rows * p->blocks * tk_part_floats(s->group, s->dim), sizeof(float));
        s->mem = parts;
    }
    if (err) return err;
    p->nspans = 0;
    p->threads = threads;
    for (int i = 0; i < p->nruns; i++) {
        const tk_run *u = p->runs + i;
        int whole = imin(u->blocks, per), cut = whole - halved(p, i, whole, threads);
        for (int s = 0; s < whole; s++) {
            int b0 = (int)((int64_t)u->blocks * s / whole), b1 = (int)((int64_t)u->blocks * (s + 1) / whole), n = s < cut ? 1 : 2;
            for (int k = 0; k < n; k++) p->spans[p->nspans++] = (tk_span){i, b0, b1, k, n};
        }
    }
    return 0;
}

int tk_prepare_pass(tk_prog *p, int threads) {
    if (!p->max_group) return 0;
    int most = most_rows(p), long_enough = 0;
    for (int r = 0; r < p->pass.rows; r++) long_enough |= blocks_of(&p->pass, r) >= 4 * threads;
    find_runs(p, most);
    // Where the context is too short to cut by blocks, rows are shared out, though fewer then share a fetch.
    while (threads > 1 && !long_enough && most > 1 && p->nruns * p->min_heads < 4 * threads) find_runs(p, most = (most + 1) / 2);
    return cut(p, threads);
}

void tk_prog_release(tk_prog *p) {
    for (int i = 0; i < p->nparts; i++) free(p->parts[i].mem);
    free(p->part);
    free(p->spans);
}
