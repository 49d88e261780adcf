package engine_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/memory"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// assistantGolden is what assistants compute by float arithmetic (engine/arch/testdata/golden/README.md). Each step is given its hidden
// state, so that an error does not spread. All are at the position behind the tokens, and the first has the target's last state.
type assistantGolden struct {
	Target    string // digest of its file
	Assistant string
	Tokens    []tandem.Token
	Tolerance float64
	Steps     []struct {
		Token      tandem.Token
		Position   int
		Hidden     []float32
		Top        [][2]float64 // another engine's
		Float      [][2]float64 `json:"float_top"` // as NextHidden, by float arithmetic
		NextHidden []float64    `json:"next_hidden"`
	}
}

func readAssistantGolden(t *testing.T) (g assistantGolden) {
	t.Helper()
	b, err := os.ReadFile(enginetest.InRepository(enginetest.FiguresOf(enginetest.AssistantFile)))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	enginetest.SameModel(t, enginetest.GoldenPath(t, "gemma4"), g.Target)
	enginetest.SameModel(t, enginetest.GoldenPath(t, enginetest.AssistantFile), g.Assistant)
	if len(g.Steps) == 0 || g.Tolerance <= 0 || len(g.Tokens) == 0 {
		t.Fatalf("%d steps behind %d tokens with tolerance %v", len(g.Steps), len(g.Tokens), g.Tolerance)
	}
	return g
}

// openAssisted opens the golden target with its assistant.
func openAssisted(t *testing.T, o engine.Options) *engine.Model {
	t.Helper()
	o.KVPages = engine.PagesFor(4, 192, 32)
	m := enginetest.Open(t, enginetest.GoldenPath(t, "gemma4"), o)
	if err := m.OpenSide(enginetest.GoldenPath(t, enginetest.AssistantFile)); err != nil {
		t.Fatal(err)
	}
	return m
}

// assistantOf returns the assistant that is open beside m.
func assistantOf(m *engine.Model) *guess.Assistant {
	return engine.GuessesOf(m).Of(tandem.Assistant).(*guess.Assistant)
}

// stepOf returns a step behind the committed positions of s.
func stepOf(t *testing.T, s *engine.Sequence, token tandem.Token, state []float32) guess.Step {
	t.Helper()
	seen, err := s.Seen(nil)
	if err != nil {
		t.Fatal(err)
	}
	return guess.Step{Token: token, State: state, Seen: seen}
}

// TestGoldenAssistant: each step by itself, from the state in the file, gives another engine's logits and next state, and is nearer to
// float arithmetic than that engine.
func TestGoldenAssistant(t *testing.T) {
	g := readAssistantGolden(t)
	for _, kv := range []string{"f16", "q8_0"} {
		faults, ours, theirs := g.faults(t, openAssisted(t, engine.Options{KVType: kv}), kv)
		for _, f := range faults {
			t.Errorf("%s, %s", kv, f.What)
		}
		t.Logf("%s: r.m.s. distance of logits from float arithmetic %.5f, the other engine's %.5f", kv, ours, theirs)
		if kv == "f16" && !(ours < theirs) {
			t.Errorf("r.m.s. distance from float arithmetic %.5f: the other engine: %.5f", ours, theirs)
		}
	}
}

