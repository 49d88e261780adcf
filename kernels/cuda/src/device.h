// What the sources need of CUDA. Under nvcc that is CUDA itself; otherwise emu.h of kernels/cuda/emulated stands for it.
//
// Of CUDA they use: threadIdx, blockIdx, blockDim, gridDim; __launch_bounds__; __syncthreads, __syncwarp; __shfl_sync, __shfl_xor_sync,
// __shfl_down_sync, __ballot_sync (full mask); __threadfence, __threadfence_system, __nanosleep, atomicAdd of int; __dp4a; __fmaf_rn;
// __half2float, __float2half_rn, __ushort_as_half, __half_as_ushort; __float_as_uint, __uint_as_float; rintf, sqrtf, fabsf, floor, rint;
// __double2float_rn; int2, int4, uint2, uint4, float2, float4 and make_ of these; __ldg; min, max; __popc, __clz, __ffs. Nothing contracts
// a product and a sum (-fmad=false, -ffp-contract=off).
#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <stdint.h>
// SHARED names the block's dynamic shared memory: of the size that the launch gives, and of any content.
#define SHARED(type, name)                                 \
    extern __shared__ __align__(16) unsigned char raw_shared[]; \
    type *const name = reinterpret_cast<type *>(raw_shared)
#define APART __noinline__  // a function that is not part of the one that calls it
// now_ns is the time in nanoseconds.
static __device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
#else
#include "emu.h"
#endif

// A kernel is launched by its name, with what to do and the pass.
#define KERNEL extern "C" __global__ void
