package verifier_test

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/text/grammar"
)

// constrained are forms of outputs: with free texts, with ends that may come at many places, with none but literals.
var constrained = []grammar.Spec{
	{Schema: json.RawMessage(`{"type":"object","properties":{"name":{"type":"string","maxLength":12},"on":{"type":"boolean"}},
		"required":["name","on"],"additionalProperties":false}`)},
	{Regex: `(func|type) [A-Z][a-z]{2,9}[0-9]*`},
	{Choices: []string{"package main", "package", "import \"fmt\"", "пакет"}},
	{Seq: []grammar.Spec{{Until: &grammar.Until{Markers: []string{"\n\n", "="}}}, {Object: true}}},
}

// constraint returns the compiled form of outputs, for a request at m.
func constraint(t testing.TB, m *engine.Model, of grammar.Spec) (*tandem.Constraint, *grammar.Grammar) {
	t.Helper()
	g, err := grammar.Compile(of, grammar.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	digest := g.Digest()
	c := &tandem.Constraint{Spec: string(spec), Digest: hex.EncodeToString(digest[:])}
	for id := range m.Vocab().Size() {
		if m.Vocab().IsEnd(tandem.Token(id)) {
			c.Ends = append(c.Ends, tandem.Token(id))
		}
	}
	return c, g
}

// obeying generates by the definition: token by token, with a NaN for each token whose bytes lead nowhere.
func (p plain) obeying(t testing.TB, a asked, g *grammar.Grammar) (text []tandem.Token, logprobs []tandem.Logprob) {
	t.Helper()
	seq, err := p.m.NewSequence(limit, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	var s sample.Sampler
	vocab, state := p.m.Vocab(), g.Start()
	text = slices.Clone(a.prompt)
	for len(text) < len(a.prompt)+a.tokens {
		out, err := p.m.Forward([]engine.Part{{Seq: seq, Extend: text[seq.Len():], Want: engine.WantTail}}, 1)
		if err != nil {
			t.Fatal(err)
		}
		logits := out.Logits(out.First(0))
		shaped := slices.Clone(s.Shape(logits, a.sampling, sample.NewHistory(a.sampling, text, len(a.prompt))))
		for id := range shaped {
			bytes := vocab.Bytes(tandem.Token(id))
			_, ok := state.Next(bytes)
			if ok = ok && len(bytes) > 0; vocab.IsEnd(tandem.Token(id)) {
				ok = state.Done()
			}
			if !ok {
				shaped[id] = float32(math.NaN())
			}
		}
		x := s.Draw(shaped, a.sampling, tandem.Position(len(text)))
		if a.sampling.Logprobs {
			logprobs = append(logprobs, s.Logprob(logits, x, a.sampling.TopLogprobs))
		}
		if text = append(text, x); vocab.IsEnd(x) {
			break
		}
		var ok bool
		if state, ok = state.Next(vocab.Bytes(x)); !ok {
			t.Fatalf("drew %d, which is not allowed", x)
		}
	}
	return text, logprobs
}

// upToEnd returns text up to the first token behind the prompt that ends it.
func upToEnd(m *engine.Model, text []tandem.Token, prompt int) []tandem.Token {
	for i := prompt; i < len(text); i++ {
		if m.Vocab().IsEnd(text[i]) {
			return text[:i+1]
		}
	}
	return text
}

// TestConstrainedSpeculationEqualsPlain: with a constraint, too, the text is that of plain decoding by the definition, bit for bit, over
// forms, samplings, trees of a drafter that knows nothing of it, trees of random tokens, and sessions that are lost at any token.
func TestConstrainedSpeculationEqualsPlain(t *testing.T) {
	const tokens = 32
	twin := plain{openModel(t, targetFile, 1)}
	r := newRig(t, rigOptions{sessions: 6})
	lost := 0
	var mu sync.Mutex
	random := rand.New(rand.NewPCG(3, 4))
	intn := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return random.IntN(n)
	}
	kills := func(s *stream) {
		if intn(4) == 0 {
			mu.Lock()
			lost++
			mu.Unlock()
			_ = s.v.Close(context.Background(), s.id)
		}
	}
	garbage := func(s *stream) tandem.Tree {
		mu.Lock()
		defer mu.Unlock()
		for {
			tree := randomTree(random, s.text[len(s.text)-1], twin.m.Config().Vocab)
			if tree.Validate(maxNodes, twin.m.Config().Vocab) == nil { // siblings differ
				return tree
			}
		}
	}
	ended := 0
	var all sync.WaitGroup
	for i, of := range constrained {
		c, g := constraint(t, twin.m, of)
		for k, sampling := range []tandem.Sampling{greedy, sampled, {Temperature: 1.2, TopP: 0.9, Seed: 11, RepeatPenalty: 1.2,
			Logprobs: true},
			{Temperature: 1, TopP: 1, Seed: uint64(5 + 100*i), FrequencyPenalty: 0.4}, {Temperature: 0.9, TopP: 1, MinP: 0.05, Seed: 21}} {
			sampling.Constraint = c
			a := asked{prompt: twin.prompt(prompts[i]), tokens: tokens, sampling: sampling, bounds: tandem.Bounds{Nodes: 16, Depth: 6,
				Width: 4}}
			want, logprobs := twin.obeying(t, a, g)
			if twin.m.Vocab().IsEnd(want[len(want)-1]) {
				ended++
			}
			for name, with := range map[string]func(*asked){"drafter": func(*asked) {}, "kills": func(a *asked) { a.disturb = kills },
				"garbage": func(a *asked) { a.tree, a.disturb = garbage, kills }} {
				all.Go(func() {
					a := a
					with(&a)
					var told []tandem.Logprob
					over := false
					a.seen = func(v tandem.Verdict) {
						told = append(told, v.Logprobs...)
						over = over || slices.ContainsFunc(v.Tokens, twin.m.Vocab().IsEnd)
					}
					a.enough = func() bool { return over }
					s, err := r.patiently(a)
					got := upToEnd(twin.m, s.text, len(a.prompt))
					if err != nil || !slices.Equal(got, want) {
						t.Errorf("form %d, sampling %d, %s: %v\n got %q\nwant %q", i, k, name, err,
							twin.m.Vocab().Decode(got[len(a.prompt):]),
							twin.m.Vocab().Decode(want[len(a.prompt):]))
					} else if sampling.Logprobs && !reflect.DeepEqual(told[:len(logprobs)], logprobs) {
						t.Errorf("form %d, sampling %d, %s: log-probabilities are not those before the mask", i, k, name)
					}
				})
			}
			all.Wait()
		}
	}
	t.Logf("%d texts ended, %d sessions were lost", ended, lost)
	if ended < 5 || lost < 20 {
		t.Errorf("%d texts ended, %d sessions were lost: the test shows little", ended, lost)
	}
	if n := r.counters.Snapshot(); n["faults"] != 0 || n["constraints.dead_end"] != 0 {
		t.Errorf("counted %v", n)
	}
}

// TestTypicalObeysTheConstraint: typical acceptance works on the masked distribution: whatever was drafted, the text is allowed.
func TestTypicalObeysTheConstraint(t *testing.T) {
	m := openModel(t, targetFile, 1)
	r := newRig(t, rigOptions{})
	accepted := 0
	for i, of := range constrained {
		c, g := constraint(t, m, of)
		for seed := range uint64(3) {
			over := false
			s, err := r.generate(asked{prompt: m.Vocab().Encode(prompts[i], true), tokens: 32, bounds: tandem.Bounds{Nodes: 16, Depth: 5,
				Width: 6},
				sampling: tandem.Sampling{Temperature: 1, TopP: 1, Seed: seed, Accept: tandem.AcceptTypical, Constraint: c},
				seen:     func(v tandem.Verdict) { over = over || slices.ContainsFunc(v.Tokens, m.Vocab().IsEnd) },
				enough:   func() bool { return over }})
			if err != nil {
				t.Fatal(err)
			}
			accepted += s.accepted
			text := m.Vocab().Decode(upToEnd(m, s.text, len(s.prompt))[len(s.prompt):])
			if state, ok := g.Start().Next([]byte(text)); !ok || over && !state.Done() {
				t.Errorf("form %d, seed %d: %q is not allowed", i, seed, text)
			}
		}
	}
	if accepted == 0 {
		t.Error("no token was accepted: the test shows nothing")
	}
}

// TestConstraintIsPartOfTheIdentity: a verifier refuses a constraint that it understands otherwise, one that cannot be compiled, and an
// output that the constraint does not allow.
func TestConstraintIsPartOfTheIdentity(t *testing.T) {
	m := openModel(t, targetFile, 1)
	r := newRig(t, rigOptions{alone: true})
	right, _ := constraint(t, m, grammar.Spec{Choices: []string{"package main"}})
	prompt := m.Vocab().Encode("x", true)
	for _, c := range []struct {
		what   string
		with   func(*tandem.Opening, *tandem.Constraint)
		kind   tandem.Kind
		refuse string // tandem.Refusal
	}{
		{"right", func(*tandem.Opening, *tandem.Constraint) {}, tandem.OK, ""},
		{"output", func(o *tandem.Opening, _ *tandem.Constraint) {
			o.Tokens = append(o.Tokens, m.Vocab().EncodeNext("pack")...)
		}, tandem.OK, ""},
		{"other output", func(o *tandem.Opening, _ *tandem.Constraint) {
			o.Tokens = append(o.Tokens, m.Vocab().EncodeNext("func")...)
		}, tandem.Invalid, ""},
		{"digest", func(_ *tandem.Opening, c *tandem.Constraint) { c.Digest = strings.Repeat("0", 64) }, tandem.Unavailable,
			tandem.OpIdentity},
		{"spec", func(_ *tandem.Opening, c *tandem.Constraint) { c.Spec = `{"regex":"("}` }, tandem.Invalid, ""},
		{"no JSON", func(_ *tandem.Opening, c *tandem.Constraint) { c.Spec = `{` }, tandem.Invalid, ""},
		{"ends", func(_ *tandem.Opening, c *tandem.Constraint) { c.Ends = []tandem.Token{1 << 30} }, tandem.Invalid, ""},
	} {
		limits := *right
		o := tandem.Opening{Session: tandem.NewSessionID(), Tokens: slices.Clone(prompt), Prompt: len(prompt), Limit: limit,
			MaxNodes: maxNodes,
			Sampling: tandem.Sampling{TopP: 1, Constraint: &limits}}
		c.with(&o, &limits)
		_, err := r.v.Open(t.Context(), o)
		if c.kind == tandem.OK && err != nil || c.kind != tandem.OK && tandem.KindOf(err) != c.kind || tandem.Refusal(err) != c.refuse {
			t.Errorf("%s: %v: want %v", c.what, err, c.kind)
		}
		if err == nil {
			_ = r.v.Close(t.Context(), o.Session)
		}
	}
}

// TestConstraintWithoutATokenEndsTheText: where the vocabulary has no token that goes on, the text ends with an error of its own name, and
// no other session notices.
func TestConstraintWithoutATokenEndsTheText(t *testing.T) {
	m := openModel(t, targetFile, 1)
	r := newRig(t, rigOptions{alone: true})
	c, _ := constraint(t, m, grammar.Spec{Text: "ok\x00<|none|>\x00"}) // a control token that the model lacks
	_, err := r.generate(asked{prompt: m.Vocab().Encode("x", true), tokens: 8, sampling: tandem.Sampling{TopP: 1, Constraint: c},
		tree: func(s *stream) tandem.Tree { return tandem.Root(s.text[len(s.text)-1]) }})
	if err == nil || !strings.Contains(fmt.Sprint(err), "allows no token") {
		t.Errorf("%v: want that no token is allowed", err)
	}
	if n := r.counters.Snapshot(); n["constraints.dead_end"] != 1 || n["verdicts.unsound"] != 0 {
		t.Errorf("counted %v", n)
	}
	if errors.Is(err, tandem.Internal) {
		t.Errorf("%v is internal", err)
	}
}
