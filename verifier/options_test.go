package verifier_test

import (
	"context"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
)

// choices are three values of every sampling option, and of the shape of drafts, that are tried together.
var choices = []func(a *asked, i int){
	func(a *asked, i int) { a.sampling.Temperature = []float64{0, 0.8, 2}[i] },
	func(a *asked, i int) { a.sampling.TopK = []int{0, 5, 40}[i] },
	func(a *asked, i int) { a.sampling.TopP = []float64{1, 0.9, 0.5}[i] },
	func(a *asked, i int) { a.sampling.MinP = []float64{0, 0.02, 0.1}[i] },
	func(a *asked, i int) { a.sampling.RepeatPenalty = []float64{0, 1.3, 0.9}[i] },
	func(a *asked, i int) { a.sampling.RepeatLast = []int{0, 3, 1000}[i] },
	func(a *asked, i int) { a.sampling.FrequencyPenalty = []float64{0, 0.7, -0.4}[i] },
	func(a *asked, i int) { a.sampling.PresencePenalty = []float64{0, 1.1, -0.6}[i] },
	func(a *asked, i int) {
		a.sampling.Bias = [][]tandem.Bias{nil, {{Token: 13, Add: -100}}, {{Token: 13, Add: 1.5}, {Token: 293, Add: 2},
			{Token: 4018, Add: -1.5}}}[i]
	},
	func(a *asked, i int) { a.sampling.Logprobs, a.sampling.TopLogprobs = i > 0, []int{0, 0, 5}[i] },
	func(a *asked, i int) {
		a.bounds = []tandem.Bounds{{Nodes: 16, Depth: 7, Width: 6}, {Nodes: 6, Depth: 5, Width: 1}, {Nodes: 12, Depth: 3, Width: 8}}[i]
	},
}

// combination sets row n of 27 in which any two values of any two choices meet: an orthogonal array, whose columns are
// the directions of the space over three elements.
func combination(a *asked, n int) {
	x, y, z := n%3, n/3%3, n/9
	for i, c := range [][3]int{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 2, 0}, {1, 0, 1}, {1, 0, 2}, {0, 1, 1}, {0, 1, 2},
		{1, 1, 1}, {1, 2, 1}, {1, 1, 2}, {1, 2, 2}}[:len(choices)] {
		choices[i](a, (x*c[0]+y*c[1]+z*c[2])%3)
	}
}

// TestOptionsSpeculationEqualsPlain has every pair of sampling options meet: with drafts in one process, and
// with a verifier that forgets the session now and then, the tokens and log-probabilities are those of
// decoding one by one with the text counted anew each time.
func TestOptionsSpeculationEqualsPlain(t *testing.T) {
	const tokens, rows = 18, 27
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	accepted := 0
	for n := range rows {
		a := asked{prompt: twin.prompt(prompts[n%len(prompts)]), tokens: tokens, sampling: tandem.Sampling{Seed: uint64(n)}}
		combination(&a, n)
		want, logprobs := twin.explain(t, a)
		var got []tandem.Logprob
		a.seen = func(v tandem.Verdict) {
			if a.sampling.Logprobs && len(v.Logprobs) != len(v.Tokens) || !a.sampling.Logprobs && v.Logprobs != nil {
				t.Errorf("%+v: %d log-probabilities of %d tokens", a.sampling, len(v.Logprobs), len(v.Tokens))
			}
			got = append(got, v.Logprobs...)
		}
		if n%3 == 0 {
			closed := 0
			a.disturb = func(s *stream) {
				if s.rounds == closed+4 {
					closed = s.rounds
					_ = s.v.Close(context.Background(), s.id)
				}
			}
		}
		s, err := r.generate(a)
		if err != nil || !slices.Equal(s.text, want) {
			t.Errorf("%+v, tree %v: %v\n got %v\nwant %v", a.sampling, a.bounds, err, s.text, want)
			continue
		}
		accepted += s.accepted
		if len(got) > tokens {
			got = got[:tokens]
		}
		if !reflect.DeepEqual(got, logprobs) {
			t.Errorf("%+v, tree %v: log-probabilities\n got %v\nwant %v", a.sampling, a.bounds, got, logprobs)
		}
	}
	t.Logf("%d rows of options, %d tokens accepted", rows, accepted)
	if accepted < rows {
		t.Errorf("%d drafted tokens accepted in all: the test hardly tests trees", accepted)
	}
}

