package engine

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref/device"
)

var recurrentPath = filepath.Join(shared, "golden/arch2026/arch-qwen35.gguf")

// recurrentDevices are those on which tests of recurrent models run.
func recurrentDevices(testing.TB) map[string]kernels.Device {
	return map[string]kernels.Device{"ref": device.New()}
}

// TestGoldenRecurrent compares tiny models with delta nets with another engine's figures. In one pass, token by token, and in random pieces
// the bits are the same.
func TestGoldenRecurrent(t *testing.T) {
	for _, name := range []string{"qwen35"} {
		path := filepath.Join(shared, "golden/arch2026/arch-"+name)
		c := readGolden2026(t, path+".json")
		for of, d := range recurrentDevices(t) {
			t.Run(name+" on "+of, func(t *testing.T) {
				m := openTest(t, path+".gguf", Options{KVPages: PagesFor(4, 192, 0), Device: d})
				square, count := checkPrompt(t, m, c)
				ours, theirs := math.Sqrt(square/count), c.otherDistance()
				t.Logf("r.m.s. distance from float arithmetic %.5f, the other engine's %.5f", ours, theirs)
				if ours > theirs {
					t.Errorf("r.m.s. distance from float arithmetic %.5f: want at most the other engine's %.5f", ours, theirs)
				}
				checkGreedy(t, m, c)
				whole := inPieces(t, m, c.Tokens, []int{len(c.Tokens)})
				if err := sameBits(whole, inPieces(t, m, c.Tokens, slices.Repeat([]int{1}, len(c.Tokens)))); err != nil {
					t.Errorf("in one pass and token by token: %v", err)
				}
				random := rand.New(rand.NewPCG(1, 2))
				for range 3 {
					var pieces []int
					for left := len(c.Tokens); left > 0; left -= pieces[len(pieces)-1] {
						pieces = append(pieces, 1+random.IntN(min(left, 9)))
					}
					if err := sameBits(whole, inPieces(t, m, c.Tokens, pieces)); err != nil {
						t.Errorf("in one pass and in pieces %v: %v", pieces, err)
					}
				}
			})
		}
	}
}

// TestRecurrentTrees grows trees, moves their roots along random paths, keeps random parts, rolls back, and compares every row's logits with
// those of plain decoding, bit by bit. Records are so few that some passes must apply pending ones before.
func TestRecurrentTrees(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		for name, d := range recurrentDevices(t) {
			t.Run(name+" "+kvType, func(t *testing.T) {
				m := openTest(t, recurrentPath, Options{KVType: kvType, Device: d, Sequences: 1, MaxRows: 80,
					KVPages: PagesFor(2, 160, 48) + PagesFor(1, 160, 0)})
				rapid.Check(t, func(r *rapid.T) { recurrentTrees(t, r, m) })
			})
		}
	}
}

func recurrentTrees(t *testing.T, r *rapid.T, m *Model) {
	s, err := m.NewSequence(160, 48)
	if err != nil {
		r.Fatal(err)
	}
	defer s.Close()
	seq, err := m.NewSequence(160, 0)
	if err != nil {
		r.Fatal(err)
	}
	defer seq.Close()
	single := narrow{m, seq}
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "tokens"), 0))
	w := twin{}
	for range rapid.IntRange(1, 6).Draw(r, "rounds") {
		part := Part{Seq: s, Want: WantTail}
		if len(w.tokens) == 0 {
			least := 0
			if len(w.prefix) == 0 {
				least = 1
			}
			part.Extend = randomTokens(random, m, rapid.IntRange(least, 20).Draw(r, "more"))
			w.prefix = append(w.prefix, part.Extend...)
		}
		part.Nodes = randomTokens(random, m, rapid.IntRange(0, min(20, 48-s.Nodes())).Draw(r, "rows"))
		for i := range part.Nodes {
			part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.Nodes()+i-1).Draw(r, "parent")))
		}
		out := forward(t, m, 0, part)
		old, first := int32(len(w.tokens)), out.Len()-len(part.Nodes)
		w.tokens, w.parents = append(w.tokens, part.Nodes...), append(w.parents, part.Parents...)
		got := make([][]float32, out.Len())
		for i := range got {
			got[i] = slices.Clone(out.Logits(i))
		}
		for i := range got {
			row := int32(-1)
			if i >= first {
				row = old + int32(i-first)
			}
			if err := sameBits(got[i], single.after(t, w.path(row))); err != nil {
				r.Fatalf("row %d of %d: %v", i, len(got), err)
			}
		}
		checkRecords(r, m)
		switch rapid.IntRange(0, 3).Draw(r, "then") {
		case 0:
			back := max(0, s.Len()-rapid.IntRange(0, 30).Draw(r, "back"))
			if err := s.Truncate(back); err != nil {
				r.Fatal(err)
			}
			if s.Len() > back || s.Nodes() != 0 {
				r.Fatalf("truncated to %d: %d positions and %d rows", back, s.Len(), s.Nodes())
			}
			w = twin{prefix: w.prefix[:s.Len()]}
		default:
			w.reroot(r, s)
		}
		checkRecords(r, m)
	}
}

