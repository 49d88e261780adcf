//go:build cuda

package gpu

// What gorgonia.org/cu lacks: mapped, registered and pinned memory, more shared memory than 48 KiB, launches that begin early, graphs of
// captured launches, and a driver that may be missing.

// #cgo CFLAGS: -Wall -Wextra
// #cgo LDFLAGS: -L${SRCDIR}/lib -ldl
// #if !__has_include(<cuda.h>)
// #error "there is no cuda.h: run 'test/scripts/cuda install', and build with the variable that 'test/scripts/cuda env' prints"
// #endif
// #include <cuda.h>
// #include "load.h"
// static CUresult launch(CUfunction f, const unsigned *n, CUstream stream, CUdeviceptr op, CUdeviceptr pass, int early) {
//     void *parameters[] = {&op, &pass};
//     CUlaunchAttribute programmatic = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
//     programmatic.value.programmaticStreamSerializationAllowed = 1;
//     CUlaunchConfig c = {n[0], n[1], n[2], n[3], n[4], n[5], n[6], stream, &programmatic, 1};
//     return early ? cuLaunchKernelEx(&c, f, parameters, NULL)
//                  : cuLaunchKernel(f, n[0], n[1], n[2], n[3], n[4], n[5], n[6], stream, parameters, NULL);
// }
import "C"

import (
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// load loads the driver's library and returns why that failed, "" if it did not.
func load() string {
	if why := C.tandem_cuda_load(); why != nil {
		return C.GoString(why)
	}
	return ""
}

// initialise starts the driver once it is loaded.
func initialise() error { return result(C.cuInit(0)) }

// allocMapped returns memory of the processor and where the GPU sees it.
func allocMapped(bytes int) (unsafe.Pointer, cuda.Pointer, error) {
	var host unsafe.Pointer
	if err := result(C.cuMemHostAlloc(&host, C.size_t(bytes), C.CU_MEMHOSTALLOC_DEVICEMAP)); err != nil {
		return nil, 0, err
	}
	at, err := seenAt(host)
	if err != nil {
		_ = cu.MemFreeHost(host)
		return nil, 0, err
	}
	return host, at, nil
}

// seenAt returns where the GPU sees memory of the processor.
func seenAt(host unsafe.Pointer) (cuda.Pointer, error) {
	var at C.CUdeviceptr
	err := result(C.cuMemHostGetDevicePointer(&at, host, 0))
	return cuda.Pointer(at), err
}

// register returns where the GPU sees memory that was mapped by others from now on, until unregister.
func register(host []byte, readOnly bool) (cuda.Pointer, error) {
	flags := C.uint(C.CU_MEMHOSTREGISTER_DEVICEMAP)
	if readOnly {
		flags |= C.CU_MEMHOSTREGISTER_READ_ONLY
	}
	if err := result(C.cuMemHostRegister(unsafe.Pointer(&host[0]), C.size_t(len(host)), flags)); err != nil {
		return 0, err
	}
	at, err := seenAt(unsafe.Pointer(&host[0]))
	if err != nil {
		_ = unregister(host)
	}
	return at, err
}

func unregister(host []byte) error { return result(C.cuMemHostUnregister(unsafe.Pointer(&host[0]))) }

// allocPinned returns memory of the processor that the GPU can copy from and to while other things go on.
func allocPinned(bytes int) (unsafe.Pointer, error) {
	var host unsafe.Pointer
	err := result(C.cuMemHostAlloc(&host, C.size_t(bytes), 0))
	return host, err
}

// allowShared makes later launches of f with that much shared memory valid.
func allowShared(f cu.Function, bytes int) error {
	handle := *(*C.CUfunction)(unsafe.Pointer(&f)) // all that a cu.Function is
	return result(C.cuFuncSetAttribute(handle, C.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, C.int(bytes)))
}

// launchesEarly reports whether launches may begin before those before them have ended: from sm_90 on, with a driver that keeps this in
// graphs, and kernels that are compiled for it, which alone wait.
func launchesEarly(major int, targets string) bool {
	const keptInGraphs = 12030 // CUDA 12.3
	wait := slices.ContainsFunc(strings.Fields(targets), func(t string) bool {
		n, err := strconv.Atoi(strings.TrimPrefix(t, "compute_"))
		return err == nil && n >= 90
	})
	return wait && major >= 9 && cu.Version() >= keptInGraphs
}

// launch starts f, early if it may begin before the launches before it have ended. grid_begin of kernels/cuda/src waits for them.
func launch(f cu.Function, s cuda.Shape, on cu.Stream, op, pass cuda.Pointer, early bool) error {
	n, yes := [7]C.uint{6: C.uint(s.Shared)}, C.int(0)
	for i := range 3 {
		n[i], n[3+i] = C.uint(s.Grid[i]), C.uint(s.Block[i])
	}
	if early {
		yes = 1
	}
	kernel := *(*C.CUfunction)(unsafe.Pointer(&f)) // all that a cu.Function is
	return result(C.launch(kernel, &n[0], handle(on), C.CUdeviceptr(op), C.CUdeviceptr(pass), yes))
}

// graph implements cuda.Graph.
type graph struct{ exec C.CUgraphExec }

// handle is the stream as this package's C code names it.
func handle(s cu.Stream) C.CUstream { return C.CUstream(unsafe.Pointer(s.C())) }

// capture returns what f launches on the stream, as a graph. It ends the capture whatever f does.
func capture(s cu.Stream, f func() error) (*graph, error) {
	if err := result(C.cuStreamBeginCapture(handle(s), C.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)); err != nil {
		return nil, err
	}
	failed := f()
	var captured C.CUgraph
	err := result(C.cuStreamEndCapture(handle(s), &captured))
	if captured != nil {
		defer C.cuGraphDestroy(captured)
	}
	if failed != nil {
		return nil, failed
	}
	if err != nil {
		return nil, err
	}
	g := new(graph)
	if err := result(C.cuGraphInstantiateWithFlags(&g.exec, captured, 0)); err != nil {
		return nil, err
	}
	return g, nil
}

func (g *graph) launch(s cu.Stream) error { return result(C.cuGraphLaunch(g.exec, handle(s))) }

// Close implements cuda.Graph. A second Close does nothing.
func (g *graph) Close() {
	if g.exec != nil {
		C.cuGraphExecDestroy(g.exec)
		g.exec = nil
	}
}
