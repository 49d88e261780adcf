package engine_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/convert"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// TestProductEndsLikeThePass: guesses read the output matrix in a program of its own, which scales and caps logits as a pass does.
func TestProductEndsLikeThePass(t *testing.T) {
	cases := naive.Cases()
	for _, name := range []string{"granite", "granite scale of logits", "gemma2"} {
		c := cases[name].Model
		c.Generate(5)
		m := enginetest.Open(t, c.Write(t, t.TempDir()), engine.Options{KVPages: 2})
		if err := m.OpenSide(randomSide(t, m, side.Spec{Kind: side.PPD, Levels: 1, Members: 1}, gguf.F32)); err != nil {
			t.Fatal(err)
		}
		out := enginetest.Forward(t, m, 5, engine.Part{Seq: enginetest.NewSeq(t, m, 9, 0),
			Extend: enginetest.RandomTokens(rand.New(rand.NewPCG(1, 1)), m, 9), Want: engine.WantTail})
		guesses, err := m.Guess([]engine.GuessAsk{{SelfDraft: tandem.PPD, Hidden: [][]float32{out.Hidden(0, 8)}}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		want := out.Top(0)
		for i, got := range guesses[0].Levels[0] {
			p := float32(float64(want.Logits[i]) - float64(want.Max) - blocks.Ln(float64(want.Sum)))
			if int32(got.Token) != want.IDs[i] || got.LogProb != p {
				t.Errorf("%s: candidate %d is %v: want token %d with log-probability %v", name, i, got, want.IDs[i], p)
			}
		}
		if len(guesses[0].Levels[0]) != 5 {
			t.Errorf("%s: %d candidates", name, len(guesses[0].Levels[0]))
		}
	}
}

// trimmedDraft returns the draft model with rows for some tokens, in a file, and these tokens: as many as do not fill groups of rows.
func trimmedDraft(t *testing.T) (path string, keep []tandem.Token) {
	t.Helper()
	for id := tandem.Token(0); id < 4096; id += 1 + id%3 {
		keep = append(keep, id)
	}
	keep = keep[:len(keep)-len(keep)%16-5]
	path = filepath.Join(t.TempDir(), "trimmed.gguf")
	if _, err := convert.Trim(t.Context(), enginetest.Draft, path, keep, 4096, "", convert.Options{}); err != nil {
		t.Fatal(err)
	}
	return path, keep
}

// TestTrimmed: on every device a trimmed model gives the kept tokens the bits that the whole model gives them, and the others none. What is
// said of the best tokens is of those of the whole model that are kept.
func TestTrimmed(t *testing.T) {
	path, keep := trimmedDraft(t)
	run := func(path string, d kernels.Device) *engine.Output {
		m := enginetest.Open(t, path, engine.Options{Device: d, MaxRows: 8, KVPages: engine.PagesFor(1, 32, 8)})
		seq, err := m.NewSequence(32, 8)
		if err != nil {
			t.Fatal(err)
		}
		out, err := m.Forward([]engine.Part{{Seq: seq, Extend: []tandem.Token{1, 300, 4095}, Nodes: []tandem.Token{700, 701},
			Parents: []int32{-1, -1}, Want: engine.WantAll}}, 64)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	whole := run(enginetest.Draft, testdevice.CPU(t, 1))
	for name, d := range enginetest.SideDevices(t) {
		out := run(path, d)
		for i := range out.Len() {
			want := slices.Repeat([]float32{float32(math.Inf(-1))}, 4096)
			for _, id := range keep {
				want[id] = whole.Logits(i)[id]
			}
			if err := enginetest.SameBits(out.Logits(i), want); err != nil {
				t.Fatalf("%s, row %d: %v", name, i, err)
			}
			top, of := out.Top(i), whole.Top(i)
			ids := slices.DeleteFunc(slices.Clone(of.IDs), func(id int32) bool { return !slices.Contains(keep, tandem.Token(id)) })
			if len(ids) < 16 || !slices.Equal(top.IDs[:len(ids)], ids) {
				t.Fatalf("%s, row %d: the best are %v, want %v", name, i, top.IDs[:len(ids)], ids)
			}
			sum := 0.0
			for _, id := range keep {
				sum += math.Exp(float64(want[id] - top.Max))
			}
			if math.Abs(float64(top.Sum)/sum-1) > 1e-5 || out.Sound(i) != nil {
				t.Errorf("%s, row %d: the sum over the kept tokens is %v, want %v", name, i, top.Sum, sum)
			}
			below := out.TopBelow(i, 8, 1000)
			few := slices.DeleteFunc(slices.Clone(below.IDs), func(id int32) bool {
				return id >= 1000 || !slices.Contains(keep, tandem.Token(id))
			})
			if len(few) != 8 || below.Max != want[few[0]] || below.Sum >= top.Sum*1.001*float32(math.Exp(float64(top.Max-below.Max))) {
				t.Errorf("%s, row %d: the best below 1000 are %v", name, i, below)
			}
		}
		if none := out.TopBelow(0, 8, int(keep[0])); len(none.IDs) != 0 {
			t.Errorf("%s: best tokens below the first: %v", name, none)
		}
	}
}

// TestTrimmedIsADraft: a trimmed file is known as one: by its traits and identity, not by its lineage. It is no target, and side files
// are not for it.
func TestTrimmedIsADraft(t *testing.T) {
	path, keep := trimmedDraft(t)
	info, err := engine.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	err = engine.CheckTarget(path, info.Config)
	if tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "a target must be able to say all") ||
		len(info.Config.Outputs) != len(keep) || !slices.ContainsFunc(info.Traits, func(s string) bool {
		return strings.HasPrefix(s, "trimmed to ")
	}) {
		t.Errorf("%v, traits %v", err, info.Traits)
	}
	a, err := engine.Identify(t.Context(), enginetest.Draft, engine.Options{})
	b, also := engine.Identify(t.Context(), path, engine.Options{})
	if err != nil || also != nil || a.Identity == b.Identity || a.Lineage != b.Lineage || a.Vocabulary != b.Vocabulary {
		t.Errorf("%+v and %+v, %v %v: want another identity, the same lineage and vocabulary", a, b, err, also)
	}
	if info, err = engine.Inspect(enginetest.Draft); err != nil || engine.CheckTarget(enginetest.Draft, info.Config) != nil {
		t.Errorf("a whole model: %v", err)
	}
	m := enginetest.Open(t, path, engine.Options{MaxRows: 8, KVPages: engine.PagesFor(1, 32, 8)})
	if err := m.OpenSide(sidePath("ppd-1")); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "trimmed") {
		t.Errorf("side file: %v", err)
	}
	if _, err := engine.OpenDraft(sidePath("dovetail"), path, engine.Options{Device: testdevice.CPU(t,
		1)}); tandem.KindOf(err) != tandem.Invalid ||
		!strings.Contains(err.Error(), "trimmed") {
		t.Errorf("draft with states of it: %v", err)
	}
}

// TestHostileOutputs: tables of ids that cannot be right are refused by name, and so is one without its matrix.
func TestHostileOutputs(t *testing.T) {
	for name, ids := range map[string]any{
		"descending": []int32{5, 4}, "twice": []int32{5, 5}, "negative": []int32{-1, 4}, "beyond": []int32{5, 4096}, "empty": []int32{},
		"all": make([]int32, 4096), "text": []string{"a"}, "a number": uint32(7), "huge": []uint64{1 << 63},
	} {
		path := enginetest.EditedDraft(t, func(w *gguf.Writer, _ *gguf.File) { w.Set(gguf.OutputIDsKey, ids) })
		if _, err := engine.Inspect(path); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), gguf.OutputIDsKey) {
			t.Errorf("%s: %v", name, err)
		}
	}
	path := enginetest.EditedDraft(t, func(w *gguf.Writer, _ *gguf.File) { w.Set(gguf.OutputIDsKey, []int32{5, 6}) })
	if _, err := engine.Inspect(path); tandem.KindOf(err) != tandem.Corrupt || !strings.Contains(err.Error(), "output.weight") {
		t.Errorf("no matrix: %v", err)
	}
}
