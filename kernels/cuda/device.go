package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/tandem-llm/tandem/kernels"
)

const name = "cuda"

// Device is a kernels.Device on a GPU. One goroutine, locked to its thread, makes all calls of the driver; passes run one after the
// other.
type Device struct {
	chip  Chip
	calls chan func(d Driver)
	ended chan struct{}

	mu   sync.Mutex
	lost error         // why no call can be made any more
	gone chan struct{} // closed once the device is lost
}

var _ kernels.MemoryOwner = (*Device)(nil)

// New returns a device that open's driver drives. open is called on the device's own thread. Close ends it.
func New(open func() (Driver, error)) (*Device, error) {
	d := &Device{calls: make(chan func(Driver)), ended: make(chan struct{}), gone: make(chan struct{})}
	opened := make(chan error)
	go func() {
		defer close(d.ended)
		runtime.LockOSThread() // never unlocked: the thread, and what the driver keeps for it, ends with the goroutine
		driver, err := open()
		if err == nil {
			d.chip = driver.Chip()
		}
		if opened <- err; err != nil {
			return
		}
		defer driver.Close()
		for f := range d.calls {
			f(driver)
		}
	}()
	if err := <-opened; err != nil {
		return nil, err
	}
	if err := d.do(checkStructures); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

// checkStructures has the kernels tell the sizes of what both sides write.
func checkStructures(d Driver) error {
	op, err := d.Alloc(opBytes)
	if err != nil {
		return err
	}
	out, err := d.Alloc(12)
	if err != nil {
		return err
	}
	defer func() { _, _ = d.Release(op), d.Release(out) }()
	got := make([]int32, 3)
	if err := errors.Join(d.Write(op.At, view([]cOp{{ids: out.At}})), d.Launch("sizes", grid(1, 1, 1, 1, 0), op.At, 0),
		d.Read(view(got), out.At)); err != nil {
		return err
	}
	if got[0] != int32(opBytes) || got[1] != int32(passBytes) || got[2] != int32(actBytes) {
		return fmt.Errorf("cuda: the kernels mean structures of %v bytes, this program of %d, %d and %d: build both anew",
			got, opBytes, passBytes, actBytes)
	}
	return nil
}

var errClosed = errors.New("cuda: the device is closed")

// do calls f on the device's thread. An error other than a lack of memory or of an ability means that the device is lost: no later call is
// made.
func (d *Device) do(f func(Driver) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.lost != nil {
		return d.lost
	}
	result := make(chan error)
	d.calls <- func(driver Driver) { result <- f(driver) }
	err := <-result
	var memory *OutOfMemory
	var cannot *Unsupported
	if err != nil && !errors.As(err, &memory) && !errors.As(err, &cannot) && !errors.Is(err, errKept) {
		d.lost = fmt.Errorf("cuda: %s is lost: %w", d.chip.Name, err)
		close(d.gone)
		return d.lost
	}
	return err
}

// errKept marks errors after which the device goes on.
var errKept = errors.New("cuda")

// Chip tells what GPU this is.
func (d *Device) Chip() Chip { return d.chip }

// Lost returns why the device can compute no more, or nil.
func (d *Device) Lost() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.lost
}

// Gone is closed once the device is lost.
func (d *Device) Gone() <-chan struct{} { return d.gone }

// Free returns how many bytes of the GPU's memory are free.
func (d *Device) Free() (free int64, of string, err error) {
	err = d.do(func(g Driver) (err error) {
		free, err = g.Free()
		return err
	})
	return free, d.chip.Name, err
}

// About names the architecture.
func (d *Device) About() kernels.About { return kernels.About{Name: name, Kernels: d.chip.Arch} }

// Close ends the device's thread. The owners of runners, weights and caches close them before. A second Close does nothing.
func (d *Device) Close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calls != nil {
		close(d.calls)
		<-d.ended
		d.calls, d.lost = nil, errClosed
	}
}

// alloc returns memory, released by free.
func (d *Device) alloc(bytes int) (m Memory, err error) {
	err = d.do(func(g Driver) error {
		m, err = g.Alloc(max(bytes, 16))
		return err
	})
	return m, err
}

// free gives memory back; if the device is lost it is gone already.
func (d *Device) free(all ...Memory) {
	_ = d.do(func(g Driver) (err error) {
		for _, m := range all {
			if m.Size > 0 {
				err = errors.Join(err, g.Release(m))
			}
		}
		return err
	})
}

func unsupported(format string, args ...any) error {
	return &kernels.Unsupported{Device: name, What: fmt.Sprintf(format, args...)}
}

// layout is where things lie in one piece of memory, at multiples of 256.
type layout struct{ size int }

func (l *layout) add(bytes int) int {
	at := l.size
	l.size += (bytes + 255) &^ 255
	return at
}
