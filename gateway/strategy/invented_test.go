package strategy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
)

// invented makes a text of which a draft guesses that share, with honest probabilities: some tokens are nearly sure, others are not.
// copied is the share of the text that repeats the prompt, in runs that lookup finds.
func invented(class string, seed uint64, prompt, tokens int, right, copied float64) *recorded {
	r := rand.New(rand.NewPCG(seed, 32))
	x := &recorded{class: class}
	next := tandem.Token(1000)
	fresh := func() tandem.Token { next++; return next % 30000 }
	for range prompt {
		x.prompt = append(x.prompt, fresh())
	}
	for at := 0; len(x.text) < tokens; {
		if run := 30; r.Float64() < copied/float64(run)/max(1-copied, 0.01) && at+run < prompt {
			x.text = append(x.text, x.prompt[at:at+run]...)
			at += run
		} else {
			x.text = append(x.text, fresh())
		}
	}
	x.text = x.text[:tokens]
	// the confidence of a guess: its mean is right
	sure := func() float64 {
		if u := r.Float64(); u < 2*right-1 {
			return 0.99
		} else if right > 0.5 {
			return 0.02 + 0.96*r.Float64()
		}
		return min(2*right*r.Float64(), 0.98)
	}
	two := func(p float64) []spec.Candidate {
		return []spec.Candidate{{Token: fresh(), LogProb: float32(math.Log(p))}, {Token: fresh(), LogProb: float32(math.Log((1 - p) / 2))}}
	}
	var beside func(depth int) *trie
	beside = func(depth int) *trie {
		if depth == 0 {
			return nil
		}
		p := sure()
		return &trie{list: two(p), next: []*trie{beside(depth - 1), nil}}
	}
	tries := make([]*trie, tokens)
	for i := range tries {
		p := sure()
		n := &trie{list: two(p), next: []*trie{beside(6), beside(1)}}
		switch u := r.Float64(); {
		case u < p:
			n.list[0].Token = x.text[i]
		case u < p+(1-p)/2:
			n.list[1].Token = x.text[i]
		}
		tries[i] = n
	}
	g := guessed{drafter: pairDraft, tries: tries, places: map[*trie]int{}, said: tandem.Hindsight{Tokens: 40}}
	for i, n := range tries {
		g.places[n] = i
	}
	for i := range 40 {
		if r.Float64() < right {
			g.said.Hits |= 1 << i
		}
	}
	x.of = []guessed{g}
	return x
}

// texts returns n invented texts.
func texts(class string, n int, right, copied float64) (list []*recorded) {
	for i := range n {
		list = append(list, invented(class, uint64(i), 60, 160, right, copied))
	}
	return list
}

// inventedBox is pairWide where a pass of the draft takes that share of the target's, less if it is wide.
func inventedBox(share float64) *box {
	var draft []tandem.Cost
	for _, c := range pairWide.verify {
		of := share * (1 - 0.25*float64(min(c.Rows, 32))/32)
		draft = append(draft, tandem.Cost{Rows: c.Rows, Time: time.Duration(of * float64(c.Time))})
	}
	return newPairBox(pairWide.verify, draft)
}

var inventedNames = []string{pairDraft, lookup}

// chains returns the rate of the best fixed choice in each class: plain, chains of the draft, lookup.
func (b *box) chains(t testing.TB, list []*recorded) (best map[string]float64, who map[string]string) {
	best, who = map[string]float64{}, map[string]string{}
	try := func(name string, names []string, shape tandem.Bounds) {
		for class, sum := range b.every(t, list, tandem.Request{Strategy: tandem.StrategyFixed, Bounds: shape}, names) {
			if sum.rate() > best[class] {
				best[class], who[class] = sum.rate(), name
			}
		}
	}
	try(Plain, nil, tandem.Bounds{})
	for depth := 1; depth <= 8; depth++ {
		shape := tandem.Bounds{Nodes: depth + 1, Depth: depth, Width: 1}
		try(fmt.Sprint("chain ", depth), []string{pairDraft}, shape)
		try(fmt.Sprint("lookup ", depth), []string{lookup}, shape)
	}
	return best, who
}

// TestInventedPair: drafts of five costs and texts of four kinds: the planner beside plain decoding and the best chain, with what the draft
// model reads first; and the same text fresh, after eight of prose and after eight edits.
func TestInventedPair(t *testing.T) {
	kinds := []struct {
		class         string
		right, copied float64
	}{{"prose", 0.5, 0}, {"mixed", 0.7, 0}, {"code", 0.88, 0}, {"edit", 0.7, 0.7}}
	for _, share := range []float64{0.02, 0.07, 0.16, 0.32, 0.45} {
		b := inventedBox(share)
		for _, k := range kinds {
			list := texts(k.class, 8, k.right, k.copied)
			best, who := b.chains(t, list)
			plain := b.every(t, list, tandem.Request{Strategy: tandem.StrategyFixed}, nil)[k.class].rate()
			sum := b.every(t, list, planned(), inventedNames)[k.class]
			if sum.rate() < 0.97*plain || sum.rate() < 0.95*best[k.class] {
				t.Errorf("%.2f %s: %.1f/s, plain %.1f, %s %.1f: want 0.97 and 0.95", share, k.class, sum.rate(), plain, who[k.class],
					best[k.class])
			}
			t.Logf("%.2f %-6s plain %.1f/s planner %.1f/s %.3f × plain, %.3f × %s (%.3f); %.2f tokens of %.1f nodes", share, k.class, plain,
				sum.rate(), sum.rate()/plain, sum.rate()/best[k.class], who[k.class], best[k.class]/plain,
				float64(sum.tokens)/float64(sum.rounds),
				float64(sum.nodes)/float64(sum.rounds))
		}
	}
	// the same texts, each on a fresh gateway, and after others
	b := inventedBox(0.45)
	for _, k := range kinds {
		fresh := 0.0
		for _, before := range []string{"nothing", "prose", "edit"} {
			var all tally
			for _, r := range texts(k.class, 8, k.right, k.copied) {
				list := []*recorded{r}
				switch before {
				case "prose":
					list = append(texts("before", 8, 0.5, 0), r)
				case "edit":
					list = append(texts("before", 8, 0.7, 0.7), r)
				}
				all.add(*b.every(t, list, planned(), inventedNames)[k.class])
			}
			if fresh == 0 {
				fresh = all.rate()
			} else if off := all.rate() / fresh; off < 0.95 {
				t.Errorf("%s: %.3f of the speed on a fresh gateway after eight texts of %s: want 0.95", k.class, off, before)
			}
			t.Logf("%-6s after %-7s %.1f/s", k.class, before, all.rate())
		}
	}
}
