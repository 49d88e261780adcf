// Products of packed matrices and activations, and rows of a matrix by token.
#pragma once
#include "tail.h"
#include "weights16.h"

enum { MOST_SEGMENTS = 8 };  // of a block at a time

// cut_of returns where outputs [from, to) are divided: kernels.Range.Cut.
static __device__ __forceinline__ int cut_of(int from, int to, int left) {
    return min(from + ((to - from + 15) / 16 * left + 2048) / 4096 * 16, to);
}

// chosen_before reports whether a choice before this one is the same expert.
static __device__ __forceinline__ bool chosen_before(const int *route, int choice, int expert) {
    for (int i = threadIdx.x; i - (int)threadIdx.x < choice; i += 32)
        if (__ballot_sync(0xffffffffu, i < choice && route[i] == expert)) return true;
    return false;
}

// choices_of finds up to R choices of an expert from *next on, and returns how many; row has the last of them again where there are fewer.
template <int R>
static __device__ __forceinline__ int choices_of(const int *route, int choices, int expert, int *next, int *row) {
    int n = 0, i = *next & ~31;
    for (; i < choices && n < R; i += 32) {
        int at = i + threadIdx.x;
        unsigned found = __ballot_sync(0xffffffffu, at >= *next && at < choices && route[at] == expert);
        for (; found && n < R; found &= found - 1, n++) {
            int choice = i + __ffs((int)found) - 1;
#pragma unroll
            for (int r = 0; r < R; r++)
                if (r >= n) row[r] = choice;
        }
        if (n == R) {
            *next = row[R - 1] + 1;
            return n;
        }
    }
    *next = choices;
    return n;
}

// list_choices writes up to MANY choices of an expert from *next on to a list of this warp, and returns how many. The list can be read
// behind a barrier.
enum { MANY = 64 };
static __device__ __forceinline__ int list_choices(const int *route, int choices, int expert, int *next, int *list) {
    int n = 0, first = *next, i = first & ~31;
    *next = choices;
    for (; i < choices && n < MANY; i += 32) {
        int at = i + threadIdx.x, hit = at >= first && at < choices && route[at] == expert;
        unsigned found = __ballot_sync(0xffffffffu, hit);
        int place = n + __popc(found & ((1u << threadIdx.x) - 1));
        if (hit && place < MANY) list[place] = at;
        unsigned last = __ballot_sync(0xffffffffu, hit && place == MANY - 1);
        if (last) *next = i + __ffs((int)last);
        n += __popc(found);
    }
    return min(n, (int)MANY);
}

// finish does what follows on a product of n rows, a tile, of which this block has computed a group of outputs.
static __device__ APART void finish(const Op *op, const Pass *pass, int tile, int row, int n, int group, float *box) {
    int span = group / 8, unit = tile, blocks = op->share;
    if (op->spans) {
        unit = tile * op->spans + span;
        blocks *= min(8, (op->to + 31) / 32 - 8 * span);
    }
    count(op, 1, unit, blocks, (int *)box);
    if (!((int *)box)[16]) return;
    if (!op->spans) return follow(op->tail, op->tails, pass, row, n, box);
    int k = THREADS * span + thread();
    for (int i = 0; i < op->tails - 1; i++)
        for (int r = 0; r < n && thread() < THREADS && k < op->to; r++) element(op->tail + i, pass, row + r, k);
    const Op *fills = op->tail + op->tails - 1;
    for (int r = 0; r < n; r++) fill_columns(fills, fills->dst.dim, row + r, THREADS * span, (unsigned *)box);
}