// faults compares an assistant's steps with the figures, and returns its r.m.s. distance from float arithmetic, and the other engine's.
func (g *assistantGolden) faults(t *testing.T, m *engine.Model, kv string) (faults []enginetest.Fault, ours, theirs float64) {
	t.Helper()
	tolerance := g.Tolerance
	if kv == "q8_0" { // the figures are of a cache of floats
		tolerance = 0.5
	}
	fail := func(d float64, format string, args ...any) {
		if !(math.Abs(d) <= tolerance) {
			faults = append(faults, enginetest.Fault{What: fmt.Sprintf(format, args...), Away: math.Abs(d) / tolerance})
		}
	}
	s := enginetest.NewSeq(t, m, 64, 8)
	out := enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: g.Tokens, Want: engine.WantTail})
	last := engine.TargetOf(m).Normed(out.Hidden(0, len(g.Tokens)-1))
	for i, x := range g.Steps[0].Hidden {
		fail(float64(last[i]-x), "number %d of the target's last state is %v, want %v", i, last[i], x)
	}
	for i, step := range g.Steps {
		if step.Position != s.Len() {
			t.Fatalf("step %d is at position %d, the target has %d tokens", i, step.Position, s.Len())
		}
		rows := []guess.Step{stepOf(t, s, step.Token, step.Hidden)}
		var logits []float32
		a := assistantOf(m)
		err := a.Step(rows, 1, func(row int, _ kernels.Top) {
			for _, op := range a.Program().Ops {
				if top, ok := op.(kernels.TopK); ok {
					logits = slices.Clone(a.Runner().Row(top.Logits, row))
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range step.Top {
			fail(float64(logits[int(want[0])])-want[1], "step %d: logit of token %v is %v, the other engine's %v", i, want[0],
				logits[int(want[0])], want[1])
		}
		for j, want := range step.NextHidden {
			fail(float64(rows[0].State[j])-want, "step %d: number %d of the next state is %v, want %v", i, j, rows[0].State[j], want)
		}
		for _, want := range step.Float {
			id := int(want[0])
			at := slices.IndexFunc(step.Top, func(e [2]float64) bool { return int(e[0]) == id })
			if at >= 0 {
				ours, theirs = ours+math.Pow(float64(logits[id])-want[1], 2), theirs+math.Pow(step.Top[at][1]-want[1], 2)
			}
		}
	}
	n := float64(5 * len(g.Steps))
	return faults, math.Sqrt(ours / n), math.Sqrt(theirs / n)
}

// TestAssistantGuess: a guess is a chain of steps, each of which takes the best token and the state of the one before. It is the same
// behind tree rows and behind the same tokens committed, alone and beside others.
func TestAssistantGuess(t *testing.T) {
	g := readAssistantGolden(t)
	m := openAssisted(t, engine.Options{})
	var tree, line, other *engine.Sequence
	for _, s := range []**engine.Sequence{&tree, &line, &other} {
		var err error
		if *s, err = m.NewSequence(64, 16); err != nil {
			t.Fatal(err)
		}
	}
	text := g.Tokens
	hidden := func(s *engine.Sequence, p engine.Part, row int) []float32 {
		t.Helper()
		p.Seq, p.Want = s, engine.WantTail
		out, err := m.Forward([]engine.Part{p}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(out.Hidden(0, row))
	}
	n := len(text)
	a := hidden(tree, engine.Part{Extend: text[:n-2], Nodes: []tandem.Token{5, text[n-2], text[n-1], 9}, Parents: []int32{-1, -1, 1, 1}}, n)
	b := hidden(line, engine.Part{Extend: text}, n-1)
	c := hidden(other, engine.Part{Extend: text[:3]}, 2)
	ask := func(s *engine.Sequence, path []int32, h []float32) engine.GuessAsk {
		return engine.GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s, Path: path, Token: 17}
	}
	all := []engine.GuessAsk{ask(other, nil, c), ask(tree, []int32{1, 2}, a), ask(line, nil, b)}
	got, err := m.Guess(all, 3)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := m.Guess(all[2:], 3)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range []tandem.Guess{got[1], alone[0]} {
		for k := range side.AssistantLevels {
			if len(x.Levels[k]) != 3 || !slices.Equal(x.Levels[k], got[2].Levels[k]) {
				t.Errorf("guess %d, level %d: %v, want %v", i, k, x.Levels[k], got[2].Levels[k])
			}
		}
	}
	rows := []guess.Step{stepOf(t, line, 17, engine.TargetOf(m).Normed(b))}
	for k := range side.AssistantLevels {
		var best int32
		if err := assistantOf(m).Step(rows, 1, func(_ int, x kernels.Top) { best = x.IDs[0] }); err != nil {
			t.Fatal(err)
		}
		if rows[0].Token = tandem.Token(best); got[2].Levels[k][0].Token != rows[0].Token {
			t.Errorf("level %d: token %d, by single steps %d", k, got[2].Levels[k][0].Token, best)
		}
	}
	for what, bad := range map[string]engine.GuessAsk{"no sequence": ask(nil, nil, b), "a token beyond": {SelfDraft: tandem.Assistant,
		Hidden: [][]float32{b}, Seq: line, Token: 1 << 20}, "a path that is none": ask(tree, []int32{2}, a),
		"a short state": ask(line, nil, b[1:]), "two states": {SelfDraft: tandem.Assistant, Hidden: [][]float32{b, b}, Seq: line}} {
		if _, err := m.Guess([]engine.GuessAsk{bad}, 3); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("%s: %v, want Invalid", what, err)
		}
	}
}

// TestAssistantDevices: an assistant guesses the same on every kind of device, number by number.
func TestAssistantDevices(t *testing.T) {
	g := readAssistantGolden(t)
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	near := testdevice.CPU(t, 2)
	guess := func(d kernels.Device) []tandem.Guess {
		t.Helper()
		m := openAssisted(t, engine.Options{Device: d, MaxRows: 64})
		s := enginetest.NewSeq(t, m, 64, 8)
		out := enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: g.Tokens, Want: engine.WantTail})
		h := slices.Clone(out.Hidden(0, len(g.Tokens)-1))
		all, err := m.Guess([]engine.GuessAsk{{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s, Token: 750}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := guess(near)
	for on, d := range map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
		"layers":    enginetest.Fixed{Device: layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)},
		"divided":   enginetest.Halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil),
		"exchanged": enginetest.Halves(t, gpu, testdevice.CPU(t, 1), nil)} {
		if got := guess(d); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %v, want %v", on, got, want)
		}
	}
}

