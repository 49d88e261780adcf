// Operations on rows. Unless said otherwise a launch has THREADS threads a block, and (columns/THREADS, rows, operations) blocks.
#pragma once
#include "couple.h"

#define FOR_COLUMN(row, k)                                                                       \
    op += blockIdx.z;                                                                            \
    int row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;                                \
    if (row >= rows_of(op, pass) || k >= op->dim) return;                                        \
    size_t at = (size_t)row * op->dim + k

// Operations that a tail may do (tail.h): the same for rows [row, row+n) by all threads of a block. element is the others, for one column.
enum {
    ROWS_NORM = 1, ROWS_NORM_ADD, ROWS_HEAD_NORM, ROWS_ROPE, ROWS_STORE, ROWS_CHOOSE,
    ROWS_BIAS, ROWS_COPY, ROWS_SCALE, ROWS_ADD_SCALED, ROWS_TURNS, ROWS_EXPERTS, ROWS_CAP, ROWS_ADD_SILU, ROWS_BLEND, ROWS_SIGMOID,
    ROWS_HEADS, ROWS_GATHER,
    FILL_FEED, FILL_SILU, FILL_GELU, FILL_CLAMPED
};

// norm_rows: a warp for the scale of each row, then all threads for row after row. box is 16 numbers of shared memory.
static __device__ void norm_rows(const Op *op, int row, int n, float *box) {
    int t = thread(), dim = op->dim;
    if (t / 32 < n) {
        float s = rms_scale(op->in + (size_t)(row + t / 32) * dim, dim, op->eps);
        if (t % 32 == 0) box[8 + t / 32] = s;
    }
    __syncthreads();
    for (int r = 0; r < n; r++) {
        const float *x = op->in + (size_t)(row + r) * dim;
        for (int k0 = 0; k0 < dim; k0 += THREADS) {
            int k = k0 + t;
            fill(op->dst, dim, row + r, k0, k < dim && t < THREADS ? x[k] * box[8 + r] * op->vec[k] : 0.0f, (unsigned *)box);
        }
    }
}

// norm_add_rows and head_norm_rows: a warp for each row, or each of its heads.
static __device__ void norm_add_rows(const Op *op, int row, int n) {
    int dim = op->dim;
    for (int r = thread() / 32; r < n; r += threads() / 32) {
        const float *x = op->in + (size_t)(row + r) * dim;
        float s = rms_scale(x, dim, op->eps), *y = op->out + (size_t)(row + r) * dim;
        for (int k = thread() % 32; k < dim; k += 32) y[k] += x[k] * s * op->vec[k];
    }
}

static __device__ void head_norm_rows(const Op *op, int row, int n) {
    int dim = op->head_dim;
    for (int h = thread() / 32; h < n * op->heads; h += threads() / 32) {
        float *x = op->out + (size_t)(row + h / op->heads) * op->dim + (size_t)(h % op->heads) * dim;
        float s = rms_scale(x, dim, op->eps);
        for (int k = thread() % 32; k < dim; k += 32) x[k] = x[k] * s * op->vec[k];
    }
}

// rope_rows: pairs [at, …) of all heads, every step-th one.
static __device__ void rope_rows(const Op *op, int row, int n, int at, int step) {
    int pairs = op->turned / 2;
    for (; at < n * op->heads * pairs; at += step) {
        int r = row + at / (op->heads * pairs), k = at % (op->heads * pairs), i = k % pairs;
        int i0 = op->halves ? i : 2 * i, i1 = op->halves ? i + pairs : 2 * i + 1;
        float *x = op->out + (size_t)r * op->dim + (size_t)(k / pairs) * op->head_dim;
        float c = op->table[2 * ((size_t)r * pairs + i)], s = op->table[2 * ((size_t)r * pairs + i) + 1], x0 = x[i0], x1 = x[i1];
        x[i0] = __fmaf_rn(x0, c, -(x1 * s));
        x[i1] = __fmaf_rn(x0, s, x1 * c);
    }
}

static __device__ __forceinline__ unsigned char *head_of(const Op *op, int cell, int head) {
    return op->kv + (size_t)(cell / PAGE) * op->page_bytes + op->layer_at + head * op->head_bytes;
}

