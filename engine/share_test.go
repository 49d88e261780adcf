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

// sharer is a shared sequence with what it should hold.
type sharer struct {
	*engine.Sequence
	tenant string
	prompt []tandem.Token
	ran    bool // its last position is its own, and was not taken back
	twin
}

// TestSharedEqualsAlone opens shared sequences whose prompts begin alike, fills them in pieces, grows and commits trees, rolls
// back, and closes them at any point, with too little memory to keep everything. Every logit equals, bit by bit, that of
// another model that has computed the text anew; and all memory is free at the end.
func TestSharedEqualsAlone(t *testing.T) {
	allLacked := 0
	for _, kvType := range []string{"f16", "q8_0"} {
		pages := 9 // enough for two sequences of four pages
		m := enginetest.Open(t, enginetest.Draft, engine.Options{KVType: kvType, Device: testdevice.CPU(t, 1), KVPages: pages})
		fresh := enginetest.Open(t, enginetest.Draft, engine.Options{KVType: kvType, Device: testdevice.CPU(t, 1),
			KVPages: engine.PagesFor(1, 400, 0)})
		found, evicted, lacked := 0, m.Prefixes().Evicted(), 0
		rapid.Check(t, func(r *rapid.T) { found += sharedEqualsAlone(r, m, fresh, &lacked) })
		t.Logf("%s: %d positions found, %d pages evicted, %d times none was left", kvType, found, m.Prefixes().Evicted()-evicted, lacked)
		wantFound, wantEvicted := 2000, int64(20)
		if testing.Short() { // a fifth of the runs
			wantFound, wantEvicted = wantFound/5, wantEvicted/5
		}
		if found < wantFound || m.Prefixes().Evicted()-evicted < wantEvicted {
			t.Fatalf("%d positions found and %d pages evicted: want %d and %d", found, m.Prefixes().Evicted()-evicted, wantFound,
				wantEvicted)
		}
		allLacked += lacked
	}
	if allLacked == 0 && !testing.Short() { // a few times in a whole run
		t.Error("memory never ran out")
	}
}

func sharedEqualsAlone(r *rapid.T, m, fresh *engine.Model, lacked *int) (found int) {
	var open []*sharer
	defer func() {
		for _, s := range open {
			s.Close()
		}
	}()
	same := func(s *sharer, text []tandem.Token, got []float32) {
		seq, err := fresh.NewSequence(len(text), 0)
		if err != nil {
			r.Fatal(err)
		}
		defer seq.Close()
		out, err := fresh.Forward([]engine.Part{{Seq: seq, Extend: text, Want: engine.WantTail}}, 0)
		if err != nil {
			r.Fatal(err)
		}
		if err := enginetest.SameBits(got, out.Logits(0)); err != nil {
			r.Fatalf("after %d tokens: %v", len(text), err)
		}
	}
	shut := func(s *sharer) {
		open = slices.DeleteFunc(open, func(x *sharer) bool { return x == s })
		s.Close()
	}
	run := func(s *sharer, part engine.Part) *engine.Output { // as a schedule does, it closes the youngest others while memory is missing
		part.Seq, part.Want = s.Sequence, engine.WantTail
		for n, nodes := s.Len(), s.Nodes(); ; {
			out, err := m.Forward([]engine.Part{part}, 0)
			if err == nil {
				return out
			}
			i := len(open) - 1
			if i >= 0 && open[i] == s {
				i--
			}
			if tandem.KindOf(err) != tandem.Exhausted || i < 0 || s.Len() != n || s.Nodes() != nodes {
				r.Fatalf("%d positions and %d rows, before %d and %d, %d sequences: %v", s.Len(), s.Nodes(), n, nodes, len(open), err)
			}
			*lacked++
			shut(open[i])
		}
	}
	some := func() *sharer { return rapid.SampledFrom(open).Draw(r, "which") }
	dice := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "dice"), 0)) // where rapid would take small numbers too often
	for range rapid.IntRange(5, 40).Draw(r, "steps") {
		what := rapid.SampledFrom([]string{"open", "open", "fill", "fill", "tree", "back", "close", "close", "distrust"}).Draw(r, "what")
		switch {
		case what == "open":
			rng := rand.New(rand.NewPCG(rapid.Uint64Range(0, 1).Draw(r, "begin"), 0))
			prompt := enginetest.RandomTokens(rng, m, 1+dice.IntN(200))
			if part := dice.IntN(len(prompt) + 1); rapid.Bool().Draw(r, "parts") {
				prompt = append(prompt[:part], enginetest.RandomTokens(dice, m, len(prompt)-part)...)
			}
			s := &sharer{tenant: rapid.SampledFrom([]string{"a", "a", "a", "b"}).Draw(r, "tenant"), prompt: prompt}
			var err error
			if s.Sequence, err = m.NewShared(s.tenant, prompt, len(prompt)+30, 16); err != nil {
				if tandem.KindOf(err) != tandem.Exhausted || len(open) < 2 {
					r.Fatalf("with %d sequences open: %v", len(open), err)
				}
				continue
			}
			found += s.Len()
			s.twin.prefix = slices.Clone(prompt[:s.Len()])
			open = append(open, s)
		case len(open) == 0:
		case what == "fill":
			s := some()
			if n := s.Resume(); n > 0 {
				found += n
				s.twin.prefix, s.ran = slices.Clone(s.prompt[:s.Len()]), false
			}
			left := s.prompt[min(s.Len(), len(s.prompt)):]
			if len(left) == 0 || s.Nodes() > 0 {
				continue
			}
			piece := left[:1+dice.IntN(len(left))]
			out := run(s, engine.Part{Extend: piece})
			s.twin.prefix, s.ran = append(s.twin.prefix, piece...), true
			same(s, s.twin.prefix, out.Logits(0))
		case what == "tree":
			s := some()
			if s.Len() == 0 || s.Len() > s.Capacity()-4 {
				continue
			}
			if err := s.Reroot(nil, nil); err != nil {
				r.Fatal(err)
			}
			text := s.twin.prefix
			s.twin = twin{prefix: text}
			part := engine.Part{Nodes: enginetest.RandomTokens(dice, m, rapid.IntRange(1, 4).Draw(r, "rows"))}
			for i := range part.Nodes {
				part.Parents = append(part.Parents, int32(rapid.IntRange(-1, i-1).Draw(r, "parent")))
			}
			out := run(s, part)
			s.twin.tokens, s.twin.parents = part.Nodes, part.Parents
			for i := range part.Nodes {
				same(s, s.twin.path(int32(i)), out.Logits(i))
			}
			s.twin.reroot(r, s.Sequence)
			s.ran = s.ran || s.Len() > len(text)
		case what == "back":
			s := some()
			if s.Len() == 0 {
				continue
			}
			if err := s.Truncate(s.Len() - 1); err == nil {
				s.twin, s.ran = twin{prefix: s.twin.prefix[:s.Len()]}, false
			} else if tandem.KindOf(err) != tandem.Exhausted || s.ran {
				r.Fatal(err)
			}
		case what == "distrust":
			s := some()
			s.Distrust()
			shut(s)
		default:
			shut(some())
		}
	}
	for len(open) > 0 {
		shut(some())
	}
	if m.FreePages() != m.Pages() {
		r.Fatalf("%d of %d pages are free", m.FreePages(), m.Pages())
	}
	if rapid.IntRange(0, 9).Draw(r, "drop") == 0 {
		m.Prefixes().Drop()
	}
	return found
}

