// Mixtures of experts: which experts a row chooses. Their products are in matmul.h, the weighted sum of these in rows.h.
#pragma once
#include "top.h"

// SoftMax is the largest of n logits, and Σ exp(logit - m) in 16 lanes; NaN counts as -Inf.
struct SoftMax {
    float top, sum;
};

static __device__ SoftMax soft_max(const float *x, int n) {
    int lane = thread() & 31;
    SoftMax s = {-infinity(), 0};
    for (int i = lane; i < n; i += 32)
        if (x[i] > s.top) s.top = x[i];
    for (int i = 16; i > 0; i /= 2) {
        float other = __shfl_xor_sync(0xffffffffu, s.top, i);
        s.top = other > s.top ? other : s.top;
    }
    for (int i = lane; lane < 16 && i < n; i += 16) s.sum += exp_of((x[i] == x[i] ? x[i] : -infinity()) - s.top);
    s.sum = __shfl_sync(0xffffffffu, add16(s.sum), 0);
    return s;
}

// weight_of is what a logit is worth among all experts.
static __device__ __forceinline__ float weight_of(const Op *op, float x, const SoftMax &s) {
    if (x != x) x = -infinity();
    return op->sigmoid ? sigmoid(x) : exp_of(x - s.top) / s.sum;
}

// choose_row chooses a row's experts, by one warp.
static __device__ void choose_row(const Op *op, int row) {
    int lane = thread() & 31, n = op->dim, used = op->used, plain = !op->sigmoid && !op->biased;
    const float *x = op->in + (size_t)row * n;
    float *shares = op->shares + (size_t)row * used, sum = 0;
    int *ids = op->route + (size_t)row * used;
    SoftMax all = {0, 1};
    if (!op->sigmoid && (op->biased || !op->normed)) all = soft_max(x, n);
    unsigned long long last = ~0ull, mine = 0;
    for (int i = 0; i < used; i++) {
        if (i == 0 || mine == last) {  // this lane's best is taken: look for the next
            mine = 0;
            for (int j = lane; j < n; j += 32) {
                float score = plain ? x[j] : weight_of(op, x[j], all) + (op->biased ? op->vec[j] : 0.0f);
                unsigned long long key = key_of(score, j);
                if (key < last && key > mine) mine = key;
            }
        }
        last = best_of_warp(mine);
        if (lane == 0) ids[i] = (int)~(unsigned)last;
    }
    __syncwarp();
    float best = x[ids[0]] == x[ids[0]] ? x[ids[0]] : -infinity();
    for (int i = lane; i < used; i += 32) {
        float y = x[ids[i]];
        if (!plain) shares[i] = weight_of(op, y, all);
        else shares[i] = exp_of((y == y ? y : -infinity()) - best) / (op->normed ? 1 : all.sum);
    }
    __syncwarp();
    for (int i = 0; i < used; i++) sum += shares[i];
    __syncwarp();
    for (int i = lane; i < used; i += 32) {
        if (op->normed) shares[i] /= sum;
        if (op->scale != 0) shares[i] *= op->scale;
        if (op->each) shares[i] *= op->vec[(op->biased ? n : 0) + ids[i]];
    }
}
