// What the sources need of CUDA. Under nvcc that is CUDA itself; otherwise emu.h of kernels/cuda/emulated stands for it.
//
// Of CUDA they use: threadIdx, blockIdx, blockDim, gridDim; __launch_bounds__; __syncthreads, __syncwarp; __shfl_sync, __shfl_xor_sync,
// __shfl_down_sync, __ballot_sync (full mask); __threadfence, __threadfence_system, __nanosleep, atomicAdd of int; __dp4a; __fmaf_rn;
// __half2float, __float2half_rn, __ushort_as_half, __half_as_ushort; __float_as_uint, __uint_as_float; rintf, sqrtf, fabsf, rint;
// __byte_perm; int2, uint2, uint4, float2, float4 and make_ of these; __ldg; min, max; __popc, __ffs; globaltimer and griddepcontrol of its
// assembler. Nothing contracts a product and a sum (-fmad=false, -ffp-contract=off).
#pragma once

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <stdint.h>
// SHARED names the block's dynamic shared memory: of the size that the launch gives, and of any content.
extern __shared__ __align__(16) unsigned char raw_shared[];
#define SHARED(type, name) type *const name = reinterpret_cast<type *>(raw_shared)
#define APART __noinline__  // a function that is not part of the one that calls it
// now_ns is the time in nanoseconds.
static __device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
    return t;
}
// grid_begin returns when all launches before this one have ended, and what they wrote can be read. From sm_90 on the driver may start a
// launch earlier (driver.Launch of kernels/cuda/gpu), so that its blocks are in place by then; it may start the next one from here on.
static __device__ __forceinline__ void grid_begin() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
#else
#include "emu.h"
#endif

// KERNEL(name) { … } is a kernel, which is launched by its name, with what to do, op, and the pass. Each waits for the launch before it,
// which has waited for the one before: so all have ended. KERNEL_OF has launch bounds too.
#define KERNEL(name) KERNEL_OF(, name)
#define KERNEL_OF(bounds, name)                                                                  \
    static __device__ __forceinline__ void name##_here(const Op *op, const Pass *pass);          \
    extern "C" __global__ void bounds name(const Op *op, const Pass *pass) {                     \
        grid_begin();                                                                            \
        name##_here(op, pass);                                                                   \
    }                                                                                            \
    static __device__ __forceinline__ void name##_here(const Op *op, const Pass *pass)