// TestSharedInEveryArchitecture finds a prefix in models with windows, heads that differ by layer and longer rotations: the logits
// behind it are those of the whole text computed at once.
func TestSharedInEveryArchitecture(t *testing.T) {
	for name, c := range naive.Cases() {
		t.Run(name, func(t *testing.T) {
			c.Model.Generate(uint64(len(name)))
			m := enginetest.Open(t, c.Model.Write(t, t.TempDir()), engine.Options{KVPages: engine.PagesFor(3, 200, 0)})
			tokens := enginetest.RandomTokens(rand.New(rand.NewPCG(6, 6)), m, 200)
			want := slices.Clone(enginetest.Forward(t, m, 0, engine.Part{Seq: enginetest.NewSeq(t, m, 200, 0), Extend: tokens,
				Want: engine.WantTail}).Logits(0))
			for i, found := range []int{0, 150} { // two whole pages shared, 22 rows copied
				s, err := m.NewShared("", tokens[:150+49*i], 200, 0)
				if err != nil || s.Len() != found {
					t.Fatalf("%v: %d found, want %d", err, s.Len(), found)
				}
				enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[found : 150+20*i]})
				if i > 0 {
					out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[s.Len():], Want: engine.WantTail})
					if err := enginetest.SameBits(out.Logits(0), want); err != nil {
						t.Error(err)
					}
				}
				s.Close()
			}
		})
	}
}

// TestPublish: others find no more of a sequence than it publishes, while it goes on and after it has ended.
func TestPublish(t *testing.T) {
	m := enginetest.Open(t, enginetest.Draft, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 16})
	text := make([]tandem.Token, 5*kernels.PageRows/2)
	for i := range text {
		text[i] = tandem.Token(3 + i%4000)
	}
	found := func() int {
		s, err := m.NewShared("t", text, len(text), 0)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Len()
	}
	s, err := m.NewShared("t", text[:1], len(text), 0)
	if err != nil {
		t.Fatal(err)
	}
	s.Publish(0)
	if _, err := m.Forward([]engine.Part{{Seq: s, Extend: text}}, 1); err != nil {
		t.Fatal(err)
	}
	if n := found(); n != 0 {
		t.Errorf("%d positions are found: want none", n)
	}
	if s.Publish(kernels.PageRows + 2); found() != kernels.PageRows {
		t.Errorf("%d positions are found: want the first page", found())
	}
	if s.Close(); found() != kernels.PageRows+2 {
		t.Errorf("%d positions are found: want those that were published", found())
	}
}
