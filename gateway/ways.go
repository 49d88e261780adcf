package gateway

import (
	"math"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/shape"
)

// guess is what one of the target's own ways has said about the tokens to come. It came with the latest verdict, or when the session was
// opened, so drafting with it needs no call.
type guess struct {
	of   tandem.Guess
	cost time.Duration // its share of the arithmetic of all guesses that came with it
}

// wanted lists the ways whose guesses the next ticket, or the Open to come, is to ask for: a round after it may use them. A strategy that
// asks one drafter gets those of the first that could be asked.
func (s *session) wanted() []string {
	b := s.bounds()
	if b.Plain() || b.Depth < 2 {
		return nil
	}
	var offered []string
	for _, l := range s.liaisons {
		switch usable := l.state != liaisonOff && !l.of.Seat.Conduct.Aside(); {
		case l.of.Way != nil && usable && s.opens(l):
			offered = append(offered, l.of.Name)
		case l.of.Way != nil || !l.ready():
			continue
		}
		if !s.strategy.Several() {
			break
		}
	}
	if len(offered) == 0 {
		return nil
	}
	return s.strategy.Guesses(offered)
}

// hearGuesses takes the guesses on what follows the committed tokens, of the ways in asked, in place of those before. What breaks the
// contract is counted and ignored. took is the arithmetic of all of them.
func (s *session) hearGuesses(all []tandem.Guess, asked []string, took time.Duration) {
	for _, l := range s.liaisons {
		l.guess = nil
	}
	var good []*liaison
	for _, g := range all {
		i := slices.IndexFunc(s.liaisons, func(l *liaison) bool { return l.of.Way != nil && l.of.Name == g.SelfDraft })
		switch {
		case i < 0 || !slices.Contains(asked, g.SelfDraft):
			s.g.cfg.Counters.Add("guesses.unasked", 1)
			continue
		case s.liaisons[i].guess != nil || len(g.Levels) > s.liaisons[i].of.Way.Levels || g.Validate(s.g.cfg.Vocab.Size()) != nil:
			s.g.cfg.Counters.Add("guesses.garbage", 1)
			continue
		case len(g.Levels) == 0 || len(g.Levels[0]) == 0:
			continue
		}
		l := s.liaisons[i]
		l.guess, good = &guess{of: g}, append(good, l)
		if l.of.Way.Members > 0 {
			l.learnLengths()
		}
	}
	for _, l := range good {
		l.guess.cost = max(took, 0) / time.Duration(len(good))
	}
	s.g.cfg.Counters.Add("guesses.taken", int64(len(good)))
}

// draw makes a way's tree for a wish, of the likeliest paths through its guess.
func (l *liaison) draw(w wish) tandem.Proposed {
	g := l.guess.of
	g.Levels = slices.Clone(g.Levels[:min(len(g.Levels), max(w.Bounds.Depth, 0))])
	for i, level := range g.Levels {
		g.Levels[i] = level[:min(len(level), max(w.Bounds.Width, 1))]
	}
	t := tandem.Root(w.root)
	t.LogProbs = []float32{0}
	if !w.Bounds.Plain() {
		t = shape.Adaptive(w.root, g, l.rates(g), w.Bounds.Nodes)
		t, _ = spec.Cut(unlikely(t, w.Stop), w.Plan, 0)
	}
	_, depth := t.Depths()
	return tandem.Proposed{Nodes: t.Len(), Depth: depth, Busy: l.guess.cost, Tree: t}
}

// rates returns the chances of a guess's candidates, by its probabilities and what corrects them.
func (l *liaison) rates(g tandem.Guess) shape.Rate {
	return l.g.accuracies.table(*l.of.Way, l.sampled).Corrected(g)
}

// unlikely returns t without the nodes below that chance.
func unlikely(t tandem.Tree, least float64) tandem.Tree {
	if least <= 0 {
		return t
	}
	n := 1
	for n < t.Len() && math.Exp(float64(t.LogProbs[n])) >= least { // the likeliest come first
		n++
	}
	return tandem.Tree{Tokens: t.Tokens[:n], Parents: t.Parents[:n], LogProbs: t.LogProbs[:n]}
}

const (
	// promptShare is the share of a tree's nodes that prompt nodes take at most.
	promptShare = 0.5
	// promptSpots is how many nodes are to get all their prompt nodes, as far as there is room.
	promptSpots = 4
)

