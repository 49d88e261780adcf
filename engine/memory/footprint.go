// Package memory says how much memory a model takes, how much this process may take, and what sets that bound.
package memory

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

// Footprint is the memory that a model takes, in bytes. All of it is allocated at the start; of the KV cache a processor's system
// provides a page when it is first used. What passes take besides is small and part of ProcessBytes: see there.
type Footprint struct {
	Weights   int64 // repacked, with those of side files
	Beside    int64 // of Weights: those of side files, which stay in memory where the model's are streamed
	Output    int64 // of Weights: the output matrix, if a target can lend it or a draft with states borrows it as a whole
	PageBytes int64 // of one page of the KV cache: kernels.PageRows positions, all layers
	Pages     int
	Scratch   int64         // buffers of the widest pass
	States    int64         // of recurrent layers: slots and records
	Own       kernels.Space // what is not the processor's memory but the device's own
	Logits    int64         // of Scratch: for rows with logits, as many as a pass may have
	Block     int64         // results of attention, at most, for each 256 positions that a pass sees; part of no sum but InUse
	Tokens    int           // of the vocabulary
	Guest     bool          // it runs in the process of another model, which counts ProcessBytes
	StatePlaces
}

// StatePlaces says what Footprint.States consists of: places for the states of recurrent layers, and for records of what a row puts into
// them. The zero value: the model has no recurrent layers.
type StatePlaces struct {
	Slots, Records         int   // how many of each
	SlotBytes, RecordBytes int64 // the size of one
}

// How many places a sequence gets.
const (
	SlotsEach   = 2  // its own, and one for a prefix
	RecordsEach = 32 // beside those of the rows of one pass
)

// placesOf returns the places in a cache of that shape.
func placesOf(s kernels.KVShape) StatePlaces {
	if len(s.States) == 0 {
		return StatePlaces{}
	}
	return StatePlaces{s.Slots, s.Records, s.SlotBytes(), s.RecordBytes()}
}

func (p StatePlaces) bytes() int64 {
	return int64(p.Slots)*p.SlotBytes + int64(p.Records)*p.RecordBytes
}

// Of returns the footprint of the model of that name, whose device needs that much for its passes, with so many pages of a cache of that
// shape. Errors: Exhausted for a cache that no machine has.
func Of(name string, need kernels.Footprint, kv kernels.KVShape, pages int) (Footprint, error) {
	for _, page := range []int64{need.Page, need.Own.Page} {
		if q := (Footprint{PageBytes: page, Pages: pages}); pages < 1 || pages > kernels.MaxPages || q.KV() > maxKV {
			return Footprint{}, tandem.Errorf("engine", tandem.Exhausted,
				"%s: KV cache of %d pages of %d bytes: want 1 to %d pages of less than 2^46 bytes in all",
				name, pages, page, kernels.MaxPages)
		}
	}
	return Footprint{Weights: need.Weights, PageBytes: need.Page, Pages: pages, Scratch: need.Buffers, Own: need.Own,
		States: need.States, Logits: need.Logits, Block: need.Block, StatePlaces: placesOf(kv)}, nil
}

// With returns p with what a side file takes beside the model.
func (p Footprint) With(side kernels.Footprint) Footprint {
	p.Weights += side.Weights
	p.Beside += side.Weights
	p.Scratch += side.Buffers
	p.Own.Weights += side.Own.Weights
	p.Own.Buffers += side.Own.Buffers
	return p
}

// For returns p with states for so many sequences.
func (p Footprint) For(sequences int) Footprint {
	had := p.StatePlaces.bytes()
	if had == 0 {
		return p
	}
	p.Records += RecordsEach * (sequences - p.Slots/SlotsEach)
	p.Slots = SlotsEach * sequences
	scale := float64(p.StatePlaces.bytes()) / float64(had)
	p.States, p.Own.States = int64(float64(p.States)*scale), int64(float64(p.Own.States)*scale)
	return p
}

// ProcessBytes is an estimate of what a process takes beside the model: its code and heap, the vocabulary, stacks, and the
// results of attention for each row and block of keys, which grow to the largest pass so far. It is no bound: wide passes over very
// long contexts take more.
const ProcessBytes = 64 << 20

// What a process really takes beside its model, measured on verifiers with vocabularies of 49,152 and 151,936 tokens (docs/memory.md).
const (
	programBytes = 24 << 20 // its part of the program's pages, heap, stacks, and what pages of 2 MiB are larger than what they hold
	tokenBytes   = 190      // of Go's heap for each token of the vocabulary, with what the collector leaves
	usualRows    = 16       // rows with logits of a session's passes; of wider trees each takes 4 bytes more for each token
)

// InUse estimates what the process really takes, in bytes, after texts of so many tokens in all were read and continued. It counts the
// pages that it shares with other processes in part (PSS). Total is what it takes at most, when the whole cache is used, and all rows that
// a pass may have were used at once.
func (p Footprint) InUse(tokens int) int64 {
	p.Pages = min(p.Pages, (tokens+kernels.PageRows-1)/kernels.PageRows)
	logits := min(p.Logits, int64(usualRows*4*p.Tokens))
	blocks := int64((tokens + kernels.Block - 1) / kernels.Block)
	return p.Model() - p.Logits + logits + blocks*p.Block + programBytes + int64(tokenBytes*p.Tokens)
}

// GuestBytes is what a draft in the process of another model takes beside its own: trees, texts, states that have come, connections, and a
// thread's stack. Assumed: Go's garbage, which a budget bounds (BoundGoIn), comes on top (docs/memory.md).
const GuestBytes = 8 << 20

// A larger KV cache is a mistake: no machine addresses as much.
const maxKV = 1 << 46

// KV returns the size of the KV cache, or a number beyond maxKV on overflow.
func (p Footprint) KV() int64 {
	if p.PageBytes > 0 && int64(p.Pages) > 2*maxKV/p.PageBytes {
		return 2 * maxKV
	}
	return int64(p.Pages) * p.PageBytes
}

// Total returns the bytes that the whole process takes, but for the device's own memory.
func (p Footprint) Total() int64 { return p.Model() + p.process() }

// process returns what Total counts beside the model.
func (p Footprint) process() int64 {
	if p.Guest {
		return GuestBytes
	}
	return ProcessBytes
}

// Model returns what the model takes of Total, in bytes.
func (p Footprint) Model() int64 { return p.Weights + p.KV() + p.States + p.Scratch }

// String returns the total and its parts in words.
func (p Footprint) String() string {
	return fmt.Sprintf("%s of memory (weights %s, KV cache %s%s, buffers %s, the process %s)", Bytes(p.Total()),
		Bytes(p.Weights), Bytes(p.KV()), statesString(p.States), Bytes(p.Scratch), Bytes(p.process()))
}

func statesString(n int64) string {
	if n == 0 {
		return ""
	}
	return ", recurrent states " + Bytes(n)
}

// Bytes formats a size: "1.5 GiB".
func Bytes(n int64) string { return kernels.Bytes(n) }

// OwnString returns in words what p takes of the device's own memory.
func (p Footprint) OwnString() string {
	return fmt.Sprintf("%s (weights %s, KV cache %s%s, buffers %s)", Bytes(p.Own.Total(p.Pages)), Bytes(p.Own.Weights),
		Bytes(int64(p.Pages)*p.Own.Page), statesString(p.Own.States), Bytes(p.Own.Buffers))
}
