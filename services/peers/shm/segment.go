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

// SegmentConfig describes a segment. Zero fields take the default named beside them.
type SegmentConfig struct {
	Slots    int           // payloads that are held at once: 256
	SlotSize int           // payload bytes of a slot: 8 KiB
	Lease    time.Duration // longest time that a payload stays: 2 s
}

// Segment is the owner's side of a sealed memory file: it writes payloads into slots, which Readers in other processes read. Safe for
// concurrent use.
type Segment struct {
	geometry geometry
	lease    time.Duration
	file     int    // descriptor of the memory file
	mem      []byte // the file, writable

	readers [roles]atomic.Int32 // by role

	mu    sync.Mutex
	slots []slot
	free  []uint32
	of    map[Key]uint32 // the leased slot of a key
	puts  uint64         // so far
	conns map[*net.UnixConn]struct{}
	peers map[uint64]uint64 // readers that introduced themselves on one, and the puts before that

	listener *net.UnixListener // nil until Serve
	work     sync.WaitGroup    // Serve's goroutines
	closed   bool
}

// slot is the owner's own record of a slot: the shared header is written, never read back.
type slot struct {
	generation uint64
	length     uint32
	leased     bool
	until      time.Time
	key        Key
	version    uint64 // see Put
	put        uint64 // number of the Put
	readers    int    // readers that were there at the Put and still are
}

// New makes a segment: its memory is allocated whole, so a machine without room refuses here and not
// later. The caller must Close it.
func New(cfg SegmentConfig) (*Segment, error) {
	const op = "shm"
	if cfg.Slots == 0 {
		cfg.Slots = 256
	}
	if cfg.SlotSize == 0 {
		cfg.SlotSize = 8 << 10
	}
	if cfg.Lease == 0 {
		cfg.Lease = 2 * time.Second
	}
	if cfg.Slots < 1 || cfg.Slots > math.MaxInt32 || cfg.SlotSize < 1 || cfg.SlotSize > maxSegment {
		return nil, tandem.Errorf(op, tandem.Invalid, "segment of %d slots of %d bytes: want 1 or more of each", cfg.Slots, cfg.SlotSize)
	}
	g := geometry{segment: random(), slots: uint32(cfg.Slots), stride: uint32((cfg.SlotSize + slotHeader + 63) / 64 * 64),
		flags: hearsRoles}
	if g.size() > maxSegment {
		return nil, tandem.Errorf(op, tandem.Invalid, "segment of %d slots of %d bytes: at most %d bytes in all", cfg.Slots, cfg.SlotSize,
			maxSegment)
	}
	fd, mem, err := create(g.size())
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Exhausted, "no shared memory of %d bytes: %w", g.size(), err)
	}
	g.encode(mem)
	s := &Segment{geometry: g, lease: cfg.Lease, file: fd, mem: mem, slots: make([]slot, cfg.Slots),
		of: map[Key]uint32{}, conns: map[*net.UnixConn]struct{}{}, peers: map[uint64]uint64{}}
	for i := range s.slots {
		s.free = append(s.free, uint32(cfg.Slots-1-i))
	}
	return s, nil
}

// ID returns the segment's id, never 0: that of its handles.
func (s *Segment) ID() uint64 { return s.geometry.segment }

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

// Lease returns the longest time that a payload stays: SegmentConfig.Lease.
func (s *Segment) Lease() time.Duration { return s.lease }

// Readers returns how many readers of that role are there now.
func (s *Segment) Readers(r Role) int { return int(s.readers[r].Load()) }

