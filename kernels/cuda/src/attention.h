// Attention by blocks of 256 positions: every block of a row is computed by itself, then they are joined in order (docs/kernels.md).
//
// The cache has the processor's layout (kernels/cpu/cache.go): a page holds 64 positions, for each layer and KV head the keys, one
// dimension of all positions after the other, then the values by position. Q8_0 keys have per 32 dimensions 64 half scales and then
// codes; values have their scales, (dimensions/32, 64) halves, behind the codes of the page.
#pragma once
#include "tail.h"

// Seen is the part of a block that a row sees: positions [from, to).
struct Seen {
    int from, to;
};

// keys_of returns how many positions an attention lets a row see.
static __device__ __forceinline__ int keys_of(const Op *op, const Pass *pass, int row) {
    return op->later ? pass->prefix[row] + pass->anc_len[row] : pass->pos[row] + 1;
}

// first_of returns the first position that a row sees.
static __device__ __forceinline__ int first_of(const Op *op, const Pass *pass, int row) {
    return op->window > 0 ? max(0, pass->pos[row] + 1 - op->window) : 0;
}

static __device__ __forceinline__ Seen seen_of(const Op *op, const Pass *pass, int row, int block) {
    int n = keys_of(op, pass, row), first = first_of(op, pass, row);
    Seen s = {max(block * BLOCK, first), min((block + 1) * BLOCK, n)};
    return s;
}

static __device__ __forceinline__ int cell_at(const Pass *pass, int row, int pos) {
    int prefix = pass->prefix[row];
    if (pos >= prefix) return pass->anc[pass->anc_off[row] + pos - prefix];
    return pass->pages[pass->table[row] + pos / PAGE] * PAGE + pos % PAGE;
}

// part_step is how many floats lie between the parts of two query heads: o, m, l.
static __device__ __forceinline__ int part_step(const Op *op) { return (op->tiled ? (op->value_dim + 15) / 16 * 16 : op->value_dim) + 2; }

// part_of returns the part of a row and block (the pair `at` of this launch) and of a query head. tiled: where tk_part_at of kernels/cpu
// has it.
static __device__ __forceinline__ float *part_of(const Op *op, const Pass *pass, int row, int block, int at, int head) {
    int step = part_step(op);
    if (!op->tiled) return op->parts + ((size_t)at * op->heads + head) * step;
    int group = op->heads / op->kv_heads;
    size_t one = ((size_t)head / group * pass->rows + row) * pass->blocks + block;
    return op->parts + one * ((group * step + 15) / 16 * 16) + head % group * step;
}

// QUERIES queries share the reading of a key or a value: heads of a row, and of rows that see the same of a block in the same cells.
enum { QUERIES = 8 };

// alike reports whether two rows do so.
static __device__ __forceinline__ bool alike(const Op *op, const Pass *pass, const Pair &a, const Pair &b) {
    if (a.block != b.block || pass->table[a.row] != pass->table[b.row] || op->side) return false;
    if ((a.block + 1) * BLOCK > min(pass->prefix[a.row], pass->prefix[b.row])) return false;
    Seen x = seen_of(op, pass, a.row, a.block), y = seen_of(op, pass, b.row, b.block);
    return x.from == y.from && x.to == y.to;
}

// score returns the scores of n queries with the key of a cell. q is (n, dim).
static __device__ __forceinline__ void score(const Op *op, const unsigned char *keys, int slot, const float *q, int n, float *s) {
    int dim = op->head_dim;
#pragma unroll
    for (int g = 0; g < QUERIES; g++) s[g] = 0;
    if (!op->kv_q8) {
        const unsigned short *k = (const unsigned short *)keys + slot;
#pragma unroll 8
        for (int d = 0; d < dim; d++) {
            float x = half_of(k[d * PAGE]);
#pragma unroll
            for (int g = 0; g < QUERIES; g++)
                if (g < n) s[g] = __fmaf_rn(q[g * dim + d], x, s[g]);
        }
        return;
    }
    for (int b = 0; b < dim / 32; b++, keys += 34 * PAGE) {
        float t[QUERIES] = {}, scale = half_of(((const unsigned short *)keys)[slot]);
#pragma unroll 8
        for (int d = 0; d < 32; d++) {
            float x = (float)((const signed char *)keys)[2 * PAGE + d * PAGE + slot];
#pragma unroll
            for (int g = 0; g < QUERIES; g++)
                if (g < n) t[g] = __fmaf_rn(q[g * dim + 32 * b + d], x, t[g]);
        }
#pragma unroll
        for (int g = 0; g < QUERIES; g++) s[g] = __fmaf_rn(scale, t[g], s[g]);
    }
}

