package gguf

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"sort"
	"sync/atomic"

	"github.com/tandem-llm/tandem"
)

const (
	magic      = "GGUF"
	firstRead  = 1 << 20   // bytes of a file that are read first
	maxHeader  = 256 << 20 // bytes of a header: 25 times what the largest vocabularies take
	maxString  = 16 << 20  // bytes
	maxArray   = 64 << 20  // elements
	maxDims    = 4
	maxKeys    = 1 << 16            // of a file: a thousand times what models have
	maxTensors = 1 << 18            // of a file: five times what the largest models have if each expert's matrices are tensors
	minKey     = 8 + 1 + 4 + 1      // bytes that a key takes at least: name, type, value
	minTensor  = 8 + 1 + 4 + 8 + 12 // and a tensor: name, dimensions, type, offset
	defaultAln = 32
)

// reader walks over a header, reading the file as it goes. The first thing that does not fit stays in
// err; from then on every read returns zero.
type reader struct {
	part    *part
	size    int    // of the file
	data    []byte // its beginning, as far as it is read
	off     int
	err     error
	planted plant

	// What is being read, for messages.
	kind  string // "key", "tensor"; "" for the header
	index int
	named string // "" until the name is read
}

func (r *reader) what() string {
	switch {
	case r.kind == "":
		return "the header"
	case r.named == "":
		return fmt.Sprintf("the name of %s %d", r.kind, r.index)
	}
	return r.kind + " " + short(r.named)
}

func (r *reader) fail(k tandem.Kind, format string, args ...any) {
	if r.err == nil {
		r.err = tandem.Errorf(op, k, "%s: %w", r.part.path, fmt.Errorf(format, args...))
	}
}

// plant is a deliberate mistake of the reader. Tests switch it on to show that they notice it.
type plant int

const (
	soundReader   plant = iota
	plantCounts         // counts are not compared with what the file has left, and room is made for all at once
	plantExtents        // a tensor's end is not compared with the end of the file
	plantOverlaps       // tensors may overlap
)

// spare is what the latest file's header was read into: a start opens the same files many times, and new memory takes longer than reading.
var spare atomic.Pointer[[]byte]

// load makes sure that the first end bytes of the file are in data; the file has at least that many.
func (r *reader) load(end int) bool {
	if end <= len(r.data) {
		return true
	}
	if end > maxHeader {
		r.fail(tandem.Unsupported, "%s ends at byte %d: want a header of at most %d bytes", r.what(), end, maxHeader)
		return false
	}
	var more []byte
	if b := spare.Swap(nil); b != nil && r.part.file != nil && len(*b) >= end && len(*b) <= r.size {
		more = *b
	} else {
		more = make([]byte, min(max(end, 2*len(r.data), firstRead), r.size, maxHeader))
	}
	have := copy(more, r.data)
	if err := r.part.readAt(more[have:], int64(have), "the header"); err != nil {
		if r.err == nil {
			r.err = err
		}
		return false
	}
	r.data = more
	return true
}

// take returns the next n bytes, nil if the file has fewer.
func (r *reader) take(n int) []byte {
	if r.err != nil {
		return nil
	}
	if left := r.size - r.off; n > left {
		r.fail(tandem.Corrupt, "%s at byte %d needs %d bytes but the file has %d left: the file is cut short or damaged",
			r.what(), r.off, n, left)
		return nil
	}
	if !r.load(r.off + n) {
		return nil
	}
	b := r.data[r.off : r.off+n]
	r.off += n
	return b
}

