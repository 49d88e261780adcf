package spec

import (
	"math"
	"reflect"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
)

func lp(p float64) float32 { return float32(math.Log(p)) }

// pair returns two candidates.
func pairOf(a tandem.Token, p float64, b tandem.Token, q float64) []Candidate {
	return []Candidate{{a, lp(p)}, {b, lp(q)}}
}

// TestSketchOfAllExplored: with everything explored a sketch is the grower's tree, whatever was foretold.
func TestSketchOfAllExplored(t *testing.T) {
	var e Explored
	p := tandem.Proposal{Bounds: tandem.Bounds{Nodes: 6, Depth: 2, Width: 2}}
	if s := NewSketch(&e, 9, p, new(Trust)); !s.Root || len(s.Open) != 0 || s.Tree.Len() != 1 {
		t.Fatalf("nothing explored: %+v: want the root to be run", s)
	}
	e.Start(pairOf(1, 0.6, 2, 0.3), 2)
	e.Foretell(0, [][]Candidate{pairOf(50, 0.5, 51, 0.4)})
	e.Add(0, 2, pairOf(3, 0.7, 4, 0.2), 0)
	e.Add(0, 1, pairOf(5, 0.9, 6, 0.05), 0)
	g := NewGrower(9, p)
	for _, lists := range [][][]Candidate{{e.Candidates(0)}, {e.Candidates(2), e.Candidates(1)}} {
		g.Pending(9)
		g.Absorb(lists)
	}
	s := NewSketch(&e, 9, p, new(Trust))
	if want := g.Draft().Tree; !reflect.DeepEqual(s.Tree, want) || len(s.Open) > 0 || !reflect.DeepEqual(s.Used, []int32{1, 2}) {
		t.Errorf("sketch %+v: want the tree %+v", s, want)
	}
	if n := s.Worth(NewChildren(nil), tandem.Plan{}, 0, time.Second, 0); n != 0 {
		t.Errorf("%d open nodes of none", n)
	}
}

// TestSketchOpensWhatIsForetold: the levels below the root are foretold, so the tree goes through them, and the nodes on its paths are
// open, likeliest first, each behind its parent.
func TestSketchOpensWhatIsForetold(t *testing.T) {
	var e Explored
	e.Start(pairOf(1, 0.6, 2, 0.3), 2)
	e.Foretell(0, [][]Candidate{pairOf(3, 0.5, 4, 0.3), {{5, lp(0.5)}}})
	p := tandem.Proposal{Bounds: tandem.Bounds{Nodes: 12, Depth: 4, Width: 2}}
	s := NewSketch(&e, 9, p, new(Trust))
	depths, deepest := s.Tree.Depths()
	if deepest != 3 || s.Root || len(s.Open) == 0 || s.Tree.Validate(12, 100) != nil {
		t.Fatalf("sketch %+v: want a tree of three levels", s)
	}
	chances := map[int]float64{}
	for i, d := range depths[1:] {
		chances[int(d)] += math.Exp(float64(s.Tree.LogProbs[i+1]))
	}
	if math.Abs(chances[1]-0.9) > 1e-6 || math.Abs(chances[2]-0.9*0.8) > 1e-6 || chances[3] > 0.9*0.8*0.5+1e-6 {
		t.Errorf("levels of chances %v: want 0.9, 0.72, and at most 0.36", chances)
	}
	for i, r := range s.Open {
		if r.Parent < 0 && int(-1-r.Parent) >= i || i > 0 && r.LogProb > s.Open[i-1].LogProb || r.Parent == 0 != (r.Depth == 1) {
			t.Errorf("open node %d is %+v: want it behind its parent, and none likelier than the one before", i, r)
		}
	}
	if n := s.Worth(NewChildren(nil), tandem.Plan{}, 0, 0, len(s.Open)); n == 0 {
		t.Error("a pass over what was only foretold is worth nothing")
	}
	slow := tandem.Plan{Verify: []time.Duration{10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10, 10}, Round: 10}
	if n := s.Worth(NewChildren(nil), slow, 0, time.Second, len(s.Open)); n != 0 {
		t.Errorf("a pass of a second is to explore %d nodes for a round of 20 ns", n)
	}
	sure := NewChildren(nil)
	for _, r := range s.Open {
		sure.Learn(r, pairOf(1, 0.9, 2, 0.05), nil)
	}
	if n := s.Worth(sure, slow, 0, 0, len(s.Open)); n == 0 {
		t.Error("a pass that takes no time is worth nothing")
	}
}

