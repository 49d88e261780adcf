package source

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

// selfDraft is one of the target's self-drafts. It needs no opening and no call: it is ready whenever it has a guess on the tokens to come,
// which came with the latest verdict or when the session was opened at the verifier.
type selfDraft struct {
	instant
	deaf
	of        tandem.SelfDraft
	guess     tandem.Guess     // for the round to come; no levels: none
	paid      *bill            // for it
	hindsight tandem.Hindsight // on the latest tokens that it guessed without a gap
	lengths   []float64        // see expected
}

// newSelfDraft returns the source of an entry for a self-draft, nil for another entry.
func newSelfDraft(c common, _ <-chan struct{}) Source {
	if c.entry.Self == nil {
		return nil
	}
	d := &selfDraft{of: *c.entry.Self}
	d.instant = instant{common: c, draft: d.draw, before: true}
	if d.hears, d.lacks = d, "has not guessed"; d.of.Members > 0 {
		d.prompts = d
	}
	return d
}

func (d *selfDraft) guessed() bool { return len(d.guess.Levels) > 0 }

// Ready implements Source.
func (d *selfDraft) Ready() bool { return d.offers() && d.guessed() }

func (d *selfDraft) offers() bool { return d.offered() }
func (d *selfDraft) forget()      { d.guess = tandem.Guess{} }

// draw makes a tree for a proposal, of the likeliest paths through the guess.
func (d *selfDraft) draw(root tandem.Token, p tandem.Proposal) tandem.Proposed {
	g := d.guess
	g.Levels = slices.Clone(g.Levels[:min(len(g.Levels), max(p.Bounds.Depth, 0))])
	for i, level := range g.Levels {
		g.Levels[i] = level[:min(len(level), max(p.Bounds.Width, 1))]
	}
	t := tandem.Root(root)
	t.LogProbs = []float32{0}
	if !p.Bounds.Plain() {
		t = shape.Adaptive(root, g, d.rates(g), p.Bounds.Nodes)
		t, _ = spec.Cut(withoutUnlikely(t, p.Stop), p.Plan, 0)
	}
	_, depth := t.Depths()
	return tandem.Proposed{Nodes: t.Len(), Depth: depth, Busy: d.paid.share(), Tree: t}
}

// rates returns the chances of a guess's candidates, by its probabilities and what corrects them.
func (d *selfDraft) rates(g tandem.Guess) shape.Rate {
	return d.accuracies.table(d.of, d.session.Sampling.Temperature > 0).Corrected(g)
}

// withoutUnlikely returns t without the nodes whose probability is below least.
func withoutUnlikely(t tandem.Tree, least float64) tandem.Tree {
	if least <= 0 {
		return t
	}
	n := 1
	for n < t.Len() && math.Exp(float64(t.LogProbs[n])) >= least { // the likeliest come first
		n++
	}
	return tandem.Tree{Tokens: t.Tokens[:n], Parents: t.Parents[:n], LogProbs: t.LogProbs[:n]}
}

// idle implements hearer.
func (d *selfDraft) idle(root tandem.Token, b tandem.Bounds) (tandem.Proposed, bool) {
	if !d.guessed() {
		return tandem.Proposed{}, false
	}
	return d.draw(root, tandem.Proposal{Bounds: b}), true
}

// take implements hearer.
func (d *selfDraft) take(g tandem.Guess, b *bill) {
	switch {
	case d.guessed() || len(g.Levels) > d.of.Levels || g.Validate(d.Vocab) != nil:
		d.Counters.Add("guesses.garbage", 1)
		return
	case len(g.Levels) == 0 || len(g.Levels[0]) == 0:
		return
	}
	d.guess, d.paid = g, b
	b.of++
	if d.of.Members > 0 {
		d.learnLengths()
	}
}

// committed implements hearer. It compares the guess with the tokens, as hindsight. How right its levels are it learns once all the tokens
// that they are on are known: those of its round alone would count the deeper levels only where text is easy to guess.
func (d *selfDraft) committed(n int) {
	if !d.guessed() {
		d.hindsight = tandem.Hindsight{}
		return
	}
	text, g := d.session.Text, d.guess
	at := text.Len() - n
	d.look(text.Tokens[at:])
	d.session.dues = append(d.session.dues, due{at + len(g.Levels), func() {
		d.accuracies.learn(d.of, d.session.Sampling.Temperature > 0, g, text.Tokens[at:at+len(g.Levels)])
	}})
}

// look notes which of a round's committed tokens the guess had.
func (d *selfDraft) look(committed []tandem.Token) {
	for i, t := range committed[:min(len(committed), len(d.guess.Levels))] {
		hit := uint64(0)
		if level := d.guess.Levels[i]; len(level) > 0 && level[0].Token == t {
			hit = 1
		}
		d.hindsight.Hits = d.hindsight.Hits<<1 | hit
		d.hindsight.Tokens = min(d.hindsight.Tokens+1, tandem.MaxHindsight)
	}
	if len(committed) > len(d.guess.Levels) { // nothing was guessed there
		d.hindsight = tandem.Hindsight{}
		return
	}
	d.session.hindsight(d.Name(), tandem.Position(d.session.Text.Len()), d.hindsight, 0)
}

// expected returns how many tokens a round brings without guesses, with one level of them, with two and so on (PPD's f(T_i)): that
// decides which nodes get prompt nodes.
func (d *selfDraft) expected() []float64 {
	for i := len(d.lengths); i <= d.of.Levels; i++ {
		d.lengths = append(d.lengths, 2-math.Exp2(-float64(i))) // each level brings half of what the one before does
	}
	return d.lengths
}

// learnLengths lets what is expected follow the latest guess.
func (d *selfDraft) learnLengths() {
	d.expected()
	for i, g := 1, d.guess; i <= len(g.Levels); i++ {
		g.Levels = g.Levels[:i]
		t := shape.Adaptive(0, g, d.rates(g), max(d.session.Nodes/2, 2))
		sum := 0.0
		for _, lp := range t.LogProbs {
			sum += math.Exp(float64(lp))
		}
		d.lengths[i] += (sum - d.lengths[i]) / 16
		d.lengths[i] = max(d.lengths[i], d.lengths[i-1])
	}
}
