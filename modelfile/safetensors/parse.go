package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

const (
	lengthBytes = 8
	maxHeader   = 100_000_000 // bytes, as in the format's own reader
	maxTensors  = 1 << 18     // five times what the largest models have if each expert's matrices are tensors
	maxDims     = 16
	maxSize     = 1<<62 - 1 // bytes of a tensor
	metadataKey = "__metadata__"
)

func readerOf(data []byte) io.ReaderAt { return bytes.NewReader(data) }

// parse reads the header of s.
func parse(s *source) (*File, error) {
	header, err := s.header()
	if err != nil {
		return nil, err
	}
	p := &parser{path: s.path, d: json.NewDecoder(bytes.NewReader(header)), names: map[string]bool{}}
	p.d.UseNumber()
	p.object(func(key string) {
		if key == metadataKey {
			p.readMetadata()
			return
		}
		p.readTensor(key)
	})
	p.finish(len(header))
	if p.err != nil {
		return nil, p.err
	}
	f := &File{path: s.path, sources: []*source{s}, byName: map[string]int{}, metadata: p.metadata}
	if f.tensors, err = place(s, p.tensors, lengthBytes+int64(len(header))); err != nil {
		return nil, err
	}
	for i := range f.tensors {
		f.byName[f.tensors[i].Name] = i
	}
	return f, nil
}

// header reads the header's bytes.
func (s *source) header() ([]byte, error) {
	if s.size < lengthBytes+2 {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s has %d bytes: want a safetensors file, which has at least %d", s.path, s.size,
			lengthBytes+2)
	}
	var length [lengthBytes]byte
	if err := s.readAt(length[:], 0, "the header's length"); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	switch left := uint64(s.size - lengthBytes); {
	case n > maxHeader:
		return nil, tandem.Errorf(op, tandem.Unsupported,
			"%s: a header of %d bytes: want at most %d, and eight bytes with its length at the start of the file", s.path, n, maxHeader)
	case n > left:
		return nil, tandem.Errorf(op, tandem.Corrupt,
			"%s: a header of %d bytes, but the file has %d left: the file is cut short or damaged",
			s.path, n, left)
	case n < 2:
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: a header of %d bytes: want a JSON object", s.path, n)
	}
	header := make([]byte, n) // the file has as many
	if err := s.readAt(header, lengthBytes, "the header"); err != nil {
		return nil, err
	}
	if header[0] != '{' {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: the header begins with %q: want the { of a JSON object", s.path, header[:1])
	}
	if !utf8.Valid(header) {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: the header is not UTF-8", s.path)
	}
	return header, nil
}

// entry is what the header says about a tensor.
type entry struct {
	name       string
	dtype      DType
	shape      []int
	begin, end uint64
}

// parser walks over a header. The first error sticks.
type parser struct {
	path     string
	d        *json.Decoder
	names    map[string]bool
	tensors  []entry
	metadata map[string]string
	err      error
}

func (p *parser) fail(k tandem.Kind, format string, args ...any) {
	if p.err == nil {
		p.err = tandem.Errorf(op, k, "%s: %w", p.path, fmt.Errorf(format, args...))
	}
}

// token returns the next token; nil after an error.
func (p *parser) token() json.Token {
	if p.err != nil {
		return nil
	}
	t, err := p.d.Token()
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = errors.New("it ends in the middle")
		}
		p.fail(tandem.Corrupt, "the header at byte %d is no JSON: %w", p.d.InputOffset(), err)
		return nil
	}
	return t
}

// want reads one token and reports whether it is t.
func (p *parser) want(t json.Delim, what string) bool {
	got := p.token()
	if p.err == nil && got != t {
		p.fail(tandem.Corrupt, "%s is %s: want %s", what, shown(got), t)
	}
	return p.err == nil
}

// shown prints a token for a message.
func shown(t json.Token) string {
	if s, ok := t.(string); ok {
		return short(s)
	}
	return short(fmt.Sprint(t))
}

// object reads an object: each is called for every key, and reads its value. The { may not be read yet.
func (p *parser) object(each func(key string)) {
	if !p.want('{', "the header") {
		return
	}
	for p.err == nil && p.d.More() {
		key, _ := p.token().(string)
		if p.err != nil {
			return
		}
		if key != metadataKey && len(p.names) >= maxTensors {
			p.fail(tandem.Unsupported, "the header has more than %d tensors", maxTensors)
			return
		}
		if p.names[key] {
			p.fail(tandem.Corrupt, "%s is there twice", short(key))
			return
		}
		p.names[key] = true
		each(key)
	}
	p.want('}', "the end of the header")
}

// finish refuses text after the object, except the spaces that align the data.
func (p *parser) finish(size int) {
	if p.err == nil {
		if _, err := p.d.Token(); !errors.Is(err, io.EOF) {
			p.fail(tandem.Corrupt, "the header has more after the object's end, of %d bytes in all", size)
		}
	}
}

// readMetadata reads a map from strings to strings.
func (p *parser) readMetadata() {
	p.metadata = map[string]string{}
	p.fields(metadataKey, func(key string) {
		v, ok := p.token().(string)
		if !ok {
			p.fail(tandem.Corrupt, "%s has a value that is no string for %s", metadataKey, short(key))
		}
		p.metadata[key] = v
	})
}

