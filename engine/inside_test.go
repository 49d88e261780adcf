package engine

import (
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
)

// What tests of package engine_test see of the inside. The rest of them sees what users see.

func FootprintOf(m *Model) memory.Footprint { return m.loaded.Footprint }
func StoredBy(m *Model) int64               { return m.loaded.Store.Bytes() }
func StoreOf(m *Model) kernels.Store        { return m.loaded.Store }
func MemoryOf(m *Model) kernels.Cache       { return m.loaded.Cache }
func RunnerOf(m *Model) kernels.Runner      { return m.loaded.Runner }
func WeightsOf(m *Model) *blocks.Weights    { return &m.loaded.Weights }
func DraftOf(m *Model) *guess.Draft         { return m.loaded.Draft }
func GuessesOf(m *Model) *guess.List        { return &m.loaded.Beside }
func SlotsOf(m *Model) int                  { return m.loaded.Sizes.Slots(&m.loaded.Config) }
func LogitsOf(m *Model) []float32           { return m.loaded.Runner.Row(m.loaded.Pass.Logits, 0) }
func TokensOf(s *Sequence) []tandem.Token   { return s.Tokens() }

func TargetOf(m *Model) *guess.Target {
	return &guess.Target{Config: &m.loaded.Config, Weights: &m.loaded.Weights}
}

// LineOf returns the tree rows that lie at their positions.
func LineOf(s *Sequence) (line []int32) {
	for n := range int32(s.Nodes()) {
		if _, final := s.Cell(n); final {
			line = append(line, n)
		}
	}
	return line
}

// PlacesOf returns the cell of each tree row, and whether it is that of its position.
func PlacesOf(s *Sequence) (cells []kernels.Cell, final []bool) {
	for n := range int32(s.Nodes()) {
		cell, is := s.Cell(n)
		cells, final = append(cells, cell), append(final, is)
	}
	return cells, final
}

func PagesOf(s *Sequence) []int32             { return (&Part{Seq: s}).Table() }
func CellOf(s *Sequence, at int) kernels.Cell { return (&Part{Seq: s}).At(at) }

// PassOf returns the pass that has computed tokens, all that s holds.
func PassOf(s *Sequence, tokens []tandem.Token) *kernels.Pass {
	p := &kernels.Pass{Rows: len(tokens), Pages: PagesOf(s), Table: make([]int32, len(tokens)), AncOff: make([]int32, len(tokens)),
		AncLen: make([]int32, len(tokens))}
	for i, t := range tokens {
		p.Tokens, p.Pos, p.Turn = append(p.Tokens, int32(t)), append(p.Pos, int32(i)), append(p.Turn, int32(i))
		p.Store, p.Prefix = append(p.Store, CellOf(s, i)), append(p.Prefix, int32(i+1))
	}
	return p
}

// GapOf returns how many positions of its text a windowed sequence leaves out.
func GapOf(s *Sequence) int { return s.Capacity() - s.Lacks(s.Capacity()) - s.Len() }

// WithTaps returns m with another pass over the same weights: two models in memory differ by some percent in time.
func WithTaps(b *testing.B, m *Model, taps []int) *Model {
	l, planned := *m.loaded, *m.loaded.Planned
	l.Planned = &planned
	l.Options.Taps, l.Sizes.Taps = taps, taps
	var err error
	if l.Pass, err = plan.New(l.Header, l.Sizes, l.Device.Layout); err != nil {
		b.Fatal(err)
	}
	if l.Cache, err = l.Device.NewCache(l.Pass.KV, l.Options.KVPages); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(l.Cache.Close)
	if l.Runner, err = l.Device.Compile(l.Pass.Program, l.Store, l.Cache); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(l.Runner.Close)
	return newModel(&l)
}

// CheckPlaces checks where tree rows lie, CheckRecords where records of recurrent layers are.
func CheckPlaces(t interface{ Fatal(...any) }, s *Sequence) {
	if err := s.Consistent(); err != nil {
		t.Fatal(err)
	}
}

func CheckRecords(r interface{ Fatal(...any) }, m *Model) {
	if err := m.Consistent(); err != nil {
		r.Fatal(err)
	}
}
