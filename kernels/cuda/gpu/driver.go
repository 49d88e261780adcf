//go:build cuda

package gpu

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

// driver implements cuda.Driver. Its context is the current one of the thread that it was opened on. Everything that it starts goes through
// one stream, so that it runs in order.
type driver struct {
	dev       cu.Device
	chip      cuda.Chip
	available func() int64 // of Open
	context   cu.CUContext
	retained  bool
	module    cu.Module
	loaded    bool
	stream    cu.Stream
	functions map[string]*function
	staging   staging
	mapped    map[cuda.Pointer]func() error // memory of the processor, and what ends that the GPU sees it
	early     bool                          // launches may begin before those before them have ended
}

// function is a kernel.
type function struct {
	cu.Function
	shared int // bytes of shared memory that a block may have
}

// smallShared is what every launch may ask for without saying so before.
const smallShared = 48 << 10

// failed returns err with what was being done, for how many bytes; nil for nil.
func (d *driver) failed(doing string, bytes int64, err error) error {
	if err == nil {
		return nil
	}
	if number(err) == outOfMemory {
		free, _ := d.free()
		return &cuda.OutOfMemory{Device: d.chip.Name, Wanted: bytes, Free: free}
	}
	return fmt.Errorf("%s: %w", d.chip.Name, explain(doing, err))
}

func (d *driver) Chip() cuda.Chip { return d.chip }

func (d *driver) Free() (int64, error) {
	free, err := d.free()
	return free, d.failed("asking for free memory", 0, err)
}

func (d *driver) free() (int64, error) {
	free, _, err := cu.MemInfo()
	if err == nil && d.chip.Integrated && d.available != nil {
		return d.available(), nil
	}
	return free, err
}

func (d *driver) Alloc(bytes int) (cuda.Memory, error) {
	if bytes < 1 {
		return cuda.Memory{}, fmt.Errorf("%s: memory of %d bytes: want 1 or more", d.chip.Name, bytes)
	}
	at, err := cu.MemAlloc(int64(bytes))
	if err != nil {
		return cuda.Memory{}, d.failed(allocating(bytes), int64(bytes), err)
	}
	m := cuda.Memory{At: cuda.Pointer(at), Size: bytes}
	if err := cu.MemsetD8Async(at, 0, int64(bytes), d.stream); err != nil {
		return cuda.Memory{}, d.failed("clearing memory", 0, err)
	}
	return m, nil
}

func allocating(bytes int) string { return fmt.Sprintf("allocating %d bytes", bytes) }

// AllocShared takes mapped memory of the processor.
func (d *driver) AllocShared(bytes int) (cuda.Memory, error) {
	if bytes < 1 {
		return cuda.Memory{}, fmt.Errorf("%s: shared memory of %d bytes: want 1 or more", d.chip.Name, bytes)
	}
	host, at, err := allocMapped(bytes)
	if err != nil {
		return cuda.Memory{}, d.failed(allocating(bytes), int64(bytes), err)
	}
	seen := unsafe.Slice((*byte)(host), bytes)
	clear(seen)
	d.mapped[at] = func() error { return cu.MemFreeHost(host) }
	return cuda.Memory{At: at, Size: bytes, Host: seen}, nil
}

// Register does without what says that memory is only read where the GPU does not know it: it may then refuse memory that this process
// cannot write to.
func (d *driver) Register(host []byte) (cuda.Memory, error) {
	const readOnlyRegister cu.DeviceAttribute = 113 // which cu does not name
	if err := d.chip.Registrable(host); err != nil {
		return cuda.Memory{}, err
	}
	readOnly, err := d.dev.Attribute(readOnlyRegister)
	if err != nil {
		return cuda.Memory{}, d.failed("asking whether memory can be registered for reading", 0, err)
	}
	at, err := register(host, readOnly != 0)
	switch number(err) {
	case notSupported, invalidValue, alreadyRegistered, notPermitted:
		return cuda.Memory{}, d.chip.Unregistered(host, explain("registering it", err).Error())
	}
	if err != nil {
		return cuda.Memory{}, d.failed("registering memory", int64(len(host)), err)
	}
	d.mapped[at] = func() error { return unregister(host) }
	return cuda.Memory{At: at, Size: len(host), Host: host}, nil
}

// Release waits for what was launched before: nothing may use the memory any more.
func (d *driver) Release(m cuda.Memory) error {
	if err := d.Wait(); err != nil {
		return err
	}
	if free, ok := d.mapped[m.At]; ok {
		delete(d.mapped, m.At)
		return d.failed("freeing memory", 0, free())
	}
	return d.failed("freeing memory", 0, cu.MemFree(cu.DevicePtr(m.At)))
}

func (d *driver) Write(to cuda.Pointer, src []byte) error {
	return d.staging.write(d, to, src)
}

func (d *driver) Read(dst []byte, from cuda.Pointer) error {
	return d.staging.read(d, dst, from)
}

func (d *driver) Launch(kernel string, s cuda.Shape, op, pass cuda.Pointer) error {
	f, err := d.function(kernel, s.Shared)
	if err != nil {
		return err
	}
	err = launch(f.Function, s, d.stream, op, pass, d.early)
	if err == nil {
		return nil
	}
	doing := fmt.Sprintf("launching %s with grid %v, block %v, %d bytes of shared memory", kernel, s.Grid, s.Block, s.Shared)
	return d.failed(doing, 0, err)
}

// function returns a kernel whose blocks may have that much shared memory.
func (d *driver) function(kernel string, shared int) (*function, error) {
	f := d.functions[kernel]
	if f == nil {
		found, err := d.module.Function(kernel)
		if err != nil {
			return nil, fmt.Errorf("%s: the compiled kernels have no %q: run 'test/scripts/cuda build' and build again: %w",
				d.chip.Name, kernel, number(err))
		}
		f = &function{found, smallShared}
		d.functions[kernel] = f
	}
	if shared > f.shared {
		if err := allowShared(f.Function, shared); err != nil {
			return nil, d.failed(fmt.Sprintf("%d bytes of shared memory for %s", shared, kernel), 0, err)
		}
		f.shared = shared
	}
	return f, nil
}

func (d *driver) Capture(f func() error) (cuda.Graph, error) {
	var failed error
	g, err := capture(d.stream, func() error { failed = f(); return failed })
	if failed != nil {
		return nil, failed // says by itself what it was
	}
	if err != nil {
		return nil, d.failed("capturing a graph", 0, err)
	}
	return g, nil
}

func (d *driver) Run(g cuda.Graph) error {
	return d.failed("launching a graph", 0, g.(*graph).launch(d.stream))
}

// polling is for how long a wait looks by itself: for longer it would take a core from whoever verifies there, and sleeping costs less.
const polling = 50 * time.Microsecond

func (d *driver) Wait() error {
	for end := time.Now().Add(polling); time.Now().Before(end); runtime.Gosched() {
		if err := d.stream.Query(); number(err) != notReady {
			return d.failed("waiting", 0, err)
		}
	}
	return d.failed("waiting", 0, d.stream.Synchronize())
}

// Close frees everything. Memory that was not released goes with the context. The GPU may be lost: nothing that fails matters any more.
func (d *driver) Close() {
	if !d.retained {
		return
	}
	d.retained = false
	_ = d.stream.Synchronize()
	d.staging.close()
	if d.stream != cu.NoStream {
		_ = d.stream.Destroy()
	}
	if d.loaded {
		_ = d.module.Unload()
	}
	_ = cu.SetCurrentContext(cu.CUContext{})
	_ = d.dev.ReleasePrimaryCtx()
}
