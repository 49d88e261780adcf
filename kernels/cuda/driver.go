// Package cuda is tandem's arithmetic on an NVIDIA GPU. The kernels are the CUDA sources of kernels/cuda/src; what loads and launches them
// is a Driver: the GPU itself (kernels/cuda/gpu, build tag cuda) or its emulation (kernels/cuda/emulated), which compiles the same sources
// as C++ for tests. Everything else is here and the same for both.
//
// The bits are those of kernels/ref.
package cuda

import (
	"fmt"
	"unsafe"

	"github.com/tandem-llm/tandem/kernels"
)

// Pointer is an address in the GPU's memory; 0 is none.
type Pointer uint64

// Memory is a piece of memory that a Driver has allocated, aligned to 256 bytes and full of zeros.
type Memory struct {
	At   Pointer
	Size int
	Host []byte // the same memory as the processor sees it; nil if it cannot
}

// Shape is how many blocks and threads a launch has, and how many bytes of shared memory each block.
type Shape struct {
	Grid, Block [3]int
	Shared      int
}

// Chip tells what a Driver drives.
type Chip struct {
	Name       string // "NVIDIA H200"
	Arch       string // "sm_90"
	Integrated bool   // shares the processor's memory
	Pageable   bool   // reads and writes the processor's memory through the processor's page tables
	Atomics    bool   // the link to the processor's memory carries atomics of both
	Registers  bool   // Register works
	Total      int64  // bytes of memory
	Processors int    // multiprocessors
}

// Registrable returns an *Unsupported unless Register may take this memory.
func (c Chip) Registrable(host []byte) error {
	switch {
	case !c.Registers:
		return c.Unregistered(host, "its driver registers none")
	case len(host) == 0 || uintptr(unsafe.Pointer(&host[0]))%page != 0:
		return c.Unregistered(host, "want some, from the beginning of a page on")
	}
	return nil
}

// Unregistered is the *Unsupported for memory that Register cannot take.
func (c Chip) Unregistered(host []byte, why string) error {
	return &Unsupported{Device: c.Name, What: fmt.Sprintf("reading of %d bytes of the processor's memory in place (%s)", len(host), why)}
}

// page is what registered memory begins at a multiple of.
const page = 4096

// Driver is a GPU. All of its methods are called from one goroutine that is locked to its thread. After an error other than *OutOfMemory
// and *Unsupported the device is lost: later calls may fail too, and only Close is of use.
type Driver interface {
	Chip() Chip // what kind of GPU it is; never fails
	// Free returns how many bytes of memory are free.
	Free() (int64, error)
	// Alloc returns memory that the GPU alone sees, and keeps in its caches. Errors: *OutOfMemory.
	Alloc(bytes int) (Memory, error)
	// AllocShared returns memory of the processor that the GPU reads and writes in place: Host is there. A GPU may keep none of it in its
	// caches (Tegra). Errors: as for Alloc.
	AllocShared(bytes int) (Memory, error)
	// Register lets the GPU read memory of the processor in place: host begins at a multiple of a page (4 KiB), and stays mapped until
	// Release. Host of the result is host; the GPU does not write to it. Errors: *OutOfMemory; *Unsupported, which says why not.
	Register(host []byte) (Memory, error)
	// Release gives memory of Alloc or AllocShared back, and ends what Register began. Nothing that was launched may still use it.
	Release(m Memory) error
	// Write copies src to the GPU's memory, after what was launched before and before what is launched next. src may be changed as soon
	// as it returns.
	Write(to Pointer, src []byte) error
	// Read waits for everything before and copies from the GPU's memory.
	Read(dst []byte, from Pointer) error
	// Launch starts a kernel of kernels/cuda/src by name, after what was launched before. Every kernel takes two pointers: what to do,
	// and the pass.
	Launch(kernel string, s Shape, op, pass Pointer) error
	// Capture returns a graph of what f launches, which is not run. f calls nothing but Launch.
	Capture(f func() error) (Graph, error)
	// Run starts all launches of a graph, in order.
	Run(g Graph) error
	// Wait returns when everything before has ended.
	Wait() error
	// Close frees all memory and the GPU. A second Close does nothing.
	Close()
}

// Graph is a list of launches that a GPU can start at once.
type Graph interface {
	Close() // frees it; it must not be running
}

// OutOfMemory is the error for memory that a GPU does not have, Unsupported for what it cannot do. The device goes on after both.
type (
	OutOfMemory = kernels.OutOfMemory
	Unsupported = kernels.Unsupported
)