// reserve returns how many of a round's nodes are for prompt nodes, so that the verdict can carry guesses of ppd; 0 if it is not asked or
// there is no room for its first level.
func (s *session) reserve(asked []string) int {
	l := s.prompter(asked)
	if l == nil {
		return 0
	}
	w := l.of.Way
	n := min(promptSpots*w.Levels*w.Members, int(promptShare*float64(s.nodes)), s.nodes-2) // room for a guess at least
	return max(n/w.Members*w.Members, 0)
}

// prompter returns the way that needs prompt nodes, if it is asked.
func (s *session) prompter(asked []string) *liaison {
	i := slices.IndexFunc(s.liaisons, func(l *liaison) bool { return l.of.Way != nil && l.of.Name == tandem.PPD })
	if i < 0 || !slices.Contains(asked, tandem.PPD) || s.liaisons[i].of.Way.Members == 0 {
		return nil
	}
	return s.liaisons[i]
}

// promptTree puts prompt nodes behind those of a tree where the accepted path will likely end.
func (s *session) promptTree(t tandem.Tree, a *answer) tandem.Tree {
	l := s.prompter(a.ways)
	if l == nil {
		return t
	}
	w, room := *l.of.Way, min(a.reserve, s.nodes-t.Len())
	var sizes []int
	for n := w.Members; n <= room; n = max(n+w.Members, n*5/4/w.Members*w.Members) {
		sizes = append(sizes, n)
	}
	if len(sizes) == 0 {
		return t
	}
	all := make([][]int8, len(sizes))
	gains := make([]float64, len(sizes))
	for i, n := range sizes {
		all[i] = shape.Allot(t, l.expected(), w, n)
		gains[i] = shape.Gain(t, l.expected(), all[i])
	}
	i := s.strategy.Prompts(w.Name, t.Len(), sizes, gains)
	if i < 0 {
		return t
	}
	out := shape.Prompt(t, all[i], w)
	a.prompts = out.Prompts
	return out
}

// expected returns how many tokens a round brings without guesses, with one level of them, with two and so on (PPD's f(T_i)): that
// decides which nodes get prompt nodes.
func (l *liaison) expected() []float64 {
	for i := len(l.lengths); i <= l.of.Way.Levels; i++ {
		l.lengths = append(l.lengths, 2-math.Exp2(-float64(i))) // each level brings half of what the one before does
	}
	return l.lengths
}

// learnLengths lets what is expected follow the latest guess.
func (l *liaison) learnLengths() {
	l.expected()
	for i, g := 1, l.guess.of; i <= len(g.Levels); i++ {
		g.Levels = g.Levels[:i]
		t := shape.Adaptive(0, g, l.rates(g), max(l.nodes/2, 2))
		sum := 0.0
		for _, lp := range t.LogProbs {
			sum += math.Exp(float64(lp))
		}
		l.lengths[i] += (sum - l.lengths[i]) / 16
		l.lengths[i] = max(l.lengths[i], l.lengths[i-1])
	}
}

// idleWays returns what the ways that had guessed but were not asked would have drafted for the round.
func (s *session) idleWays(a *answer) (out []strategy.Draft) {
	for _, l := range s.liaisons {
		if l.guess == nil || slices.ContainsFunc(a.drafts, func(d draft) bool { return d.by == l }) {
			continue
		}
		w := wish{Proposal: tandem.Proposal{Bounds: a.bounds}, root: a.root}
		out = append(out, strategy.Draft{Drafter: l.of.Name, Got: l.draw(w)})
	}
	return out
}

// look notes which of a round's committed tokens the ways would have guessed, as their hindsight.
func (s *session) look(committed []tandem.Token) {
	for _, l := range s.liaisons {
		switch {
		case l.of.Way == nil:
			continue
		case l.guess == nil:
			l.hindsight = tandem.Hindsight{}
			continue
		}
		for i, t := range committed[:min(len(committed), len(l.guess.of.Levels))] {
			hit := uint64(0)
			if level := l.guess.of.Levels[i]; len(level) > 0 && level[0].Token == t {
				hit = 1
			}
			l.hindsight.Hits = l.hindsight.Hits<<1 | hit
			l.hindsight.Tokens = min(l.hindsight.Tokens+1, tandem.MaxHindsight)
		}
		if over := len(committed) - len(l.guess.of.Levels); over > 0 { // nothing was guessed there
			l.hindsight = tandem.Hindsight{}
			continue
		}
		s.hear(l, tandem.Position(len(s.tokens)), l.hindsight, 0)
	}
}

// guessing returns what the guesses took that the round used.
func (a *answer) guessing() (sum time.Duration) {
	for _, d := range a.drafts {
		if d.by.of.Way != nil {
			sum += d.got.Busy
		}
	}
	return sum
}