// TestAssistantStreamed: beside a target whose weights are streamed, in any memory from the least on, from a packed file and from the
// model's own, an assistant guesses what it does beside a resident one, between passes that it does not change. Its weights stay in memory.
// That is so for many rows at a time too, more than the target's passes have, each with a token of its own; and for an embedding that is
// the output matrix, which may be one of the stages in memory, as for one of which rows come and go.
func TestAssistantStreamed(t *testing.T) {
	g := readAssistantGolden(t)
	t.Run("tied", func(t *testing.T) { assistantStreamed(t, g, enginetest.GoldenPath(t, enginetest.Gemma4Files[0])) })
	t.Run("apart", func(t *testing.T) {
		assistantStreamed(t, g, enginetest.ChangedGolden(t, enginetest.Gemma4Files[0], func(w *gguf.Writer, f *gguf.File) {
			e := f.Tensor("token_embd.weight")
			w.Tensor("output.weight", e.Type, e.Shape, enginetest.BytesOf(t, e))
		}))
	})
}

func assistantStreamed(t *testing.T, g assistantGolden, path string) {
	side := enginetest.GoldenPath(t, enginetest.AssistantFile)
	o := engine.Options{KVPages: engine.PagesFor(4, 192, 32), MaxRows: 12, Device: testdevice.CPU(t, 2)}
	talk := func(o engine.Options) (guesses []tandem.Guess, logits []float32, f memory.Footprint) {
		t.Helper()
		m := enginetest.Open(t, path, o)
		defer m.Close()
		if err := m.OpenSide(side); err != nil {
			t.Fatal(err)
		}
		s := enginetest.NewSeq(t, m, 64, 16)
		defer s.Close()
		part := engine.Part{Seq: s, Extend: g.Tokens, Want: engine.WantTail}
		for round := range 4 {
			out := enginetest.Forward(t, m, 3, part)
			logits = append(logits, logitsOf(out)...)
			h := slices.Clone(out.Hidden(0, len(part.Extend)-1))
			var asks []engine.GuessAsk
			for i := range []int{1, 40, 100, 2}[round] {
				asks = append(asks, engine.GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s,
					Token: tandem.Token(i * 37 % 1536)})
			}
			all, err := m.Guess(asks, 5)
			if err != nil {
				t.Fatal(err)
			}
			guesses = append(guesses, all...)
			part.Extend = []tandem.Token{all[0].Levels[0][0].Token, tandem.Token(100 * round)}
		}
		return guesses, logits, engine.FootprintOf(m)
	}
	want, text, resident := talk(o)
	from := enginetest.Least(t, path, o)
	dir := t.TempDir()
	for i := range 3 {
		memory := from + (resident.Weights-resident.Beside-from)*int64(i)/3
		for _, dir := range []string{dir, ""} {
			d := enginetest.Streaming(t, memory, dir)
			o.Device = d
			got, logits, f := talk(o)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("in %d bytes, packed %v: %v, want %v", memory, dir != "", got, want)
			}
			if err := enginetest.SameBits(logits, text); err != nil {
				t.Errorf("in %d bytes, packed %v: the target: %v", memory, dir != "", err)
			}
			if s := d.StreamStats(); s.Streamed == 0 || f.Beside != resident.Beside || f.Weights > memory+f.Beside || f.Beside == 0 {
				t.Errorf("in %d bytes, packed %v: %+v, %+v", memory, dir != "", s, f)
			}
			measured, err := engine.Measure(path, o, side)
			if measured.PageBytes, measured.Pages = f.PageBytes, f.Pages; err != nil || measured != f {
				t.Errorf("in %d bytes: measured %+v, %v; it takes %+v", memory, measured, err, f)
			}
		}
	}
}

