package emulated

import (
	"fmt"
	"os"
	"slices"
	"sort"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem/kernels/cuda"
)

const (
	page  = 4096
	align = 256
	// gap is what follows each piece when sanitizing, so that an access behind it is seen.
	gap = 256
)

// memory is the GPU's memory as this process sees it, and what of it is allocated.
type memory struct {
	view []byte
	base cuda.Pointer            // where the child sees it
	used []piece                 // ascending
	lent map[cuda.Pointer][]byte // registered
}

// piece is allocated: size bytes that were asked for, of room that are taken.
type piece struct {
	at         int
	size, room int
}

// open maps a new memory of so many bytes, full of zeros, and returns its file.
func (m *memory) open(size int64) (*os.File, error) {
	fd, err := unix.MemfdCreate("tandem-emulated", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("emulated GPU: memfd_create: %w", err)
	}
	file := os.NewFile(uintptr(fd), "tandem-emulated")
	if err := file.Truncate(size); err != nil {
		file.Close()
		return nil, fmt.Errorf("emulated GPU: %d bytes of memory: %w", size, err)
	}
	m.view, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("emulated GPU: mmap of %d bytes: %w", size, err)
	}
	return file, nil
}

func (m *memory) close() {
	if m.view != nil {
		_ = unix.Munmap(m.view)
	}
}

// taken returns how many bytes are taken.
func (m *memory) taken() (sum int64) {
	for _, p := range m.used {
		sum += int64(p.room)
	}
	return sum
}

// take takes the first room that is large enough; false if none is.
func (m *memory) take(size, room int) (piece, bool) {
	at := 0
	for i := 0; i <= len(m.used); i++ {
		end := len(m.view)
		if i < len(m.used) {
			end = m.used[i].at
		}
		if room <= end-at {
			p := piece{at, size, room}
			m.used = slices.Insert(m.used, i, p)
			return p, true
		}
		if i < len(m.used) {
			at = m.used[i].at + m.used[i].room
		}
	}
	return piece{}, false
}

// drop gives back the piece at an offset; its memory is full of zeros again.
func (m *memory) drop(at int) (piece, bool) {
	i := slices.IndexFunc(m.used, func(p piece) bool { return p.at == at })
	if i < 0 {
		return piece{}, false
	}
	p := m.used[i]
	m.used = slices.Delete(m.used, i, i+1)
	clear(m.view[p.at : p.at+p.size])
	return p, true
}

// within returns the memory of n bytes at an address, if all of it is of one piece.
func (m *memory) within(at cuda.Pointer, n int) ([]byte, error) {
	for from, host := range m.lent {
		if at >= from && int(at-from)+n <= len(host) {
			return host[at-from:][:n], nil
		}
	}
	off := int(at - m.base)
	i := sort.Search(len(m.used), func(i int) bool { return m.used[i].at+m.used[i].size >= off+n })
	if at < m.base || off < 0 || i == len(m.used) || m.used[i].at > off {
		return nil, fmt.Errorf("emulated GPU: %d bytes at %#x are not allocated", n, uint64(at))
	}
	return m.view[off : off+n], nil
}

// Free returns how many bytes can be allocated.
func (d *Driver) Free() (int64, error) {
	if err := d.ready("Free"); err != nil {
		return 0, err
	}
	return d.free(), nil
}

func (d *Driver) free() int64 { return max(0, d.chip.Total-d.memory.taken()-d.elsewhere.Load()) }

func (d *Driver) Alloc(bytes int) (cuda.Memory, error) {
	if err := d.ready("Alloc"); err != nil {
		return cuda.Memory{}, err
	}
	if bytes <= 0 {
		return cuda.Memory{}, fmt.Errorf("%s: Alloc of %d bytes: want at least 1", d.chip.Name, bytes)
	}
	lacks := &cuda.OutOfMemory{Device: d.chip.Name, Wanted: int64(bytes), Free: d.free()}
	if int64(bytes) > lacks.Free {
		return cuda.Memory{}, lacks
	}
	room := (bytes + align - 1) / align * align
	if d.sanitized {
		room += gap
	}
	if int64(room) > lacks.Free {
		return cuda.Memory{}, lacks
	}
	p, ok := d.memory.take(bytes, room)
	if !ok {
		return cuda.Memory{}, lacks
	}
	d.allocs.Add(1)
	m := cuda.Memory{At: d.memory.base + cuda.Pointer(p.at), Size: bytes}
	return m, d.process.send(allocated, 1, words(uint64(m.At), uint64(p.size)))
}

// AllocShared is Alloc of memory that Moved counts apart.
func (d *Driver) AllocShared(bytes int) (cuda.Memory, error) {
	m, err := d.Alloc(bytes)
	if err != nil {
		return m, err
	}
	at := int(m.At - d.memory.base)
	m.Host = d.memory.view[at : at+bytes : at+bytes]
	return m, d.process.send(mapped, 1, words(uint64(m.At), uint64(bytes)))
}

// Release waits for everything before, as a GPU does.
func (d *Driver) Release(m cuda.Memory) error {
	if err := d.ready("Release"); err != nil {
		return err
	}
	if err := d.process.wait(); err != nil {
		return err
	}
	d.waits.Add(1)
	if host, ok := d.memory.lent[m.At]; ok {
		delete(d.memory.lent, m.At)
		return d.process.send(released, 1, words(uint64(m.At), uint64(len(host))))
	}
	p, ok := d.memory.drop(int(m.At - d.memory.base))
	if !ok {
		return fmt.Errorf("%s: Release of %#x, which is not allocated", d.chip.Name, uint64(m.At))
	}
	return d.process.send(released, 1, words(uint64(m.At), uint64(p.size)))
}

func (d *Driver) Write(to cuda.Pointer, b []byte) error {
	if err := d.ready("Write"); err != nil {
		return err
	}
	at, err := d.memory.within(to, len(b))
	if err == nil && d.memory.registered(at) {
		err = fmt.Errorf("%s: Write to registered memory at %#x", d.chip.Name, uint64(to))
	}
	if err != nil {
		return err
	}
	if err := d.process.wait(); err != nil {
		return err
	}
	d.writes.Add(1)
	copy(at, b)
	return nil
}

func (d *Driver) Read(b []byte, from cuda.Pointer) error {
	if err := d.ready("Read"); err != nil {
		return err
	}
	at, err := d.memory.within(from, len(b))
	if err != nil {
		return err
	}
	if err := d.process.wait(); err != nil {
		return err
	}
	d.reads.Add(1)
	d.waits.Add(1)
	copy(b, at)
	return nil
}