// store_rows writes keys (in) and values (in2) of rows into their cells: a thread for each dimension of a head, of as many as are a
// multiple of 32, and every step-th one.
static __device__ void store_rows(const Op *op, const Pass *pass, int row, int n, int at, int step) {
    int dim = op->head_dim, values_of = op->value_dim, wide = (dim + 31) / 32 * 32;
    for (; at < n * op->kv_heads * wide; at += step) {
        int r = row + at / (op->kv_heads * wide), head = at / wide % op->kv_heads, d = at % wide, lane = d & 31;
        int cell = pass->store[r], slot = cell % PAGE;
        unsigned char *to = head_of(op, cell, head), *values = to + op->values;
        size_t head_at = (size_t)r * op->kv_heads + head;
        const float *value = op->in2 + head_at * values_of, *key = op->in + head_at * dim;
        int rotated = dim;  // elements of the key that are in `in`; the others are the value
        if (op->latent) {
            rotated = dim - values_of;
            key = op->in + (size_t)r * rotated;
        }
        float k = d < rotated ? key[d] : d < dim ? value[d - rotated] : 0, v = d < values_of ? value[d] : 0;
        if (!op->kv_q8) {
            if (d < dim) ((unsigned short *)to)[d * PAGE + slot] = to_half(k);
            if (d < values_of) ((unsigned short *)(values + (size_t)slot * op->value_row))[d] = to_half(v);
            continue;
        }
        float inv;
        unsigned char *keys = to + (size_t)(d / 32) * 34 * PAGE;
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
}

static __device__ __forceinline__ void element(const Op *op, const Pass *pass, int row, int k) {
    size_t at = (size_t)row * op->dim + k;
    switch (op->kind) {
    case ROWS_BIAS: op->out[at] += op->vec[k]; break;
    case ROWS_COPY: op->out[at] = op->in[at]; break;
    case ROWS_SCALE: op->out[at] *= op->scale; break;
    case ROWS_ADD_SCALED: op->out[at] += op->in[at] * op->scale; break;
    case ROWS_TURNS: {
        int turn = pass->turn[row] / op->every;
        op->out[at] *= op->vec[turn < op->steps ? turn : op->steps - 1];
        break;
    }
    case ROWS_EXPERTS: {  // the sum of what they give
        const float *x = op->in + (size_t)row * op->ld + k, *shares = op->shares + (size_t)row * op->used;
        float sum = 0;
        for (int s = 0; s < op->used; s++) sum += shares[s] * x[(size_t)s * op->dim];
        op->out[at] = op->add ? sum + op->out[at] : sum;
        break;
    }
    case ROWS_CAP: op->out[at] = soft_cap(op->out[at], op->softcap); break;
    case ROWS_ADD_SILU: op->out[at] += op->in[at] / (1.0f + exp_of(-op->in[at])); break;
    case ROWS_BLEND: {
        float y = op->out[at];
        op->out[at] = __fmaf_rn(sigmoid(op->in2[at]), op->in[at] - y, y);
        break;
    }
    case ROWS_SIGMOID: op->out[at] *= sigmoid(op->in[(size_t)row * op->ld + k / (op->dim / op->ld)]); break;
    case ROWS_HEADS: {  // columns [to, to+head_dim) of each head of out are those from `from` on of the head of in
        int wide = op->dim / op->heads, j = k % wide - op->to;
        if (j >= 0 && j < op->head_dim) op->out[at] = op->in[(size_t)row * op->ld + k / wide * (op->ld / op->heads) + op->from + j];
        break;
    }
    case ROWS_GATHER: op->out[at] = op->in[(size_t)pass->wanted[row] * op->dim + k];
    }
}

// The norms have (1, rows, operations) blocks.
#define FOR_ROW(row)                                                                             \
    op += blockIdx.z;                                                                            \
    int row = blockIdx.y;                                                                        \
    if (row >= rows_of(op, pass)) return

KERNEL(rms_norm) {
    SHARED(float, box);
    FOR_ROW(row);
    norm_rows(op, row, 1, box);
}

KERNEL(norm_add) {
    FOR_ROW(row);
    norm_add_rows(op, row, 1);
}

KERNEL(head_norm) {
    FOR_ROW(row);
    head_norm_rows(op, row, 1);
}

// elements is what element does, of several kinds.
KERNEL(elements) {
    op += blockIdx.z;
    int row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;
    if (row < rows_of(op, pass) && k < op->dim) element(op, pass, row, k);
    meet_behind(op);
}

KERNEL(block_conv) {
    FOR_COLUMN(row, k);
    int before = max(pass->pos[row] - pass->prefix[row], 0), groups = op->dim / op->group;
    const float *w = op->in2 + (size_t)row * op->cols + op->from + k / op->group;
    float y = (op->vec[k] + w[0]) * op->in[at];
    for (int i = 1; i < op->taps && i <= before; i++)
        y += (op->vec[(size_t)i * op->dim + k] + w[i * groups]) * op->in[at - (size_t)i * op->dim];
    op->out[at] = y;
}

// fill_columns fills columns [k0, k0+THREADS) of a row of dim. All threads of a block take part, whatever their columns.
static __device__ __forceinline__ void fill_columns(const Op *op, int dim, int row, int k0, unsigned *box) {
    int k = k0 + thread();
    size_t at = (size_t)row * dim + k;
    float y = 0;
    if (k < dim && thread() < THREADS) {
        y = op->in[at];
        switch (op->kind) {
        case FILL_SILU: y = silu_mul(y, op->in2[at]); break;
        case FILL_GELU: y = gelu_mul(y, op->in2[at]); break;
        case FILL_CLAMPED: y = clamped_mul(y, op->in2[at]); break;
        }
    }
    fill(op->dst, dim, row, k0, y, box);
}

KERNEL(fills) {
    SHARED(unsigned, box);
    op += blockIdx.z;
    int row = blockIdx.y, k0 = blockIdx.x * THREADS;
    if (row >= rows_of(op, pass) || k0 >= op->dst.dim) return;
    fill_columns(op, op->dst.dim, row, k0, box);
}

// angles fills the table of a rotation: columns are the pairs of elements that turn.
KERNEL(angles) {
    FOR_COLUMN(row, k);
    double angle = (double)(pass->turn[row] + op->ahead) * op->freq[k];
    double n = rint(angle * 0x1.45f306dc9c883p-1);
    double r = angle - n * 0x1.921fb544p+0;
    r -= n * 0x1.0b4611a6p-34;
    r -= n * 0x1.3198a2ep-69;
    double z = r * r, sn = -1.0 / 39916800.0, cs = 1.0 / 479001600.0;
    sn = sn * z + 1.0 / 362880.0;
    sn = sn * z + -1.0 / 5040.0;
    sn = sn * z + 1.0 / 120.0;
    sn = sn * z + -1.0 / 6.0;
    sn = r + r * z * sn;
    cs = cs * z + -1.0 / 3628800.0;
    cs = cs * z + 1.0 / 40320.0;
    cs = cs * z + -1.0 / 720.0;
    cs = cs * z + 1.0 / 24.0;
    cs = cs * z + -0.5;
    cs = 1.0 + z * cs;
    int turn = (int)((long long)n & 3);
    double c = turn & 1 ? sn : cs, s = turn & 1 ? cs : sn;
    if (turn == 1 || turn == 2) c = -c;
    if (turn >= 2) s = -s;
    op->table[2 * at] = (float)c * op->magnitude;
    op->table[2 * at + 1] = (float)s * op->magnitude;
}

// rope: columns are the pairs of all heads.
KERNEL(rope) {
    FOR_ROW(row);
    rope_rows(op, row, 1, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}

// store has (heads·dimensions/THREADS, rows, operations) blocks.
KERNEL(store) {
    FOR_ROW(row);
    store_rows(op, pass, row, 1, blockIdx.x * THREADS + threadIdx.x, gridDim.x * THREADS);
}

// pack gathers the numbers of spans, which follow the operation in memory, for one copy to another device; unpack puts such numbers in
// their places. A launch has (numbers of the longest span/THREADS, spans) blocks.
#define FOR_SPAN(s, k)                                                                           \
    const Span *s = reinterpret_cast<const Span *>(op + 1) + blockIdx.y;                         \
    long long k = (long long)blockIdx.x * THREADS + threadIdx.x;                                 \
    if (k >= s->n) return

KERNEL(pack) {
    FOR_SPAN(s, k);
    op->out[s->packed + k] = op->in[s->at + k];
}

KERNEL(unpack) {
    FOR_SPAN(s, k);
    op->out[s->at + k] = op->in[s->packed + k];
}
