// Kernels for the tests of the emulation. The first pointer is what they read, the second what they write.
#include "device.h"

#define TEST_KERNEL extern "C" __global__ void

static __device__ unsigned thread_of() { return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z); }
static __device__ unsigned block_of() { return blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z); }
static __device__ size_t global_of() { return (size_t)block_of() * blockDim.x * blockDim.y * blockDim.z + thread_of(); }

// Each thread writes where it is.
TEST_KERNEL where(const void *, uint4 *out) {
    grid_begin();
    uint4 *at = out + 2 * global_of();
    at[0] = make_uint4(threadIdx.x, threadIdx.y, threadIdx.z, blockDim.x * 10000 + blockDim.y * 100 + blockDim.z);
    at[1] = make_uint4(blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x * 10000 + gridDim.y * 100 + gridDim.z);
}

TEST_KERNEL copy(const int *in, int *out) { grid_begin(); out[global_of()] = in[global_of()]; }

TEST_KERNEL twice_and_one(const int *, int *out) { grid_begin(); out[global_of()] = 2 * out[global_of()] + 1; }

// order counts: out[0] is the next place in out, which is where a thread writes its number.
TEST_KERNEL order(const void *, unsigned *out) { grid_begin(); out[1 + out[0]++] = (unsigned)global_of(); }

TEST_KERNEL garbage(const void *, unsigned *out) {
    grid_begin();
    SHARED(unsigned, box);
    out[global_of()] = box[thread_of()];
}

// Sums of what all threads of a block wrote, by halves, eight times over; each time the block's numbers are rotated.
TEST_KERNEL sums(const unsigned *in, unsigned *out) {
    grid_begin();
    SHARED(unsigned, box);
    unsigned t = threadIdx.x, n = blockDim.x, sum = 0;
    for (unsigned turn = 0; turn < 8; turn++) {
        box[(t + turn) % n] = in[global_of()] * (t + turn);
        __syncthreads();
        for (unsigned step = n / 2; step > 0; step /= 2) {
            if (t < step) box[t] += box[t + step] * 3;
            __syncthreads();
        }
        sum += box[0];
        __syncthreads();
    }
    out[global_of()] = sum;
}

// The same of one warp, where __syncwarp is enough. Blocks have one warp, or part of one.
TEST_KERNEL warp_sums(const unsigned *in, unsigned *out) {
    grid_begin();
    SHARED(unsigned, box);
    unsigned t = threadIdx.x;
    box[t] = in[global_of()];
    __syncwarp();
    unsigned sum = box[0] + box[blockDim.x - 1 - t] * 5;
    __syncwarp();
    box[t] = sum;
    __syncwarp();
    out[global_of()] = box[(t + 1) % blockDim.x];
}

// Eight numbers from each thread: three kinds of shuffle, three types.
TEST_KERNEL shuffles(const int *in, int *out) {
    grid_begin();
    int v = in[global_of()], *to = out + 8 * global_of();
    unsigned all = 0xffffffffu;
    to[0] = __shfl_sync(all, v, 5);
    to[1] = __shfl_sync(all, v, (threadIdx.x * 7) % 32);
    to[2] = __shfl_xor_sync(all, v, 1);
    to[3] = (int)__shfl_xor_sync(all, (unsigned)v, 16);
    to[4] = __shfl_down_sync(all, v, 1);
    to[5] = (int)__shfl_down_sync(all, (float)v, 20);
    float sum = (float)v;
    for (int n = 16; n > 0; n /= 2) sum += __shfl_xor_sync(all, sum, n);
    to[6] = (int)sum;
    to[7] = (int)__shfl_down_sync(all, (long long)v << 20, 3 + threadIdx.x / 32);
}

// Half of a block waits after the other half has ended.
TEST_KERNEL half_ends(const void *, int *out) {
    grid_begin();
    if (threadIdx.x < blockDim.x / 2) return;
    __syncthreads();
    out[global_of()] = 1;
}

