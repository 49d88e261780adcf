// Operations on rows. Unless said otherwise a launch has THREADS threads a block, and (columns/THREADS, rows, operations) blocks.
#pragma once
#include "arith.h"

#define FOR_COLUMN(row, k)                                                                       \
    op += blockIdx.z;                                                                            \
    int row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;                                \
    if (row >= rows_of(op, pass) || k >= op->dim) return;                                        \
    size_t at = (size_t)row * op->dim + k

// The norms have (1, rows, operations) blocks, head_norm one per head.
KERNEL rms_norm(const Op *op, const Pass *pass) {
    SHARED(float, box);
    op += blockIdx.z;
    int row = blockIdx.y, n = op->dim;
    if (row >= rows_of(op, pass)) return;
    const float *x = op->in + (size_t)row * n;
    float s = rms_scale(x, n, op->eps, box + 8);
    for (int k0 = 0; k0 < n; k0 += THREADS) {
        int k = k0 + threadIdx.x;
        fill(op->dst, row, k0, k < n ? x[k] * s * op->vec[k] : 0.0f, (unsigned *)box);
    }
}

KERNEL norm_add(const Op *op, const Pass *pass) {
    SHARED(float, box);
    op += blockIdx.z;
    int row = blockIdx.y, n = op->dim;
    if (row >= rows_of(op, pass)) return;
    const float *x = op->in + (size_t)row * n;
    float s = rms_scale(x, n, op->eps, box), *y = op->out + (size_t)row * n;
    for (int k = threadIdx.x; k < n; k += THREADS) y[k] += x[k] * s * op->vec[k];
}

KERNEL head_norm(const Op *op, const Pass *pass) {
    SHARED(float, box);
    op += blockIdx.z;
    int row = blockIdx.y, n = op->head_dim;
    if (row >= rows_of(op, pass) || blockIdx.x >= op->heads) return;
    float *x = op->out + (size_t)row * op->dim + (size_t)blockIdx.x * n;
    float s = rms_scale(x, n, op->eps, box);
    for (int k = threadIdx.x; k < n; k += THREADS) x[k] = x[k] * s * op->vec[k];
}

KERNEL copy_rows(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] = op->in[at];
}

KERNEL scale_rows(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] *= op->scale;
}

KERNEL position_scale(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    int step = pass->turn[row] / op->every;
    op->out[at] *= op->vec[step < op->steps ? step : op->steps - 1];
}

KERNEL soft_cap_rows(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] = soft_cap(op->out[at], op->softcap);
}

KERNEL add_bias(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] += op->vec[k];
}

KERNEL add_scaled(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] += op->in[at] * op->scale;
}

KERNEL add_silu(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    float g = op->in[at];
    op->out[at] += g / (1.0f + exp_of(-g));
}

KERNEL blend(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    float y = op->out[at];
    op->out[at] = __fmaf_rn(sigmoid(op->in2[at]), op->in[at] - y, y);
}

KERNEL sigmoid_scale(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] *= sigmoid(op->in[(size_t)row * op->ld + k / (op->dim / op->ld)]);
}

// copy_heads: columns [to, to+head_dim) of each head of out are those from `from` on of the head of in.
KERNEL copy_heads(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    int wide = op->dim / op->heads, j = k % wide - op->to;
    if (j < 0 || j >= op->head_dim) return;
    op->out[at] = op->in[(size_t)row * op->ld + k / wide * (op->ld / op->heads) + op->from + j];
}

KERNEL block_conv(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    int before = max(pass->pos[row] - pass->prefix[row], 0), groups = op->dim / op->group;
    const float *w = op->in2 + (size_t)row * op->cols + op->from + k / op->group;
    float y = (op->vec[k] + w[0]) * op->in[at];
    for (int i = 1; i < op->taps && i <= before; i++)
        y += (op->vec[(size_t)i * op->dim + k] + w[i * groups]) * op->in[at - (size_t)i * op->dim];
    op->out[at] = y;
}

KERNEL gather_rows(const Op *op, const Pass *pass) {
    FOR_COLUMN(row, k);
    op->out[at] = op->in[(size_t)pass->wanted[row] * op->dim + k];
}

// The fills of activations: all threads of a block take part, whatever their columns.
#define FILL(value)                                                                                 \
    SHARED(unsigned, box);                                                                       \
    op += blockIdx.z;                                                                            \
    int row = blockIdx.y, k0 = blockIdx.x * THREADS, k = k0 + threadIdx.x;                       \
    if (row >= rows_of(op, pass) || k0 >= op->dst.dim) return;                                   \
    size_t at = (size_t)row * op->dst.dim + k;                                                   \
    fill(op->dst, row, k0, k < op->dst.dim ? (value) : 0.0f, box)

KERNEL feed(const Op *op, const Pass *pass) { FILL(op->in[at]); }
KERNEL silu_gate(const Op *op, const Pass *pass) { FILL(silu_mul(op->in[at], op->in2[at])); }
KERNEL gelu_gate(const Op *op, const Pass *pass) { FILL(gelu_mul(op->in[at], op->in2[at])); }

KERNEL clamped_gate(const Op *op, const Pass *pass) { FILL(clamped_mul(op->in[at], op->in2[at])); }

// angles fills the table of a rotation: columns are the pairs of elements that turn.
KERNEL angles(const Op *op, const Pass *pass) {
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
KERNEL rope(const Op *op, const Pass *pass) {
    op += blockIdx.z;
    int pairs = op->turned / 2, row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;
    if (row >= rows_of(op, pass) || k >= op->heads * pairs) return;
    int i = k % pairs, i0 = op->halves ? i : 2 * i, i1 = op->halves ? i + pairs : 2 * i + 1;
    float *x = op->out + (size_t)row * op->dim + (size_t)(k / pairs) * op->head_dim;
    float c = op->table[2 * ((size_t)row * pairs + i)], s = op->table[2 * ((size_t)row * pairs + i) + 1], x0 = x[i0], x1 = x[i1];
    x[i0] = __fmaf_rn(x0, c, -(x1 * s));
    x[i1] = __fmaf_rn(x0, s, x1 * c);
}

// pack gathers the numbers of spans, which follow the operation in memory, for one copy to another device; unpack puts such numbers in
// their places. A launch has (numbers of the longest span/THREADS, spans) blocks.
#define FOR_SPAN(s, k)                                                                           \
    const Span *s = reinterpret_cast<const Span *>(op + 1) + blockIdx.y;                         \
    long long k = (long long)blockIdx.x * THREADS + threadIdx.x;                                 \
    if (k >= s->n) return

KERNEL pack(const Op *op, const Pass *pass) {
    FOR_SPAN(s, k);
    op->out[s->packed + k] = op->in[s->at + k];
}

KERNEL unpack(const Op *op, const Pass *pass) {
    FOR_SPAN(s, k);
    op->out[s->at + k] = op->in[s->packed + k];
}
