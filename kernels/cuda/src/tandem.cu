// All kernels, as one unit.
#include "device.h"
