package engine

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/split"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// assistantGolden is another engine's figures for an assistant: ../shared/golden/arch2026/README.md.
type assistantGolden struct {
	Tokens    []tandem.Token
	Tolerance float64
	Steps     []struct {
		Token      tandem.Token
		Position   int
		Hidden     []float32
		Top        [][2]float64
		NextHidden []float64 `json:"next_hidden"`
	}
}

func goldenPath(name string) string { return filepath.Join(shared, "golden/arch2026", name) }

func readAssistantGolden(t *testing.T) (g assistantGolden) {
	t.Helper()
	b, err := os.ReadFile(goldenPath("arch-gemma4-assistant.json"))
	if err != nil {
		t.Skipf("%v: figures of another engine are not here", err)
	}
	if err := json.Unmarshal(b, &g); err != nil {
		t.Fatal(err)
	}
	if len(g.Steps) == 0 || g.Tolerance <= 0 || len(g.Tokens) == 0 {
		t.Fatalf("%d steps behind %d tokens with tolerance %v", len(g.Steps), len(g.Tokens), g.Tolerance)
	}
	return g
}

// openAssisted opens the golden target with its assistant.
func openAssisted(t *testing.T, o Options) *Model {
	t.Helper()
	o.KVPages = PagesFor(4, 192, 32)
	m := openTest(t, goldenPath("arch-gemma4.gguf"), o)
	if err := m.OpenSide(goldenPath("arch-gemma4-assistant.gguf")); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestGoldenAssistant: each step by itself, from the state in the file, gives another engine's logits and next state.
func TestGoldenAssistant(t *testing.T) {
	g := readAssistantGolden(t)
	for _, kv := range []string{"f16", "q8_0"} {
		m := openAssisted(t, Options{KVType: kv})
		s, err := m.NewSequence(64, 8)
		if err != nil {
			t.Fatal(err)
		}
		out, err := m.Forward([]Part{{Seq: s, Extend: g.Tokens, Want: WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		tolerance := g.Tolerance
		if kv == "q8_0" { // the figures are of an f16 cache
			tolerance = 0.5
		}
		last := m.normed(out.Hidden(0, len(g.Tokens)-1))
		away := 0.0
		for i, x := range g.Steps[0].Hidden {
			away = max(away, math.Abs(float64(last[i]-x)))
		}
		if away > tolerance {
			t.Errorf("%s: the target's last state is up to %g from the file's", kv, away)
		}
		var square, states, count float64
		for i, step := range g.Steps {
			if step.Position != s.Len() {
				t.Fatalf("step %d is at position %d, the target has %d tokens", i, step.Position, s.Len())
			}
			rows := []drafting{{step.Token, step.Hidden, s, nil}}
			err := m.assistant.step(m, rows, len(step.Top), func(_ int, best kernels.Top) {
				for j, want := range step.Top {
					at := slices.Index(best.IDs, int32(want[0]))
					if at < 0 {
						if j == 0 || math.Abs(float64(best.Logits[len(best.Logits)-1])-want[1]) > 2*tolerance {
							t.Errorf("%s, step %d: token %v is not among %v", kv, i, want[0], best.IDs)
						}
						continue
					}
					d := float64(best.Logits[at]) - want[1]
					if square, count = square+d*d, count+1; math.Abs(d) > tolerance {
						t.Errorf("%s, step %d: logit of token %v is %v, want %v", kv, i, want[0], best.Logits[at], want[1])
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			for j, want := range step.NextHidden {
				d := float64(rows[0].state[j]) - want
				if states = max(states, math.Abs(d)); math.Abs(d) > tolerance {
					t.Fatalf("%s, step %d: number %d of the next state is %v, want %v", kv, i, j, rows[0].state[j], want)
				}
			}
		}
		t.Logf("%s: r.m.s. distance of logits %.5f, largest of states %.5f", kv, math.Sqrt(square/count), states)
	}
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
		return GuessAsk{Way: tandem.WayAssistant, Hidden: [][]float32{h}, Seq: s, Path: path, Token: 17}
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
		for k := range assistantLevels {
			if len(x.Levels[k]) != 3 || !slices.Equal(x.Levels[k], got[2].Levels[k]) {
				t.Errorf("guess %d, level %d: %v, want %v", i, k, x.Levels[k], got[2].Levels[k])
			}
		}
	}
	rows := []drafting{{17, m.normed(b), line, nil}}
	for k := range assistantLevels {
		var best int32
		if err := m.assistant.step(m, rows, 1, func(_ int, x kernels.Top) { best = x.IDs[0] }); err != nil {
			t.Fatal(err)
		}
		if rows[0].token = tandem.Token(best); got[2].Levels[k][0].Token != rows[0].token {
			t.Errorf("level %d: token %d, by single steps %d", k, got[2].Levels[k][0].Token, best)
		}
	}
	for what, bad := range map[string]GuessAsk{"no sequence": ask(nil, nil, b), "a token beyond": {Way: tandem.WayAssistant,
		Hidden: [][]float32{b}, Seq: line, Token: 1 << 20}, "a path that is none": ask(tree, []int32{2}, a),
		"a short state": ask(line, nil, b[1:]), "two states": {Way: tandem.WayAssistant, Hidden: [][]float32{b, b}, Seq: line}} {
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
		all, err := m.Guess([]GuessAsk{{Way: tandem.WayAssistant, Hidden: [][]float32{h}, Seq: s, Token: 750}}, 5)
		if err != nil {
			t.Fatal(err)
		}
		return all
	}
	want := guess(near)
	for on, d := range map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
		"layers":    fixed{layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)},
		"divided":   halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), split.Plan{}),
		"exchanged": halves(t, gpu, testdevice.CPU(t, 1), split.Plan{})} {
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
	t.Run("tied", func(t *testing.T) { assistantStreamed(t, g, goldenPath(gemma4Files[0])) })
	t.Run("apart", func(t *testing.T) {
		assistantStreamed(t, g, changed(t, gemma4Files[0], func(w *gguf.Writer, f *gguf.File) {
			e := f.Tensor("token_embd.weight")
			w.Tensor("output.weight", e.Type, e.Shape, bytesOf(t, e))
		}))
	})
}

func assistantStreamed(t *testing.T, g assistantGolden, path string) {
	side := goldenPath(assistantFile)
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
				asks = append(asks, GuessAsk{Way: tandem.WayAssistant, Hidden: [][]float32{h}, Seq: s, Token: tandem.Token(i * 37 % 1536)})
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
	path := goldenPath("arch-gemma4.gguf")
	needGolden(t, "arch-gemma4.gguf")
	o := Options{KVPages: 8, MaxRows: 12, Device: testdevice.CPU(t, 1)}
	o.Device = streaming(t, least(t, path, o), "")
	m := openTest(t, path, o)
	for _, w := range []kernels.W{m.weights.head, m.weights.layers[0].up} {
		p := kernels.NewProgram(4, 4)
		x := m.plan.Weights[w]
		in, out := p.Act(x.Cols), p.Buf(x.Rows)
		p.MatMul(p.Weight(x), in, out, kernels.MatMulOpt{})
		if _, err := kernels.Borrow(p, m.plan, m.store, []kernels.W{w}); err == nil || !strings.Contains(err.Error(), "not resident") {
			t.Errorf("%s: %v, want an error", x.Name, err)
		}
	}
	p := kernels.NewProgram(4, 0)
	p.Embed(p.Weight(m.plan.Weights[m.weights.layers[0].up]), p.Buf(m.plan.Weights[m.weights.layers[0].up].Cols))
	if _, err := kernels.Borrow(p, m.plan, m.store, []kernels.W{m.weights.layers[0].up}); err == nil {
		t.Error("rows of a matrix that passes multiply with are lent")
	}
	if err := m.store.(kernels.Lookup).Rows(m.weights.layers[0].up, []int32{1}); err == nil {
		t.Error("rows of a matrix that passes multiply with are brought")
	}
}