// finish_experts does what follows on a product of an expert's choices, the first of which is `choice`, of which this block has computed a
// group of outputs: of all its choices, or of that one. Between two of them no barrier is needed: a fill that uses box[0..8) ends with one,
// and before a norm, which uses box[8..16), comes another operation, and so a barrier of follow.
static __device__ APART void finish_experts(const Op *op, const Pass *pass, int choice, int all, int group, float *box) {
    enum { AT_ONCE = 8 };
    int expert = op->route[choice], choices = rows_of(op, pass) * op->used, next = choice, row[AT_ONCE] = {choice}, span = group / 8, n = 1;
    if (op->spans) {
        count(op, 1, choice * op->spans + span, op->share * min(8, (op->outputs + 31) / 32 - 8 * span), (int *)box);
        if (!((int *)box)[16]) return;
    }
    do {
        if (all && (n = choices_of<AT_ONCE>(op->route, choices, expert, &next, row)) == 0) return;
        unsigned last = (1u << n) - 1;
        if (!op->spans) {
            int mine = 0;
            last = 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (i == thread()) mine = row[i] / op->used;
            count(op, n, mine, op->share, (int *)box);
            for (int i = 0; i < n; i++) last |= (unsigned)((int *)box)[16 + i] << i;
        }
        for (; last; last &= last - 1) {
            int at = 0;
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++)
                if (last >> i & 1 && !(last & ((1u << i) - 1))) at = row[i];
            if (op->spans) fill_columns(op->tail, op->outputs, at, THREADS * span, (unsigned *)box);
            else follow(op->tail, op->tails, pass, at / op->used, 1, box);
        }
    } while (all);
}

// take_row makes r of in the activations of a row, from number `at` on.
template <class T, int R>
static __device__ __forceinline__ void take_row(const Act &a, size_t at, Inputs<R> *in, int r) {
    if (T::FLOAT) {
        in->x[r] = a.x + at;
        return;
    }
    in->q[r] = (T::SUPER ? a.q256 : a.q) + at;
    in->scale[r] = T::SUPER ? 0 : a.scale + at / 32;
    in->sum[r] = (T::SUPER ? a.sum256 : a.sum) + at / 16;
}

// multiply: each warp takes a segment, each of its threads an output, for R rows. The segments' sums then enter the totals in order. A
// launch has (rows/R, operations, groups of 32 outputs) blocks of (32, segments) threads, so that neighbours read the same weights; at most
// MOST_SEGMENTS segments, as many if a tail follows, and for each of these R · 64 floats of shared memory.
//
// With EXPERTS a row is a choice, (row, rank) of the pass: it has the weights of its expert. A block is for all choices of an expert, if
// its own, blockIdx.x, is the first of them.
template <class T, int R, int EXPERTS>
static __device__ void multiply(const Op *op, const Pass *pass) {
    SHARED(float, parts);  // (2, segments, R, 32): of this round and, while it is read, of the next
    op += blockIdx.y;
    int lane = threadIdx.x, warp = threadIdx.y, warps = blockDim.y;
    int rows = rows_of(op, pass) * (EXPERTS ? op->used : 1), next = EXPERTS ? blockIdx.x : blockIdx.x * R, round = 0;
    int from = op->from, to = op->to, cut = cut_of(from, to, pass->left);
    if (op->side == 1) to = cut;
    if (op->side == 2) from = cut;
    int group = from / 32 + blockIdx.z, out = group * 32 + lane, segments = (op->cols + 255) / 256;
    if (group * 32 >= to || next >= rows) return;
    int expert = EXPERTS ? op->route[next] : 0, shared = EXPERTS && op->src.dim == op->cols;  // by a row's choices: its activation
    const unsigned char *w = op->w + expert * T::matrix_bytes(op->outputs, op->cols);
    int mine = min(max(out, from), to - 1);  // others' weights are not read
    if (EXPERTS && R > 1 && chosen_before(op->route, next, expert)) return;
    do {
        int row[R], n;  // the rows of this turn; those that there are not are another one again
        if (EXPERTS && R > 1) {
            n = choices_of<R>(op->route, rows, expert, &next, row);
            if (n == 0) break;
        } else {
            n = min(R, rows - next);
#pragma unroll
            for (int r = 0; r < R; r++) row[r] = min(next + r, rows - 1);
        }
        float total[R] = {};
        for (int s0 = 0; s0 < segments; s0 += warps, round ^= 1) {
            float *part = parts + round * warps * R * 32;
            int seg = s0 + warp;
            if (seg < segments) {
                Inputs<R> in;
#pragma unroll
                for (int r = 0; r < R; r++) {
                    int at = shared ? row[r] / op->used : row[r];
                    take_row<T>(op->src, (size_t)at * op->cols + 256 * seg, &in, r);
                }
                float acc[R] = {};
                T::template segment<R>(T::at(w, op->cols, mine, seg), min(256, op->cols - 256 * seg), in, acc);
#pragma unroll
                for (int r = 0; r < R; r++) part[(warp * R + r) * 32 + lane] = acc[r];
            }
            __syncthreads();
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (r % warps != warp) continue;
                for (int s = 0; s < min(warps, segments - s0); s++) {
                    float x = part[(s * R + r) * 32 + lane];
                    if (T::SUPER) {
                        int at = shared ? row[r] / op->used : row[r];
                        total[r] = __fmaf_rn(x, op->src.scale256[(size_t)at * segments + s0 + s], total[r]);
                    } else {
                        total[r] += x;
                    }
                }
            }
        }
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (r % warps != warp || r >= n || out < from || out >= to) continue;
            float *y = op->out + (size_t)row[r] * (EXPERTS ? op->outputs : op->dim) + out;
            if (EXPERTS && op->biased) total[r] += op->vec[(size_t)expert * op->outputs + out];
            *y = op->add ? *y + total[r] : total[r];
        }
    } while (EXPERTS && R > 1);
    if (!op->tails) return;
    if (EXPERTS) finish_experts(op, pass, blockIdx.x, R > 1, group, parts);
    else finish(op, pass, blockIdx.x, next, min(R, rows - next), group, parts);
}

