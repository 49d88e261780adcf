package kernels

import (
	"context"
	"fmt"
	"time"
)

// Source is a model file from which a FileStore reads weights. Safe for concurrent use.
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

// FileStore is a Store that reads its weights itself, again and again, instead of being given them with Pack. It may keep them in another
// form in a file of its own.
type FileStore interface {
	Store
	// Fill makes the first pass possible. The source stays the caller's, who closes it after the store if Keeps says so, and may
	// close it now if not. progress may be nil; it gets bytes, from one goroutine at a time. Errors: those of the source; of the
	// store's file; ctx's.
	Fill(ctx context.Context, s Source, progress func(done, total int64)) error
	// Keeps reports whether passes read the source.
	Keeps() bool
}

// RowStore is a FileStore that brings single rows of those of its matrices of which passes read only rows, between passes of its own.
type RowStore interface {
	FileStore
	// Matrix returns where such a matrix lies, which stays; nil for any other. Only rows that were brought last may be read.
	Matrix(w W) []byte
	// Rows brings rows of it: as many at a time as its program has rows in a pass. It ends the use of those brought before. Errors: those
	// of a pass.
	Rows(w W, rows []int32) error
}

// Streamer is a Device whose stores are FileStores. Where it compiles a Loan from a RowStore, the Runner brings the rows of each pass's
// tokens.
type Streamer interface {
	Device
	// StreamStats adds up all weights of the device; before there are any, it has the sizes of the last program whose Footprint was
	// asked for. Safe for concurrent use.
	StreamStats() StreamStats
	// Near returns the device that computes. Weights that it makes stay in memory, beside those that are streamed.
	Near() Device
	// ReadRate reads the packed file as passes do, but without checking and computing, for about that long, between passes, and returns
	// the bytes per second. Errors: there is no packed file; it cannot be read.
	ReadRate(long time.Duration) (float64, error)
}

// StreamStats say what streaming has done so far. Sizes are in bytes.
type StreamStats struct {
	// Of the stages in memory, of the ring, and what each pass reads: of experts, a pass of one row if all are chosen equally often.
	Resident, Ring, Streamed int64
	Ringed                   int64 // of Streamed, what comes through the ring
	// Of the memory for experts, of all experts, and of those that a row uses. A pass reads those of its rows that are not in memory.
	Experts, AllExperts, RowExperts int64
	Read                            int64         // so far
	Waited                          time.Duration // passes, for weights
	Busy                            time.Duration // at least one read was in progress
	Used, Missed                    int64         // experts that passes used, layer by layer, and those of them that were not in memory
	ReadExperts                     int64         // bytes of Read that were experts
}

// TooSmall is the error of a Streamer for a program that cannot run in its memory for weights.
type TooSmall struct{ Bytes, Least int64 }

func (t *TooSmall) Error() string {
	return fmt.Sprintf("%d bytes for weights: the least that works is %d", t.Bytes, t.Least)
}