// checkRecords checks that every record is free or in one place of one sequence.
func checkRecords(r *rapid.T, m *Model) {
	seen := make([]int, m.recordCount())
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

// TestRecurrentOneBack checks that the last position can be given up without states from before.
func TestRecurrentOneBack(t *testing.T) {
	m := openTest(t, recurrentPath, Options{Device: device.New(), KVPages: PagesFor(4, 160, 8)})
	s := newSeq(t, m, 160, 8)
	tokens := randomTokens(rand.New(rand.NewPCG(3, 4)), m, 40)
	forward(t, m, 0, Part{Seq: s, Extend: tokens[:30]})
	for at := 29; at < 32; at++ {
		if err := s.Truncate(at); err != nil || s.Len() != at {
			t.Fatalf("truncated to %d: %d, %v", at, s.Len(), err)
		}
		out := forward(t, m, 0, Part{Seq: s, Extend: tokens[at : at+2], Want: WantTail})
		if err := sameBits(out.Logits(0), alone(t, m, tokens[:at+2])); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Truncate(10); err != nil || s.Len() != 0 {
		t.Errorf("truncated to 10: %d positions, %v; want 0, since no states were kept", s.Len(), err)
	}
}

// TestRecurrentPrefixes opens sequences whose texts begin alike, and compares what they compute with texts computed alone.
func TestRecurrentPrefixes(t *testing.T) {
	m := openTest(t, recurrentPath, Options{Device: device.New(), Sequences: 4, KVPages: PagesFor(8, 320, 8)})
	random := rand.New(rand.NewPCG(5, 6))
	base := randomTokens(random, m, 150)
	var all []*Sequence
	run := func(tenant string, prompt []tandem.Token, found int) *Sequence {
		t.Helper()
		s, err := m.NewShared(tenant, prompt, 320, 8)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		if s.Len() != found {
			t.Errorf("found %d of %d positions: want %d", s.Len(), len(prompt), found)
		}
		for s.Len() < len(prompt) {
			forward(t, m, 0, Part{Seq: s, Extend: prompt[s.Len():min(len(prompt), s.Len()+50)]})
		}
		next := randomTokens(random, m, 1)
		out := forward(t, m, 0, Part{Seq: s, Extend: next, Want: WantTail})
		if err := sameBits(out.Logits(0), alone(t, m, append(slices.Clone(prompt), next...))); err != nil {
			t.Error(err)
		}
		all = append(all, s)
		return s
	}
	s := run("a", base, 0)
	run("a", base, 128)                                                            // the last end of a page
	run("b", base, 0)                                                              // another tenant
	run("a", append(slices.Clone(base[:100]), randomTokens(random, m, 40)...), 0)  // no states where they part
	run("a", append(slices.Clone(base[:100]), randomTokens(random, m, 50)...), 64) // but now there are
	text := slices.Clone(s.tokens)
	for _, s := range all {
		s.Close()
	}
	run("a", append(text, randomTokens(random, m, 30)...), 150) // the end of a text, but for the last position
	if m.PrefixStates() == 0 || m.PrefixStates() > m.slots() {
		t.Errorf("%d prefixes with states of %d slots", m.PrefixStates(), m.slots())
	}
}

// TestRecurrentSlots opens more sequences than there are slots, and more prefixes than slots can keep.
func TestRecurrentSlots(t *testing.T) {
	m := openTest(t, recurrentPath, Options{Device: device.New(), Sequences: 2, KVPages: PagesFor(16, 192, 0)})
	random := rand.New(rand.NewPCG(7, 8))
	for range 9 {
		prompt := randomTokens(random, m, 130)
		s, err := m.NewShared("", prompt, 192, 0)
		if err != nil {
			t.Fatal(err)
		}
		forward(t, m, 0, Part{Seq: s, Extend: prompt})
		s.Close()
	}
	if m.PrefixStates() != 4 || m.LostStates() < 9 {
		t.Errorf("%d prefixes with states, %d lost: want 4 and some", m.PrefixStates(), m.LostStates())
	}
	for i := range 5 {
		_, err := m.NewSequence(64, 0)
		if i < 4 && err != nil || i == 4 && tandem.KindOf(err) != tandem.Exhausted {
			t.Errorf("sequence %d of a model with 4 slots: %v", i, err)
		}
	}
}
