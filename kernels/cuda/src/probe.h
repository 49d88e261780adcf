// What a GPU can do at most: kernels that only read, or only multiply. Each thread leaves a number, so that nothing is left out.
#pragma once
#include "abi.h"

// probe_read reads to vectors of w.
KERNEL(probe_read) {
    int at = blockIdx.x * THREADS + threadIdx.x, step = gridDim.x * THREADS;
    const uint4 *w = (const uint4 *)op->w;
    unsigned sum = 0;
#pragma unroll 8
    for (int i = at; i < op->to; i += step) sum ^= w[i].x ^ w[i].y ^ w[i].z ^ w[i].w;
    op->out[at] = __uint_as_float(sum);
}

// probe_int and probe_float do add rounds of 16 products, in 16 sums that do not wait for each other.
KERNEL(probe_int) {
    int at = blockIdx.x * THREADS + threadIdx.x, sums[16] = {};
    for (int i = 0; i < op->add; i++) {
#pragma unroll
        for (int j = 0; j < 16; j++) sums[j] = __dp4a(at + i, at ^ j, sums[j]);
    }
    int sum = 0;
    for (int j = 0; j < 16; j++) sum ^= sums[j];
    op->out[at] = __uint_as_float((unsigned)sum);
}

KERNEL(probe_float) {
    int at = blockIdx.x * THREADS + threadIdx.x;
    float sums[16] = {}, x = (float)at;
    for (int i = 0; i < op->add; i++) {
#pragma unroll
        for (int j = 0; j < 16; j++) sums[j] = __fmaf_rn(x, (float)i, sums[j]);
    }
    float sum = 0;
    for (int j = 0; j < 16; j++) sum += sums[j];
    op->out[at] = sum;
}

// nothing is what a launch costs at least.
KERNEL(nothing) {}