// attend_rows computes one block of n rows that are alike for the query heads of one KV head: a thread for each position. Shared memory
// holds 256 addresses, QUERIES · 256 weights, the queries, and a few numbers.
static __device__ __forceinline__ void attend_rows(const Op *op, const Pass *pass, const Pair *pairs, int rows, int head,
                                                   unsigned char *memory) {
    int t = threadIdx.x, lane = t & 31, dim = op->head_dim, wide = op->value_dim, block = pairs->block;
    Seen seen = seen_of(op, pass, pairs->row, block);
    if (seen.from >= seen.to) return;
    if (op->side) {
        int cut = pass->cut[pairs->row], left = block < cut || (block == cut && head < op->shared);
        if (left != (op->side == 1)) return;
    }
    const unsigned char **cells = (const unsigned char **)memory;
    float *weights = (float *)(cells + BLOCK), *tops = weights + QUERIES * BLOCK, *q = tops + QUERIES * 8;
    int *slots = (int *)(q + QUERIES * dim), pos = block * BLOCK + t, group = op->heads / op->kv_heads;
    int visible = pos >= seen.from && pos < seen.to;
    if (visible) {
        int cell = cell_at(pass, pairs->row, pos);
        cells[t] = head_of(op, cell, head);
        slots[t] = cell % PAGE;
    }
    for (int q0 = 0; q0 < rows * group; q0 += QUERIES) {  // query i is head i % group of row i / group
        int n = min((int)QUERIES, rows * group - q0);
        for (int i = t; i < n * dim; i += BLOCK) {
            int query = q0 + i / dim;
            q[i] = op->in[((size_t)pairs[query / group].row * op->heads + head * group + query % group) * dim + i % dim];
        }
        __syncthreads();
        float s[QUERIES], low = -infinity();
        if (visible) score(op, cells[t], slots[t], q, n, s);
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            s[g] = visible && g < n ? op->scale * s[g] : low;
            if (g >= n) break;
            if (op->softcap != 0 && visible) s[g] = soft_cap(s[g], op->softcap);
            float m = s[g] == s[g] ? s[g] : low;  // a NaN is not the largest
            for (int i = 16; i > 0; i /= 2) {
                float other = __shfl_xor_sync(0xffffffffu, m, i);
                m = other > m ? other : m;
            }
            if (lane == 0) tops[g * 8 + t / 32] = m;
        }
        __syncthreads();
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            if (g >= n) break;
            float m = tops[g * 8];
            for (int i = 1; i < 8; i++) m = tops[g * 8 + i] > m ? tops[g * 8 + i] : m;
            weights[g * BLOCK + t] = visible ? exp_of(s[g] - m) : 0;
        }
        __syncthreads();
        int step = part_step(op);
        auto out = [&](int g) {
            int row = pairs[(q0 + g) / group].row, h = head * group + (q0 + g) % group;
            return part_of(op, pass, row, block, pass->first[row] + block - pass->pair_from, h);
        };
        if (t < 32 * n) {  // a warp for each query: Σ of the weights
            int g = t / 32;
            float sum = 0;
            if (lane < 16)
                for (int j = lane; j < BLOCK; j += 16) sum += weights[g * BLOCK + j];
            sum = add16(sum);
            if (lane == 0) {
                float m = tops[g * 8];
                for (int i = 1; i < 8; i++) m = tops[g * 8 + i] > m ? tops[g * 8 + i] : m;
                out(g)[step - 2] = m;
                out(g)[step - 1] = sum;
            }
        }
        // a thread takes a dimension of some queries, which share the values that it reads
        int sets = max(1, BLOCK / wide), each = (n + sets - 1) / sets, g0 = sets > 1 ? t / wide * each : 0;
        int mine = sets > 1 && t >= sets * wide ? 0 : min(each, n - g0), first = seen.from % BLOCK, end = seen.to - block * BLOCK;
        for (int d = sets > 1 ? t % wide : t; d < wide && mine > 0; d += sets > 1 ? wide : (int)BLOCK) {
            float o[QUERIES] = {};
#pragma unroll 4
            for (int j = first; j < end; j++) {
                const unsigned char *v = cells[j] + op->values + (size_t)slots[j] * op->value_row;
                const float *p = weights + g0 * BLOCK + j;
                float x = 1, scale = 1;
                if (!op->kv_q8) {
                    x = half_of(((const unsigned short *)v)[d]);
                } else {
                    scale = half_of(((const unsigned short *)(cells[j] + op->values + op->value_scales))[d / 32 * PAGE + slots[j]]);
                    x = (float)((const signed char *)v)[d];
                }
#pragma unroll
                for (int g = 0; g < QUERIES; g++)
                    if (g < mine) o[g] = __fmaf_rn(p[g * BLOCK] * scale, x, o[g]);
            }
#pragma unroll
            for (int g = 0; g < QUERIES; g++)
                if (g < mine) out(g0 + g)[d] = o[g];
        }
    }
}

