package engine_test

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"pgregory.net/rapid"
)

// listed computes a row at a time and names for each the positions that it attends to, by the words of Window: nothing of the page tables
// of windowed sequences is used.
type listed struct {
	m      *engine.Model
	window engine.Window
	seq    *engine.Sequence // cells for every position of a text
	begin  int              // what lies between the first tokens and this was never read
	tokens []tandem.Token
}

func (l *listed) after(t *rapid.T, text []tandem.Token) (logits []float32) {
	same := 0
	for same < min(len(text)-1, len(l.tokens)) && l.tokens[same] == text[same] {
		same++
	}
	for p := same; p < len(text); p++ {
		if p >= l.window.First && p < l.begin {
			continue
		}
		from := l.begin
		for at := 0; at <= p+1-l.window.Last; at += l.window.Step {
			from = max(from, at)
		}
		pass := kernels.Pass{Rows: 1, Tokens: []int32{int32(text[p])}, Turn: []int32{int32(p)}, Store: []kernels.Cell{engine.CellOf(l.seq,
			p)},
			Prefix: []int32{0}, Table: []int32{0}, AncOff: []int32{0}, Wanted: []int32{0}}
		for i := range p + 1 {
			if i < l.window.First || i >= from {
				pass.Anc = append(pass.Anc, engine.CellOf(l.seq, i))
			}
		}
		pass.AncLen, pass.Pos = []int32{int32(len(pass.Anc))}, []int32{int32(len(pass.Anc) - 1)}
		if err := engine.RunnerOf(l.m).Run(&pass); err != nil {
			t.Fatal(err)
		}
	}
	l.tokens = slices.Clone(text)
	return slices.Clone(engine.LogitsOf(l.m))
}

// windowed is a sequence under test, and what it should hold.
type windowed struct {
	twin
	seq *engine.Sequence
	as  *listed
}

// TestWindowedEqualsListed: sequences that see a window of their texts, read them in random pieces, draft trees, commit, are rolled back,
// and share pages, have the same bits as rows that attend to listed positions, one at a time.
func TestWindowedEqualsListed(t *testing.T) {
	cases := naive.Cases()
	for name, n := range map[string]*naive.Model{"llama": naive.Tiny("llama", 2), "gemma3": cases["gemma3"].Model,
		"mistral3": cases["mistral3"].Model} {
		t.Run(name, func(t *testing.T) {
			n.Context = 1 << 12
			n.Generate(1)
			devices := map[string]kernels.Device{"cpu": testdevice.CPU(t, 2)}
			if name == "llama" {
				devices["ref"] = testdevice.Ref()
			}
			for kind, d := range devices {
				m := enginetest.Open(t, n.Write(t, t.TempDir()), engine.Options{Device: d, KVPages: 60, MaxRows: 96})
				slid, left := 0, 0
				rapid.Check(t, func(r *rapid.T) {
					if kind == "cpu" || rapid.IntRange(0, 9).Draw(r, "the definitions are slow") == 0 {
						windowedEqualsListed(r, m, &slid, &left)
					}
				})
				if kind == "cpu" && (slid == 0 || left == 0) || m.FreePages() != 60 {
					t.Errorf("%s: %d windows moved, %d began behind a gap, %d of 60 pages free in the end: want some, some, and all", kind,
						slid, left, m.FreePages())
				}
			}
		})
	}
}

func windowedEqualsListed(r *rapid.T, m *engine.Model, slid, left *int) {
	defer m.Prefixes().Drop()
	random := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "tokens"), 0))
	w := engine.Window{First: rapid.SampledFrom([]int{0, 64, 128}).Draw(r, "first"), Last: rapid.IntRange(12, 130).Draw(r, "last"),
		Step: rapid.SampledFrom([]int{64, 128}).Draw(r, "step")}
	text := enginetest.RandomTokens(random, m, 600)
	for range rapid.IntRange(1, 2).Draw(r, "sessions") {
		s := openWindowed(r, m, w, text[:rapid.IntRange(1, 300).Draw(r, "prompt")])
		defer s.seq.Close()
		defer s.as.seq.Close()
		if engine.GapOf(s.seq) > 0 {
			*left++
		}
		for range rapid.IntRange(1, 5).Draw(r, "rounds") {
			s.read(r)
			s.draft(r, random)
			s.reroot(r, s.seq)
			if rapid.IntRange(0, 3).Draw(r, "truncate") == 0 {
				s.truncate(r)
			}
			if len(s.tokens) == 0 { // the text goes on, as when others have drafted it
				s.prefix = append(s.prefix, enginetest.RandomTokens(random, m, rapid.IntRange(0, 150).Draw(r, "more"))...)
			}
		}
		if engine.GapOf(s.seq) > s.as.begin-w.First { // since it was opened, or rolled back to the first tokens
			*slid++
		}
		s.seq.Close()
		s.as.seq.Close()
	}
}

func openWindowed(r *rapid.T, m *engine.Model, w engine.Window, prompt []tandem.Token) *windowed {
	seq, err := m.NewWindowed("t", prompt, 1000, 12, w)
	if err != nil {
		r.Fatal(err)
	}
	cells, err := m.NewSequence(1000, 0)
	if err != nil {
		r.Fatal(err)
	}
	w.Last = max(w.Last, m.Config().Window)
	if want := w.Reads(len(prompt)); seq.Lacks(len(prompt))+seq.Len() != want {
		r.Fatalf("%d of %d tokens are to be read, %d are there: want %d in all", seq.Lacks(len(prompt)), len(prompt), seq.Len(), want)
	}
	return &windowed{twin: twin{prefix: slices.Clone(prompt)}, seq: seq, as: &listed{m: m, window: w, seq: cells,
		begin: w.From(len(prompt) - 1)}}
}

