// Package safetensors reads checkpoints in the safetensors format: named tensors in one file, or in several with an index.
//
// A file is eight bytes with the header's length (little-endian), the header, a JSON object, and the tensors' data. The header gives
// each tensor's dtype, shape, and its data's begin and end, counted from the end of the header; __metadata__ maps strings to strings.
// Source: the format's description at github.com/huggingface/safetensors, whose rules hold here: names are unique, and the data of
// all tensors fill the file without overlaps or holes. The order of tensors in the header, and their alignment, are free.
//
// A file is hostile until proven otherwise: lengths are compared with the file's size before anything is allocated, and a header
// takes memory in proportion to its bytes. Files are read, never mapped, and tensor data only on demand.
package safetensors

import (
	"errors"
	"io"
	"os"
	"strconv"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

const op = "safetensors"

// File is an open checkpoint: one file, or the shards that an index lists. Safe for concurrent use, except that nothing may be called
// during or after Close.
type File struct {
	path     string // as errors show it
	sources  []*source
	tensors  []Tensor // in the order of their data
	byName   map[string]int
	metadata map[string]string
}

// source is one file, on disk or, with file nil, in memory.
type source struct {
	path     string // as errors show it
	at       io.ReaderAt
	size     int64 // when it was opened
	file     *os.File
	modified time.Time // when it was opened
}

// Tensor is one tensor of a checkpoint.
type Tensor struct {
	Name  string
	Type  DType
	Shape []int // the last dimension is contiguous; none: a single number; read-only
	src   *source
	off   int64 // from the start of its file
	size  int64 // bytes
}

// Open opens the checkpoint at path, a .safetensors file or the index of a sharded one (its name ends in .index.json), and checks its
// header. Errors: Invalid when there is no such file or it is no safetensors file, Corrupt when it is damaged, Unsupported for a header
// that is too large.
func Open(path string) (*File, error) {
	if isIndex(path) {
		return openIndex(path)
	}
	s, err := openSource(path)
	if err != nil {
		return nil, err
	}
	f, err := parse(s)
	if err != nil {
		s.close()
		return nil, err
	}
	return f, nil
}

// Parse reads a file that is in memory. The File keeps data, which must not change.
func Parse(data []byte) (*File, error) {
	return parse(&source{path: "(in memory)", at: readerOf(data), size: int64(len(data))})
}

// openSource opens one file.
func openSource(path string) (*source, error) {
	shown := Printable(path)
	fail := func(err error) (*source, error) {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %w", shown, files.Reason(err))
	}
	st, err := os.Stat(path) // before opening: opening a pipe waits for its other end
	if err != nil {
		return fail(err)
	}
	if !st.Mode().IsRegular() {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s is not a regular file (%s): want a .safetensors file", shown, st.Mode().Type())
	}
	file, err := files.Open(path)
	if err != nil {
		return fail(err)
	}
	if st, err = file.Stat(); err != nil {
		file.Close()
		return fail(err)
	}
	return &source{path: shown, at: file, size: st.Size(), file: file, modified: st.ModTime()}, nil
}

// readAt fills dst from byte off of the file on; what names the thing read, for messages.
func (s *source) readAt(dst []byte, off int64, what string) error {
	n, err := s.at.ReadAt(dst, off)
	switch {
	case n == len(dst):
		return s.unchanged(what)
	case errors.Is(err, io.EOF):
		return tandem.Errorf(op, tandem.Corrupt,
			"%s: %s: the file ends at byte %d, it had %d when it was opened: somebody has shortened it",
			s.path, what, off+int64(n), s.size)
	}
	return tandem.Errorf(op, tandem.Unavailable, "%s: %s: reading at byte %d: %w", s.path, what, off+int64(n), err)
}

// unchanged refuses a file that was written to since it was opened: what was read may mix old and new bytes.
func (s *source) unchanged(what string) error {
	if s.file == nil {
		return nil
	}
	st, err := s.file.Stat()
	if err != nil {
		return tandem.Errorf(op, tandem.Unavailable, "%s: %s: %w", s.path, what, err)
	}
	if st.Size() != s.size || !st.ModTime().Equal(s.modified) {
		return tandem.Errorf(op, tandem.Corrupt, "%s: %s: the file was written to while it was read: want a file that stays as it is",
			s.path, what)
	}
	return nil
}

func (s *source) close() error {
	if s.file == nil {
		return nil
	}
	if err := s.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return tandem.Errorf(op, tandem.Unavailable, "%s: closing: %w", s.path, err)
	}
	return nil
}

// Close closes the files. Closing twice is no error.
func (f *File) Close() (first error) {
	for _, s := range f.sources {
		if err := s.close(); err != nil && first == nil {
			first = err
		}
	}
	return first
}

// Path returns the path of the file or index, fit for messages.
func (f *File) Path() string { return f.path }

// Size returns the bytes of all files together, without the index.
func (f *File) Size() (n int64) {
	for _, s := range f.sources {
		n += s.size
	}
	return n
}

// Metadata returns what __metadata__ says, nothing for a sharded checkpoint; read-only.
func (f *File) Metadata() map[string]string { return f.metadata }

// Tensors returns the tensors in the order of their data; read-only.
func (f *File) Tensors() []Tensor { return f.tensors }

// Tensor returns the tensor of that name, nil when there is none.
func (f *File) Tensor(name string) *Tensor {
	if i, ok := f.byName[name]; ok {
		return &f.tensors[i]
	}
	return nil
}

// Printable returns s as it is, or quoted if it would not stay on one line.
func Printable(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) {
			return strconv.Quote(s)
		}
	}
	return s
}

// short quotes a text out of a file, cut to a length that fits a message.
func short(s string) string {
	const most = 80
	if len(s) > most {
		return strconv.Quote(s[:most]) + "…"
	}
	return strconv.Quote(s)
}
