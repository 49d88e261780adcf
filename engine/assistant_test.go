package engine

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
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// assistantGolden is what assistants compute by float arithmetic (testdata/golden/README.md). Each step is given its hidden state, so that
// an error does not spread. All are at the position behind the tokens, and the first has the target's last state.
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
	b, err := os.ReadFile("testdata/golden/gemma4-assistant.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	sameModel(t, goldenPath(t, "gemma4"), g.Target)
	sameModel(t, goldenPath(t, assistantFile), g.Assistant)
	if len(g.Steps) == 0 || g.Tolerance <= 0 || len(g.Tokens) == 0 {
		t.Fatalf("%d steps behind %d tokens with tolerance %v", len(g.Steps), len(g.Tokens), g.Tolerance)
	}
	return g
}

// openAssisted opens the golden target with its assistant.
func openAssisted(t *testing.T, o Options) *Model {
	t.Helper()
	o.KVPages = PagesFor(4, 192, 32)
	m := openTest(t, goldenPath(t, "gemma4"), o)
	if err := m.OpenSide(goldenPath(t, assistantFile)); err != nil {
		t.Fatal(err)
	}
	return m
}

// assistantOf returns the assistant that is open beside m.
func assistantOf(m *Model) *guess.Assistant { return m.beside.Of(tandem.Assistant).(*guess.Assistant) }

// stepOf returns a step behind the committed positions of s.
func stepOf(t *testing.T, s *Sequence, token tandem.Token, state []float32) guess.Step {
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
		faults, ours, theirs := g.faults(t, openAssisted(t, Options{KVType: kv}), kv)
		for _, f := range faults {
			t.Errorf("%s, %s", kv, f.what)
		}
		t.Logf("%s: r.m.s. distance of logits from float arithmetic %.5f, the other engine's %.5f", kv, ours, theirs)
		if kv == "f16" && !(ours < theirs) {
			t.Errorf("r.m.s. distance from float arithmetic %.5f: the other engine: %.5f", ours, theirs)
		}
	}
}