// TestPenaltiesSeeThePath hands over trees that hold what the target will say among branches that it will not say:
// the draws deep in a tree are those of a text that has come there token by token.
func TestPenaltiesSeeThePath(t *testing.T) {
	const tokens = 30
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{})
	rng := rand.New(rand.NewPCG(3, 4))
	for n, p := range []tandem.Sampling{
		{TopP: 1, RepeatPenalty: 1.4, RepeatLast: 5, FrequencyPenalty: 0.5},
		{TopP: 1, FrequencyPenalty: -0.8, PresencePenalty: -0.5},
		{TopP: 1, Temperature: 1, Seed: 5, RepeatPenalty: 1.2, PresencePenalty: 1, MinP: 0.02, Logprobs: true, TopLogprobs: 3},
	} {
		a := asked{prompt: twin.prompt(prompts[n]), sampling: p, tokens: tokens}
		want, logprobs := twin.explain(t, a)
		s := &stream{rig: r, asked: a, id: tandem.NewSessionID(), text: slices.Clone(a.prompt)}
		s.verdicts = r.expect(s.id)
		if _, err := r.v.Open(context.Background(), s.opening()); err != nil {
			t.Fatal(err)
		}
		for len(s.text) < len(want)-7 {
			ticket := s.ticket()
			ticket.Tree = truthTree(rng, want[len(s.text)-1:len(s.text)+6])
			v := s.ask(ticket)
			if end := len(s.text) + 6; len(v.Path) != 5 || !slices.Equal(v.Tokens, want[len(s.text):end]) {
				t.Fatalf("%+v at %d: verdict %+v, want tokens %v", p, len(s.text), v, want[len(s.text):end])
			}
			if from := len(s.text) - len(a.prompt); p.Logprobs && !reflect.DeepEqual(v.Logprobs, logprobs[from:from+6]) {
				t.Errorf("at %d: log-probabilities %v, want %v", from, v.Logprobs, logprobs[from:from+6])
			}
			s.text = append(s.text, v.Tokens...)
		}
		if err := r.v.Close(context.Background(), s.id); err != nil {
			t.Fatal(err)
		}
	}
}

// truthTree is a tree with the path, its root first, less its last token, and with random nodes between.
func truthTree(rng *rand.Rand, path []tandem.Token) tandem.Tree {
	tree, at := tandem.Root(path[0]), int32(0)
	add := func(parent int32, t tandem.Token) (node int32) {
		for i := range tree.Tokens {
			if tree.Parents[i] == parent && tree.Tokens[i] == t {
				return int32(i)
			}
		}
		tree.Tokens, tree.Parents = append(tree.Tokens, t), append(tree.Parents, parent)
		return int32(len(tree.Tokens) - 1)
	}
	for _, t := range path[1 : len(path)-1] {
		for range rng.IntN(3) {
			add(int32(rng.IntN(len(tree.Tokens))), tandem.Token(rng.IntN(4096)))
		}
		at = add(at, t)
	}
	return tree
}

// TestOpeningsWithBadOptions has the verifier refuse what the one validator refuses, and stay as it is.
func TestOpeningsWithBadOptions(t *testing.T) {
	r := newRig(t, rigOptions{})
	for field, change := range map[string]func(*tandem.Sampling){
		"min_p":          func(s *tandem.Sampling) { s.MinP = 2 },
		"repeat_penalty": func(s *tandem.Sampling) { s.RepeatPenalty = -1 },
		"repeat_last":    func(s *tandem.Sampling) { s.RepeatPenalty, s.RepeatLast = 2, 1<<30 },
		"logit_bias":     func(s *tandem.Sampling) { s.Bias = []tandem.Bias{{Token: 4096}} },
		"top_logprobs":   func(s *tandem.Sampling) { s.Logprobs, s.TopLogprobs = true, 1000 },
	} {
		s := &stream{rig: r, asked: asked{sampling: greedy}, id: tandem.NewSessionID(), text: []tandem.Token{1, 50}}
		change(&s.sampling)
		if _, err := r.v.Open(context.Background(), s.opening()); tandem.FieldOf(err) != field || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}
