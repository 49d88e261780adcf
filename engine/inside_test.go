package engine

import (
	"io"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/kernels"
)

// What tests of package engine_test see of the inside. The rest of them sees what users see.

func FootprintOf(m *Model) Footprint { return m.footprint }

func StoredBy(m *Model) int64 { return m.store.Bytes() }

func StoreOf(m *Model) kernels.Store { return m.store }

func MemoryOf(m *Model) kernels.Cache { return m.memory }

func RunnerOf(m *Model) kernels.Runner { return m.runner }

func LastPass(m *Model) *kernels.Pass { return &m.pass.Pass }

func WeightsOf(m *Model) *blocks.Weights { return &m.weights }

func DraftOf(m *Model) *guess.Draft { return m.draft }

func GuessesOf(m *Model) *guess.List { return &m.beside }

func TargetOf(m *Model) *guess.Target { return opening{m}.target() }

func SlotsOf(m *Model) int { return m.options.slots(&m.config) }

func LogitsOf(m *Model) []float32 { return m.runner.Row(m.logits, 0) }

func TokensOf(s *Sequence) []tandem.Token { return s.tokens }

func LineOf(s *Sequence) []int32 { return s.line }

func TakenBy(s *Sequence) []bool { return s.taken }

func PagesOf(s *Sequence) []int32 { return s.pages.Table }

func CellOf(s *Sequence, at int) kernels.Cell { return s.pages.At(at) }

func GapOf(s *Sequence) int { return s.gap }

func HasSlid(s *Sequence) bool { return s.slid }

func WindowOf(s *Sequence) Window { return s.window }

// PlacesOf returns the cell of each tree row, and the number of the node cell that it is; -1: it is none.
func PlacesOf(s *Sequence) (cells []kernels.Cell, nodes []int) {
	for _, p := range s.places {
		cells, nodes = append(cells, p.cell), append(nodes, int(p.node))
	}
	return cells, nodes
}

// DigestOf returns the part of an identity that says what m would compute with shape c.
func DigestOf(m *Model, c *blocks.Config) string {
	return digestOf(func(w io.Writer) { writeConfig(w, c, &m.weights) })
}

// WithTaps returns m with another pass over the same weights and cache: two models in memory differ by some percent in time.
func WithTaps(b *testing.B, m *Model, taps []int) *Model {
	other := *m
	other.options.Taps = taps
	program := opening{&other}.program(m.device.Layout)
	var err error
	if other.runner, err = m.device.Compile(program, m.store, m.memory); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(other.runner.Close)
	return &other
}

// CheckPlaces checks where tree rows lie: each in a cell of its own, those of the line at their final positions, the
// others in node cells that are marked as taken.
func CheckPlaces(t interface{ Fatalf(string, ...any) }, s *Sequence) {
	seen, taken := map[kernels.Cell]bool{}, make([]bool, s.maxNodes)
	for row, p := range s.places {
		switch at := slices.Index(s.line, int32(row)); {
		case seen[p.cell]:
			t.Fatalf("cell %d of row %d is another row's too", p.cell, row)
		case at < 0 && (p.node < 0 || p.cell != s.pages.Node(p.node)), at >= 0 && (p.node >= 0 || p.cell != s.pages.At(s.length+at)):
			t.Fatalf("row %d, %d on the line %v from position %d, lies in %+v", row, at, s.line, s.length, p)
		case at == 0 && s.parents[row] != -1, at > 0 && s.parents[row] != s.line[at-1]:
			t.Fatalf("row %d, %d on the line %v, has parent %d", row, at, s.line, s.parents[row])
		}
		if seen[p.cell] = true; p.node >= 0 {
			taken[p.node] = true
		}
	}
	if len(s.places) != len(s.parents) || !slices.Equal(taken, s.taken) {
		t.Fatalf("%d places of %d rows, node cells taken %v: want %v", len(s.places), len(s.parents), s.taken, taken)
	}
}

// CheckRecords checks that every record is free or in one place of one sequence.
func CheckRecords(r interface{ Fatalf(string, ...any) }, m *Model) {
	seen := make([]int, m.options.records(&m.config))
	for _, x := range m.records.free {
		seen[x]++
	}
	for s := range m.records.of {
		if len(s.ofNodes) != len(s.parents) || s.at+len(s.pending) != s.length {
			r.Fatalf("%d records of %d tree rows; states of %d positions and %d pending, of %d", len(s.ofNodes), len(s.parents), s.at,
				len(s.pending), s.length)
		}
		for _, x := range slices.Concat(s.ofNodes, s.pending) {
			seen[x]++
		}
	}
	for x, n := range seen {
		if n != 1 {
			r.Fatalf("record %d is in %d places", x, n)
		}
	}
}