// faults compares an assistant's steps with the figures, and returns its r.m.s. distance from float arithmetic, and the other engine's.
func (g *assistantGolden) faults(t *testing.T, m *Model, kv string) (faults []fault, ours, theirs float64) {
	t.Helper()
	tolerance := g.Tolerance
	if kv == "q8_0" { // the figures are of a cache of floats
		tolerance = 0.5
	}
	fail := func(d float64, format string, args ...any) {
		if !(math.Abs(d) <= tolerance) {
			faults = append(faults, fault{fmt.Sprintf(format, args...), math.Abs(d) / tolerance})
		}
	}
	s := newSeq(t, m, 64, 8)
	out := forward(t, m, 1, Part{Seq: s, Extend: g.Tokens, Want: WantTail})
	last := opening{m}.target().Normed(out.Hidden(0, len(g.Tokens)-1))
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
	m := openAssisted(t, Options{})
	var tree, line, other *Sequence
	for _, s := range []**Sequence{&tree, &line, &other} {
		var err error
		if *s, err = m.NewSequence(64, 16); err != nil {
			t.Fatal(err)
		}
	}
	text := g.Tokens
	hidden := func(s *Sequence, p Part, row int) []float32 {
		t.Helper()
		p.Seq, p.Want = s, WantTail
		out, err := m.Forward([]Part{p}, 1)
		if err != nil {
			t.Fatal(err)
		}
		return slices.Clone(out.Hidden(0, row))
	}
	n := len(text)
	a := hidden(tree, Part{Extend: text[:n-2], Nodes: []tandem.Token{5, text[n-2], text[n-1], 9}, Parents: []int32{-1, -1, 1, 1}}, n)
	b := hidden(line, Part{Extend: text}, n-1)
	c := hidden(other, Part{Extend: text[:3]}, 2)
	ask := func(s *Sequence, path []int32, h []float32) GuessAsk {
		return GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s, Path: path, Token: 17}
	}
	all := []GuessAsk{ask(other, nil, c), ask(tree, []int32{1, 2}, a), ask(line, nil, b)}
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
	rows := []guess.Step{stepOf(t, line, 17, opening{m}.target().Normed(b))}
	for k := range side.AssistantLevels {
		var best int32
		if err := assistantOf(m).Step(rows, 1, func(_ int, x kernels.Top) { best = x.IDs[0] }); err != nil {
			t.Fatal(err)
		}
		if rows[0].Token = tandem.Token(best); got[2].Levels[k][0].Token != rows[0].Token {
			t.Errorf("level %d: token %d, by single steps %d", k, got[2].Levels[k][0].Token, best)
		}
	}
	for what, bad := range map[string]GuessAsk{"no sequence": ask(nil, nil, b), "a token beyond": {SelfDraft: tandem.Assistant,
		Hidden: [][]float32{b}, Seq: line, Token: 1 << 20}, "a path that is none": ask(tree, []int32{2}, a),
		"a short state": ask(line, nil, b[1:]), "two states": {SelfDraft: tandem.Assistant, Hidden: [][]float32{b, b}, Seq: line}} {
		if _, err := m.Guess([]GuessAsk{bad}, 3); tandem.KindOf(err) != tandem.Invalid {
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
		m := openAssisted(t, Options{Device: d, MaxRows: 64})
		s := newSeq(t, m, 64, 8)
		out := forward(t, m, 1, Part{Seq: s, Extend: g.Tokens, Want: WantTail})
		h := slices.Clone(out.Hidden(0, len(g.Tokens)-1))
		all, err := m.Guess([]GuessAsk{{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s, Token: 750}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := guess(near)
	for on, d := range map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
		"layers":    fixed{layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)},
		"divided":   halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil),
		"exchanged": halves(t, gpu, testdevice.CPU(t, 1), nil)} {
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
	t.Run("tied", func(t *testing.T) { assistantStreamed(t, g, goldenPath(t, gemma4Files[0])) })
	t.Run("apart", func(t *testing.T) {
		assistantStreamed(t, g, changed(t, gemma4Files[0], func(w *gguf.Writer, f *gguf.File) {
			e := f.Tensor("token_embd.weight")
			w.Tensor("output.weight", e.Type, e.Shape, bytesOf(t, e))
		}))
	})
}

func assistantStreamed(t *testing.T, g assistantGolden, path string) {
	side := goldenPath(t, assistantFile)
	o := Options{KVPages: PagesFor(4, 192, 32), MaxRows: 12, Device: testdevice.CPU(t, 2)}
	talk := func(o Options) (guesses []tandem.Guess, logits []float32, f Footprint) {
		t.Helper()
		m := openTest(t, path, o)
		defer m.Close()
		if err := m.OpenSide(side); err != nil {
			t.Fatal(err)
		}
		s := newSeq(t, m, 64, 16)
		defer s.Close()
		part := Part{Seq: s, Extend: g.Tokens, Want: WantTail}
		for round := range 4 {
			out := forward(t, m, 3, part)
			logits = append(logits, logitsOf(out)...)
			h := slices.Clone(out.Hidden(0, len(part.Extend)-1))
			var asks []GuessAsk
			for i := range []int{1, 40, 100, 2}[round] {
				asks = append(asks, GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{h}, Seq: s,
					Token: tandem.Token(i * 37 % 1536)})
			}
			all, err := m.Guess(asks, 5)
			if err != nil {
				t.Fatal(err)
			}
			guesses = append(guesses, all...)
			part.Extend = []tandem.Token{all[0].Levels[0][0].Token, tandem.Token(100 * round)}
		}
		return guesses, logits, m.footprint
	}
	want, text, resident := talk(o)
	from := least(t, path, o)
	dir := t.TempDir()
	for i := range 3 {
		memory := from + (resident.Weights-resident.Beside-from)*int64(i)/3
		for _, dir := range []string{dir, ""} {
			d := streaming(t, memory, dir)
			o.Device = d
			got, logits, f := talk(o)
			if !reflect.DeepEqual(got, want) {
				t.Errorf("in %d bytes, packed %v: %v, want %v", memory, dir != "", got, want)
			}
			if err := sameBits(logits, text); err != nil {
				t.Errorf("in %d bytes, packed %v: the target: %v", memory, dir != "", err)
			}
			if s := d.StreamStats(); s.Streamed == 0 || f.Beside != resident.Beside || f.Weights > memory+f.Beside || f.Beside == 0 {
				t.Errorf("in %d bytes, packed %v: %+v, %+v", memory, dir != "", s, f)
			}
			measured, err := Measure(path, o, side)
			if measured.PageBytes, measured.Pages = f.PageBytes, f.Pages; err != nil || measured != f {
				t.Errorf("in %d bytes: measured %+v, %v; it takes %+v", memory, measured, err, f)
			}
		}
	}
}

// TestStreamedBorrower: what multiplies with a matrix cannot borrow it from weights that are streamed.
func TestStreamedBorrower(t *testing.T) {
	path := goldenPath(t, "gemma4")
	o := Options{KVPages: 8, MaxRows: 12, Device: testdevice.CPU(t, 1)}
	o.Device = streaming(t, least(t, path, o), "")
	m := openTest(t, path, o)
	for _, w := range []kernels.W{m.weights.Head, m.weights.Layers[0].Up} {
		p := kernels.NewProgram(4, 4)
		x := m.plan.Weights[w]
		in, out := p.Act(x.Cols), p.Buf(x.Rows)
		p.MatMul(p.Weight(x), in, out, kernels.MatMulOpt{})
		if _, err := kernels.Borrow(p, m.plan, m.store, []kernels.W{w}); err == nil || !strings.Contains(err.Error(), "not resident") {
			t.Errorf("%s: %v, want an error", x.Name, err)
		}
	}
	p := kernels.NewProgram(4, 0)
	p.Embed(p.Weight(m.plan.Weights[m.weights.Layers[0].Up]), p.Buf(m.plan.Weights[m.weights.Layers[0].Up].Cols))
	if _, err := kernels.Borrow(p, m.plan, m.store, []kernels.W{m.weights.Layers[0].Up}); err == nil {
		t.Error("rows of a matrix that passes multiply with are lent")
	}
	if err := m.store.(kernels.RowStore).Rows(m.weights.Layers[0].Up, []int32{1}); err == nil {
		t.Error("rows of a matrix that passes multiply with are brought")
	}
}
