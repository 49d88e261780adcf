package kv

import (
	"bytes"
	"encoding/binary"
	"slices"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
)

const cellBytes = 8

func (m *memory) Form() string { return "numbers" }

func (m *memory) Page(i int32) []byte {
	cells := m.cells[int(i)*kernels.PageRows:][:kernels.PageRows]
	return unsafe.Slice((*byte)(unsafe.Pointer(&cells[0])), cellBytes*len(cells))
}

func (m *memory) Slot(i int32) []byte {
	if m.slots == nil {
		m.slots = map[int32][]byte{}
	}
	if m.slots[i] == nil {
		m.slots[i] = make([]byte, cellBytes)
	}
	return m.slots[i]
}

// pageOf returns what page number i of a tenant's text holds.
func pageOf(tenant string, tokens []tandem.Token, i int) (b []byte) {
	for at := i*kernels.PageRows + 1; at <= (i+1)*kernels.PageRows; at++ {
		b = binary.NativeEndian.AppendUint64(b, code(tenant, tokens[:at]))
	}
	return b
}

// imports puts the beginning of a text into the cache as if it had been computed.
func (r *rig) imports() {
	tenant, tokens := rapid.SampledFrom([]string{"", "a", "b"}).Draw(r.T, "tenant"), text(r.T)
	x, free := r.cache.Copies(), r.cache.FreePages()
	i := x.Begin(tenant, tokens)
	held, n := i.Held(), len(tokens)/kernels.PageRows
	if i.Usable() != held {
		r.Fatalf("%d of %d pages are usable", i.Usable(), held)
	}
	left, spare := r.cache.FreePages(), rapid.IntRange(0, 3).Draw(r.T, "spare")
	pages, _, err := i.Room(n, spare, false)
	if (err == nil) != (n-held+spare <= left || n+spare <= held) || err == nil && len(pages) != n-held || err != nil && len(pages) > 0 {
		r.Fatalf("room for %d pages after %d, %d to spare: %d, %v, with %d free", n, held, spare, len(pages), err, left)
	}
	for j, p := range pages {
		copy(p, pageOf(tenant, tokens, held+j))
	}
	put := 0
	if len(pages) > 0 {
		put = rapid.IntRange(0, n).Draw(r.T, "put")
		if i.Put(put, false); i.Held() != max(held, put) {
			r.Fatalf("%d pages put, %d are held", put, i.Held())
		}
		put = i.Held()
	}
	if i.Close(); r.cache.FreePages() != free {
		r.Fatalf("%d pages are free, before it were %d", r.cache.FreePages(), free)
	}
	if r.cache.most == 0 && put > 0 {
		seen := 0
		x.Visit(tenant, tokens, func(int, []byte, []byte) bool { seen++; return true })
		if seen < put {
			r.Fatalf("%d of %d pages that were put are found", seen, put)
		}
	}
}

// exports compares what is given out of a text with what it should be.
func (r *rig) exports() {
	tenant, tokens := rapid.SampledFrom([]string{"", "a", "b"}).Draw(r.T, "tenant"), text(r.T)
	next := 0
	r.cache.Copies().Visit(tenant, tokens, func(page int, rows, state []byte) bool {
		if page != next || state != nil || !bytes.Equal(rows, pageOf(tenant, tokens, page)) {
			r.Fatalf("page %d of %q: %x", page, tenant, rows)
		}
		next++
		return true
	})
}

// TestImportsMeet: what one import puts, another that began before it uses too, and frees its own; a sequence finds it while it is held,
// and what nobody put is free.
func TestImportsMeet(t *testing.T) {
	c := newCache(20)
	x, tokens := c.Copies(), prefix(1, 5*kernels.PageRows+3)
	fill := func(i *Import, pages [][]byte) {
		for j, p := range pages {
			copy(p, pageOf("t", tokens, i.Held()+j))
		}
	}
	one, two := x.Begin("t", tokens), x.Begin("t", tokens)
	a, _, err1 := one.Room(5, 0, false)
	b, _, err2 := two.Room(5, 0, false)
	if err1 != nil || err2 != nil || len(a) != 5 || len(b) != 5 || c.FreePages() != 10 {
		t.Fatalf("%v, %v: %d and %d pages, %d free", err1, err2, len(a), len(b), c.FreePages())
	}
	if _, _, err := x.Begin("u", tokens).Room(5, 6, false); tandem.KindOf(err) != tandem.Exhausted || c.FreePages() != 10 {
		t.Errorf("with too little to spare: %v, %d free", err, c.FreePages())
	}
	fill(one, a)
	fill(two, b)
	one.Put(4, false)
	two.Put(5, false)
	if one.Held() != 4 || two.Held() != 5 || c.FreePages() != 14 {
		t.Errorf("%d and %d pages are held, %d free", one.Held(), two.Held(), c.FreePages())
	}
	h, found := begin(t, c, "t", tokens)
	if one.Close(); found != 5*kernels.PageRows || h.check() != nil {
		t.Errorf("%d positions found: %v", found, h.check())
	}
	two.Close()
	h.Release()
	if c.FreePages() != 20 || c.Kept() != 5 {
		t.Errorf("%d pages are free, %d kept", c.FreePages(), c.Kept())
	}
}

// TestImportedStates: a recurrent model's text is found up to the page whose state came along, also if the pages were there without it.
func TestImportedStates(t *testing.T) {
	const slots = 4
	c := New(&memory{cells: make([]uint64, 20*kernels.PageRows)}, slots)
	x, tokens := c.Copies(), prefix(1, 4*kernels.PageRows+3)
	bring := func(pages, put int, state bool) {
		i := x.Begin("t", tokens)
		defer i.Close()
		room, behind, err := i.Room(pages, 0, state)
		if err != nil || (behind != nil) != state {
			t.Fatalf("%d pages, state of %d bytes, %v", len(room), len(behind), err)
		}
		for j, p := range room {
			copy(p, pageOf("t", tokens, i.Held()+j))
		}
		if state {
			behind[0] = byte(put)
		}
		if i.Put(put, state); state && i.Usable() != put {
			t.Errorf("%d pages are usable, want %d", i.Usable(), put)
		}
	}
	found := func(want int) {
		t.Helper()
		p, n, err := c.ReserveShared("t", tokens, len(tokens), 0)
		if err != nil || n != want*kernels.PageRows {
			t.Errorf("%d positions found, %v: want %d pages", n, err, want)
		}
		p.Release()
		if used := slots - len(c.slotFree); used != c.KeptStates() {
			t.Errorf("%d slots are in use for %d states", used, c.KeptStates())
		}
	}
	bring(3, 3, false)
	found(0)
	bring(3, 3, true) // the pages are there
	found(3)
	bring(4, 4, true)
	found(4)
	bring(4, 4, true) // all of it is there
	found(4)
	var states []int
	x.Visit("t", tokens, func(page int, _, state []byte) bool {
		if state != nil && state[0] == byte(page+1) {
			states = append(states, page+1)
		}
		return true
	})
	if !slices.Equal(states, []int{3, 4}) || x.StateBytes() != cellBytes {
		t.Errorf("states behind pages %v of %d bytes", states, x.StateBytes())
	}
	i := x.Begin("u", tokens)
	if _, _, err := i.Room(2, 0, true); err != nil {
		t.Fatal(err)
	}
	if i.Close(); len(c.slotFree)+c.KeptStates() != slots || c.FreePages() != 20 {
		t.Errorf("after an import that put nothing: %d slots free, %d states, %d pages free", len(c.slotFree), c.KeptStates(),
			c.FreePages())
	}
}
