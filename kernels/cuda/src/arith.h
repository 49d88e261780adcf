// The arithmetic of docs/kernels.md; kernels/ref defines it. Products and sums are rounded one by one unless fmaf says otherwise.
#pragma once
#include "abi.h"

static __device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
static __device__ __forceinline__ float half_at(const void *p) { return __half2float(__ushort_as_half(*(const unsigned short *)p)); }
static __device__ __forceinline__ float half_of(unsigned h) { return __half2float(__ushort_as_half((unsigned short)h)); }
static __device__ __forceinline__ unsigned short to_half(float x) { return __half_as_ushort(__float2half_rn(x)); }

static __device__ __forceinline__ float exp_of(float x) {
    if (x != x) return x;
    if (x < -87.33655f) return 0;
    if (x > 88.3f) x = 88.3f;
    float n = rintf(x * 0x1.715476p+0f);
    float r = __fmaf_rn(-n, 0x1.63p-1f, x);
    r = __fmaf_rn(-n, -0x1.bd0106p-13f, r);
    float p = 0x1.6d1116p-10f;
    p = __fmaf_rn(p, r, 0x1.120b7cp-7f);
    p = __fmaf_rn(p, r, 0x1.55551ap-5f);
    p = __fmaf_rn(p, r, 0x1.5554dcp-3f);
    p = __fmaf_rn(p, r, 0x1p-1f);
    p = __fmaf_rn(p, r, 1.0f);
    p = __fmaf_rn(p, r, 1.0f);
    return p * __uint_as_float((unsigned)((int)n + 127) << 23);
}

static __device__ __forceinline__ float tanh_of(float x) {
    float a = fabsf(x), t = 1.0f - 2.0f / (exp_of(2.0f * a) + 1.0f);
    if (a < 0.625f) {
        float z = a * a, p = -0x1.75e1d4p-8f;
        p = __fmaf_rn(p, z, 0x1.52269cp-6f);
        p = __fmaf_rn(p, z, -0x1.b83c5ap-5f);
        p = __fmaf_rn(p, z, 0x1.110726p-3f);
        p = __fmaf_rn(p, z, -0x1.555532p-2f);
        t = __fmaf_rn(p * z, a, a);
    }
    return __uint_as_float((__float_as_uint(t) & 0x7fffffffu) | (__float_as_uint(x) & 0x80000000u));
}

static __device__ __forceinline__ float soft_cap(float x, float cap) { return cap * tanh_of(x * (1.0f / cap)); }

static __device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + exp_of(-x)); }

static __device__ __forceinline__ float silu_mul(float g, float u) { return g / (1.0f + exp_of(-g)) * u; }

static __device__ __forceinline__ float gelu_mul(float g, float u) {
    float z = g * __fmaf_rn(g * g, 0x1.2444f2p-4f, 0x1.988454p+0f);
    return g / (1.0f + exp_of(-z)) * u;
}

static __device__ __forceinline__ float clamped_mul(float g, float u) {
    if (g > 7.0f) g = 7.0f;
    if (u > 7.0f) u = 7.0f;
    if (u < -7.0f) u = -7.0f;
    return g / (1.0f + exp_of(-(1.702f * g))) * (u + 1.0f);
}

// thread is the number of a thread in its block.
static __device__ __forceinline__ int thread() { return threadIdx.y * blockDim.x + threadIdx.x; }

static __device__ __forceinline__ int threads() { return blockDim.x * blockDim.y; }

// add16 adds what 16 neighbouring lanes hold, in the order of ref.Reduce; the first of them gets the sum.
static __device__ __forceinline__ float add16(float a) {
    for (int n = 8; n > 0; n /= 2) a += __shfl_down_sync(0xffffffffu, a, n);
    return a;
}

// rms_scale returns 1/√(Σx²/n + eps) to all lanes of a warp. All have read x when it returns.
static __device__ float rms_scale(const float *x, int n, float eps) {
    int lane = thread() & 31;
    float a = 0;
    if (lane < 16) {
#pragma unroll 8
        for (int i = lane; i < n; i += 16) a = __fmaf_rn(x[i], x[i], a);
    }
    a = add16(a);
    return __shfl_sync(0xffffffffu, 1.0f / sqrtf(a / (float)n + eps), 0);
}

// largest returns the largest a of a warp, to all its lanes.
static __device__ __forceinline__ unsigned largest(unsigned a) {
    for (int n = 16; n > 0; n /= 2) a = max(a, __shfl_xor_sync(0xffffffffu, a, n));
    return a;
}

// scale_of returns the scale of a span whose largest magnitude has the bits top, and in inv what its values are multiplied by.
static __device__ __forceinline__ float scale_of(unsigned top, float *inv) {
    float a = __uint_as_float(top);
    *inv = 0;
    if (top >= 0x7f800000u) return __uint_as_float(0x7fc00000u);
    if (a < 1e-30f) return 0;
    *inv = 127.0f / a;
    return a / 127.0f;
}

static __device__ __forceinline__ int code_of(float y, float inv) { return inv == 0 ? 0 : (int)rintf(y * inv); }

static __device__ __forceinline__ int sum16(int c) {
    for (int n = 8; n > 0; n /= 2) c += __shfl_xor_sync(0xffffffffu, c, n);
    return c;
}

// fill writes columns [k0, k0+256) of a row of an activation, a thread each; y is column k0 + thread(). A row has dim columns: all, or
// those of an expert. All threads of the block call it, at least THREADS. box is 8 numbers of shared memory.
static __device__ void fill(const Act &a, int dim, int row, int k0, float y, unsigned *box) {
    int t = thread(), k = k0 + t, lane = t & 31, in = k < dim && t < THREADS;
    size_t at = (size_t)row * dim + k;
    if (a.x && in) a.x[at] = y;
    if (!a.q && !a.q256) return;
    if (!in) y = 0;
    unsigned bits = __float_as_uint(y) & 0x7fffffffu, top = largest(bits);
    float inv;
    if (a.q) {
        float scale = scale_of(top, &inv);
        int c = code_of(y, inv), sum = sum16(c);
        if (in) {
            a.q[at] = (signed char)c;
            if (lane == 0) a.scale[at / 32] = scale;
            if (lane % 16 == 0) a.sum[at / 16] = sum;
        }
    }
    if (a.q256) {
        if (lane == 0 && t < THREADS) box[t / 32] = top;
        __syncthreads();
        for (int i = 0; i < THREADS / 32; i++) top = max(top, box[i]);
        __syncthreads();
        float scale = scale_of(top, &inv);
        int c = code_of(y, inv), sum = sum16(c);
        if (in) {
            a.q256[at] = (signed char)c;
            if (t == 0) a.scale256[at / 256] = scale;
            if (lane % 16 == 0) a.sum256[at / 16] = sum;
        }
    }
}
