package gguf

import (
	"bufio"
	"encoding/binary"
	"io"

	"github.com/tandem-llm/tandem"
)

// Writer collects keys and tensors and writes them as a GGUF file of version 3. The first mistake is
// kept and returned by WriteTo. Not safe for concurrent use.
type Writer struct {
	keys    list[[]byte] // value type and value as in the file
	tensors list[blob]
	align   int
	err     error
}

type blob struct {
	typ   Type
	shape []int
	size  int
	write func(io.Writer) error
}

// list keeps values in the order in which their names were first set.
type list[T any] struct {
	names []string
	at    map[string]T
}

func (l *list[T]) set(name string, v T) {
	if l.at == nil {
		l.at = map[string]T{}
	}
	if _, ok := l.at[name]; !ok {
		l.names = append(l.names, name)
	}
	l.at[name] = v
}

func (l *list[T]) drop(name string) {
	for i, n := range l.names {
		if n == name {
			l.names = append(l.names[:i:i], l.names[i+1:]...)
			delete(l.at, name)
			return
		}
	}
}

// NewWriter returns a writer that holds nothing.
func NewWriter() *Writer { return &Writer{align: defaultAln} }

// CopyOf returns a writer that holds all of f, which must stay open until the last WriteTo.
func CopyOf(f *File) *Writer {
	w := KeysOf(f)
	for i := range f.tensors {
		t := &f.tensors[i]
		w.TensorFunc(t.Name, t.Type, t.Shape, func(to io.Writer) error {
			_, err := io.Copy(to, io.NewSectionReader(tensorReader{t}, 0, int64(t.size)))
			return err
		})
	}
	return w
}

// KeysOf returns a writer that holds the keys of f, without those that say how f was split, and no tensors.
func KeysOf(f *File) *Writer {
	w := &Writer{align: f.align}
	for i := range f.keys {
		k := &f.keys[i]
		b := binary.LittleEndian.AppendUint32(nil, uint32(k.Type))
		switch k.Type {
		case Array:
			b = binary.LittleEndian.AppendUint32(b, uint32(k.Elem))
			b = binary.LittleEndian.AppendUint64(b, uint64(k.Len))
		case String:
			b = binary.LittleEndian.AppendUint64(b, uint64(k.Len))
		}
		w.keys.set(k.Name, append(b, f.data[k.off:f.end(k)]...))
	}
	for _, key := range []string{"split.no", "split.count", "split.tensors.count"} {
		w.DropKey(key)
	}
	return w
}

// tensorReader makes a tensor an io.ReaderAt within its bounds.
type tensorReader struct{ t *Tensor }

func (r tensorReader) ReadAt(b []byte, off int64) (int, error) {
	if err := r.t.ReadAt(b, off); err != nil {
		return 0, err
	}
	return len(b), nil
}

// Set gives a key a value: a bool, string, float32, float64, an integer of stated width, or a slice of
// one of those. It replaces the value that the key has.
func (w *Writer) Set(key string, value any) {
	if key == "" {
		w.fail("a key has no name: want at least one character")
		return
	}
	b, ok := encode(value)
	if !ok {
		w.fail("key %s is a %T: want a bool, string, float, an integer of stated width, or a slice of one of those", short(key), value)
		return
	}
	if key == "general.alignment" {
		n, ok := value.(uint32)
		if !ok || n == 0 || n&(n-1) != 0 {
			w.fail("key %q is %v (%T): want a power of two (uint32)", key, value, value)
			return
		}
		w.align = int(n)
	}
	w.keys.set(key, b)
}

// Has reports whether the key was set.
func (w *Writer) Has(key string) bool {
	_, ok := w.keys.at[key]
	return ok
}

// DropKey removes a key, if it is there.
func (w *Writer) DropKey(key string) {
	if key == "general.alignment" {
		w.align = defaultAln
	}
	w.keys.drop(key)
}

// Tensor adds a tensor, or replaces the one of that name. shape[0] is the contiguous dimension; data
// is as Tensor.Bytes returns it and must not change until the last WriteTo.
func (w *Writer) Tensor(name string, t Type, shape []int, data []byte) {
	w.TensorFunc(name, t, shape, func(to io.Writer) error {
		_, err := to.Write(data)
		return err
	})
	if have := w.tensors.at[name].size; w.err == nil && have != len(data) {
		w.fail("tensor %s of type %s and shape %d has %d bytes: want %d", short(name), t, shape, len(data), have)
	}
}

// TensorFunc is Tensor with data that write makes during WriteTo.
func (w *Writer) TensorFunc(name string, t Type, shape []int, write func(io.Writer) error) {
	block, bytes := t.Block()
	n := 1
	for _, d := range shape {
		n *= d
	}
	switch {
	case name == "":
		w.fail("a tensor has no name: want at least one character")
	case block == 0:
		w.fail("tensor %s has type %s: its layout is not known", short(name), t)
	case len(shape) == 0 || len(shape) > maxDims || n <= 0 || shape[0]%block != 0:
		w.fail("tensor %s has shape %d: want 1 to %d dimensions of at least 1, the first a multiple of %d for type %s",
			short(name), shape, maxDims, block, t)
	default:
		w.tensors.set(name, blob{t, append([]int(nil), shape...), n / block * bytes, write})
	}
}

