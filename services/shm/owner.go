package shm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
)

// Config describes a segment. Zero fields take the default named beside them.
type Config struct {
	Slots    int           // 128
	SlotSize int           // payload bytes of a slot: 16 KiB
	Lease    time.Duration // 2 s
}

// Owner writes payloads into the slots of one segment. Safe for concurrent use.
type Owner struct {
	geometry geometry
	lease    time.Duration
	file     int    // descriptor of the memory file
	mem      []byte // the file, writable

	mu    sync.Mutex
	slots []slot
	free  []uint32
	conns map[*net.UnixConn]struct{}
	peers map[uint64]struct{} // readers that introduced themselves on one

	listener *net.UnixListener // nil until Serve
	work     sync.WaitGroup    // Serve's goroutines
	closed   bool
}

// slot is the Owner's own record of a slot: the shared header is written, never read back.
type slot struct {
	generation uint64
	length     uint32
	leased     bool
	until      time.Time
	peer       uint64 // reader that claimed it, 0 for none
}

// New makes a segment: its memory is allocated whole, so a machine without room refuses here and not
// later. The caller must Close it.
func New(cfg Config) (*Owner, error) {
	const op = "shm"
	if cfg.Slots == 0 {
		cfg.Slots = 128
	}
	if cfg.SlotSize == 0 {
		cfg.SlotSize = 16 << 10
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Second
	}
	if cfg.Slots < 1 || cfg.Slots > math.MaxInt32 || cfg.SlotSize < 1 || cfg.SlotSize > maxSegment {
		return nil, tandem.Errorf(op, tandem.Invalid, "segment of %d slots of %d bytes: want 1 or more of each", cfg.Slots, cfg.SlotSize)
	}
	g := geometry{segment: random(), slots: uint32(cfg.Slots), stride: uint32((cfg.SlotSize + slotHeader + 63) / 64 * 64)}
	if g.size() > maxSegment {
		return nil, tandem.Errorf(op, tandem.Invalid, "segment of %d slots of %d bytes: at most %d bytes in all", cfg.Slots, cfg.SlotSize, maxSegment)
	}
	fd, mem, err := create(g.size())
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Exhausted, "no shared memory of %d bytes: %w", g.size(), err)
	}
	g.encode(mem)
	o := &Owner{geometry: g, lease: cfg.Lease, file: fd, mem: mem, slots: make([]slot, cfg.Slots),
		conns: map[*net.UnixConn]struct{}{}, peers: map[uint64]struct{}{}}
	for i := range o.slots {
		o.free = append(o.free, uint32(cfg.Slots-1-i))
	}
	return o, nil
}

// Segment returns the segment's id, never 0: that of its handles.
func (o *Owner) Segment() uint64 { return o.geometry.segment }

// create returns a sealed memory file of size bytes and its writable mapping.
func create(size int64) (fd int, mem []byte, err error) {
	fd, err = unix.MemfdCreate("tandem", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return -1, nil, err
	}
	defer func() {
		if err != nil {
			_ = unix.Close(fd)
		}
	}()
	if err = unix.Fallocate(fd, 0, 0, size); err != nil {
		return -1, nil, err
	}
	if mem, err = unix.Mmap(fd, 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return -1, nil, err
	}
	// Kernels before 5.1 lack FUTURE_WRITE, which keeps others from mapping the file writable.
	err = seal(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_FUTURE_WRITE|unix.F_SEAL_SEAL)
	if errors.Is(err, unix.EINVAL) {
		err = seal(fd, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err != nil {
		_ = unix.Munmap(mem)
		return -1, nil, err
	}
	return fd, mem, nil
}

func seal(fd, seals int) error {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	return err
}

// random returns a random number other than 0.
func random() uint64 {
	for {
		var b [8]byte
		_, _ = rand.Read(b[:])
		if n := binary.LittleEndian.Uint64(b[:]); n != 0 {
			return n
		}
	}
}

// Put copies payload into a free slot and leases it. Errors: Exhausted (every slot is leased),
// Invalid (longer than a slot), Unavailable (closed).
func (o *Owner) Put(payload []byte) (Handle, error) {
	const op = "shm"
	if len(payload) > int(o.geometry.capacity()) {
		return Handle{}, tandem.Errorf(op, tandem.Invalid, "payload has %d bytes: a slot holds %d", len(payload), o.geometry.capacity())
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return Handle{}, tandem.Errorf(op, tandem.Unavailable, "segment is closed")
	}
	if len(o.free) == 0 {
		o.expire(time.Now())
	}
	if len(o.free) == 0 {
		return Handle{}, tandem.Errorf(op, tandem.Exhausted, "all %d slots are leased", len(o.slots))
	}
	i := o.free[len(o.free)-1]
	o.free = o.free[:len(o.free)-1]
	s := &o.slots[i]
	at := o.geometry.offset(i)
	o.publish(i, s.generation+1)
	header{length: uint32(len(payload)), checksum: checksum(payload)}.encode(o.mem[at:])
	copy(o.mem[at+slotHeader:], payload)
	*s = slot{generation: s.generation + 2, length: uint32(len(payload)), leased: true, until: time.Now().Add(o.lease)}
	o.publish(i, s.generation)
	return Handle{Segment: o.geometry.segment, Slot: i, Length: s.length, Generation: s.generation}, nil
}

// publish stores a slot's generation where readers see it.
func (o *Owner) publish(i uint32, generation uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&o.mem[o.geometry.offset(i)+generationAt])), generation)
}