func (r *reader) u32() uint32 {
	if b := r.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if b := r.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// count reads the number of things that take at least size bytes each. It is at most most, and no more
// than fit into the rest of the file.
func (r *reader) count(things string, size, most int) int {
	at := r.off
	n := r.u64()
	if r.err != nil {
		return 0
	}
	if n > uint64(most) {
		r.fail(tandem.Corrupt, "%s at byte %d has %d %s: at most %d allowed", r.what(), at, n, things, most)
		return 0
	}
	if left := uint64(r.size - r.off); n > left/uint64(size) && r.planted != plantCounts {
		r.fail(tandem.Corrupt, "%s at byte %d has %d %s but the file has %d bytes left: the file is cut short or damaged",
			r.what(), at, n, things, left)
		return 0
	}
	return int(n)
}

// room returns for how many of n things of at least size bytes to allocate at once: no more than fit into the bytes
// read so far. Room for the others is made as they come.
func (r *reader) room(n, size int) int {
	if r.planted == plantCounts {
		return n
	}
	return min(n, (len(r.data)-r.off)/size)
}

// text reads a string without copying it.
func (r *reader) text() []byte { return r.take(r.count("bytes", 1, maxString)) }

// name reads the name of a key or tensor.
func (r *reader) name(kind string, index int) string {
	r.kind, r.index, r.named = kind, index, ""
	r.named = string(r.text())
	if r.named == "" {
		r.fail(tandem.Corrupt, "%s is empty: want at least one character", r.what())
	}
	return r.named
}

// parseBytes reads a file that is in memory.
func parseBytes(data []byte, planted plant) (*File, error) {
	return parse(&part{path: "(in memory)", src: bytes.NewReader(data), size: int64(len(data))}, data, planted)
}

// parse reads the header of p, of which data is already read.
func parse(p *part, data []byte, planted plant) (*File, error) {
	r := &reader{part: p, size: int(p.size), data: data, planted: planted}
	f := &File{parts: []*part{p}, align: defaultAln}
	f.version = r.version()
	tensors := r.count("tensors", minTensor, maxTensors)
	keys := r.count("keys", minKey, maxKeys)
	f.readKeys(r, keys)
	f.data = r.data // the getters need it
	f.readAlignment(r)
	f.readTensors(r, tensors)
	f.locate(r)
	if r.err != nil {
		return nil, r.err
	}
	f.data = r.data[:r.off:r.off]
	if p.file != nil { // r.data may reach beyond the header
		f.data = bytes.Clone(f.data)
		spare.Store(&r.data)
	}
	return f, nil
}

func (r *reader) version() uint32 {
	n := min(len(magic), r.size)
	if !r.load(n) {
		return 0
	}
	if m := r.data[:n]; string(m) != magic {
		if len(m) == 0 {
			r.fail(tandem.Corrupt, "the file is empty: want a GGUF file")
		}
		if n = min(headBytes, r.size); r.load(n) {
			r.fail(tandem.Invalid, "not a GGUF file: %s", foreign(r.data[:n]))
		}
		return 0
	}
	r.off = len(magic)
	v := r.u32()
	switch swapped := bits.ReverseBytes32(v); {
	case r.err != nil, v == 2, v == 3:
	case v == 1:
		r.fail(tandem.Unsupported, "GGUF version 1: want version 2 or 3")
	case v != 0 && swapped < 1<<16:
		r.fail(tandem.Unsupported, "big-endian GGUF (version %d): want little-endian, version 2 or 3", swapped)
	default:
		r.fail(tandem.Unsupported, "GGUF version %d: want version 2 or 3", v)
	}
	return v
}

func (f *File) readKeys(r *reader, n int) {
	if r.err != nil {
		return
	}
	room := r.room(n, minKey)
	f.keys, f.keyAt = make([]Key, 0, room), make(map[string]int32, room)
	for i := range n {
		k := Key{Name: r.name("key", i)}
		k.Type = ValueType(r.u32())
		r.value(&k)
		if r.err != nil {
			return
		}
		if j, twice := f.keyAt[k.Name]; twice {
			r.fail(tandem.Corrupt, "key %s is there twice, as number %d and %d", short(k.Name), j, i)
			return
		}
		f.keyAt[k.Name] = int32(i)
		f.keys = append(f.keys, k)
	}
}

// value records where k's value is and skips it.
func (r *reader) value(k *Key) {
	switch {
	case r.err != nil:
	case !k.Type.known():
		r.fail(tandem.Unsupported, "%s has %s: want 0 to %d", r.what(), k.Type, len(valueTypes)-1)
	case k.Type == String:
		k.Len = len(r.text())
		k.off = r.off - k.Len
	case k.Type == Array:
		r.array(k)
	default:
		k.off = r.off
		b := r.take(valueTypes[k.Type].bytes)
		if k.Type == Bool && b != nil && b[0] > 1 {
			r.fail(tandem.Corrupt, "%s is a bool of value %d: want 0 or 1", r.what(), b[0])
		}
	}
}

func (r *reader) array(k *Key) {
	k.Elem = ValueType(r.u32())
	if r.err != nil {
		return
	}
	if !k.Elem.known() || k.Elem == Array {
		r.fail(tandem.Unsupported, "%s is an array of %s: want numbers, bools or strings", r.what(), k.Elem)
		return
	}
	size := valueTypes[k.Elem].bytes
	if size == 0 {
		size = 8 // the length of a string
	}
	k.Len = r.count("elements", size, maxArray)
	k.off = r.off
	if k.Elem != String {
		r.take(k.Len * size)
		return
	}
	for i := 0; i < k.Len && r.err == nil; i++ {
		const size = 8
		if left := len(r.data) - r.off - size; left >= 0 { // a vocabulary has 300,000 texts: most are read already
			if n := binary.LittleEndian.Uint64(r.data[r.off:]); n <= uint64(min(left, maxString)) {
				r.off += size + int(n)
				continue
			}
		}
		r.text()
	}
}

func (f *File) readAlignment(r *reader) {
	const key = "general.alignment"
	if r.err != nil || !f.Has(key) {
		return
	}
	v, err := f.Uint(key)
	if err != nil {
		r.err = err
		return
	}
	if v == 0 || v&(v-1) != 0 || v > 1<<24 {
		r.fail(tandem.Corrupt, "key %q is %d: want a power of two up to 2^24", key, v)
		return
	}
	f.align = int(v)
}

// readTensors reads the descriptions; locate then checks where the data is.
func (f *File) readTensors(r *reader, n int) {
	if r.err != nil {
		return
	}
	room := r.room(n, minTensor)
	f.tensors, f.byName = make([]Tensor, 0, room), make(map[string]int32, room)
	for i := range n {
		t := Tensor{Name: r.name("tensor", i)}
		r.shape(&t)
		off := r.u64()
		if r.err != nil {
			return
		}
		if j, twice := f.byName[t.Name]; twice {
			r.fail(tandem.Corrupt, "tensor %s is there twice, as number %d and %d", short(t.Name), j, i)
			return
		}
		if off > uint64(r.size) {
			r.fail(tandem.Corrupt, "%s begins at byte %d of the data but the file has %d: the file is cut short or damaged",
				r.what(), off, r.size)
			return
		}
		t.off = int(off)
		f.byName[t.Name] = int32(i)
		f.tensors = append(f.tensors, t)
	}
}

// shape reads dimensions and type, and checks that a row is whole blocks and that the size is a number.
func (r *reader) shape(t *Tensor) {
	n := r.u32()
	if r.err == nil && (n == 0 || n > maxDims) {
		r.fail(tandem.Corrupt, "%s has %d dimensions: want 1 to %d", r.what(), n, maxDims)
	}
	if r.err != nil {
		return
	}
	t.Shape = make([]int, n)
	elems := uint64(1)
	for i := range t.Shape {
		d := r.u64()
		hi, lo := bits.Mul64(elems, d)
		if r.err == nil && (d == 0 || hi != 0 || lo > math.MaxInt64/16) {
			r.fail(tandem.Corrupt, "%s has size %d in dimension %d: want at least 1 and fewer than 2^59 elements in all", r.what(), d, i)
		}
		elems = lo
		t.Shape[i] = int(d)
	}
	t.Type = Type(r.u32())
	if r.err != nil {
		return
	}
	block, bytes := t.Type.Block()
	if block == 0 {
		r.fail(tandem.Unsupported, "%s has %s: its layout is not known", r.what(), t.Type.number())
		return
	}
	if t.Shape[0]%block != 0 {
		r.fail(tandem.Corrupt, "%s has rows of %d elements: want a multiple of %d for type %s", r.what(), t.Shape[0], block, t.Type)
	}
	t.size = int(elems/uint64(block)) * bytes
}

// locate gives every tensor its data: aligned, inside the file, and its own.
func (f *File) locate(r *reader) {
	if r.err != nil || len(f.tensors) == 0 {
		return
	}
	start := (r.off + f.align - 1) &^ (f.align - 1)
	order := make([]*Tensor, len(f.tensors))
	for i := range f.tensors {
		t := &f.tensors[i]
		order[i] = t
		if t.off%f.align != 0 {
			r.fail(tandem.Corrupt, "tensor %s begins at byte %d of the data: want a multiple of %d", short(t.Name), t.off, f.align)
			return
		}
		// No term is above 2^62: off ≤ the file's size, size < 2^62.
		if end := uint64(start) + uint64(t.off) + uint64(t.size); end > uint64(r.size) && r.planted != plantExtents {
			r.fail(tandem.Corrupt, "tensor %s ends at byte %d but the file has %d: the file is cut short or damaged", short(t.Name), end,
				r.size)
			return
		}
		t.part, t.at = r.part, int64(start+t.off)
	}
	sort.Slice(order, func(i, j int) bool { return order[i].off < order[j].off })
	for i, t := range order[1:] {
		if before := order[i]; before.off+before.size > t.off && r.planted != plantOverlaps {
			r.fail(tandem.Corrupt, "tensors %s and %s overlap at byte %d", short(before.Name), short(t.Name), start+t.off)
			return
		}
	}
}
