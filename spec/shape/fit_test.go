package shape

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
)

// harder draws the text of a source whose guesses fail together: where the next token is not guessed, all guesses made before it
// were wrong there too. So rounds begin in hard places more often than not.
func harder(seed uint64, levels, ranks, n int) []Sample {
	src := newSource(seed, levels, ranks)
	easy, samples := make([]float64, n+levels), make([]Sample, n)
	for i := range easy {
		src.sample()
		easy[i] = src.easy
		if src.draw.Float64() < 0.2 {
			easy[i] = 0.02 // a name that nobody can guess
		}
	}
	for i := range samples {
		s := Sample{Ranks: make([]int8, levels)}
		for k := range levels {
			s.Ranks[k] = -1
			for j, u := 0, src.draw.Float64(); j < ranks && s.Ranks[k] < 0; j++ {
				if u -= easy[i+k] * math.Pow(0.4, float64(j)) * 0.6; u < 0 {
					s.Ranks[k] = int8(j)
				}
			}
		}
		samples[i] = s
	}
	return samples
}

// TestFit: the fitted table expects what decoding the text takes, within 5 %, also on another text; that of all places expects more.
func TestFit(t *testing.T) {
	texts := [][]Sample{harder(21, 5, 8, 8000), harder(22, 5, 8, 8000)}
	other := harder(23, 5, 8, 16000)
	all := tableOf(t, 5, 8, append(append([]Sample{}, texts[0]...), texts[1]...))
	tooMuch := 0.0
	for _, nodes := range []int{2, 8, 32, 64} {
		a, s, err := Fit(texts, 5, 8, nodes)
		if err != nil || a.Validate() != nil || s.Validate(nodes) != nil {
			t.Fatal(err, a.Validate(), s.Validate(nodes))
		}
		expected := s.Length(a.Rate())
		measured := Measured(s, append(Replay(s, texts[0]), Replay(s, texts[1])...))
		elsewhere := Measured(s, Replay(s, other))
		t.Logf("%d nodes: expected %.3f, measured %.3f, on another text %.3f; by all places %.3f", nodes, expected, measured, elsewhere,
			s.Length(all.Rate()))
		if math.Abs(expected/measured-1) > 0.03 || math.Abs(expected/elsewhere-1) > 0.05 {
			t.Errorf("%d nodes: expected %v, measured %v and %v", nodes, expected, measured, elsewhere)
		}
		tooMuch = max(tooMuch, s.Length(all.Rate())/measured-1)
	}
	if tooMuch < 0.05 {
		t.Errorf("the table of all places is at most %v off: the texts are too easy a test", tooMuch)
	}
	if _, _, err := Fit([][]Sample{{{Ranks: []int8{0}}}}, 2, 2, 4); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("texts without a whole sample: %v: want Invalid", err)
	}
}

// TestSamples: a way that knows the text is right everywhere, with fewer levels at the end.
func TestSamples(t *testing.T) {
	text := []tandem.Token{5, 6, 7, 8}
	list := Samples(text, 1, func(i int) (g tandem.Guess) {
		for k := range 2 {
			g.Levels = append(g.Levels, []tandem.TopLogprob{{Token: tandem.Token(6 + i + k)}})
		}
		return g
	})
	if len(list) != 2 || len(list[0].Ranks) != 2 || list[0].Ranks[1] != 0 || len(list[1].Ranks) != 1 || list[1].Ranks[0] != 0 {
		t.Errorf("samples %v: want two right levels, then one", list)
	}
}

// TestFitSparse: what the fitted table expects of a sparse tree is what decoding the text takes, within 5 %, also on another text. Its
// rounds follow its states: a round uses no more levels than prompt tokens stood behind the node before it.
func TestFitSparse(t *testing.T) {
	way := tandem.SelfDraft{Name: tandem.PPD, Levels: 3, Members: 1}
	texts := [][]Sample{harder(31, 3, 8, 8000), harder(32, 3, 8, 8000)}
	other := harder(33, 3, 8, 16000)
	for _, rows := range []int{4, 16, 64} {
		a, sp, err := FitSparse(texts, way, 8, rows)
		if err != nil || a.Validate() != nil {
			t.Fatal(err, a.Validate())
		}
		for _, text := range append(texts, other) {
			rounds, tokens := sp.Replay(text)
			measured := float64(tokens) / float64(len(rounds))
			t.Logf("%d rows: expected %.3f, measured %.3f", rows, sp.Length, measured)
			if math.Abs(sp.Length/measured-1) > 0.05 {
				t.Errorf("%d rows: expected %v, measured %v", rows, sp.Length, measured)
			}
		}
	}
	right := make([]Sample, 10) // all guesses are right
	for i := range right {
		right[i] = Sample{Ranks: []int8{0, 0}}
	}
	chain := Shape{Parents: []int32{-1, 0, 1}, Ranks: []int8{0, 0, 0}}
	sp := Sparse{Way: tandem.SelfDraft{Levels: 2, Members: 1}, States: []State{{chain.Head(1), []int8{2}}, {chain.Head(2), []int8{1, 0}},
		{chain, []int8{1, 1, 1}}}}
	rounds, tokens := sp.Replay(right) // states 2, 1, 0, 2, 1, 0: 3 + 2 + 1 tokens, again and again, until two levels are too few
	if len(rounds) != 5 || tokens != 11 {
		t.Errorf("%d rounds, %d tokens: want 5 and 11", len(rounds), tokens)
	}
	if _, _, err := FitSparse(texts, way, 8, 1); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a tree without room for a prompt token: %v", err)
	}
}
