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
	// Fill reads what the first pass needs. The caller closes the source: after the store if Keeps, else at any time after Fill.
	// progress may be nil; it is told bytes, by one goroutine at a time. Errors: those of the source; of the store's file; ctx's.
	Fill(ctx context.Context, s Source, progress func(done, total int64)) error
	// Keeps reports whether passes read the source.
	Keeps() bool
}

// RowStore is a FileStore with matrices of which passes read single rows, such as an embedding. Between passes of its own program it
// reads such rows for others.
type RowStore interface {
	FileStore
	// Matrix returns where such a matrix lies, which does not move; nil for any other matrix. Only the rows that Rows has read last may be
	// used.
	Matrix(w W) []byte
	// Rows reads some rows of such a matrix: at most as many as its program has rows in a pass. Rows that were read before may be
	// overwritten. Errors: those of a pass.
	Rows(w W, rows []int32) error
}

// Streamer is a Device whose stores are FileStores. If it compiles a program with a Loan from a RowStore, the Runner has the rows of each
// pass's tokens read.
type Streamer interface {
	Device
	// StreamStats returns the sums over all stores of the device. Before there is a store, it returns the sizes of the last program whose
	// Footprint was asked for. Safe for concurrent use.
	StreamStats() StreamStats
	// Near returns the device that computes. The weights of its NewWeights stay in memory, beside those that are streamed.
	Near() Device
	// ReadRate reads the packed file as passes do, but without checking and computing, for about that long, between passes, and returns
	// the bytes per second. Errors: there is no packed file; it cannot be read.
	ReadRate(long time.Duration) (float64, error)
}

// StreamStats say what streaming has done so far. Sizes are in bytes.
type StreamStats struct {
	Resident    int64         // stages that stay in memory
	Ring        int64         // memory of the ring
	Streamed    int64         // what a pass reads; of experts, what a pass of one row reads if all are chosen equally often
	Ringed      int64         // the part of Streamed that goes through the ring
	Experts     int64         // memory for experts
	AllExperts  int64         // all experts together
	RowExperts  int64         // those that one row uses
	Read        int64         // since the start
	ReadExperts int64         // the part of Read that was experts
	Waited      time.Duration // time that passes waited for weights
	Busy        time.Duration // time in which at least one read was in progress
	Used        int64         // experts that passes used, counted layer by layer
	Missed      int64         // those of Used that were not in memory, and that no guess had brought or was bringing
	Foretold    int64         // those of Used that a guess had brought or was bringing
	Guessed     int64         // experts that were read, or begun to be, because of guesses
	Layers      []ExpertStats // of each layer with experts; Used to Guessed are their sums
}

// ExpertStats say what a layer's experts have done so far: see StreamStats.
type ExpertStats struct {
	Used, Missed, Foretold, Guessed int64
	Right                           []float64 // by rank: the share of recent guesses, by the router one layer before, that were right
}

// TooSmall is the error of a Streamer for a program that cannot run in its memory for weights.
type TooSmall struct{ Bytes, Least int64 }

func (t *TooSmall) Error() string {
	return fmt.Sprintf("%d bytes for weights: the least that works is %d", t.Bytes, t.Least)
}