// multiply_one is multiply with one row: a warp takes 32 inputs of each segment, LANES_AT_ONCE segments at a time, and then a warp for each
// segment adds up what they found, in order. Blocks have (32, 8) threads, and for each such segment 256 float4 and 32 floats of shared
// memory.
enum { LANES_AT_ONCE = 4 };
template <class T, int EXPERTS>
static __device__ __forceinline__ void multiply_one(const Op *op, const Pass *pass) {
    SHARED(float4, parts);
    op += blockIdx.y;
    int lane = threadIdx.x, b = threadIdx.y, row = blockIdx.x;
    int from = op->from, to = op->to, cut = cut_of(from, to, pass->left), rows = rows_of(op, pass) * (EXPERTS ? op->used : 1);
    if (op->side == 1) to = cut;
    if (op->side == 2) from = cut;
    int group = from / 32 + blockIdx.z, out = group * 32 + lane, cols = op->cols, segments = (cols + 255) / 256;
    if (group * 32 >= to || row >= rows) return;
    float *sums = (float *)(parts + LANES_AT_ONCE * 256), total = 0;
    int expert = EXPERTS ? op->route[row] : 0, input = EXPERTS && op->src.dim == cols ? row / op->used : row;
    const unsigned char *w = op->w + expert * T::matrix_bytes(op->outputs, cols);
    int mine = min(max(out, from), to - 1);
    for (int s0 = 0; s0 < segments; s0 += LANES_AT_ONCE) {
#pragma unroll
        for (int s = 0; s < LANES_AT_ONCE; s++) {
            int seg = s0 + s;
            if (256 * seg + 32 * b >= cols) break;
            Inputs<1> in;
            take_row<T>(op->src, (size_t)input * cols + 256 * seg, &in, 0);
            parts[(s * 8 + b) * 32 + lane] = T::part(T::at(w, cols, mine, seg), b, in);
        }
        __syncthreads();
        if (b < LANES_AT_ONCE && s0 + b < segments)
            sums[b * 32 + lane] = T::whole(parts + b * 256 + lane, min(256, cols - 256 * (s0 + b)));
        __syncthreads();
        for (int i = 0; b == 0 && i < min((int)LANES_AT_ONCE, segments - s0); i++) {
            float x = sums[i * 32 + lane];
            if (T::SUPER) total = __fmaf_rn(x, op->src.scale256[(size_t)input * segments + s0 + i], total);
            else total += x;
        }
    }
    if (b == 0 && out >= from && out < to) {
        float *y = op->out + (size_t)row * (EXPERTS ? op->outputs : op->dim) + out;
        if (EXPERTS && op->biased) total += op->vec[(size_t)expert * op->outputs + out];
        *y = op->add ? *y + total : total;
    }
    if (!op->tails) return;
    if (EXPERTS) finish_experts(op, pass, row, 0, group, sums);
    else finish(op, pass, row, row, 1, group, sums);
}

