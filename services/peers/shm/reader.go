package shm

import (
	"context"
	"encoding/binary"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Reader reads payloads of one segment that another process owns. Safe for concurrent use. It holds
// a mapping and one connection, by which the owner knows that it is there.
type Reader struct {
	geometry geometry
	conn     net.Conn
	gone     chan struct{} // closed once the owner's end of conn is, or this one

	mu  sync.RWMutex // held for reading while mem is read, for writing to unmap
	mem []byte       // nil once closed
}

// Attach connects to the socket that a Segment serves, maps it read-only after checking
// what it was given, and says what this process is. It takes at most a second, less if ctx ends. Errors: Unavailable (no owner there),
// Corrupt (the descriptor is not a sealed segment of a possible shape).
func Attach(ctx context.Context, socket string, as Role) (*Reader, error) {
	const op = "shm"
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	if !files.SameUser(conn.(*net.UnixConn)) {
		_ = conn.Close()
		return nil, tandem.Errorf(op, tandem.Unavailable, "%s is served by another user: want a process of this user", socket)
	}
	r := &Reader{conn: conn, gone: make(chan struct{})}
	fd, err := r.receive(ctx, conn.(*net.UnixConn))
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	err = r.mapFile(fd)
	_ = unix.Close(fd)
	if err == nil {
		err = r.introduce(as)
	}
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	go func() {
		defer close(r.gone)
		_, _ = conn.Read(make([]byte, 1)) // returns when either end closes: an owner has nothing more to say
	}()
	return r, nil
}

// introduce says what this process is, to an owner that wants to know, and ends the handshake.
func (r *Reader) introduce(as Role) (err error) {
	if r.geometry.flags&hearsRoles != 0 {
		var said [roleSize]byte
		binary.LittleEndian.PutUint32(said[:], roleMagic)
		binary.LittleEndian.PutUint32(said[4:], uint32(as))
		_, err = r.conn.Write(said[:])
	}
	if err = errors.Join(err, r.conn.SetDeadline(time.Time{})); err != nil {
		_ = unix.Munmap(r.mem)
		return tandem.Errorf("shm", tandem.Unavailable, "%w", err)
	}
	return nil
}

// receive introduces r and returns the one descriptor that the owner sends.
func (r *Reader) receive(ctx context.Context, c *net.UnixConn) (int, error) {
	const op = "shm"
	deadline, _ := ctx.Deadline()
	if err := c.SetDeadline(deadline); err != nil {
		return -1, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	var hello [helloSize]byte
	binary.LittleEndian.PutUint64(hello[:], helloMagic)
	binary.LittleEndian.PutUint64(hello[8:], random())
	if _, err := c.Write(hello[:]); err != nil {
		return -1, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	var answer [8]byte
	rights := make([]byte, unix.CmsgSpace(4*4)) // room to see, and close, descriptors too many
	n, rn, _, _, err := c.ReadMsgUnix(answer[:], rights)
	if err != nil {
		return -1, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	fds, err := descriptors(rights[:rn])
	if err == nil && len(fds) == 1 && n == len(answer) && binary.LittleEndian.Uint64(answer[:]) == helloMagic {
		return fds[0], nil
	}
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
	return -1, tandem.Errorf(op, tandem.Corrupt, "owner answered %d bytes and %d descriptors: want %d and 1", n, len(fds), len(answer))
}

// descriptors returns the descriptors in a control message, open in this process.
func descriptors(oob []byte) ([]int, error) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	for i := range messages {
		got, perr := unix.ParseUnixRights(&messages[i])
		fds, err = append(fds, got...), errors.Join(err, perr)
	}
	return fds, err
}

// mapFile checks seals and size of fd, then maps it.
func (r *Reader) mapFile(fd int) error {
	const op = "shm"
	const want = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil || seals&want != want {
		return tandem.Errorf(op, tandem.Corrupt, "descriptor has seals %#x: want %#x", max(seals, 0), want)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return tandem.Errorf(op, tandem.Corrupt, "%w", err)
	}
	if st.Size < segmentHeader || st.Size > maxSegment {
		return tandem.Errorf(op, tandem.Corrupt, "segment has %d bytes: want %d to %d", st.Size, segmentHeader, maxSegment)
	}
	mem, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return tandem.Errorf(op, tandem.Exhausted, "no room to map %d bytes: %w", st.Size, err)
	}
	g, err := parseGeometry(append([]byte(nil), mem[:slotHeader]...), st.Size)
	if err != nil {
		_ = unix.Munmap(mem)
		return err
	}
	r.geometry, r.mem = g, mem
	return nil
}

// Segment returns the id of the segment.
func (r *Reader) Segment() uint64 { return r.geometry.segment }

// Gone returns a channel that closes when the owner has ended or r was closed. The mapping can still be read: if the owner
// died while writing, Read refuses that slot.
func (r *Reader) Gone() <-chan struct{} { return r.gone }

// Read returns a copy of the payload of h. Errors: Stale (the slot has
// another generation, or changed meanwhile), Corrupt (out of bounds, or the checksum disagrees),
// Unavailable (closed).
func (r *Reader) Read(h Handle) ([]byte, error) {
	const op = "shm"
	if err := r.geometry.check(h); err != nil {
		return nil, err
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if r.mem == nil {
		return nil, tandem.Errorf(op, tandem.Unavailable, "segment is closed")
	}
	at := r.geometry.offset(h.Slot)
	generation := (*uint64)(unsafe.Pointer(&r.mem[at+generationAt]))
	before := atomic.LoadUint64(generation)
	var private [slotHeader]byte
	copy(private[:], r.mem[at:])
	binary.LittleEndian.PutUint64(private[generationAt:], before)
	head, err := parseHeader(private[:], h, r.geometry.capacity())
	if err != nil {
		return nil, err
	}
	payload := append([]byte(nil), r.mem[at+slotHeader:at+slotHeader+int(head.length)]...)
	if after := atomic.LoadUint64(generation); after != before {
		return nil, tandem.Errorf(op, tandem.Stale, "slot %d changed from generation %d to %d while it was read", h.Slot, before, after)
	}
	if sum := checksum(payload); sum != head.checksum {
		return nil, tandem.Errorf(op, tandem.Corrupt, "slot %d has checksum %08x: header says %08x", h.Slot, sum, head.checksum)
	}
	return payload, nil
}

// Close unmaps the segment and tells the owner so.
func (r *Reader) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mem == nil {
		return nil
	}
	err := unix.Munmap(r.mem)
	r.mem = nil
	err = errors.Join(err, r.conn.Close())
	<-r.gone
	return err
}