// join_columns fills columns [k0, k0+THREADS) of an activation with the joined blocks of a row.
static __device__ __forceinline__ void join_columns(const Op *op, const Pass *pass, int row, int k0, unsigned *box) {
    int k = k0 + threadIdx.x, dim = op->value_dim;
    float y = 0;
    if (k < op->dst.dim) {
        int b = first_of(op, pass, row) / BLOCK, blocks = (keys_of(op, pass, row) + BLOCK - 1) / BLOCK;
        int at = pass->first[row] - pass->pair_from, last = part_step(op) - 2;
        const float *part = part_of(op, pass, row, 0, at, k / dim);
        size_t step = part_of(op, pass, row, 1, at + 1, k / dim) - part;
        float m = -infinity(), sum = 0;
        for (int i = b; i < blocks; i++) {
            float x = part[i * step + last];
            if (x > m) m = x;
        }
        if (op->biased) {  // a sink comes before the blocks: it has a share of the sum alone
            float sink = op->vec[k / dim];
            if (sink > m) m = sink;
            sum = exp_of(sink - m);
        }
        for (int i = b; i < blocks; i++) {
            float c = exp_of(part[i * step + last] - m);
            sum = __fmaf_rn(c, part[i * step + last + 1], sum);
            y = __fmaf_rn(c, part[i * step + k % dim], y);
        }
        y /= sum;
        if (op->in) y *= sigmoid(op->in[(size_t)row * op->dst.dim + k]);  // the gate
    }
    fill(op->dst, op->dst.dim, row, k0, y, box);
}

// attend has (pairs/each, KV heads) blocks of THREADS. What joins its blocks may be its tail: then the last block of a row does it.
KERNEL(attend) {
    SHARED(unsigned char, memory);
    int head = blockIdx.y, from = pass->pair_from + blockIdx.x * pass->each, to = min(from + pass->each, pass->pair_to), t = threadIdx.x;
    int *box = (int *)memory;
    for (int at = from, n; at < to; at += n) {
        const Pair *pairs = pass->pairs + at;
        for (n = 1; at + n < to && alike(op, pass, pairs[0], pairs[n]); n++) {
        }
        if (at > from) __syncthreads();
        attend_rows(op, pass, pairs, n, head, memory);
        if (!op->tails) continue;
        int row = pairs[min(t, n - 1)].row;
        count(op, n, row, (pass->prefix[row] + pass->anc_len[row] + BLOCK - 1) / BLOCK * op->kv_heads, box);
        for (int i = 0; i < n; i++)
            for (int k0 = 0; box[16 + i] && k0 < op->tail->dst.dim; k0 += THREADS)
                join_columns(op->tail, pass, pairs[i].row, k0, (unsigned *)box);
    }
    meet_behind(op);
}

// join does it alone: (columns/THREADS, rows of this launch) blocks.
KERNEL(join) {
    SHARED(unsigned, box);
    int row = pass->row_from + blockIdx.y, k0 = blockIdx.x * THREADS;
    if (row >= pass->row_to || k0 >= op->dst.dim) return;
    join_columns(op, pass, row, k0, box);
}

// copy_cells copies cells one after the other: ids holds how many pairs follow, of a cell to write and one to read. (1, KV heads, layers)
// blocks, a thread for each dimension, a multiple of 32. A thread keeps to its dimension, so that a cell that was just written may be
// read.
KERNEL(copy_cells) {
    op += blockIdx.z;
    int head = blockIdx.y, d = threadIdx.x, dim = op->head_dim;
    if (head >= op->kv_heads || d >= dim) return;
    for (int i = 0; i < op->ids[0]; i++) {
        int to = op->ids[2 * i + 1], from = op->ids[2 * i + 2], ts = to % PAGE, fs = from % PAGE;
        unsigned char *t = head_of(op, to, head), *f = head_of(op, from, head), *tv = t + op->values, *fv = f + op->values;
        if (!op->kv_q8) {
            ((unsigned short *)t)[d * PAGE + ts] = ((unsigned short *)f)[d * PAGE + fs];
            if (d >= op->value_dim) continue;
            ((unsigned short *)(tv + (size_t)ts * op->value_row))[d] = ((unsigned short *)(fv + (size_t)fs * op->value_row))[d];
            continue;
        }
        size_t keys = (size_t)(d / 32) * 34 * PAGE, code = keys + 2 * PAGE + d % 32 * PAGE;
        t[code + ts] = f[code + fs];
        if (d % 32 == 0) ((unsigned short *)(t + keys))[ts] = ((unsigned short *)(f + keys))[fs];
        if (d >= op->value_dim) continue;
        tv[(size_t)ts * op->value_row + d] = fv[(size_t)fs * op->value_row + d];
        if (d % 32 == 0) {
            unsigned short *to_scales = (unsigned short *)(tv + op->value_scales) + d / 32 * PAGE;
            to_scales[ts] = ((unsigned short *)(fv + op->value_scales))[d / 32 * PAGE + fs];
        }
    }
}