template <class T, int EXPERTS>
static __device__ __forceinline__ void one_row(const Op *op, const Pass *pass) {
    if constexpr (T::LANES) multiply_one<T, EXPERTS>(op, pass);
    else multiply<T, 1, EXPERTS>(op, pass);
}

// multiply_many is multiply with many rows, of weights that no cache may hold, as memory of the processor on some GPUs: a block reads each
// weight of its 32 outputs once. It takes T::STAGED segments at a time to shared memory, 16 bytes a thread, and multiplies them with up to
// MANY rows, whose totals it keeps there; its 8 warps take turns at segments and tiles of R rows. A launch has (rows/MANY, operations,
// groups of 32 outputs) blocks of (32, 8) threads and, with EXPERTS, of a choice in place of MANY rows, as multiply.
template <class T, int R, int EXPERTS>
static __device__ void multiply_many(const Op *op, const Pass *pass) {
    SHARED(float, parts);                        // (2, 8 warps, R, 32): of this turn and, while it is read, of the next
    float *totals = parts + 2 * 8 * R * 32;      // (MANY, 32), each of the warp that adds it up
    int *lists = (int *)(totals + MANY * 32);    // (8, MANY) rows: each warp has them all
    unsigned char *stage = (unsigned char *)(lists + 8 * MANY);
    enum { TILES = 8 / T::STAGED };
    op += blockIdx.y;
    int lane = threadIdx.x, warp = threadIdx.y, rows = rows_of(op, pass) * (EXPERTS ? op->used : 1), cols = op->cols, round = 0;
    int next = EXPERTS ? blockIdx.x : blockIdx.x * MANY, from = op->from, to = op->to, cut = cut_of(from, to, pass->left);
    if (op->side == 1) to = cut;
    if (op->side == 2) from = cut;
    int group = from / 32 + blockIdx.z, out = group * 32 + lane, segments = (cols + 255) / 256, mine = min(max(out, from), to - 1);
    if (group * 32 >= to || next >= rows) return;
    int expert = EXPERTS ? op->route[next] : 0, shared = EXPERTS && op->src.dim == cols, *list = lists + warp * MANY;
    if (EXPERTS && chosen_before(op->route, next, expert)) return;
    const unsigned char *w = op->w + expert * T::matrix_bytes(op->outputs, cols);
    for (int n; (n = EXPERTS ? list_choices(op->route, rows, expert, &next, list) : min((int)MANY, rows - next)) > 0;) {
        for (int s0 = 0; s0 < segments; s0 += T::STAGED) {
            int segs = min((int)T::STAGED, segments - s0);
            T::bring(stage, w, cols, group * 32, from, to, s0, segs);
            __syncthreads();
            for (int r0 = 0; r0 < n; r0 += TILES * R, round ^= 1) {
                float *part = parts + round * 8 * R * 32;
                int s = warp % T::STAGED, row = r0 + warp / T::STAGED * R;
                if (s < segs && row < n) {
                    Inputs<R> in;
#pragma unroll
                    for (int r = 0; r < R; r++) {
                        int at = min(row + r, n - 1);
                        at = !EXPERTS ? next + at : shared ? list[at] / op->used : list[at];
                        take_row<T>(op->src, (size_t)at * cols + 256 * (s0 + s), &in, r);
                    }
                    float acc[R] = {};
                    T::template segment<R>(T::staged(stage, cols, mine, s0, s), min(256, cols - 256 * (s0 + s)), in, acc);
#pragma unroll
                    for (int r = 0; r < R; r++) part[(warp * R + r) * 32 + lane] = acc[r];
                }
                __syncthreads();
                for (int i = (warp - r0) & 7; i < min(TILES * R, n - r0); i += 8) {
                    float total = s0 ? totals[(r0 + i) * 32 + lane] : 0;
                    int at = !EXPERTS ? next + r0 + i : shared ? list[r0 + i] / op->used : list[r0 + i];
                    for (s = 0; s < segs; s++) {
                        float x = part[((i / R * T::STAGED + s) * R + i % R) * 32 + lane];
                        total = T::SUPER ? __fmaf_rn(x, op->src.scale256[(size_t)at * segments + s0 + s], total) : total + x;
                    }
                    totals[(r0 + i) * 32 + lane] = total;
                }
            }
        }
        for (int i = warp; i < n && out == mine; i += 8) {
            size_t at = EXPERTS ? (size_t)list[i] * op->outputs : (size_t)(next + i) * op->dim;
            float *y = op->out + at + out, total = totals[i * 32 + lane];
            if (EXPERTS && op->biased) total += op->vec[(size_t)expert * op->outputs + out];
            *y = op->add ? *y + total : total;
        }
        if (!EXPERTS) {
            for (int i = 0; i < n && op->tails; i += 8) finish(op, pass, (next + i) / 8, next + i, min(8, n - i), group, parts);
            return;
        }
    }
}

