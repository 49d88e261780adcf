#include "tk.h"
const tk_kernels tk_avx2;
