package engine

import (
	"fmt"
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
)

// goldenCase is another engine's logits and those of float arithmetic.
type goldenCase struct {
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

// checkPrompt returns the sum of squares and the number of differences from float arithmetic.
func checkPrompt(t *testing.T, m *Model, c goldenCase) (square, count float64) {
	t.Helper()
	faults, square, count := promptFaults(t, m, c)
	for _, f := range faults {
		t.Errorf("%s %s", c.ID, f.what)
	}
	return square, count
}

// fault is a figure that a model does not give, and how far it is away: logits in tolerances.
type fault struct {
	what string
	away float64
}

// promptFaults compares the logits at the prompt's last positions with another engine's.
func promptFaults(t *testing.T, m *Model, c goldenCase) (faults []fault, square, count float64) {
	t.Helper()
	s := newSeq(t, m, len(c.Tokens), 0)
	defer s.Close()
	cut := len(c.Tokens) - len(c.PromptTop)
	forward(t, m, 0, Part{Seq: s, Extend: c.Tokens[:cut]})
	out := forward(t, m, 1, Part{Seq: s, Extend: c.Tokens[cut:], Want: WantAll})
	for i, top := range c.PromptTop {
		logits := out.Logits(i)
		for _, e := range top {
			if d := math.Abs(float64(logits[int(e[0])]) - e[1]); !(d <= c.Tol) {
				faults = append(faults, fault{fmt.Sprintf("position %d token %v: logit %v, the other engine's %v", cut+i, e[0],
					logits[int(e[0])], e[1]), d / c.Tol})
			}
		}
		if best := out.Top(i).IDs[0]; best != int32(top[0][0]) && top[0][1]-top[1][1] >= 2*c.Tol {
			faults = append(faults, fault{what: fmt.Sprintf("position %d: best token %d, the other engine's %v", cut+i, best, top[0][0])})
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

func checkGreedy(t *testing.T, m *Model, c goldenCase) {
	s := newSeq(t, m, len(c.Tokens)+len(c.Greedy), 0)
	defer s.Close()
	next := c.Tokens
	for i, want := range c.Greedy {
		top := forward(t, m, 1, Part{Seq: s, Extend: next, Want: WantTail}).Top(0)
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