// With weights in the processor's order the last block of a launch may meet the processor: end.
#define MATMUL(name, type)                                                                                         \
    KERNEL(mm_##name##_1) { one_row<type, 0>(op, pass), type::end(op); }         \
    KERNEL(mm_##name##_2) { multiply<type, 2, 0>(op, pass), type::end(op); }     \
    KERNEL(mm_##name##_4) { multiply<type, 4, 0>(op, pass), type::end(op); }     \
    KERNEL(mm_##name##_8) { multiply<type, 8, 0>(op, pass), type::end(op); }     \
    KERNEL(experts_##name##_1) { one_row<type, 1>(op, pass), type::end(op); }

#define EXPERTS(name, type) \
    KERNEL(experts_##name##_4) { multiply<type, 4, 1>(op, pass); }

#define MANY_ROWS(name, type)                                                                                              \
    KERNEL(mm_##name##_64) { multiply_many<type, 8, 0>(op, pass), type::end(op); }       \
    KERNEL(experts_##name##_4) { multiply_many<type, 4, 1>(op, pass), type::end(op); }

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
    *y = T::value(T::at(op->w, op->cols, token, k / 256), k % 256);
}

#define EMBED(name, type) \
    KERNEL(embed_##name) { look_up<type>(op, pass); }

#define EACH_TYPE(f)                                                                             \
    f(q8_0, Q8_0) f(q4_0, Q4_0) f(q5_0, Q5_0) f(q4_k, Q4_K) f(q5_k, Q5_K) f(q6_k, Q6_K)          \
    f(q2_k, Q2_K) f(q3_k, Q3_K) f(mxfp4, MXFP4) f(q4_1, Q4_1) f(q5_1, Q5_1) f(iq4_nl, IQ4_NL)    \
    f(iq4_xs, IQ4_XS) f(f32, F32) f(f16, F16) f(bf16, BF16)

// Of the processor's order (weights16.h), which names end with.
#define EACH_TYPE16(f)                                                                                                      \
    f(q8_0_16, Q8_0_16) f(q4_0_16, Q4_0_16) f(q5_0_16, Q5_0_16) f(q4_k_16, Q4_K_16) f(q5_k_16, Q5_K_16) f(q6_k_16, Q6_K_16) \
    f(q2_k_16, Q2_K_16) f(q3_k_16, Q3_K_16) f(mxfp4_16, MXFP4_16) f(q4_1_16, Q4_1_16) f(q5_1_16, Q5_1_16)                   \
    f(iq4_nl_16, IQ4_NL_16) f(iq4_xs_16, IQ4_XS_16) f(f32_16, F32_16) f(f16_16, F16_16) f(bf16_16, BF16_16)

EACH_TYPE(MATMUL) EACH_TYPE(EXPERTS) EACH_TYPE(EMBED)
EACH_TYPE16(MATMUL) EACH_TYPE16(MANY_ROWS) EACH_TYPE16(EMBED)
