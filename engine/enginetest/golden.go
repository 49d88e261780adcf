package enginetest

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/test/testkit/family"
)

// GoldenPath writes a golden model and returns its path. Its bytes are the same every time.
func GoldenPath(t testing.TB, name string) string {
	t.Helper()
	return family.Golden(name).Write(t, t.TempDir())
}

// FiguresOf returns the file with the figures of a golden model.
func FiguresOf(name string) string { return "engine/arch/testdata/golden/" + name + ".json" }

// ReadFigures returns the figures of a golden model (engine/arch/testdata/golden/README.md), and the path of its file.
func ReadFigures(t *testing.T, name string) (c GoldenCase, path string) {
	t.Helper()
	figures, err := os.ReadFile(InRepository(FiguresOf(name)))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(figures, &c); err != nil {
		t.Fatal(err)
	}
	if n := len(c.Tokens); c.Tol <= 0 || n == 0 || len(c.PromptTop) != n || len(c.FloatTop) != n || len(c.Greedy) == 0 ||
		len(c.Top2) != len(c.Greedy) {
		t.Fatalf("tolerance %v; of %d positions %d have figures and %d those of float arithmetic; of %d tokens continued %d", c.Tol, n,
			len(c.PromptTop), len(c.FloatTop), len(c.Greedy), len(c.Top2))
	}
	c.ID, path = name, GoldenPath(t, name)
	SameModel(t, path, c.Digest)
	return c, path
}

// SameModel ends the test if figures are of another model than the one at path.
func SameModel(t *testing.T, path, digest string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if is := fmt.Sprintf("%x", sha256.Sum256(b)); is != digest {
		t.Fatalf("%s has digest %s, the figures are of %s: want a model of that digest, or new "+
			"figures (engine/arch/testdata/golden/README.md)",
			path, is, digest)
	}
}

// Other returns the other engine's logit of a token at a position; NaN if it is not known.
func (c *GoldenCase) Other(i, id int) float64 {
	for _, e := range c.PromptTop[i] {
		if int(e[0]) == id {
			return e[1]
		}
	}
	return math.NaN()
}

// Distance returns the r.m.s. distance of some logits, or of float_top for nil, from logits by the formulas, over the tokens of float_top.
func (c *GoldenCase) Distance(logits func(i, id int) float64, formulas [][]float64) float64 {
	var square, count float64
	for i, top := range c.FloatTop {
		for _, e := range top {
			x := e[1]
			if logits != nil {
				x = logits(i, int(e[0]))
			}
			if d := x - formulas[i][int(e[0])]; d == d {
				square, count = square+d*d, count+1
			}
		}
	}
	return math.Sqrt(square / count)
}

// OtherDistance returns the other engine's r.m.s. distance from float arithmetic, over the logits of which both figures are known.
func (c *GoldenCase) OtherDistance() float64 {
	var square, count float64
	for i, top := range c.FloatTop {
		for _, e := range top {
			if o := c.Other(i, int(e[0])); !math.IsNaN(o) {
				square, count = square+(o-e[1])*(o-e[1]), count+1
			}
		}
	}
	return math.Sqrt(square / count)
}

// GoldenCase is another engine's logits and those of float arithmetic.
type GoldenCase struct {
	Model     string         `json:"model"`
	ID        string         `json:"id"`
	Tol       float64        `json:"tol"`
	Tokens    []tandem.Token `json:"tokens"`
	PromptTop [][][2]float64 `json:"prompt_top"`
	FloatTop  [][][2]float64 `json:"float_top"`
	Greedy    []tandem.Token `json:"greedy"`
	Top2      [][][2]float64 `json:"greedy_top2"`
	OtherRMS  float64        `json:"other_engine_rms"`
	Digest    string         `json:"sha256"` // of the model's file, which is made
}

// CheckPrompt returns the sum of squares and the number of differences from float arithmetic.
func CheckPrompt(t *testing.T, m *engine.Model, c GoldenCase) (square, count float64) {
	t.Helper()
	faults, square, count := PromptFaults(t, m, c)
	for _, f := range faults {
		t.Errorf("%s %s", c.ID, f.What)
	}
	return square, count
}

// Fault is a figure that a model does not give, and how far it is away: logits in tolerances.
type Fault struct {
	What string
	Away float64
}

// PromptFaults compares the logits at the prompt's last positions with another engine's.
func PromptFaults(t *testing.T, m *engine.Model, c GoldenCase) (faults []Fault, square, count float64) {
	t.Helper()
	s := NewSeq(t, m, len(c.Tokens), 0)
	defer s.Close()
	cut := len(c.Tokens) - len(c.PromptTop)
	Forward(t, m, 0, engine.Part{Seq: s, Extend: c.Tokens[:cut]})
	out := Forward(t, m, 1, engine.Part{Seq: s, Extend: c.Tokens[cut:], Want: engine.WantAll})
	for i, top := range c.PromptTop {
		logits := out.Logits(i)
		for _, e := range top {
			if d := math.Abs(float64(logits[int(e[0])]) - e[1]); !(d <= c.Tol) {
				faults = append(faults, Fault{fmt.Sprintf("position %d token %v: logit %v, the other engine's %v", cut+i, e[0],
					logits[int(e[0])], e[1]), d / c.Tol})
			}
		}
		if best := out.Top(i).IDs[0]; best != int32(top[0][0]) && top[0][1]-top[1][1] >= 2*c.Tol {
			faults = append(faults, Fault{What: fmt.Sprintf("position %d: best token %d, the other engine's %v", cut+i, best, top[0][0])})
		}
		if c.FloatTop == nil {
			continue
		}
		for _, e := range c.FloatTop[i] {
			d := float64(logits[int(e[0])]) - e[1]
			square, count = square+d*d, count+1
		}
	}
	return faults, square, count
}

func CheckGreedy(t *testing.T, m *engine.Model, c GoldenCase) {
	s := NewSeq(t, m, len(c.Tokens)+len(c.Greedy), 0)
	defer s.Close()
	next := c.Tokens
	for i, want := range c.Greedy {
		top := Forward(t, m, 1, engine.Part{Seq: s, Extend: next, Want: engine.WantTail}).Top(0)
		if c.Top2[i][0][1]-c.Top2[i][1][1] < 2*c.Tol {
			return // from here on both continuations are right
		}
		if got := tandem.Token(top.IDs[0]); got != want {
			t.Errorf("%s greedy token %d is %d: the other engine's is %d", c.ID, i, got, want)
			return
		}
		next = []tandem.Token{want}
	}
}