// read reads what the sequence lacks in random pieces, and compares the last row.
func (s *windowed) read(r *rapid.T) {
	for s.seq.Lacks(len(s.prefix)) > 0 {
		at := s.seq.End()
		end := len(s.prefix)
		if at < s.as.window.First {
			end = min(end, s.as.window.First)
		}
		n := rapid.IntRange(1, min(96, end-at)).Draw(r, "piece")
		held, most := s.seq.End(), len(s.prefix)
		out, err := s.as.m.Forward([]engine.Part{{Seq: s.seq, Extend: s.prefix[at : at+n], Want: engine.WantTail}}, 0)
		if err != nil || s.seq.End() <= held || s.seq.End() > most {
			r.Fatalf("from %d to %d of %d: %v", held, s.seq.End(), most, err)
		}
		if s.seq.Lacks(len(s.prefix)) == 0 || rapid.IntRange(0, 9).Draw(r, "look") == 0 {
			s.same(r, out.Logits(0), s.prefix[:at+n])
		}
	}
	w := s.as.window
	if pages := (w.First+w.Last+2*w.Step)/kernels.PageRows + 3; s.seq.Pages() > pages {
		r.Fatalf("%d pages: want at most %d", s.seq.Pages(), pages)
	}
}

func (s *windowed) draft(r *rapid.T, random *rand.Rand) {
	part := engine.Part{Seq: s.seq, Want: engine.WantTail,
		Nodes: enginetest.RandomTokens(random, s.as.m, rapid.IntRange(0, 12-s.seq.Nodes()).Draw(r, "rows"))}
	for i := range part.Nodes {
		part.Parents = append(part.Parents, int32(rapid.IntRange(-1, s.seq.Nodes()+i-1).Draw(r, "parent")))
	}
	out, err := s.as.m.Forward([]engine.Part{part}, 0)
	if err != nil {
		r.Fatal(err)
	}
	old := int32(len(s.tokens))
	s.tokens, s.parents = append(s.tokens, part.Nodes...), append(s.parents, part.Parents...)
	var got [][]float32
	for i := range out.Len() {
		got = append(got, slices.Clone(out.Logits(i)))
	}
	for i := range got {
		s.same(r, got[i], s.path(old+int32(i)))
	}
}

// truncate rolls back by a little, or to anywhere.
func (s *windowed) truncate(r *rapid.T) {
	n := len(s.prefix) - rapid.IntRange(0, min(20, len(s.prefix)-1)).Draw(r, "by")
	if rapid.Bool().Draw(r, "deep") {
		n = rapid.IntRange(1, len(s.prefix)).Draw(r, "to")
	}
	gap := engine.GapOf(s.seq)
	if err := s.seq.Truncate(n); err != nil {
		r.Fatal(err)
	}
	if s.twin = (twin{prefix: s.prefix[:n]}); s.seq.End() > n {
		r.Fatalf("truncated to %d: the sequence ends at %d", n, s.seq.End())
	}
	if engine.GapOf(s.seq) != gap {
		s.as.begin, s.as.tokens = s.as.window.From(n), nil
	}
}

func (s *windowed) same(r *rapid.T, logits []float32, text []tandem.Token) {
	if err := enginetest.SameBits(logits, s.as.after(r, text)); err != nil {
		r.Fatalf("%+v, behind a gap of %d, %d tokens: %v", s.as.window, engine.GapOf(s.seq), len(text), err)
	}
}

func TestWindowRefuses(t *testing.T) {
	m := enginetest.Open(t, enginetest.Draft, engine.Options{KVPages: engine.PagesFor(2, 300, 8)})
	good := engine.Window{First: 64, Last: 8, Step: 64}
	for name, w := range map[string]engine.Window{"first": {First: 63, Last: 8, Step: 64}, "negative": {First: -64, Last: 8, Step: 64},
		"step": {First: 64, Last: 8, Step: 65}, "no step": {First: 64, Last: 8}, "fewer than tree rows": {First: 64, Last: 7, Step: 64}} {
		if _, err := m.NewWindowed("", nil, 300, 8, w); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v, want invalid", name, err)
		}
	}
	if _, err := m.NewWindowed("", nil, 1<<20, 8, good); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("beyond the context: %v, want invalid", err)
	}
	recurrent := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{Sequences: 1})
	if _, err := recurrent.NewWindowed("", nil, 100, 8, good); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("recurrent layers: %v, want invalid", err)
	}
	s, err := m.NewWindowed("", make([]tandem.Token, 250), 300, 8, good)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.End() != 0 || s.Capacity() != 300 || s.Lacks(250) != 122 || s.Truncate(1) == nil {
		t.Errorf("a sequence of 250 tokens ends at %d, may hold %d and lacks %d: want 0, 300, 64 first tokens and 58 last", s.End(),
			s.Capacity(), s.Lacks(250))
	}
	if got := (engine.Window{}).Reads(7000) + (engine.Window{}).Most(); got != 7000 {
		t.Errorf("without a window %d of 7,000 tokens are read", got)
	}
}
