// Package shm passes payloads between processes of one host without copying them through a
// socket: their owner writes them into slots of a sealed memory file, a Segment; Readers map that file read-only.
//
// Stages: the owner makes the memory file, seals its size, and listens on a plain unix socket. A Reader
// connects once, receives the descriptor, checks seals and size, maps, closes the descriptor, and tells its
// Role. Put fills a free slot and leases it; its Handle travels to the readers in any way, and Read copies the
// payload out without a call back to the owner. Link keeps a Reader of an owner that may restart; Set finds
// a handle's segment among all that a process has mapped.
//
// A lease ends when its owner ends it (Forget, Release, or a Put under the same Key), when all readers
// that were there when it began have gone, or after its time.
//
// Invariants:
//  1. A slot's generation is odd while the owner writes it and even when it is whole; every Put and
//     every end of a lease changes it. A Handle is good for one generation.
//  2. Only the owner writes; the seals let no other process map the file writable or change its size,
//     so a mapping of the checked size can be read without fault for as long as it exists.
//  3. A Reader trusts nothing: it copies a slot's header once, checks the copy, copies the payload,
//     and accepts it only if the generation is still the same and the checksum agrees.
//  4. Under one Key there is at most one payload, so an owner whose keys are sessions holds no more slots than sessions.
//
// A ring buffer would need no leases, but one slow reader would stop every session.
package shm

import (
	"encoding/binary"
	"hash/crc32"

	"github.com/tandem-llm/tandem"
)

// Role is what a Reader's process does with payloads.
type Role uint32

// The roles. A reader of an earlier release has none.
const (
	Gateway  Role = 1 + iota // reads what it has asked for
	Verifier                 // reads what tickets name
	Drafter                  // reads the features that it has asked for
	roles
)

// Key names what a payload is of: an owner leases at most one payload for each key. The zero Key names nothing, and any number of payloads
// have it.
type Key struct {
	Drafter string
	Session uint64
}

// Handle names one payload. The zero Handle names none.
type Handle struct {
	Segment    uint64 // random, never 0
	Slot       uint32
	Length     uint32 // bytes
	Generation uint64
}

const (
	segmentMagic   = 0x314d4553444e4154 // "TANDSEM1"
	slotMagic      = 0x544f4c53         // "SLOT"
	helloMagic     = 0x314f4c454854444e // "NDTHELO1"
	roleMagic      = 0x454c4f52         // "ROLE"
	segmentHeader  = 4096               // bytes before slot 0
	slotHeader     = 64                 // bytes before a slot's payload
	maxSegment     = 1 << 30            // bytes; a reader maps no more
	generationAt   = 8                  // offset of the generation in a slot's header
	segmentVersion = 1
	hearsRoles     = 1 // flag of a segment header: the owner wants to be told what its readers are
)

// geometry says where the slots of a segment are.
type geometry struct {
	segment uint64
	slots   uint32
	stride  uint32 // bytes from slot to slot, header included, a multiple of 64
	flags   uint32 // 0 from owners of earlier releases
}

func (g geometry) size() int64            { return segmentHeader + int64(g.slots)*int64(g.stride) }
func (g geometry) offset(slot uint32) int { return segmentHeader + int(slot)*int(g.stride) }
func (g geometry) capacity() uint32       { return g.stride - slotHeader }
func checksum(payload []byte) uint32 {
	return crc32.Checksum(payload, crc32.MakeTable(crc32.Castagnoli))
}

// encode writes the segment header: magic, segment, version, slots, stride, flags.
func (g geometry) encode(b []byte) {
	binary.LittleEndian.PutUint64(b, segmentMagic)
	binary.LittleEndian.PutUint64(b[8:], g.segment)
	binary.LittleEndian.PutUint32(b[16:], segmentVersion)
	binary.LittleEndian.PutUint32(b[20:], g.slots)
	binary.LittleEndian.PutUint32(b[24:], g.stride)
	binary.LittleEndian.PutUint32(b[28:], g.flags)
}

// parseGeometry reads a private copy of a segment header whose file has size bytes.
func parseGeometry(b []byte, size int64) (geometry, error) {
	const op = "shm"
	if len(b) < 32 || binary.LittleEndian.Uint64(b) != segmentMagic {
		return geometry{}, tandem.Errorf(op, tandem.Corrupt, "segment has no tandem header")
	}
	if v := binary.LittleEndian.Uint32(b[16:]); v != segmentVersion {
		return geometry{}, tandem.Errorf(op, tandem.Unsupported, "segment has layout version %d: want %d", v, segmentVersion)
	}
	g := geometry{segment: binary.LittleEndian.Uint64(b[8:]), slots: binary.LittleEndian.Uint32(b[20:]),
		stride: binary.LittleEndian.Uint32(b[24:]), flags: binary.LittleEndian.Uint32(b[28:])}
	if g.segment == 0 || g.slots == 0 || g.stride <= slotHeader || g.stride%64 != 0 || g.size() != size {
		return geometry{}, tandem.Errorf(op, tandem.Corrupt, "segment of %d bytes claims %d slots of %d bytes", size, g.slots, g.stride)
	}
	return g, nil
}

// header is a slot's header: magic, length, generation, checksum of the payload.
type header struct {
	length     uint32
	generation uint64
	checksum   uint32
}

func (h header) encode(b []byte) {
	binary.LittleEndian.PutUint32(b, slotMagic)
	binary.LittleEndian.PutUint32(b[4:], h.length)
	binary.LittleEndian.PutUint32(b[16:], h.checksum)
}

// parseHeader checks a private copy of a slot's header against the handle that led to it.
func parseHeader(b []byte, h Handle, capacity uint32) (header, error) {
	const op = "shm"
	if len(b) < slotHeader || binary.LittleEndian.Uint32(b) != slotMagic {
		return header{}, tandem.Errorf(op, tandem.Corrupt, "slot %d has no header", h.Slot)
	}
	got := header{binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint64(b[generationAt:]), binary.LittleEndian.Uint32(b[16:])}
	switch {
	case got.generation != h.Generation || got.generation%2 != 0:
		return header{}, tandem.Errorf(op, tandem.Stale, "slot %d has generation %d: handle is of %d", h.Slot, got.generation, h.Generation)
	case got.length != h.Length || got.length > capacity:
		return header{}, tandem.Errorf(op, tandem.Corrupt, "slot %d holds %d bytes of at most %d: handle says %d", h.Slot, got.length,
			capacity, h.Length)
	}
	return got, nil
}

// check bounds a handle by the segment before anything is read.
func (g geometry) check(h Handle) error {
	const op = "shm"
	switch {
	case h.Segment != g.segment:
		return tandem.Errorf(op, tandem.Stale, "handle is of another segment")
	case h.Slot >= g.slots:
		return tandem.Errorf(op, tandem.Corrupt, "handle names slot %d: segment has %d", h.Slot, g.slots)
	case h.Length > g.capacity():
		return tandem.Errorf(op, tandem.Corrupt, "handle names %d bytes: a slot holds %d", h.Length, g.capacity())
	}
	return nil
}