// TestTrustLearns: guesses that the model itself does not share lose their chance, those that it shares keep theirs; a path of unlikely
// tokens is another matter.
func TestTrustLearns(t *testing.T) {
	tr := new(Trust)
	guess := pairOf(3, 0.5, 4, 0.3)
	if got := tr.candidates(0, 0, guess); math.Abs(float64(got[0].LogProb-lp(0.5))) > 1e-6 {
		t.Errorf("at first %v: want them believed", got)
	}
	before := tr.Lengths(2)
	for range 200 {
		var e Explored
		e.Start([]Candidate{{1, lp(0.9)}}, 1)
		e.Foretell(0, [][]Candidate{guess})
		tr.Learn(&e, e.Add(0, 1, pairOf(4, 0.9, 7, 0.05), 0))
	}
	got := tr.candidates(0, 0, guess)
	if got[0].Token != 4 || math.Abs(float64(got[0].LogProb-lp(0.9))) > 0.1 || got[1].LogProb > lp(0.05) {
		t.Errorf("after 200 samples %v: want token 4 with 0.9, and 3 with hardly anything", got)
	}
	if got := tr.candidates(0, 9, guess); math.Abs(float64(got[0].LogProb-lp(0.5))) > 1e-6 {
		t.Errorf("below unlikely tokens %v: want them believed", got)
	}
	if after := tr.Lengths(2); after[0] != 1 || len(after) != 3 || after[1] == before[1] || after[2] < after[1] {
		t.Errorf("lengths %v, before %v", after, before)
	}
	if got := tr.candidates(0, 0, []Candidate{{3, float32(math.NaN())}, {4, float32(math.Inf(-1))}}); len(got) != 0 {
		t.Errorf("candidates %v of numbers that are none", got)
	}
}

// TestSketchSteps: what is foretold may depend on the token before, also two levels down. Then a tree follows the paths that this makes.
func TestSketchSteps(t *testing.T) {
	var e Explored
	e.Start(pairOf(1, 0.5, 2, 0.4), 2)
	e.ForetellSteps(0, [][]Candidate{pairOf(3, 0.5, 4, 0.4), pairOf(5, 0.5, 6, 0.4)}, []Steps{
		{1: pairOf(3, 0.9, 4, 0.1), 2: pairOf(4, 0.8, 3, 0.1)},
		{3: pairOf(6, 0.9, 5, 0.05)}, // nothing of what comes behind 4
	})
	s := NewSketch(&e, 9, tandem.Proposal{Bounds: tandem.Bounds{Nodes: 20, Depth: 3, Width: 2}}, new(Trust))
	chances := map[[3]tandem.Token]float64{}
	for i, parent := range s.Tree.Parents {
		if depths, _ := s.Tree.Depths(); depths[i] == 3 {
			path := [3]tandem.Token{s.Tree.Tokens[s.Tree.Parents[parent]], s.Tree.Tokens[parent], s.Tree.Tokens[i]}
			chances[path] = math.Exp(float64(s.Tree.LogProbs[i]))
		}
	}
	for path, want := range map[[3]tandem.Token]float64{{1, 3, 6}: 0.5 * 0.9 * 0.9, {2, 4, 5}: 0.4 * 0.8 * 0.5} {
		if got := chances[path]; math.Abs(got/want-1) > 0.06 { // trust takes a little off sure guesses
			t.Errorf("path %d has chance %.4f, want %.4f", path, got, want)
		}
	}
	e.Retain(nil)
	if got := e.Foretells(0, 0, 2); !reflect.DeepEqual(got, pairOf(4, 0.8, 3, 0.1)) || e.Foretells(0, 1, 4)[0].Token != 5 {
		t.Errorf("behind 2: %v", got)
	}
}

// TestShift: candidates whose logits move change their order, and stay as likely together.
func TestShift(t *testing.T) {
	got := Shift(pairOf(1, 0.6, 2, 0.2), []float32{0, float32(math.Log(9))})
	for i, want := range pairOf(2, 0.6, 1, 0.2) {
		if got[i].Token != want.Token || math.Abs(float64(got[i].LogProb-want.LogProb)) > 1e-5 {
			t.Errorf("candidate %d: %v, want %v", i, got[i], want)
		}
	}
	nan := float32(math.NaN())
	if got := Shift(pairOf(1, 0.6, 2, 0.2), []float32{nan, nan}); len(got) != 2 || len(Shift(nil, nil)) != 0 {
		t.Errorf("by no numbers: %v", got)
	}
}