// TestStreamedBorrower: what multiplies with a matrix cannot borrow it from weights that are streamed.
func TestStreamedBorrower(t *testing.T) {
	path := enginetest.GoldenPath(t, "gemma4")
	o := engine.Options{KVPages: 8, MaxRows: 12, Device: testdevice.CPU(t, 1)}
	o.Device = enginetest.Streaming(t, enginetest.Least(t, path, o), "")
	m := enginetest.Open(t, path, o)
	plan := m.Passes().Plan()
	up := kernels.W(slices.IndexFunc(plan.Weights, func(w kernels.Weight) bool { return w.Name == "blk.0.ffn_up.weight" }))
	for _, w := range []kernels.W{engine.WeightsOf(m).Head, up} {
		p := kernels.NewProgram(4, 4)
		x := plan.Weights[w]
		in, out := p.Act(x.Cols), p.Buf(x.Rows)
		p.MatMul(p.Weight(x), in, out, kernels.MatMulOpt{})
		if _, err := kernels.Borrow(p, plan, engine.StoreOf(m), []kernels.W{w}); err == nil || !strings.Contains(err.Error(),
			"not resident") {
			t.Errorf("%s: %v, want an error", x.Name, err)
		}
	}
	p := kernels.NewProgram(4, 0)
	p.Embed(p.Weight(plan.Weights[up]), p.Buf(plan.Weights[up].Cols))
	if _, err := kernels.Borrow(p, plan, engine.StoreOf(m), []kernels.W{up}); err == nil {
		t.Error("rows of a matrix that passes multiply with are lent")
	}
	if err := engine.StoreOf(m).(kernels.RowStore).Rows(up, []int32{1}); err == nil {
		t.Error("rows of a matrix that passes multiply with are brought")
	}
}

// ofAssistants are mistakes of an assistant's steps, beside a target whose passes are right.
var ofAssistants = []enginetest.Mistake{enginetest.OtherPairs, enginetest.OtherCurve, enginetest.NoPostNorms, {Name: "no norms of heads",
	File: enginetest.Filled(1, "attn_q_norm.weight")},
	{Name: "scores scaled", Config: enginetest.UsualScale},
	{Name: "outputs of layers not scaled", File: enginetest.Filled(1, "layer_output_scale.weight")},
	{Name: "all pairs of full layers turn", File: enginetest.Filled(1, "rope_freqs.weight")},
	{Name: "the state before the embedding", File: enginetest.EachOf([]string{"nextn.pre_projection.weight"}, func(_ *family.Model,
		x *family.Tensor) {
		for row := range slices.Chunk(x.Data, 2*x.Shape[0]) {
			half := slices.Clone(row[:len(row)/2])
			copy(row, row[len(row)/2:])
			copy(row[len(row)/2:], half)
		}
	})}}

// TestAssistantMistakes: so do the figures of an assistant.
func TestAssistantMistakes(t *testing.T) {
	g := readAssistantGolden(t)
	for _, x := range ofAssistants {
		t.Run(enginetest.AssistantFile+", "+x.Name, func(t *testing.T) {
			m := enginetest.Open(t, enginetest.GoldenPath(t, "gemma4"), engine.Options{KVPages: engine.PagesFor(4, 192, 32)})
			enginetest.Mistaken(t, enginetest.AssistantFile, x, func(path string) {
				if err := m.OpenSide(path); err != nil {
					t.Fatal(err)
				}
			})
			faults, _, _ := g.faults(t, m, "f16")
			enginetest.Seen(t, faults)
		})
	}
}
