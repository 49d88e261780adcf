// Package gguf reads and writes GGUF files: keys with typed values, and tensors.
//
// A file is hostile until proven otherwise: every count, length and extent is compared with what the
// file has left before it is used, and reading the header allocates at most a small multiple of the
// file's size. Values and tensor data stay in the map and are decoded when asked for.
package gguf

import (
	"errors"
	"io/fs"
	"os"
	"strconv"
	"syscall"

	"github.com/tandem-llm/tandem"
)

const op = "gguf"

// File is an open GGUF file. Safe for concurrent use, except that nothing may be called, and no
// slice of tensor data touched, during or after Close.
type File struct {
	path    string // as errors show it
	data    []byte
	mapped  bool
	version uint32
	align   int
	start   int // of the tensor data
	keys    []Key
	keyAt   map[string]int32
	tensors []Tensor
	byName  map[string]int32
}

// Key describes one key of a file.
type Key struct {
	Name string
	Type ValueType
	Elem ValueType // of the elements when Type is Array
	Len  int       // elements when Type is Array, bytes when it is String
	off  int       // of the value; of the first byte or element where there is a length
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // 1 to 4 dimensions, Shape[0] is contiguous: a matrix is (inputs, outputs); read-only
	off   int   // from the start of the tensor data
	size  int
	data  []byte
}

// Data returns the tensor as it is in the file: rows of whole blocks. It is a read-only view, valid
// until the file's Close.
func (t *Tensor) Data() []byte { return t.data }

// Elements returns the number of elements.
func (t *Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// Open maps the file at path and checks its header. Errors: Invalid when there is no such GGUF file,
// Corrupt when it is damaged, Unsupported when it is of a version or holds a type that tandem does
// not read. The file must not be shortened while it is open: the kernel ends a process that reads
// beyond the end of a mapped file.
func Open(path string) (*File, error) {
	shown := printable(path)
	fail := func(err error) (*File, error) {
		if pe := (*fs.PathError)(nil); errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", shown, err)
	}
	if path == "" {
		return nil, tandem.Errorf(op, tandem.Invalid, "the path is empty: want that of a GGUF file")
	}
	st, err := os.Stat(path) // before opening: opening a pipe waits for its other end
	if err != nil {
		return fail(err)
	}
	switch {
	case st.IsDir():
		return nil, tandem.Errorf(op, tandem.Invalid, "%s is a directory: want a GGUF file", shown)
	case !st.Mode().IsRegular():
		return nil, tandem.Errorf(op, tandem.Invalid, "%s is not a regular file (%s): want a GGUF file", shown, st.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return fail(err)
	}
	defer file.Close()
	if st, err = file.Stat(); err != nil {
		return fail(err)
	}
	if st.Size() == 0 {
		return nil, tandem.Errorf(op, tandem.Corrupt, "%s is empty: want a GGUF file", shown)
	}
	if int64(int(st.Size())) != st.Size() {
		return nil, tandem.Errorf(op, tandem.Unsupported, "%s has %d bytes: too many to map on this machine", shown, st.Size())
	}
	data, err := syscall.Mmap(int(file.Fd()), 0, int(st.Size()), syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return nil, tandem.Errorf(op, tandem.Exhausted, "%s: mapping its %d bytes: %w", shown, st.Size(), err)
	}
	f, err := parse(shown, data)
	if err != nil {
		_ = syscall.Munmap(data)
		return nil, err
	}
	f.mapped = true
	return f, nil
}

// Parse reads a GGUF file that is in memory. The File keeps data, which must not change.
func Parse(data []byte) (*File, error) { return parse("(in memory)", data) }

// Close unmaps the file. Closing twice is no error.
func (f *File) Close() error {
	if !f.mapped {
		return nil
	}
	f.mapped = false
	data := f.data
	f.data, f.tensors, f.byName = nil, nil, nil
	f.keys, f.keyAt = nil, nil
	if err := syscall.Munmap(data); err != nil {
		return tandem.Errorf(op, tandem.Internal, "%s: unmapping: %w", f.path, err)
	}
	return nil
}

// Path returns the path the file was opened by, fit for messages.
func (f *File) Path() string { return f.path }

// Version returns the version of the format, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Size returns the size of the file in bytes.
func (f *File) Size() int { return len(f.data) }

// Alignment returns the alignment of tensor data in bytes, a power of two.
func (f *File) Alignment() int { return f.align }

// Keys returns the keys in file order; read-only.
func (f *File) Keys() []Key { return f.keys }

// Tensors returns the tensors in file order; read-only.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor of that name, nil when there is none.
func (f *File) Tensor(name string) *Tensor {
	if i, ok := f.byName[name]; ok {
		return &f.tensors[i]
	}
	return nil
}

// printable returns s as it is, or quoted if it would not stay on one line.
func printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// short quotes a name out of a file, cut to a length that fits a message.
func short(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
