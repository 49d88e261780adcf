// A pass that this GPU and the processor compute together, in memory that both see: kernels/cuda/couple.go.
#pragma once
#include "arith.h"

// come waits until the processor has come as often as this GPU: one thread. What was computed before is over, and the fence makes it
// visible before the flag is; what is launched next reads after the flag was seen. If a side has gone nobody waits, and the pass is lost.
static __device__ APART void come(volatile Flags *f) {
    unsigned n = f->there.came + 1;
    __threadfence_system();
    f->there.came = n;
    unsigned long long begin = now_ns();
    while ((int)(f->here.came - n) < 0 && !f->here.gone && !f->there.gone) {
        if (now_ns() - begin > (unsigned long long)f->patience) f->there.gone = 1;
        __nanosleep(100);
    }
    __threadfence_system();
}

KERNEL(meet) { come(op->flags); }

// meet_behind lets the last block of a launch meet the processor: what others wrote before they counted themselves is visible to it, and by
// its fence to the processor. All threads of all blocks call it at their end.
static __device__ __forceinline__ void meet_behind(const Op *op) {
    if (!op->flags) return;
    __threadfence();
    __syncthreads();
    if (thread() > 0 || atomicAdd(op->done, 1) + 1 < (int)(gridDim.x * gridDim.y * gridDim.z)) return;
    *op->done = 0;
    come(op->flags);
}
