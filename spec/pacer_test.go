package spec

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// pacerByTheBook is the pacer on paths of tokens, with every sum done anew.
func pacerByTheBook(m model, p tandem.Bounds, threshold, stop float64, together int) tandem.Tree {
	type branch struct {
		path    []tandem.Token // root included
		logProb float32
		tokens  int
		dead    bool
	}
	if threshold == 0 {
		threshold = 0.3
	}
	t := tandem.Root(0)
	t.LogProbs = []float32{0}
	place := func(path []tandem.Token) (at int32) {
		for _, tok := range path[1:] {
			at = child(t, at, tok)
		}
		return at
	}
	var branches []*branch
	step := func(from branch, own *branch) {
		for i, c := range m.candidates(from.path, p.Width) {
			next := branch{path: append(slices.Clone(from.path), c.Token), logProb: from.logProb + c.LogProb, tokens: from.tokens + 1}
			switch {
			case t.Len() == p.Nodes:
				if i == 0 && own != nil {
					own.dead = true
				}
				return
			case i == 0 && own != nil:
				*own = next
			case i == 0 || c.LogProb >= float32(math.Log(threshold)):
				if len(branches) == p.Width {
					return
				}
				next.tokens = 1
				branches = append(branches, &next)
			default:
				return
			}
			t.Tokens, t.Parents, t.LogProbs = append(t.Tokens, c.Token), append(t.Parents, place(from.path)),
				append(t.LogProbs, next.logProb)
		}
	}
	step(branch{path: []tandem.Token{0}}, nil)
	for {
		likeliest := math.Inf(-1)
		sim := make([]branch, len(branches))
		for i, b := range branches {
			sim[i] = *b
			if !b.dead && len(b.path)-1 < p.Depth {
				likeliest = max(likeliest, float64(b.logProb))
			}
		}
		if math.IsInf(likeliest, -1) || float32(likeliest) < float32(math.Log(stop)) {
			return t
		}
		var chosen []int
		for len(chosen) < min(together, p.Nodes-t.Len()) {
			made, sum := 0, 0.0
			for _, b := range sim {
				made, sum = made+b.tokens, sum+math.Exp(float64(b.logProb))
			}
			best, most := -1, math.Inf(-1)
			for i, b := range sim {
				if d := float64(made)*math.Exp(float64(b.logProb))/sum - float64(b.tokens); !b.dead && len(b.path)-1 < p.Depth && d > most {
					best, most = i, d
				}
			}
			if best < 0 || slices.Contains(chosen, best) {
				break
			}
			chosen = append(chosen, best)
			sim[best].tokens++
			sim[best].path = append(slices.Clone(sim[best].path), -1)
		}
		if len(chosen) == 0 {
			return t
		}
		for _, i := range chosen {
			step(*branches[i], branches[i])
		}
	}
}

func TestPacerEqualsTheBook(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, p := genModel(r), genBounds(r)
		branch, stop := genChance(r), genChance(r)
		got := grow(r, NewPacer(0, p, branch, stop), m, math.MaxInt).Tree
		if want := pacerByTheBook(m, p, branch, stop, paceTogether); !reflect.DeepEqual(got, want) {
			r.Fatalf("%v, branch %v, stop %v:\n got %v\nwant %v", p, branch, stop, got, want)
		}
		one := grow(r, alone{NewPacer(0, p, branch, stop)}, m, math.MaxInt).Tree // the paper's: one token a pass
		if want := pacerByTheBook(m, p, branch, stop, 1); !reflect.DeepEqual(one, want) {
			r.Fatalf("%v, branch %v, stop %v, a row at a time:\n got %v\nwant %v", p, branch, stop, one, want)
		}
	})
}

// alone lets a grower run one row a pass.
type alone struct{ Grower }

func (a alone) Pending(room int) []Row { return a.Grower.Pending(min(room, 1)) }

// TestStop: whatever the growth, no pass is run once every node that it could run has less probability than the
// threshold, and the tree is the one without a threshold until then.
func TestStop(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m, p := genModel(r), genBounds(r)
		q := tandem.Proposal{Bounds: p, Growth: rapid.SampledFrom([]tandem.Growth{tandem.GrowLevels, tandem.GrowBest,
			tandem.GrowPacer}).Draw(r, "growth"), Branch: genChance(r)}
		free := NewGrower(0, q)
		q.Stop = genChance(r)
		bound := NewGrower(0, q)
		for pass := 0; ; pass++ {
			want, got := free.Pending(math.MaxInt), bound.Pending(math.MaxInt)
			if len(got) == 0 {
				for _, row := range want {
					if pass > 0 && row.LogProb >= float32(math.Log(q.Stop)) {
						r.Fatalf("stopped at %v although %+v was to be run", q.Stop, row)
					}
				}
				return
			}
			if !reflect.DeepEqual(got, want) {
				r.Fatalf("pass %d:\n got %+v\nwant %+v", pass, got, want)
			}
			lists, likeliest := make([][]Candidate, len(got)), math.Inf(-1)
			for i, row := range got {
				lists[i] = m.candidates([]tandem.Token{row.Token, tandem.Token(row.Depth)}, p.Width)
				likeliest = max(likeliest, float64(row.LogProb))
			}
			if q.Growth == tandem.GrowLevels && float32(likeliest) < float32(math.Log(q.Stop)) {
				r.Fatalf("went on at %v with %+v", q.Stop, got)
			}
			free.Absorb(lists)
			bound.Absorb(lists)
		}
	})
}

func BenchmarkPacer(b *testing.B) {
	m := model{1, 64}
	lists := make([][]Candidate, paceTogether)
	for i := range lists {
		lists[i] = m.candidates([]tandem.Token{tandem.Token(i)}, 10)
	}
	for b.Loop() {
		t := NewPacer(0, tandem.Bounds{Nodes: 16, Depth: 7, Width: 10}, 0.3, 0)
		for rows := t.Pending(999); len(rows) > 0; rows = t.Pending(999) {
			t.Absorb(lists[:len(rows)])
		}
		t.Draft()
	}
}
