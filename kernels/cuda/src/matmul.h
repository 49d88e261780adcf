// Products of packed matrices and activations, and rows of a matrix by token.
#pragma once
#include "weights.h"

enum { MOST_SEGMENTS = 8 };  // of a block at a time

// cut_of returns where outputs [from, to) are divided: kernels.Range.Cut.
static __device__ __forceinline__ int cut_of(int from, int to, int left) {
    return min(from + ((to - from + 15) / 16 * left + 2048) / 4096 * 16, to);
}

// multiply: each warp takes a segment, each of its threads an output, for R rows. The segments' sums then enter the totals in order. A
// launch has (groups of 32 outputs, rows/R, operations) blocks of (32, segments) threads, at most MOST_SEGMENTS segments, and for each of
// these R · 64 floats of shared memory.
//
// With EXPERTS a row is a choice, (row, rank) of the pass: it has the weights of its expert, and R is 1.
template <class T, int R, int EXPERTS>
static __device__ void multiply(const Op *op, const Pass *pass) {
    SHARED(float, parts);  // (2, segments, R, 32): of this round and, while it is read, of the next
    op += blockIdx.z;
    int lane = threadIdx.x, warp = threadIdx.y, warps = blockDim.y, row0 = blockIdx.y * R;
    int rows = rows_of(op, pass) * (EXPERTS ? op->used : 1);
    int from = op->from, to = op->to, cut = cut_of(from, to, pass->left);
    if (op->side == 1) to = cut;
    if (op->side == 2) from = cut;
    int group = from / 32 + blockIdx.x, out = group * 32 + lane, segments = (op->cols + 255) / 256;
    if (group * 32 >= to || row0 >= rows) return;
    const unsigned char *w = op->w + (size_t)group * segments * segment_bytes<T>();
    int expert = EXPERTS ? op->route[row0] : 0, shared = EXPERTS && op->src.dim == op->cols;  // by a row's choices: its activation
    w += (size_t)expert * ((op->outputs + 31) / 32) * segments * segment_bytes<T>();
    float total[R] = {};
    for (int s0 = 0, round = 0; s0 < segments; s0 += warps, round ^= 1) {
        float *part = parts + round * warps * R * 32;
        int seg = s0 + warp;
        if (seg < segments) {
            Inputs<R> in;
            const Act &a = op->src;
#pragma unroll
            for (int r = 0; r < R; r++) {
                int row = min(row0 + r, rows - 1);
                size_t at = (size_t)(shared ? row / op->used : row) * op->cols + 256 * seg;
                if (T::FLOAT) {
                    in.x[r] = a.x + at;
                    continue;
                }
                in.q[r] = (T::SUPER ? a.q256 : a.q) + at;
                in.scale[r] = T::SUPER ? 0 : a.scale + at / 32;
                in.sum[r] = (T::SUPER ? a.sum256 : a.sum) + at / 16;
            }
            float acc[R] = {};
            const uint4 *first = (const uint4 *)(w + seg * segment_bytes<T>()) + lane;
            T::template segment<R>(first, lane, min(256, op->cols - 256 * seg), in, acc);
#pragma unroll
            for (int r = 0; r < R; r++) part[(warp * R + r) * 32 + lane] = acc[r];
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < R; i++) {
            int r = warp + i * warps;
            if (r >= R) break;
            for (int s = 0; s < min(warps, segments - s0); s++) {
                float x = part[(s * R + r) * 32 + lane];
                if (T::SUPER) {
                    int row = min(row0 + r, rows - 1), at = shared ? row / op->used : row;
                    total[i] = __fmaf_rn(x, op->src.scale256[(size_t)at * segments + s0 + s], total[i]);
                } else {
                    total[i] += x;
                }
            }
        }
    }
    if (out < from || out >= to) return;
#pragma unroll
    for (int i = 0; i < R; i++) {
        int r = warp + i * warps;
        if (r >= R || row0 + r >= rows) break;
        float *y = op->out + (size_t)(row0 + r) * (EXPERTS ? op->outputs : op->dim) + out;
        if (EXPERTS && op->biased) total[i] += op->vec[(size_t)expert * op->outputs + out];
        *y = op->add ? *y + total[i] : total[i];
    }
}

#define MATMUL(name, type)                                                                       \
    KERNEL mm_##name##_1(const Op *op, const Pass *pass) { multiply<type, 1, 0>(op, pass); }     \
    KERNEL mm_##name##_2(const Op *op, const Pass *pass) { multiply<type, 2, 0>(op, pass); }     \
    KERNEL mm_##name##_4(const Op *op, const Pass *pass) { multiply<type, 4, 0>(op, pass); }     \
    KERNEL mm_##name##_8(const Op *op, const Pass *pass) { multiply<type, 8, 0>(op, pass); }     \
    KERNEL experts_##name(const Op *op, const Pass *pass) { multiply<type, 1, 1>(op, pass); }

// embed has a block of THREADS for each 256 columns of a row.
template <class T>
static __device__ void look_up(const Op *op, const Pass *pass) {
    op += blockIdx.z;
    int row = blockIdx.y, k = blockIdx.x * THREADS + threadIdx.x;
    if (row >= pass->rows || k >= op->dim) return;
    int token = pass->tokens[row];
    float *y = op->out + (size_t)row * op->dim + k;
    if (token < 0) {
        *y = op->blank ? 0.0f : pass->given[(size_t)(-1 - token) * op->dim + k];
        return;
    }
    size_t segments = (op->cols + 255) / 256;
    const unsigned char *w = op->w + (token / 32 * segments + k / 256) * segment_bytes<T>();
    *y = T::value((const uint4 *)w + token % 32, token % 32, k % 256);
}

#define EMBED(name, type) \
    KERNEL embed_##name(const Op *op, const Pass *pass) { look_up<type>(op, pass); }

#define EACH_TYPE(f)                                                                             \
    f(q8_0, Q8_0) f(q4_0, Q4_0) f(q5_0, Q5_0) f(q4_k, Q4_K) f(q5_k, Q5_K) f(q6_k, Q6_K)          \
    f(q2_k, Q2_K) f(q3_k, Q3_K) f(mxfp4, MXFP4) f(q4_1, Q4_1) f(q5_1, Q5_1) f(iq4_nl, IQ4_NL)    \
    f(iq4_xs, IQ4_XS) f(f32, F32) f(f16, F16) f(bf16, BF16)

EACH_TYPE(MATMUL)
EACH_TYPE(EMBED)
