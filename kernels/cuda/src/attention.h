// Attention by blocks of 256 positions: every block of a row is computed by itself, then they are joined in order (docs/kernels.md).
//
// The cache has the processor's layout (kernels/cpu/cache.go): a page holds 64 positions, for each layer and KV head the keys, one
// dimension of all positions after the other, then the values by position. Q8_0 keys have per 32 dimensions 64 half scales and then
// codes; values have their scales, (dimensions/32, 64) halves, behind the codes of the page.
#pragma once
#include "arith.h"

static __device__ __forceinline__ unsigned char *head_of(const Op *op, int cell, int head) {
    return op->kv + (size_t)(cell / PAGE) * op->page_bytes + op->layer_at + head * op->head_bytes;
}

// store writes keys (in) and values (in2) into the cells: (KV heads, rows, operations) blocks, a thread for each dimension, a multiple
// of 32.
KERNEL store(const Op *op, const Pass *pass) {
    op += blockIdx.z;
    int head = blockIdx.x, row = blockIdx.y, d = threadIdx.x, dim = op->head_dim, values_of = op->value_dim, lane = d & 31;
    if (head >= op->kv_heads || row >= pass->rows) return;
    int cell = pass->store[row], slot = cell % PAGE;
    unsigned char *at = head_of(op, cell, head), *values = at + op->values;
    size_t head_at = (size_t)row * op->kv_heads + head;
    const float *value = op->in2 + head_at * values_of, *key = op->in + head_at * dim;
    int rotated = dim;  // elements of the key that are in `in`; the others are the value
    if (op->latent) {
        rotated = dim - values_of;
        key = op->in + (size_t)row * rotated;
    }
    float k = d < rotated ? key[d] : d < dim ? value[d - rotated] : 0, v = d < values_of ? value[d] : 0;
    if (!op->kv_q8) {
        if (d < dim) ((unsigned short *)at)[d * PAGE + slot] = to_half(k);
        if (d < values_of) ((unsigned short *)(values + (size_t)slot * op->value_row))[d] = to_half(v);
        return;
    }
    float inv;
    unsigned char *keys = at + (size_t)(d / 32) * 34 * PAGE;
    float scale = scale_of(largest(__float_as_uint(k) & 0x7fffffffu), &inv);
    if (d < dim) {
        ((signed char *)keys)[2 * PAGE + lane * PAGE + slot] = (signed char)code_of(k, inv);
        if (lane == 0) ((unsigned short *)keys)[slot] = to_half(scale);
    }
    scale = scale_of(largest(__float_as_uint(v) & 0x7fffffffu), &inv);
    if (d < values_of) {
        ((signed char *)values)[(size_t)slot * op->value_row + d] = (signed char)code_of(v, inv);
        if (lane == 0) ((unsigned short *)(values + op->value_scales))[d / 32 * PAGE + slot] = to_half(scale);
    }
}

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

// QUERIES query heads share the reading of a key.
enum { QUERIES = 4 };

// score returns the scores of QUERIES heads with the key of a cell. q is (heads, dim).
static __device__ __forceinline__ void score(const Op *op, const unsigned char *keys, int slot, const float *q, int heads, float *s) {
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
                if (g < heads) s[g] = __fmaf_rn(q[g * dim + d], x, s[g]);
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
                if (g < heads) t[g] = __fmaf_rn(q[g * dim + 32 * b + d], x, t[g]);
        }
#pragma unroll
        for (int g = 0; g < QUERIES; g++) s[g] = __fmaf_rn(scale, t[g], s[g]);
    }
}

