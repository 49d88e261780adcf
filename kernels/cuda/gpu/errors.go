//go:build cuda

package gpu

// #include <cuda.h>
import "C"

import (
	"errors"
	"fmt"
	"reflect"

	"gorgonia.org/cu"
)

var errNoGPU = errors.New("NVIDIA's driver finds no GPU: look at CUDA_VISIBLE_DEVICES and at what nvidia-smi says")

// code is an error of the driver: a CUresult.
type code int

const (
	outOfMemory   code = C.CUDA_ERROR_OUT_OF_MEMORY
	notReady      code = C.CUDA_ERROR_NOT_READY
	contextActive code = C.CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE

	notSupported      code = C.CUDA_ERROR_NOT_SUPPORTED
	invalidValue      code = C.CUDA_ERROR_INVALID_VALUE
	alreadyRegistered code = C.CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED
	notPermitted      code = C.CUDA_ERROR_NOT_PERMITTED
)

func (c code) Error() string {
	var text *C.char
	if C.cuGetErrorString(C.CUresult(c), &text) != C.CUDA_SUCCESS || text == nil {
		return fmt.Sprintf("error %d of CUDA", int(c))
	}
	return fmt.Sprintf("%s (error %d of CUDA)", C.GoString(text), int(c))
}

// result is nil for success.
func result(r C.CUresult) error {
	if r == C.CUDA_SUCCESS {
		return nil
	}
	return code(r)
}

// number returns which error of the driver err is; 0 for none. The type of cu's errors is not exported, but it is a number.
func number(err error) code {
	for ; err != nil; err = errors.Unwrap(err) {
		if v := reflect.ValueOf(err); v.Kind() == reflect.Int {
			return code(v.Int())
		}
	}
	return 0
}

// explain says what failed, why, and, where something is known, what to do about it; nil for nil.
func explain(doing string, err error) error {
	if err == nil {
		return nil
	}
	c := number(err)
	if c == 0 {
		return fmt.Errorf("%s: %w", doing, err) // of the caller's own function
	}
	if advice := advise(c); advice != "" {
		return fmt.Errorf("%s: %w: %s", doing, c, advice)
	}
	return fmt.Errorf("%s: %w", doing, c)
}

// advise says what a user can do about an error; "" for others.
func advise(c code) string {
	switch c {
	case C.CUDA_ERROR_NO_DEVICE:
		return errNoGPU.Error()
	case C.CUDA_ERROR_NO_BINARY_FOR_GPU:
		return "the kernels are compiled for " + targets + ": compile them for this GPU with CUDA_TARGETS (docs/guides/cuda.md)"
	case C.CUDA_ERROR_UNSUPPORTED_PTX_VERSION, C.CUDA_ERROR_INVALID_PTX, C.CUDA_ERROR_INVALID_IMAGE, C.CUDA_ERROR_NOT_FOUND,
		C.CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
		v := cu.Version()
		return fmt.Sprintf("if the driver, of CUDA %d.%d, is older than the compiler, install a newer driver", v/1000, v%1000/10)
	case C.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
		return "the driver's library and its kernel module differ: restart the machine after an update of the driver"
	case C.CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
		return "this GPU needs the driver of its own machine, not that of a compatibility package"
	case C.CUDA_ERROR_SYSTEM_NOT_READY:
		return "wait for the driver's services to start, such as the fabric manager"
	case C.CUDA_ERROR_STUB_LIBRARY:
		return "libcuda.so.1 is the compiler's stand-in: remove its folder from LD_LIBRARY_PATH"
	case C.CUDA_ERROR_UNKNOWN, C.CUDA_ERROR_OPERATING_SYSTEM, C.CUDA_ERROR_NOT_PERMITTED, C.CUDA_ERROR_DEVICE_UNAVAILABLE:
		return "look at what nvidia-smi says, and whether this user may open /dev/nvidia0"
	case C.CUDA_ERROR_LAUNCH_FAILED, C.CUDA_ERROR_ILLEGAL_ADDRESS, C.CUDA_ERROR_LAUNCH_TIMEOUT, C.CUDA_ERROR_ECC_UNCORRECTABLE,
		C.CUDA_ERROR_NVLINK_UNCORRECTABLE, C.CUDA_ERROR_HARDWARE_STACK_ERROR, C.CUDA_ERROR_ILLEGAL_INSTRUCTION,
		C.CUDA_ERROR_MISALIGNED_ADDRESS, C.CUDA_ERROR_INVALID_ADDRESS_SPACE, C.CUDA_ERROR_INVALID_PC, C.CUDA_ERROR_ASSERT,
		C.CUDA_ERROR_CONTEXT_IS_DESTROYED:
		return "the GPU is lost to this process: start it again"
	}
	return ""
}