// DropTensor removes a tensor, if it is there.
func (w *Writer) DropTensor(name string) { w.tensors.drop(name) }

func (w *Writer) fail(format string, args ...any) {
	if w.err == nil {
		w.err = tandem.Errorf(op, tandem.Invalid, format, args...)
	}
}

// Size returns how many bytes WriteTo will write.
func (w *Writer) Size() int64 {
	n := w.aligned(len(w.header()))
	for _, name := range w.tensors.names {
		n += w.aligned(w.tensors.at[name].size)
	}
	return int64(n)
}

// aligned returns n rounded up to the alignment.
func (w *Writer) aligned(n int) int { return (n + w.align - 1) &^ (w.align - 1) }

// WriteTo writes the file and returns how many bytes it has written.
func (w *Writer) WriteTo(to io.Writer) (int64, error) {
	if w.err != nil {
		return 0, w.err
	}
	out := &counter{to: bufio.NewWriterSize(to, 1<<20)}
	err := w.write(out)
	if err == nil {
		err = out.to.Flush()
	}
	return out.n, err
}

// write pads the end too: some readers take the tensor data in one piece.
func (w *Writer) write(out *counter) error {
	if _, err := out.Write(w.header()); err != nil {
		return err
	}
	if err := out.pad(w.align); err != nil {
		return err
	}
	for _, name := range w.tensors.names {
		t, before := w.tensors.at[name], out.n
		if err := t.write(out); err != nil {
			return tandem.Errorf(op, tandem.KindOf(err), "tensor %s: %w", short(name), err)
		}
		if got := out.n - before; got != int64(t.size) {
			return tandem.Errorf(op, tandem.Invalid, "tensor %s was written with %d bytes: want %d", short(name), got, t.size)
		}
		if err := out.pad(w.align); err != nil {
			return err
		}
	}
	return nil
}

// header returns all that comes before the tensor data.
func (w *Writer) header() []byte {
	le := binary.LittleEndian
	b := le.AppendUint32([]byte(magic), 3)
	b = le.AppendUint64(b, uint64(len(w.tensors.names)))
	b = le.AppendUint64(b, uint64(len(w.keys.names)))
	for _, name := range w.keys.names {
		b = append(appendText(b, name), w.keys.at[name]...)
	}
	off := 0
	for _, name := range w.tensors.names {
		t := w.tensors.at[name]
		b = le.AppendUint32(appendText(b, name), uint32(len(t.shape)))
		for _, d := range t.shape {
			b = le.AppendUint64(b, uint64(d))
		}
		b = le.AppendUint64(le.AppendUint32(b, uint32(t.typ)), uint64(off))
		off += w.aligned(t.size)
	}
	return b
}

// counter is a writer that counts bytes.
type counter struct {
	to *bufio.Writer
	n  int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.to.Write(b)
	c.n += int64(n)
	return n, err
}

func (c *counter) pad(align int) error {
	_, err := c.Write(make([]byte, -c.n&int64(align-1)))
	return err
}

func appendText(b []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
}

// encode returns value type and value as in the file.
func encode(value any) ([]byte, bool) {
	le := binary.LittleEndian
	switch v := value.(type) {
	case string:
		return appendText(le.AppendUint32(nil, uint32(String)), v), true
	case []string:
		b := le.AppendUint32(le.AppendUint32(nil, uint32(Array)), uint32(String))
		b = le.AppendUint64(b, uint64(len(v)))
		for _, s := range v {
			b = appendText(b, s)
		}
		return b, true
	}
	t, length := typeOf(value)
	if !t.known() {
		return nil, false
	}
	var b []byte
	if length >= 0 {
		b = le.AppendUint32(b, uint32(Array))
	}
	b = le.AppendUint32(b, uint32(t))
	if length >= 0 {
		b = le.AppendUint64(b, uint64(length))
	}
	b, err := binary.Append(b, le, value)
	return b, err == nil
}

// typeOf returns the value type of a number or bool, length -1, or of a slice's elements and its length.
func typeOf(value any) (t ValueType, length int) {
	switch v := value.(type) {
	case uint8:
		return U8, -1
	case int8:
		return I8, -1
	case uint16:
		return U16, -1
	case int16:
		return I16, -1
	case uint32:
		return U32, -1
	case int32:
		return I32, -1
	case float32:
		return Float32, -1
	case bool:
		return Bool, -1
	case uint64:
		return U64, -1
	case int64:
		return I64, -1
	case float64:
		return Float64, -1
	case []uint8:
		return U8, len(v)
	case []int8:
		return I8, len(v)
	case []uint16:
		return U16, len(v)
	case []int16:
		return I16, len(v)
	case []uint32:
		return U32, len(v)
	case []int32:
		return I32, len(v)
	case []float32:
		return Float32, len(v)
	case []bool:
		return Bool, len(v)
	case []uint64:
		return U64, len(v)
	case []int64:
		return I64, len(v)
	case []float64:
		return Float64, len(v)
	}
	return ValueType(len(valueTypes)), 0
}
