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

// TestAssistantDevices: an assistant guesses the same on every kind of device, number by number. Beside streamed weights it is refused: it
// looks its tokens up in the target's embedding.
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
	path := goldenPath("arch-gemma4.gguf")
	o := Options{KVPages: 24, MaxRows: 64, Device: near}
	o.Device = streaming(t, least(t, path, o), t.TempDir())
	m := openTest(t, path, o)
	err := m.OpenSide(goldenPath("arch-gemma4-assistant.gguf"))
	if tandem.KindOf(err) != tandem.Unsupported || !strings.Contains(err.Error(), "not resident") {
		t.Errorf("beside streamed weights: %v, want Unsupported", err)
	}
}
