// A pass that this GPU and the processor compute together, in memory that both see: kernels/cuda/couple.go.
#pragma once
#include "abi.h"

// meet waits until the processor has come as often as this GPU: one thread. What was launched before has ended, and the fence makes it
// visible before the flag is; what is launched next reads after the flag was seen. If a side has gone nobody waits, and the pass is lost.
KERNEL meet(const Op *op, const Pass *pass) {
    volatile Flags *f = (volatile Flags *)op->ids;
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
