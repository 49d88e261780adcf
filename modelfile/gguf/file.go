// Package gguf reads and writes GGUF files: keys with typed values, and tensors.
//
// A file is hostile until proven otherwise: every count, length and extent is compared with what the
// file has left before it is used, and reading the header allocates at most a small multiple of its
// size. The header stays in memory, values are decoded on request; tensor data is read on demand.
//
// Files are read, never mapped: if somebody shortens a mapped file, a signal ends the process, while a
// short read is an error of one request.
package gguf

import (
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const op = "gguf"

// File is an open GGUF file, or all files of a split model: the keys of the first and the tensors of
// all. Safe for concurrent use, except that nothing may be called during or after Close.
type File struct {
	parts   []*part
	data    []byte // the (first) file's header
	version uint32
	align   int
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
	off  int       // of the value; after the length if there is one
}

// Tensor is one tensor of a file.
type Tensor struct {
	Name  string
	Type  Type
	Shape []int // 1 to 4 dimensions, Shape[0] is contiguous: a matrix is (inputs, outputs); read-only
	part  *part
	off   int // from the start of the tensor data of its file
	size  int
	at    int64 // from the start of its file
}

// Size returns the bytes of the tensor in the file: rows of whole blocks.
func (t *Tensor) Size() int { return t.size }

// Elements returns the number of elements.
func (t *Tensor) Elements() int {
	n := 1
	for _, d := range t.Shape {
		n *= d
	}
	return n
}

// ReadAt fills dst with the tensor's bytes from off on. Errors: Corrupt when the file was shortened or
// changed since it was opened, Unavailable when the system cannot read it, Invalid for bytes outside the
// tensor. After an error the contents of dst are undefined.
func (t *Tensor) ReadAt(dst []byte, off int64) error {
	if off < 0 || off > int64(t.size) || int64(len(dst)) > int64(t.size)-off {
		return tandem.Errorf(op, tandem.Invalid, "%s: reading %d bytes at byte %d of tensor %s, which has %d", t.part.path, len(dst), off,
			short(t.Name), t.size)
	}
	return t.part.readAt(dst, t.at+off, "tensor "+short(t.Name))
}

// Forget drops n bytes of the tensor from off on, which were read and are not needed again soon, from the system's page cache.
func (t *Tensor) Forget(off int64, n int) { t.part.forget(t.at+off, int64(n)) }

// Forget drops the whole file from the system's page cache.
func (f *File) Forget() {
	for _, p := range f.parts {
		p.forget(0, p.size)
	}
}

// Bytes reads the whole tensor, for small ones. Errors as ReadAt's.
func (t *Tensor) Bytes() ([]byte, error) {
	b := make([]byte, t.size) // the file had as many when it was opened
	return b, t.ReadAt(b, 0)
}

// Open opens the file at path and checks its header. A path that begins with Builtin names a file that the program carries (Carry), and one
// that is lent (Lend) is read through its source. If the file is part of a split model, all its files are opened. Errors: Invalid when
// there is no such GGUF file, Corrupt when it is damaged, Unsupported for a version or a type that tandem does not read.
func Open(path string) (*File, error) {
	f, err := openFile(path)
	if err != nil {
		return nil, err
	}
	return f.whole(path, openFile)
}

// openFile opens one file.
func openFile(path string) (*File, error) {
	shown := printable(path)
	fail := func(err error) (*File, error) {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", shown, files.Reason(err))
	}
	if path == "" {
		return nil, tandem.Errorf(op, tandem.Invalid, "the path is empty: want that of a GGUF file")
	}
	if name, is := strings.CutPrefix(path, Builtin); is {
		return openBuiltin(name)
	}
	if p, ok := lent.Load(path); ok {
		own := p.(part)
		return openPart(&own)
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
	file, err := files.Open(path)
	if err != nil {
		return fail(err)
	}
	if st, err = file.Stat(); err != nil {
		file.Close()
		return fail(err)
	}
	return openPart(&part{path: shown, src: file, size: st.Size(), file: file, modified: st.ModTime()})
}

// openPart checks the header of one file, which it closes if it returns an error.
func openPart(p *part) (f *File, err error) {
	if p.size == 0 {
		err = tandem.Errorf(op, tandem.Corrupt, "%s is empty: want a GGUF file", p.path)
	} else if int64(int(p.size)) != p.size {
		err = tandem.Errorf(op, tandem.Unsupported, "%s has %d bytes: too many for this machine", p.path, p.size)
	}
	if err == nil {
		f, err = parse(p, nil, soundReader)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return f, nil
}

// Parse reads a GGUF file that is in memory. The File keeps data, which must not change.
func Parse(data []byte) (*File, error) {
	f, err := parseBytes(data, soundReader)
	if err != nil {
		return nil, err
	}
	at, err := f.place()
	if err == nil && at.count > 1 {
		err = tandem.Errorf(op, tandem.Unsupported, "%s: file %d of a model split into %d: want all of them, by their paths", f.Path(),
			at.no+1, at.count)
	}
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Keep returns a file that can read these tensors after f is closed, without the header, which is large. The caller closes it. After Keep,
// f can only be closed.
func (f *File) Keep(all ...*Tensor) *File {
	kept := &File{}
	f.parts = slices.DeleteFunc(f.parts, func(p *part) bool {
		keep := slices.ContainsFunc(all, func(t *Tensor) bool { return t.part == p })
		if keep {
			kept.parts = append(kept.parts, p)
		}
		return keep
	})
	return kept
}

// Close closes the file. Closing twice is no error.
func (f *File) Close() error {
	var first error
	for _, p := range f.parts {
		if err := p.close(); err != nil && first == nil {
			first = tandem.Errorf(op, tandem.Unavailable, "%s: closing: %w", p.path, err)
		}
	}
	f.data, f.tensors, f.byName = nil, nil, nil
	f.keys, f.keyAt = nil, nil
	return first
}

// Path returns the path of the (first) file, fit for messages.
func (f *File) Path() string { return f.parts[0].path }

// Parts returns the number of files: more than 1 if the model was split.
func (f *File) Parts() int { return len(f.parts) }

// Paths returns the paths of all files, in their order.
func (f *File) Paths() (all []string) {
	for _, p := range f.parts {
		all = append(all, p.path)
	}
	return all
}

// Version returns the version of the format, 2 or 3.
func (f *File) Version() int { return int(f.version) }

// Size returns the size of all files together in bytes.
func (f *File) Size() int64 {
	var n int64
	for _, p := range f.parts {
		n += p.size
	}
	return n
}

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
