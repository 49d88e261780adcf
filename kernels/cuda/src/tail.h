// What follows on a product or an attention row by row is done by the block of threads that ends last: it saves a launch, and its order
// changes no bit. A unit is a tile of rows, whose operations then follow in turn, or 256 columns of a tile, which are filled. For products
// of experts it is a row, or 256 columns of an expert. Blocks of THREADS threads or more count themselves in op->done, which is full of
// zeros before and behind every launch.
#pragma once
#include "experts.h"
#include "rows.h"

// count counts a block for n units, of which each of its first n threads names one, and how many blocks that has. In box[16+i], shared
// memory, all threads then find whether it is the last for unit i; if so, what the other blocks wrote can be read.
static __device__ __forceinline__ void count(const Op *op, int n, int unit, int blocks, int *box) {
    int t = thread();
    __threadfence();
    __syncthreads();
    if (t < n) {
        int last = atomicAdd(op->done + unit, 1) + 1 == blocks;
        if (last) op->done[unit] = 0;
        box[16 + t] = last;
        __threadfence();
    }
    __syncthreads();
}

// follow does operations for a tile of n rows, at most 8. box is 16 numbers of shared memory.
static __device__ void follow(const Op *op, int ops, const Pass *pass, int row, int n, float *box) {
    for (int i = 0; i < ops; i++, op++) {
        if (i > 0) __syncthreads();
        switch (op->kind) {
        case ROWS_NORM: norm_rows(op, row, n, box); break;
        case ROWS_NORM_ADD: norm_add_rows(op, row, n); break;
        case ROWS_HEAD_NORM: head_norm_rows(op, row, n); break;
        case ROWS_ROPE: rope_rows(op, row, n, thread(), threads()); break;
        case ROWS_STORE: store_rows(op, pass, row, n, thread(), threads()); break;
        case ROWS_CHOOSE:
            for (int r = thread() / 32; r < n; r += threads() / 32) choose_row(op, row + r);
            break;
        case FILL_FEED:
        case FILL_SILU:
        case FILL_GELU:
        case FILL_CLAMPED:
            for (int r = 0; r < n; r++)
                for (int k0 = 0; k0 < op->dst.dim; k0 += THREADS) fill_columns(op, op->dst.dim, row + r, k0, (unsigned *)box);
            break;
        default:
            for (int at = thread(); at < n * op->dim; at += threads()) element(op, pass, row + at / op->dim, at % op->dim);
        }
    }
}

// chain does operations that follow on each other, with no product before them: a block of THREADS for each row.
KERNEL(chain) {
    SHARED(float, box);
    if (blockIdx.y < rows_of(op, pass)) follow(op, op->tails + 1, pass, blockIdx.y, 1, box);
    meet_behind(op);
}