// The threads of a block wait at two places.
TEST_KERNEL two_places(const void *, int *out) {
    grid_begin();
    if (threadIdx.x % 2) {
        __syncthreads();
        out[global_of()] = 1;
    } else {
        __syncthreads();
    }
}

// A lane ends before its warp's shuffle.
TEST_KERNEL lane_ends(const int *in, int *out) {
    grid_begin();
    if (threadIdx.x == 3) return;
    out[global_of()] = __shfl_xor_sync(0xffffffffu, in[global_of()], 1);
}

TEST_KERNEL half_mask(const int *in, int *out) { grid_begin(); out[global_of()] = __shfl_sync(0x0000ffffu, in[global_of()], 0); }

TEST_KERNEL never_ends(const void *, volatile unsigned *out) {
    grid_begin();
    for (;;) out[0]++;
}

// Writes at the offset, in bytes from out, that in holds.
TEST_KERNEL write_at(const int64_t *in, char *out) { grid_begin(); out[in[0]] = 1; }

TEST_KERNEL write_shared_at(const int64_t *in, char *out) {
    grid_begin();
    SHARED(char, box);
    box[in[0]] = 1;
    out[0] = box[in[0]];
}

TEST_KERNEL write_misaligned(const int64_t *in, char *out) { grid_begin(); *(int4 *)(out + in[0]) = make_int4(1, 2, 3, 4); }

static __device__ int deep(volatile int n) {
    volatile char frame[256];
    frame[n % 256] = (char)n;
    return n == 0 ? 0 : deep(n - 1) + frame[n % 256];
}

TEST_KERNEL recurse(const int *in, int *out) { grid_begin(); out[0] = deep(in[0]); }

// Arithmetic, a value a thread: see arithmetic_test.go.
TEST_KERNEL to_float(const unsigned short *in, float *out) {
    grid_begin();
    out[global_of()] = __half2float(__ushort_as_half(in[global_of()]));
}
TEST_KERNEL to_half(const float *in, unsigned short *out) {
    grid_begin();
    out[global_of()] = __half_as_ushort(__float2half_rn(in[global_of()]));
}
TEST_KERNEL dp4a(const int *in, int *out) {
    grid_begin();
    const int *v = in + 3 * global_of();
    out[global_of()] = __dp4a(v[0], v[1], v[2]);
}
TEST_KERNEL permute(const unsigned *in, unsigned *out) {
    grid_begin();
    const unsigned *v = in + 3 * global_of();
    out[global_of()] = __byte_perm(v[0], v[1], v[2]);
}
TEST_KERNEL fma_of(const float *in, float *out) {
    grid_begin();
    const float *v = in + 3 * global_of();
    out[global_of()] = __fmaf_rn(v[0], v[1], v[2]);
}
// A product and a sum, which must not be contracted.
TEST_KERNEL mul_add(const float *in, float *out) {
    grid_begin();
    const float *v = in + 3 * global_of();
    out[global_of()] = v[0] * v[1] + v[2];
}
TEST_KERNEL rounds(const float *in, float *out) {
    grid_begin();
    float x = in[global_of()], *to = out + 6 * global_of();
    to[0] = rintf(x);
    to[1] = sqrtf(fabsf(x));
    to[2] = __double2float_rn(floor((double)x * 1.1));
    to[3] = (float)rint((double)x);
    to[4] = min(x, 0.5f);
    to[5] = max(x, -0.5f);
}
TEST_KERNEL bits(const unsigned *in, int *out) {
    grid_begin();
    unsigned x = in[global_of()];
    int *to = out + 4 * global_of();
    to[0] = __popc(x);
    to[1] = __clz((int)x);
    to[2] = min((int)x, 7);
    to[3] = (int)max(x, 9u);
}

// What a kernel must not do: end, or read, without a grid_begin.
TEST_KERNEL begins_never(const int *, int *) {}
TEST_KERNEL begins_late(const int *in, int *out) {
    int x = in[global_of()];
    grid_begin();
    out[global_of()] = x;
}