// fields reads an object inside the header.
func (p *parser) fields(what string, each func(key string)) {
	if !p.want('{', short(what)) {
		return
	}
	seen := map[string]bool{}
	for p.err == nil && p.d.More() {
		key, _ := p.token().(string)
		if p.err == nil && seen[key] {
			p.fail(tandem.Corrupt, "%s has %s twice", short(what), short(key))
		}
		if p.err == nil {
			seen[key] = true
			each(key)
		}
	}
	p.want('}', short(what))
}

// readTensor reads what the header says about a tensor.
func (p *parser) readTensor(name string) {
	if name == "" {
		p.fail(tandem.Corrupt, "tensor %d has an empty name", len(p.tensors))
		return
	}
	e, given := entry{name: name}, 0
	p.fields(name, func(key string) {
		switch key {
		case "dtype":
			e.dtype = p.readType(name)
		case "shape":
			for _, n := range p.numbers(name, "shape", maxDims) {
				if n > maxSize {
					p.fail(tandem.Corrupt, "tensor %s has a dimension of %d", short(name), n)
					return
				}
				e.shape = append(e.shape, int(n))
			}
		case "data_offsets":
			n := p.numbers(name, "data_offsets", 2)
			if p.err == nil && len(n) != 2 {
				p.fail(tandem.Corrupt, "tensor %s has %d data_offsets: want its data's begin and end", short(name), len(n))
			}
			if p.err == nil {
				e.begin, e.end = n[0], n[1]
			}
		default:
			p.fail(tandem.Unsupported, "tensor %s has %s: want dtype, shape and data_offsets", short(name), short(key))
		}
		given++
	})
	if p.err == nil && given != 3 {
		p.fail(tandem.Corrupt, "tensor %s has %d of dtype, shape and data_offsets: want all three", short(name), given)
	}
	p.tensors = append(p.tensors, e)
}

func (p *parser) readType(name string) DType {
	s, ok := p.token().(string)
	if p.err != nil {
		return 0
	}
	if !ok {
		p.fail(tandem.Corrupt, "tensor %s has a dtype that is no string", short(name))
		return 0
	}
	t, known := typeNamed(s)
	if !known {
		p.fail(tandem.Unsupported, "tensor %s has dtype %s: want one of %s", short(name), short(s), typeNames())
	}
	return t
}

// numbers reads an array of at most most whole numbers.
func (p *parser) numbers(name, what string, most int) (out []uint64) {
	if !p.want('[', short(name)+" "+what) {
		return nil
	}
	for p.err == nil && p.d.More() {
		t := p.token()
		n, isNumber := t.(json.Number)
		v, err := strconv.ParseUint(string(n), 10, 64)
		switch {
		case p.err != nil:
		case !isNumber || err != nil:
			p.fail(tandem.Corrupt, "tensor %s has %s in its %s: want whole numbers of at least 0", short(name), shown(t), what)
		case len(out) == most:
			p.fail(tandem.Corrupt, "tensor %s has more than %d numbers as its %s", short(name), most, what)
		default:
			out = append(out, v)
		}
	}
	p.want(']', short(name)+" "+what)
	return out
}

// place returns the tensors in the order of their data, which begin at byte start of the file: they must fill the rest of it without
// overlaps or holes.
func place(s *source, entries []entry, start int64) ([]Tensor, error) {
	fail := func(format string, args ...any) ([]Tensor, error) {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s: %w", s.path, fmt.Errorf(format, args...))
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end)) // one without data before one that begins there too
	})
	room := uint64(s.size - start)
	at, before := uint64(0), ""
	tensors := make([]Tensor, len(entries))
	for i, e := range entries {
		size, fits := e.bytes()
		switch {
		case !fits:
			return fail("tensor %s of shape %d: too large a product", short(e.name), e.shape)
		case e.begin > e.end || e.end > room:
			return fail("tensor %s is at bytes %d to %d of the data, of which the file has %d: the file is cut short or damaged",
				short(e.name), e.begin, e.end, room)
		case e.end-e.begin != size:
			return fail("tensor %s has %d bytes of data: its dtype %s and shape %d want %d", short(e.name), e.end-e.begin, e.dtype, e.shape,
				size)
		case e.begin < at:
			return fail("tensors %s and %s overlap at byte %d of the data", short(before), short(e.name), e.begin)
		case e.begin > at:
			return fail("bytes %d to %d of the data, before tensor %s, belong to no tensor", at, e.begin, short(e.name))
		}
		tensors[i] = Tensor{Name: e.name, Type: e.dtype, Shape: e.shape, src: s, off: start + int64(e.begin), size: int64(size)}
		at, before = e.end, e.name
	}
	if at != room {
		return fail("the last %d bytes of the file, after byte %d of the data, belong to no tensor", room-at, at)
	}
	return tensors, nil
}

// bytes returns the size of the tensor's data, false if it is out of all bounds.
func (e *entry) bytes() (uint64, bool) {
	n := uint64(e.dtype.Size())
	for _, d := range e.shape {
		hi, lo := bits.Mul64(n, uint64(d))
		if hi != 0 || lo > maxSize {
			return 0, false
		}
		n = lo
	}
	return n, true
}