// attend computes one block of one row for the query heads of one KV head: (pairs, KV heads) blocks of 256 threads, a position each.
// Shared memory holds 256 addresses, QUERIES · 256 weights, the queries, and a few numbers.
KERNEL attend(const Op *op, const Pass *pass) {
    SHARED(unsigned char, memory);
    int head = blockIdx.y, at = pass->pair_from + blockIdx.x, t = threadIdx.x, lane = t & 31;
    if (at >= pass->pair_to) return;
    int row = pass->pairs[at].row, block = pass->pairs[at].block, dim = op->head_dim, wide = op->value_dim;
    Seen seen = seen_of(op, pass, row, block);
    if (seen.from >= seen.to) return;
    if (op->side) {
        int cut = pass->cut[row], left = block < cut || (block == cut && head < op->shared);
        if (left != (op->side == 1)) return;
    }
    const unsigned char **cells = (const unsigned char **)memory;
    float *weights = (float *)(cells + BLOCK), *tops = weights + QUERIES * BLOCK, *q = tops + QUERIES * 8;
    int *slots = (int *)(q + QUERIES * dim), pos = block * BLOCK + t, group = op->heads / op->kv_heads;
    int visible = pos >= seen.from && pos < seen.to;
    if (visible) {
        int cell = cell_at(pass, row, pos);
        cells[t] = head_of(op, cell, head);
        slots[t] = cell % PAGE;
    }
    for (int g0 = 0; g0 < group; g0 += QUERIES) {
        int heads = min((int)QUERIES, group - g0), first = head * group + g0;
        const float *from = op->in + ((size_t)row * op->heads + first) * dim;
        for (int i = t; i < heads * dim; i += BLOCK) q[i] = from[i];
        __syncthreads();
        float s[QUERIES], low = -infinity();
        if (visible) score(op, cells[t], slots[t], q, heads, s);
#pragma unroll
        for (int g = 0; g < QUERIES; g++) {
            s[g] = visible && g < heads ? op->scale * s[g] : low;
            if (op->softcap != 0 && visible) s[g] = soft_cap(s[g], op->softcap);
            float m = s[g] == s[g] ? s[g] : low;  // a NaN is not the largest
            for (int n = 16; n > 0; n /= 2) {
                float other = __shfl_xor_sync(0xffffffffu, m, n);
                m = other > m ? other : m;
            }
            if (lane == 0) tops[g * 8 + t / 32] = m;
        }
        __syncthreads();
        for (int g = 0; g < heads; g++) {
            float m = tops[g * 8];
            for (int i = 1; i < 8; i++) m = tops[g * 8 + i] > m ? tops[g * 8 + i] : m;
            weights[g * BLOCK + t] = visible ? exp_of(s[g] - m) : 0;
        }
        __syncthreads();
        float *out = op->parts + ((size_t)(at - pass->pair_from) * op->heads + first) * (wide + 2);
        if (t < 32 * heads) {  // a warp for each head: Σ of the weights
            int g = t / 32;
            float sum = 0;
            if (lane < 16)
                for (int j = lane; j < BLOCK; j += 16) sum += weights[g * BLOCK + j];
            sum = add16(sum);
            if (lane == 0) {
                float m = tops[g * 8];
                for (int i = 1; i < 8; i++) m = tops[g * 8 + i] > m ? tops[g * 8 + i] : m;
                out[g * (wide + 2) + wide] = m;
                out[g * (wide + 2) + wide + 1] = sum;
            }
        }
        for (int i = t; i < heads * wide; i += BLOCK) {
            int g = i / wide, d = i % wide;
            float o = 0;
#pragma unroll 8
            for (int j = seen.from % BLOCK; j < seen.to - block * BLOCK; j++) {
                const unsigned char *v = cells[j] + op->values + (size_t)slots[j] * op->value_row;
                float p = weights[g * BLOCK + j];
                if (!op->kv_q8) {
                    o = __fmaf_rn(p, half_of(((const unsigned short *)v)[d]), o);
                } else {
                    const unsigned short *scales = (const unsigned short *)(cells[j] + op->values + op->value_scales);
                    o = __fmaf_rn(p * half_of(scales[d / 32 * PAGE + slots[j]]), (float)((const signed char *)v)[d], o);
                }
            }
            out[g * (wide + 2) + d] = o;
        }
    }
}

// join fills an activation with the joined blocks of each row: (columns/THREADS, rows of this launch) blocks.
KERNEL join(const Op *op, const Pass *pass) {
    SHARED(unsigned, box);
    int row = pass->row_from + blockIdx.y, k0 = blockIdx.x * THREADS, k = k0 + threadIdx.x, dim = op->value_dim;
    if (row >= pass->row_to || k0 >= op->dst.dim) return;
    float y = 0;
    if (k < op->dst.dim) {
        int b = first_of(op, pass, row) / BLOCK, blocks = (keys_of(op, pass, row) + BLOCK - 1) / BLOCK;
        size_t step = (size_t)op->heads * (dim + 2);
        const float *part = op->parts + (size_t)(pass->first[row] - pass->pair_from) * step + (size_t)(k / dim) * (dim + 2);
        float m = -infinity(), sum = 0;
        for (int i = b; i < blocks; i++) {
            float x = part[i * step + dim];
            if (x > m) m = x;
        }
        if (op->biased) {  // a sink comes before the blocks: it has a share of the sum alone
            float sink = op->vec[k / dim];
            if (sink > m) m = sink;
            sum = exp_of(sink - m);
        }
        for (int i = b; i < blocks; i++) {
            float c = exp_of(part[i * step + dim] - m);
            sum = __fmaf_rn(c, part[i * step + dim + 1], sum);
            y = __fmaf_rn(c, part[i * step + k % dim], y);
        }
        y /= sum;
        if (op->in) y *= sigmoid(op->in[(size_t)row * op->dst.dim + k]);  // the gate
    }
    fill(op->dst, row, k0, y, box);
}

// copy_cells copies cells one after the other: ids holds pairs of a cell to write and one to read, to of them. (1, KV heads, layers)
// blocks, a thread for each dimension, a multiple of 32. A thread keeps to its dimension, so that a cell that was just written may be
// read.
KERNEL copy_cells(const Op *op, const Pass *pass) {
    op += blockIdx.z;
    int head = blockIdx.y, d = threadIdx.x, dim = op->head_dim;
    if (head >= op->kv_heads || d >= dim) return;
    for (int i = 0; i < op->to; i++) {
        int to = op->ids[2 * i], from = op->ids[2 * i + 1], ts = to % PAGE, fs = from % PAGE;
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