// expire frees the slots whose lease ended by now. Called with o.mu held.
func (o *Owner) expire(now time.Time) {
	for i := range o.slots {
		if s := &o.slots[i]; s.leased && now.After(s.until) {
			o.end(uint32(i))
		}
	}
}

// end ends a slot's lease and makes its handles stale. Called with o.mu held.
func (o *Owner) end(i uint32) {
	s := &o.slots[i]
	*s = slot{generation: s.generation + 2}
	o.publish(i, s.generation)
	o.free = append(o.free, i)
}

// held returns the leased slot of h. Called with o.mu held. Errors: Stale, Corrupt.
func (o *Owner) held(h Handle) (*slot, error) {
	if err := o.geometry.check(h); err != nil {
		return nil, err
	}
	s := &o.slots[h.Slot]
	if o.closed || !s.leased || s.generation != h.Generation || s.length != h.Length || time.Now().After(s.until) {
		return nil, tandem.Errorf("shm", tandem.Stale, "slot %d generation %d: the lease has ended", h.Slot, h.Generation)
	}
	return s, nil
}

// Claim extends the lease of h and, for a peer other than 0, ties it to that reader's connection.
// Errors: Stale (lease ended), Corrupt (out of bounds).
func (o *Owner) Claim(h Handle, peer uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, err := o.held(h)
	if err != nil {
		return err
	}
	if _, connected := o.peers[peer]; connected {
		s.peer = peer
	}
	s.until = time.Now().Add(o.lease)
	return nil
}

// Take returns a copy of the payload of h and ends the lease, for a claimer that cannot map the
// segment. Errors: Stale, Corrupt.
func (o *Owner) Take(h Handle) ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s, err := o.held(h)
	if err != nil {
		return nil, err
	}
	at := o.geometry.offset(h.Slot) + slotHeader
	payload := append([]byte(nil), o.mem[at:at+int(s.length)]...)
	o.end(h.Slot)
	return payload, nil
}

// Release ends the lease of h; a handle whose lease has ended is ignored.
func (o *Owner) Release(h Handle) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, err := o.held(h); err == nil {
		o.end(h.Slot)
	}
}

// Slots returns how many slots there are.
func (o *Owner) Slots() int { return len(o.slots) }

// Leased returns how many slots are leased now.
func (o *Owner) Leased() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.expire(time.Now())
	}
	return len(o.slots) - len(o.free)
}

// Close ends Serve and every connection, waits for them, and gives the memory back; mappings that
// readers hold stay readable.
func (o *Owner) Close() error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		return nil
	}
	o.closed = true
	if o.listener != nil {
		_ = o.listener.Close()
	}
	for c := range o.conns {
		_ = c.Close()
	}
	o.mu.Unlock()
	o.work.Wait()
	err := unix.Munmap(o.mem)
	return errors.Join(err, unix.Close(o.file))
}
