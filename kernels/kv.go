package kernels

import (
	"fmt"
	"slices"
)

// PageRows is the number of positions in one page of the KV cache.
const PageRows = 64

// Block is the number of positions whose attention is computed together, aligned to position 0: a whole number of pages.
const Block = 256

// Cell is one position's place in the KV cache: page*PageRows + slot.
type Cell int32

// KVType is the format of keys and values in the cache.
type KVType int

const (
	KVF16  KVType = iota // IEEE halves
	KVQ8_0               // per 32 dimensions of a head a half scale and int8 codes
)

var kvTypes = [...]string{"f16", "q8_0"}

// ParseKVType reads "f16" or "q8_0"; "" is f16. Anything else is an error.
func ParseKVType(s string) (KVType, error) {
	for i, n := range kvTypes {
		if s == n {
			return KVType(i), nil
		}
	}
	if s == "" {
		return KVF16, nil
	}
	return KVF16, fmt.Errorf("kernels: unknown KV cache type %q, want f16 or q8_0", s)
}

func (t KVType) String() string {
	if t < 0 || int(t) >= len(kvTypes) {
		return fmt.Sprintf("kv type %d", int(t))
	}
	return kvTypes[t]
}

// KVShape says what a KV cache keeps for one position, layer by layer, and for recurrent layers what it keeps of a sequence. The device
// chooses the layout of a page, a slot and a record.
type KVShape struct {
	Layers  []KVLayer
	Type    KVType
	States  []State
	Slots   int // places for the states of a sequence, all layers each
	Records int // places for the record of a row, all layers each
}

// State is a recurrent layer's memory: numbers that each row takes from the row before it (in a tree, its parent), updates and hands on.
// A slot holds them as a row left them. A record holds what a row put in, so that they can be computed again without the row. Numbers are
// f32, whatever Type is. The zero value: the layer is on another device.
type State struct {
	Layer  int
	Kind   string // names the recurrence: "delta net"
	Floats int    // of a slot
	Record int    // numbers of a record
}

// Equal reports whether s and o are the same in all fields.
func (s KVShape) Equal(o KVShape) bool {
	return s.Type == o.Type && slices.Equal(s.Layers, o.Layers) && slices.Equal(s.States, o.States) && s.Slots == o.Slots &&
		s.Records == o.Records
}

// SlotBytes returns how many bytes all layers take in a slot.
func (s KVShape) SlotBytes() (n int64) {
	for _, x := range s.States {
		n += 4 * int64(x.Floats)
	}
	return n
}

// RecordBytes returns how many bytes all layers take in a record.
func (s KVShape) RecordBytes() (n int64) {
	for _, x := range s.States {
		n += 4 * int64(x.Record)
	}
	return n
}

// StateLayout says where the states of recurrent layers lie in a cache that has all slots and then all records. All its numbers are bytes.
type StateLayout struct {
	Slot, Record     int   // from one slot, or record, to the next
	InSlot, InRecord []int // per state: where it begins in a slot, or record
	Size             int   // of all slots and records
}

// PlaceStates returns the layout of s.States in which each begins at a multiple of align bytes.
func (s KVShape) PlaceStates(align int) (l StateLayout) {
	bytes := func(floats int) int { return (4*floats + align - 1) / align * align }
	for _, x := range s.States {
		l.InSlot, l.InRecord = append(l.InSlot, l.Slot), append(l.InRecord, l.Record)
		l.Slot += bytes(x.Floats)
		l.Record += bytes(x.Record)
	}
	l.Size = s.Slots*l.Slot + s.Records*l.Record
	return l
}

// KVLayer says what one layer keeps for a position: nothing (the zero value), the keys and values of Heads heads of Dim
// elements, those that an earlier layer keeps (Shared), or in compressed form one latent vector (Latent).
type KVLayer struct {
	Heads, Dim int
	Window     int  // rows see at most this many positions, their own included, so a device may drop earlier ones; 0: all
	Shared     bool // the layer stores nothing and reads what layer Source keeps
	Source     int
	Latent     int // elements that keys and values of all heads are made from; Heads and Dim are 0
	Rotated    int // with Latent: elements of the single key that RoPE turns
}

// Seen returns what attention sees of a layer: the number of KV heads, and the elements of a key and of a value. A compressed layer has one
// head. Its key is the rotated key followed by the latent vector, its value is the latent vector.
func (l KVLayer) Seen() (heads, key, value int) {
	if l.Latent > 0 {
		return 1, l.Rotated + l.Latent, l.Latent
	}
	return l.Heads, l.Dim, l.Dim
}

