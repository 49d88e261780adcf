// All kernels, as one unit.
#include "abi.h"
#include "rows.h"
#include "matmul.h"
#include "attention.h"
#include "top.h"
#include "steps.h"
#include "states.h"
#include "probe.h"
#include "couple.h"

// sizes tells the Go side that both mean the same structures.
KERNEL(sizes) {
    op->ids[0] = sizeof(Op);
    op->ids[1] = sizeof(Pass);
    op->ids[2] = sizeof(Act);
}
