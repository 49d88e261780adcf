// TopK: the best values of a row, and Σ exp(v - max) over all of them.
#pragma once
#include "arith.h"

// key orders values: larger ones are better, then smaller ids. 0 is worse than all. NaN counts as -Inf, and -0 as 0.
static __device__ __forceinline__ unsigned long long key_of(float v, int id) {
    if (v != v) v = -infinity();
    unsigned b = __float_as_uint(v + 0.0f);
    b = b & 0x80000000u ? ~b : b | 0x80000000u;
    return (unsigned long long)b << 32 | (unsigned)~id;
}

static __device__ __forceinline__ unsigned long long best_of_warp(unsigned long long a) {
    for (int n = 16; n > 0; n /= 2) {
        unsigned high = __shfl_xor_sync(0xffffffffu, (unsigned)(a >> 32), n), low = __shfl_xor_sync(0xffffffffu, (unsigned)a, n);
        unsigned long long other = (unsigned long long)high << 32 | low;
        if (other > a) a = other;
    }
    return a;
}

static __device__ __forceinline__ unsigned long long best_of(unsigned long long a, unsigned long long *box) {
    a = best_of_warp(a);
    if (threadIdx.x % 32 == 0) box[threadIdx.x / 32] = a;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++)
        if (box[i] > a) a = box[i];
    __syncthreads();
    return a;
}

// choose writes the k best of n values to ids and tops, best first. ids_in names the values; null: they are from, from+1, …
static __device__ void choose(const float *x, const int *ids_in, int from, int n, int k, int *ids, float *tops, unsigned long long *box) {
    unsigned long long last = ~0ull, mine = 0;
    for (int i = 0; i < k; i++) {
        if (i == 0 || mine == last) {  // this thread's best is taken: look for the next
            mine = 0;
            for (int j = threadIdx.x; j < n; j += THREADS) {
                unsigned long long key = key_of(x[j], ids_in ? ids_in[j] : from + j);
                if (key < last && key > mine) mine = key;
            }
        }
        last = best_of(mine, box);
        if (mine == last && last != 0) {
            ids[i] = (int)~(unsigned)last;
            tops[i] = 0;
            for (int j = threadIdx.x; j < n; j += THREADS)
                if ((ids_in ? ids_in[j] : from + j) == ids[i]) tops[i] = x[j] == x[j] ? x[j] : -infinity();
        }
    }
}

// op->ids has for each wanted row MOST_TOP ids, as many values, m and Σ: TOP_ROW numbers. Behind are the chunks' best: ids, then values,
// both (MaxWanted, chunks, MOST_TOP).
enum { TOP_ROW = 2 * MOST_TOP + 2 };

static __device__ __forceinline__ int *chunk_ids(const Op *op, int row) {
    return op->ids + (size_t)op->most_wanted * TOP_ROW + (size_t)row * op->chunks * MOST_TOP;
}
static __device__ __forceinline__ float *chunk_tops(const Op *op, int row) {
    return (float *)chunk_ids(op, op->most_wanted) + (size_t)row * op->chunks * MOST_TOP;
}

// top_chunks chooses the best of each TOP_CHUNK values: (chunks, wanted rows) blocks of THREADS.
KERNEL(top_chunks) {
    SHARED(unsigned long long, box);
    int row = blockIdx.y, from = blockIdx.x * TOP_CHUNK, n = min((int)TOP_CHUNK, op->dim - from);
    if (row >= pass->nwanted || n <= 0) return;
    int k = min(pass->topk, n), *ids = chunk_ids(op, row) + MOST_TOP * blockIdx.x;
    float *tops = chunk_tops(op, row) + MOST_TOP * blockIdx.x;
    choose(op->in + (size_t)row * op->dim + from, 0, from, n, k, ids, tops, box);
    for (int i = k + threadIdx.x; i < MOST_TOP; i += THREADS) {  // places without a value: worse than any
        ids[i] = 0x7fffffff;
        tops[i] = -infinity();
    }
}

// top_join chooses the best of all chunks, and adds up: a block of THREADS for each wanted row.
KERNEL(top_join) {
    SHARED(unsigned long long, box);
    float *e = (float *)(box + THREADS / 32);  // TOP_CHUNK numbers
    int row = blockIdx.y, t = threadIdx.x, n = op->dim;
    if (row >= pass->nwanted) return;
    int *ids = op->ids + (size_t)row * TOP_ROW;
    float *tops = (float *)ids + MOST_TOP;
    choose(chunk_tops(op, row), chunk_ids(op, row), 0, MOST_TOP * op->chunks, min(pass->topk, n), ids, tops, box);
    const float *x = op->in + (size_t)row * n;
    float m = -infinity(), sum = 0;
    for (int j = t; j < n; j += THREADS) m = x[j] > m ? x[j] : m;
    for (int i = 16; i > 0; i /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, m, i);
        m = other > m ? other : m;
    }
    if (t % 32 == 0) e[t / 32] = m;
    __syncthreads();
    for (int i = 0; i < THREADS / 32; i++) m = e[i] > m ? e[i] : m;
    for (int from = 0; from < n; from += TOP_CHUNK) {
        int size = min((int)TOP_CHUNK, n - from);
        __syncthreads();
        for (int j = t; j < size; j += THREADS) e[j] = exp_of((x[from + j] == x[from + j] ? x[from + j] : -infinity()) - m);
        __syncthreads();
        if (t < 16)
            for (int j = t; j < size; j += 16) sum += e[j];
    }
    if (t < 32) {
        sum = add16(sum);
        if (t == 0) {
            tops[MOST_TOP] = m;
            tops[MOST_TOP + 1] = sum;
        }
    }
}
