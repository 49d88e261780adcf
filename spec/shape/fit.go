package shape

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/worth"
)

// Samples returns the sample of each place of a text that the target has decoded, or would decode, for Fit and Replay: guess returns what
// the way guesses behind text[i], before it has seen text[i+1]. Places from first on have samples, the last token has none.
func Samples(text []tandem.Token, first int, guess func(i int) tandem.Guess) []Sample {
	var list []Sample
	for i := max(first, 0); i+1 < len(text); i++ {
		list = append(list, Look(guess(i), text[i+1:]))
	}
	return list
}

// fitRounds are the rounds of Fit.
const fitRounds = 1 << 2

// Fit returns the table of a way on calibration texts, and Greedy's shape of that many nodes by it. Each text has the samples of all its
// places, in order. The table counts the places where rounds with such a shape begin: a round begins behind a wrong guess, where the text
// is harder than elsewhere. As the shape follows from the table, both are found in turns, from the table of all places. Errors: those of
// NewCounts, and Invalid without samples.
func Fit(texts [][]Sample, levels, ranks, nodes int) (*Accuracy, Shape, error) {
	greedy := func(a *Accuracy) (Shape, error) { return Greedy(a.Rate(), nodes, levels, ranks), nil }
	return fit(texts, levels, ranks, greedy, Replay)
}

// FitSparse is Fit for a way with prompt tokens: it returns Split's tree of at most that many rows. Further errors: Split's.
func FitSparse(texts [][]Sample, way tandem.SelfDraft, ranks, rows int) (*Accuracy, Sparse, error) {
	split := func(a *Accuracy) (Sparse, error) { return Split(a.Rate(), way, ranks, rows) }
	return fit(texts, way.Levels, ranks, split, func(sp Sparse, text []Sample) []Sample {
		rounds, _ := sp.Replay(text)
		return rounds
	})
}

// fit finds a table and a tree by it in turns; replay returns the samples of the places where rounds with a tree begin.
func fit[T any](texts [][]Sample, levels, ranks int, tree func(*Accuracy) (T, error), replay func(T, []Sample) []Sample) (a *Accuracy,
	t T, err error) {
	c, err := NewCounts(levels, ranks)
	if err != nil {
		return nil, t, err
	}
	n := 0
	for _, text := range texts {
		for _, s := range text {
			if len(s.Ranks) >= levels {
				c.Add(s)
				n++
			}
		}
	}
	if n == 0 {
		return nil, t, tandem.Errorf("accuracy", tandem.Invalid, "no sample has all %d levels: want a longer text", levels)
	}
	everywhere := c.Table()
	a = everywhere
	for range fitRounds {
		if t, err = tree(a); err != nil {
			return nil, t, err
		}
		var visited []Sample
		for _, text := range texts {
			visited = append(visited, replay(t, text)...)
		}
		next := everywhere.Counts(worth.ShapePrior * float64(len(visited)))
		for _, v := range visited {
			next.Add(v)
		}
		a = next.Table()
	}
	t, err = tree(a)
	return a, t, err
}

// Replay decodes a text with sp's trees, as the function Replay does with one shape: the state of a round is the number of prompt tokens
// behind the node where the round before has ended. The first round has a guess of all levels. It returns the samples of the places where
// rounds began, and the tokens of all rounds: their ratio is the length that Length foretells.
func (sp *Sparse) Replay(text []Sample) (rounds []Sample, tokens int) {
	finders, deepest := make([]finder, len(sp.States)), make([]int, len(sp.States))
	for i, st := range sp.States {
		finders[i] = st.Shape.finder()
		_, deepest[i] = st.Shape.Depths()
	}
	state := len(sp.States) - 1
	for i := 0; i < len(text) && len(text[i].Ranks) >= deepest[state]; {
		rounds = append(rounds, text[i])
		node, depth := finders[state].walk(text[i].Ranks)
		state = int(sp.States[state].Prompts[node])
		tokens += depth + 1
		i += depth + 1
	}
	return rounds, tokens
}
