// What a pass begins and ends with beside its operations: rows that come with it, and the steps of chains (kernels.Link).
#pragma once
#include "top.h"

// enter has a block of THREADS for each span, and for each row that follows another one. op->out is where places in spans count from. A row
// that follows gets its token, by the map ids if there is one, and its state, which goes to in2, from the results of a step before: see
// leave.
KERNEL(enter) {
    int row = (int)blockIdx.y - pass->ngives;
    if (row < 0) {
        const Span *s = pass->gives + blockIdx.y;
        for (int k = threadIdx.x; k < s->n; k += THREADS) op->out[s->at + k] = s->packed < 0 ? 0.0f : pass->gifts[s->packed + k];
        return;
    }
    if (row >= pass->nafter) return;
    const float *from = op->in + (size_t)pass->after[row] * op->ld;
    if (threadIdx.x == 0) {
        int best = *(const int *)from;
        const_cast<int *>(pass->tokens)[row] = op->ids ? op->ids[best] : best;
    }
    for (int k = threadIdx.x; k < op->dim; k += THREADS) op->in2[(size_t)row * op->dim + k] = from[TOP_ROW + k];
}

// leave writes the results of wanted rows, each of ld numbers: what TopK found (TOP_ROW), and the state, which is in `in`, normed if there
// is vec. A block of THREADS for each; every warp computes the scale for itself.
KERNEL(leave) {
    int row = blockIdx.y;
    if (row >= pass->nwanted) return;
    float *to = op->out + (size_t)(pass->result + row) * op->ld;
    for (int i = threadIdx.x; i < TOP_ROW; i += THREADS) ((int *)to)[i] = op->ids[(size_t)row * TOP_ROW + i];
    const float *x = op->in + (size_t)pass->wanted[row] * op->dim;
    float s = op->vec ? rms_scale(x, op->dim, op->eps) : 1.0f;
    for (int k = threadIdx.x; k < op->dim; k += THREADS) to[TOP_ROW + k] = op->vec ? x[k] * s * op->vec[k] : x[k];
}