// UniformKV returns the shape for layers layers, each with heads KV heads of dim elements, without recurrent layers.
func UniformKV(layers, heads, dim int, t KVType) KVShape {
	s := KVShape{Type: t}
	for range layers {
		s.Layers = append(s.Layers, KVLayer{Heads: heads, Dim: dim})
	}
	return s
}

// Kept returns the layer whose cells layer i reads: i itself, or the layer whose keys and values it shares.
func (s KVShape) Kept(i int) int {
	if s.Layers[i].Shared {
		return s.Layers[i].Source
	}
	return i
}

// Check returns an error that names the first thing wrong with s; nil: a device may be asked for such a cache.
func (s KVShape) Check() error {
	const most = 1 << 12
	if len(s.Layers) < 1 || len(s.Layers) > most {
		return fmt.Errorf("kernels: KV cache of %d layers, want 1 to %d", len(s.Layers), most)
	}
	if s.Type != KVF16 && s.Type != KVQ8_0 {
		return fmt.Errorf("kernels: KV cache of %v, want f16 or q8_0", s.Type)
	}
	if err := s.checkStates(); err != nil {
		return err
	}
	for i, l := range s.Layers {
		if err := s.checkLayer(i, l); err != nil {
			return fmt.Errorf("kernels: KV cache, layer %d: %w", i, err)
		}
	}
	return nil
}

func (s KVShape) checkStates() error {
	if len(s.States) == 0 {
		return nil
	}
	if s.Slots < 1 || s.Slots > maxDim || s.Records < 0 || s.Records > maxDim {
		return fmt.Errorf("kernels: recurrent states with %d slots and %d records, want 1 to %d and 0 to %d", s.Slots,
			s.Records, maxDim, maxDim)
	}
	for i, x := range s.States {
		if x != (State{}) && (x.Layer < 0 || x.Kind == "" || x.Floats < 1 || x.Floats > 1<<30 || x.Record < 1 || x.Record > 1<<30) {
			return fmt.Errorf("kernels: state %d of layer %d, %q of %d numbers and %d in a record: want a layer, a kind and 1 to %d of "+
				"each", i, x.Layer, x.Kind, x.Floats, x.Record, 1<<30)
		}
	}
	return nil
}

func (s KVShape) checkLayer(i int, l KVLayer) error {
	const most = 1 << 12
	multiple := 1
	if s.Type == KVQ8_0 {
		multiple = 32
	}
	switch {
	case l.Window < 0 || l.Window > maxDim:
		return fmt.Errorf("window of %d positions, want 1 to %d, or 0 for all", l.Window, maxDim)
	case l == KVLayer{}:
		return nil
	case l.Shared:
		if l.Heads != 0 || l.Dim != 0 || l.Latent != 0 || l.Rotated != 0 {
			return fmt.Errorf("keeps keys and values of its own and shares those of layer %d: want one of the two", l.Source)
		}
		if l.Source < 0 || l.Source >= i {
			return fmt.Errorf("shares the keys and values of layer %d, want an earlier one", l.Source)
		}
		if of := s.Layers[l.Source]; of.Shared || of.Heads == 0 && of.Latent == 0 {
			return fmt.Errorf("shares the keys and values of layer %d, which keeps none of its own", l.Source)
		}
		return nil
	case l.Latent != 0 || l.Rotated != 0:
		if l.Heads != 0 || l.Dim != 0 || l.Latent < 1 || l.Latent > maxDim || l.Rotated < 0 || l.Rotated > maxDim {
			return fmt.Errorf("compressed to %d elements and %d rotated ones beside %d heads of %d, want 1 to %d, 0 to %d, and no heads",
				l.Latent, l.Rotated, l.Heads, l.Dim, maxDim, maxDim)
		}
		if l.Latent%multiple != 0 || l.Rotated%multiple != 0 {
			return fmt.Errorf("q8_0 of %d and %d elements, want multiples of 32, or f16", l.Latent, l.Rotated)
		}
		return nil
	case l.Heads < 1 || l.Dim < 1 || l.Heads > most || l.Dim > most:
		return fmt.Errorf("%d heads of %d, want 1 to %d of each", l.Heads, l.Dim, most)
	case l.Dim%multiple != 0:
		return fmt.Errorf("q8_0 KV cache with heads of %d, want a multiple of 32, or f16", l.Dim)
	}
	return nil
}
