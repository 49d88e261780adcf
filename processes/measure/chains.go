package measure

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
	"github.com/tandem-llm/tandem/kernels"
)

// Guessing says how texts are decoded: plainly, and with chains of guesses, each of which is the right token with probability Right.
type Guessing struct {
	Context, Tokens int     // before a text, and of a text
	Chains          []int   // guesses of a pass, at least 1
	Right           float64 // 0 to 1
	Rounds          int     // texts

	Guess func(n int) error // called before a pass with n guesses, so that they take a draft's time; nil: they cost nothing
}

// Pages returns the KV pages that Chains needs.
func (g Guessing) Pages() int { return engine.PagesFor(1, g.Context+g.Tokens, g.rows()) }

func (g Guessing) rows() int { return 1 + slices.Max(g.Chains) }

// Chain is what decoding with chains of one length took, all texts together.
type Chain struct {
	Guesses, Tokens, Passes int
	Took, Waited            time.Duration // time in passes and between them; the part that waited for weights
	Experts                 int           // experts that passes used, counted layer by layer
	Read                    int64         // bytes of streamed weights
	Missed                  int64         // experts that were not in memory, nor foretold
	Foretold, Guessed       int64         // experts that a guess had read in time, or had begun to; those that guesses read
	Limit                   time.Duration // Read, at the rate of direct reads of the same file before each text; 0: nothing is streamed
}

// Chains decodes texts plainly and with each length of chains, in turn; the first result is that of plain decoding. Texts are drawn at
// temperature 1, each with its own seed, because the likeliest tokens of a model with random weights soon repeat themselves, and then use
// the same experts. All texts are decoded once before, which does not count. If there are several, each follows another one, so that memory
// holds the experts of the other. Errors: the model's; ctx's; Internal for a text that depends on guesses.
func Chains(ctx context.Context, m *engine.Model, g Guessing) ([]Chain, error) {
	all := []Chain{{}}
	for _, n := range g.Chains {
		all = append(all, Chain{Guesses: n})
	}
	var texts [][]tandem.Token
	for i := range g.Rounds {
		text, err := g.decode(ctx, m, new(Chain), uint64(i), nil)
		if err != nil {
			return nil, err
		}
		texts = append(texts, text)
	}
	for round := range g.Rounds {
		for i := range all {
			n := (round + i) % g.Rounds
			text, err := g.decode(ctx, m, &all[i], uint64(n), texts[n])
			if err != nil {
				return nil, err
			}
			if !slices.Equal(text, texts[n]) {
				return nil, tandem.Errorf("chains", tandem.Internal, "with chains of %d guesses the text is another one than without",
					all[i].Guesses)
			}
		}
	}
	return all, nil
}

// chain returns a chain of at most n guesses below root. known is what follows; its last token is not guessed.
func (g Guessing) chain(r *rand.Rand, vocab int, root tandem.Token, known []tandem.Token, n int) ([]tandem.Token, []int32, error) {
	nodes, parents := []tandem.Token{root}, []int32{-1}
	n = max(0, min(n, len(known)-1))
	for _, guess := range known[:n] {
		if r.Float64() >= g.Right {
			guess = (guess + 1 + tandem.Token(r.IntN(vocab-1))) % tandem.Token(vocab)
		}
		nodes, parents = append(nodes, guess), append(parents, int32(len(nodes)-1))
	}
	if n > 0 && g.Guess != nil {
		return nodes, parents, g.Guess(n)
	}
	return nodes, parents, nil
}

// decode adds what a text took to c. known is the text, if guesses are made.
func (g Guessing) decode(ctx context.Context, m *engine.Model, c *Chain, seed uint64, known []tandem.Token) ([]tandem.Token, error) {
	s, err := m.NewSequence(g.Context+g.Tokens, g.rows())
	if err != nil {
		return nil, err
	}
	defer s.Close()
	r := rand.New(rand.NewPCG(seed, uint64(c.Guesses)))
	prompt := rand.New(rand.NewPCG(seed, 0))
	token := func(r *rand.Rand) tandem.Token { return tandem.Token(r.IntN(m.Config().Vocab)) }
	for s.Len() < g.Context {
		var piece []tandem.Token
		for range min(m.MaxRows(), g.Context-s.Len()) {
			piece = append(piece, token(prompt))
		}
		if _, err := m.Forward([]engine.Part{{Seq: s, Extend: piece}}, 0); err != nil {
			return nil, err
		}
	}
	rate, before := 0.0, kernels.StreamStats{}
	streamer, streamed := m.Passes().Streamer()
	if streamed {
		if rate, err = streamer.ReadRate(rateLong); err != nil {
			return nil, err
		}
		before = streamer.StreamStats()
	}
	var (
		sampler sample.Sampler
		text    []tandem.Token
		last    = token(prompt)
		begun   = time.Now()
	)
	for len(text) < g.Tokens {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		nodes, parents, err := g.chain(r, m.Config().Vocab, last, known[min(len(text), len(known)):], c.Guesses)
		if err != nil {
			return nil, err
		}
		out, err := m.Forward([]engine.Part{{Seq: s, Nodes: nodes, Parents: parents, Want: engine.WantTail}}, 0)
		if err != nil {
			return nil, err
		}
		var path []int32
		for i := range nodes {
			path = append(path, int32(i))
			last = sampler.Draw(out.Logits(i), tandem.Sampling{Temperature: 1, TopP: 1, Seed: seed}, tandem.Position(s.Len()+len(path)))
			if text = append(text, last); i+1 == len(nodes) || nodes[i+1] != last {
				break
			}
		}
		c.Passes++
		if n := out.Experts(); n != nil {
			c.Experts += int(n[len(n)-1])
		}
		if err := s.Commit(path); err != nil {
			return nil, err
		}
	}
	c.Took, c.Tokens = c.Took+time.Since(begun), c.Tokens+len(text)
	if streamed {
		now := streamer.StreamStats()
		read := now.Read - before.Read
		c.Waited, c.Read = c.Waited+now.Waited-before.Waited, c.Read+read
		c.Missed, c.Foretold = c.Missed+now.Missed-before.Missed, c.Foretold+now.Foretold-before.Foretold
		c.Guessed += now.Guessed - before.Guessed
		c.Limit += time.Duration(float64(read) / rate * 1e9)
	}
	return text, nil
}
