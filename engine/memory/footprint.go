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
	PageBytes int64 // of one page of the KV cache: kernels.PageRows positions, all layers
	Pages     int
	Scratch   int64         // buffers of the widest pass
	States    int64         // of recurrent layers: slots and records
	Own       kernels.Space // what is not the processor's memory but the device's own
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
		States: need.States, StatePlaces: placesOf(kv)}, nil
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

// GuestBytes is what a draft in the process of another model takes beside its own: trees, texts, states that have come, connections, and a
// thread's stack. Measured for a draft of one block (docs/memory.md).
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
