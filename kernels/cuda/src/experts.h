// Mixtures of experts: which experts a row chooses. Their products are in matmul.h, the weighted sum of these in rows.h.
#pragma once
#include "top.h"

// SoftMax is the largest of n logits, and Σ exp(logit - m) in 16 lanes; NaN counts as -Inf.
struct SoftMax {
    float top, sum;
};

static __device__ SoftMax soft_max(const float *x, int n) {
    SoftMax s = {-infinity(), 0};
    float lanes[16] = {};
    for (int i = 0; i < n; i++)
        if (x[i] > s.top) s.top = x[i];
    for (int i = 0; i < n; i++) lanes[i % 16] += exp_of((x[i] == x[i] ? x[i] : -infinity()) - s.top);
    for (int step = 8; step > 0; step /= 2)
        for (int i = 0; i < step; i++) lanes[i] += lanes[i + step];
    s.sum = lanes[0];
    return s;
}

// weight_of is what a logit is worth among all experts.
static __device__ __forceinline__ float weight_of(const Op *op, float x, const SoftMax &s) {
    if (x != x) x = -infinity();
    return op->sigmoid ? sigmoid(x) : exp_of(x - s.top) / s.sum;
}

// choose_experts has (1, rows, 1) blocks of THREADS. Shared memory holds 8 numbers of 8 bytes, and a score for each expert.
KERNEL choose_experts(const Op *op, const Pass *pass) {
    SHARED(unsigned char, memory);
    int row = blockIdx.y, n = op->dim, used = op->used;
    if (row >= pass->rows) return;
    float *score = (float *)(memory + 64), *shares = op->shares + (size_t)row * used;
    const float *x = op->in + (size_t)row * n, *by = x;
    int *ids = op->route + (size_t)row * used;
    SoftMax all = {0, 1};
    if (!op->sigmoid && (op->biased || !op->normed)) all = soft_max(x, n);
    if (op->sigmoid || op->biased) {
        // No thread reads another's scores: choose takes them in the same turns.
        for (int i = threadIdx.x; i < n; i += THREADS) score[i] = weight_of(op, x[i], all) + (op->biased ? op->vec[i] : 0.0f);
        by = score;
    }
    choose(by, 0, 0, n, used, ids, shares, (unsigned long long *)memory);
    __syncthreads();
    if (threadIdx.x > 0) return;
    float best = shares[0], sum = 0;
    for (int i = 0; i < used; i++) {
        float w = by == x ? exp_of(shares[i] - best) : weight_of(op, x[ids[i]], all);
        if (by == x && !op->normed) w /= all.sum;
        shares[i] = w;
        sum += w;
    }
    for (int i = 0; i < used; i++) {
        if (op->normed) shares[i] /= sum;
        if (op->scale != 0) shares[i] *= op->scale;
        if (op->each) shares[i] *= op->vec[(op->biased ? n : 0) + ids[i]];
    }
}
