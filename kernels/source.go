package kernels

import "context"

// Source is a model file from which a Streamed store reads weights. Safe for concurrent use.
type Source interface {
	// Digest names the bytes of all weights.
	Digest() string
	// Pieces returns how many pieces the rows of a matrix are read in.
	Pieces(w W) int
	// Rows returns the rows [from, to) of piece i: at most a few hundred KiB, and what Store.Pack takes.
	Rows(w W, i int) (from, to int)
	// Read returns the rows of piece i in GGUF layout, in buf if that is large enough. Errors: the file cannot be read, or its
	// bytes are no longer those that Digest names.
	Read(w W, i int, buf []byte) ([]byte, error)
	// Name names the file for messages.
	Name() string
}

// Streamed is a Store that reads its weights itself, again and again, instead of being given them with Pack. It may keep them in another
// form in a file of its own.
type Streamed interface {
	Store
	// Fill makes the first pass possible. The source stays the caller's, who closes it after the store if Keeps says so, and may
	// close it now if not. progress may be nil; it gets bytes, from one goroutine at a time. Errors: those of the source; of the
	// store's file; ctx's.
	Fill(ctx context.Context, s Source, progress func(done, total int64)) error
	// Keeps reports whether passes read the source.
	Keeps() bool
}