// Put copies payload into a free slot and leases it; the lease of an earlier payload under the same key ends, unless that is the
// zero Key. Find identifies the payload by version. Errors: Exhausted (every slot is leased), Invalid (longer than a slot),
// Unavailable (closed).
func (s *Segment) Put(key Key, version uint64, payload []byte) (Handle, error) {
	const op = "shm"
	if len(payload) > int(s.geometry.capacity()) {
		return Handle{}, tandem.Errorf(op, tandem.Invalid, "payload has %d bytes: a slot holds %d", len(payload), s.geometry.capacity())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return Handle{}, tandem.Errorf(op, tandem.Unavailable, "segment is closed")
	}
	if i, held := s.of[key]; held {
		s.end(i)
	}
	if len(s.free) == 0 {
		s.expire(time.Now())
	}
	if len(s.free) == 0 {
		return Handle{}, tandem.Errorf(op, tandem.Exhausted, "all %d slots are leased", len(s.slots))
	}
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	t := &s.slots[i]
	at := s.geometry.offset(i)
	s.publish(i, t.generation+1)
	header{length: uint32(len(payload)), checksum: checksum(payload)}.encode(s.mem[at:])
	copy(s.mem[at+slotHeader:], payload)
	s.puts++
	*t = slot{generation: t.generation + 2, length: uint32(len(payload)), leased: true, until: time.Now().Add(s.lease), key: key,
		version: version, put: s.puts, readers: len(s.peers)}
	if key != (Key{}) {
		s.of[key] = i
	}
	s.publish(i, t.generation)
	return s.handle(i), nil
}

// handle returns the handle of what a slot holds. Called with s.mu held.
func (s *Segment) handle(i uint32) Handle {
	return Handle{Segment: s.geometry.segment, Slot: i, Length: s.slots[i].length, Generation: s.slots[i].generation}
}

// Find returns the handle of the payload that was put under key with that version; false if its lease has ended.
func (s *Segment) Find(key Key, version uint64) (Handle, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	i, held := s.of[key]
	if !held || s.closed || s.slots[i].version != version || time.Now().After(s.slots[i].until) {
		return Handle{}, false
	}
	return s.handle(i), true
}

// Forget ends the lease of what was put under key.
func (s *Segment) Forget(key Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if i, held := s.of[key]; held && !s.closed {
		s.end(i)
	}
}

// publish stores a slot's generation where readers see it.
func (s *Segment) publish(i uint32, generation uint64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&s.mem[s.geometry.offset(i)+generationAt])), generation)
}

// expire frees the slots whose lease ended by now. Called with s.mu held.
func (s *Segment) expire(now time.Time) {
	for i := range s.slots {
		if t := &s.slots[i]; t.leased && now.After(t.until) {
			s.end(uint32(i))
		}
	}
}

// end ends a slot's lease and makes its handles stale. Called with s.mu held.
func (s *Segment) end(i uint32) {
	t := &s.slots[i]
	if t.key != (Key{}) {
		delete(s.of, t.key)
	}
	*t = slot{generation: t.generation + 2}
	s.publish(i, t.generation)
	s.free = append(s.free, i)
}

// held returns the leased slot of h. Called with s.mu held. Errors: Stale, Corrupt.
func (s *Segment) held(h Handle) (*slot, error) {
	if err := s.geometry.check(h); err != nil {
		return nil, err
	}
	t := &s.slots[h.Slot]
	if s.closed || !t.leased || t.generation != h.Generation || t.length != h.Length || time.Now().After(t.until) {
		return nil, tandem.Errorf("shm", tandem.Stale, "slot %d generation %d: the lease has ended", h.Slot, h.Generation)
	}
	return t, nil
}

// Copy returns a copy of the payload of h, for a peer that cannot map the segment. Errors: Stale, Corrupt.
func (s *Segment) Copy(h Handle) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.held(h)
	if err != nil {
		return nil, err
	}
	at := s.geometry.offset(h.Slot) + slotHeader
	return append([]byte(nil), s.mem[at:at+int(t.length)]...), nil
}

// Release ends the lease of h; a handle whose lease has ended is ignored.
func (s *Segment) Release(h Handle) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, err := s.held(h); err == nil {
		s.end(h.Slot)
	}
}

// Slots returns how many slots there are.
func (s *Segment) Slots() int { return len(s.slots) }

// Leased returns how many slots are leased now.
func (s *Segment) Leased() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed {
		s.expire(time.Now())
	}
	return len(s.slots) - len(s.free)
}

// Close ends Serve and every connection, waits for them, and gives the memory back; mappings that
// readers hold stay readable.
func (s *Segment) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.conns {
		_ = c.Close()
	}
	s.mu.Unlock()
	s.work.Wait()
	err := unix.Munmap(s.mem)
	return errors.Join(err, unix.Close(s.file))
}
