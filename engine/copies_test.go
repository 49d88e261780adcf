package engine_test

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// copied is what a model gave out of a text.
type copied struct{ pages, states [][]byte }

func copyOut(m *engine.Model, tenant string, tokens []tandem.Token) (c copied) {
	m.Copies().Visit(tenant, tokens, func(_ int, rows, state []byte) bool {
		c.pages, c.states = append(c.pages, bytes.Clone(rows)), append(c.states, bytes.Clone(state))
		return true
	})
	return c
}

// putIn puts what another model gave out into m, up to the last page that a sequence can begin with, and returns how many pages that are.
func putIn(t *testing.T, m *engine.Model, tenant string, tokens []tandem.Token, c copied) int {
	t.Helper()
	n, x := len(c.pages), m.Copies()
	for x.StateBytes() > 0 && n > 0 && len(c.states[n-1]) == 0 {
		n--
	}
	i := x.Begin(tenant, tokens)
	defer i.Close()
	room, behind, err := i.Room(n, 0, x.StateBytes() > 0 && n > 0)
	if err != nil {
		t.Fatal(err)
	}
	for j, p := range room {
		copy(p, c.pages[i.Held()+j])
	}
	if behind != nil {
		copy(behind, c.states[n-1])
	}
	i.Put(n, behind != nil)
	return n
}

// TestCopiedPrefixes: in every architecture a text goes on from pages and states that another process has computed, on other kernels and
// with another number of threads, with the same bits as from its own.
func TestCopiedPrefixes(t *testing.T) {
	dir, all := t.TempDir(), cpu.Supported()
	random, shortest := rand.New(rand.NewPCG(3, 3)), all[0]
	recurrent, windows := 0, 0
	for i, f := range family.All(1) {
		path := f.Write(t, dir)
		for _, kvType := range []string{"f16", "q8_0"} {
			o := engine.Options{Device: testdevice.ISA(t, 2, all[len(all)-1]), KVType: kvType, KVPages: 16, MaxRows: 200}
			first, err := engine.Open(path, o)
			if err != nil && kvType == "q8_0" {
				continue // heads that are no multiple of 32
			} else if err != nil {
				t.Fatalf("%s: %v", f.Name, err)
			}
			t.Cleanup(first.Close)
			if o.Device = testdevice.ISA(t, 1, all[i%len(all)]); all[i%len(all)] == shortest {
				o.KVPages = 20
			}
			second := enginetest.Open(t, path, o)
			if engine.SlotsOf(first) > 0 {
				recurrent++
			}
			if first.Config().Window > 0 {
				windows++
			}
			tokens := enginetest.RandomTokens(random, first, 150)
			want := continued(t, first, tokens, 0)
			c := copyOut(first, "t", tokens)
			if n := putIn(t, second, "t", tokens, c); n != 2 {
				t.Errorf("%s, %s: %d pages came over, want 2", f.Name, kvType, n)
			}
			if err := enginetest.SameBits(continued(t, second, tokens, 128), want); err != nil {
				t.Errorf("%s, %s: %v", f.Name, kvType, err)
			}
			if again := copyOut(second, "t", tokens); len(again.pages) != 2 || !slices.EqualFunc(again.pages, c.pages[:2], bytes.Equal) {
				t.Errorf("%s, %s: given out again the pages are others", f.Name, kvType)
			}
		}
	}
	if recurrent < 2 || windows < 2 {
		t.Errorf("%d models were recurrent and %d have windows: want some", recurrent, windows)
	}
}

// continued returns the logits of the end of a shared text and of eight tokens more. held positions are found.
func continued(t *testing.T, m *engine.Model, tokens []tandem.Token, held int) (logits []float32) {
	t.Helper()
	s, err := m.NewShared("t", tokens, 200, 8)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Len() != held {
		t.Errorf("%d positions are found, want %d", s.Len(), held)
	}
	out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: tokens[s.Len():], Want: engine.WantTail})
	logits = slices.Clone(out.Logits(0))
	for i := range 8 {
		out := enginetest.Forward(t, m, 0, engine.Part{Seq: s, Extend: []tandem.Token{tokens[i]}, Want: engine.WantTail})
		logits = append(logits, out.Logits(0)...)
	}
	return logits
}

// TestNoCopies: a model whose keys and values lie elsewhere, or that keeps nothing, gives nothing out.
func TestNoCopies(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	path := family.Golden("qwen35").Write(t, t.TempDir())
	for what, d := range map[string]kernels.Device{"a gpu": gpu, "the definitions": testdevice.Ref()} {
		if m := enginetest.Open(t, path, engine.Options{Device: d, KVPages: 8}); m.Copies() != nil {
			t.Errorf("%s has copies", what)
		}
	}
	m := enginetest.Open(t, path, engine.Options{KVPages: 8})
	if m.Prefixes().Bound(-1); m.Copies() != nil {
		t.Error("a model that keeps nothing has copies")
	}
}
