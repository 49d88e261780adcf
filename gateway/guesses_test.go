package gateway_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/lookup"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/verifier"
)

// oracle is a target with prompt tokens of random numbers, and heads that know texts: since every pass computes the same bits, the hidden
// state of a row tells which text it is of. Their guesses are right at first, second, or not at all.
type oracle struct {
	*engine.Model
	after map[uint64][]tandem.Token // the text after the token that follows the row, by the row's hidden state
}

const oracleLevels = 4

func (o *oracle) SelfDrafts() []tandem.SelfDraft {
	return append([]tandem.SelfDraft{{Name: tandem.Medusa, Levels: oracleLevels}}, o.Model.SelfDrafts()...)
}

func (o *oracle) Guess(asks []engine.GuessAsk, top int) (all []tandem.Guess, err error) {
	for _, a := range asks {
		if a.SelfDraft != tandem.Medusa {
			g, err := o.Model.Guess([]engine.GuessAsk{a}, top)
			if err != nil {
				return nil, err
			}
			all = append(all, g...)
			continue
		}
		h := stateOf(a.Hidden[0])
		g := tandem.Guess{SelfDraft: a.SelfDraft}
		for i := range oracleLevels {
			right := tandem.Token(h >> 40 % 1000)
			if next := o.after[h]; i < len(next) {
				right = next[i]
			}
			wrong := tandem.Token((int(right) + 1 + i) % 1000)
			level := []tandem.TopLogprob{{Token: right, LogProb: -0.3}, {Token: wrong, LogProb: -1.6}}
			if h>>i%4 == 0 {
				level[0].Token, level[1].Token = wrong, right
			}
			if h>>i%16 == 1 {
				level = level[1:]
			}
			g.Levels = append(g.Levels, level)
		}
		all = append(all, g)
	}
	return all, nil
}

func stateOf(hidden []float32) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, hidden)
	return h.Sum64()
}

// learn makes the oracle know a text.
func (o *oracle) learn(t *testing.T, m *engine.Model, text []tandem.Token) {
	t.Helper()
	seq, err := m.NewSequence(positions, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer seq.Close()
	out, err := m.Forward([]engine.Part{{Seq: seq, Extend: text}}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for row := range len(text) - 2 {
		o.after[stateOf(out.Hidden(0, row))] = text[row+2:]
	}
}

// writePrompts writes a side file with prompt tokens of random numbers for a target.
func writePrompts(t *testing.T, m *engine.Model, levels, members int) string {
	t.Helper()
	w, r := gguf.NewWriter(), rand.New(rand.NewPCG(1, 2))
	for key, v := range map[string]any{"general.architecture": "ppd", "general.name": "random", "tandem.target.lineage": m.Names().Lineage,
		"tandem.target.vocabulary": m.Names().Vocabulary, "ppd.embedding_length": uint32(m.Config().Dim),
		"ppd.vocab_size": uint32(m.Config().Vocab), "ppd.token_count": uint32(levels), "ppd.ensemble_count": uint32(members)} {
		w.Set(key, v)
	}
	data := make([]byte, 0, 4*m.Config().Dim*levels*members)
	for range cap(data) / 4 {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(r.NormFloat64()/10)))
	}
	w.Tensor("ppd.embd.weight", gguf.F32, []int{m.Config().Dim, levels * members}, data)
	path := filepath.Join(t.TempDir(), "ppd.gguf")
	f, err := os.Create(path)
	if err == nil {
		_, err = w.WriteTo(f)
	}
	if err == nil {
		err = f.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// TestLoneDrafterBringsGuesses: a round that one drafter drafts alone, whose ticket goes past the gateway, brings the guesses of the
// self-drafts that its proposal names.
func TestLoneDrafterBringsGuesses(t *testing.T) {
	_, drafters, v := assembleWith(t, func(c *verifier.Config) {
		c.Guesser, c.FirstShare = &oracle{c.Model, map[uint64][]tandem.Token{}}, 1e9
	}, "go", lookup.Name)
	const owner = 7
	verdicts, began := make(chan tandem.Verdict, 1), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	var listening sync.WaitGroup
	defer listening.Wait()
	defer stop()
	listening.Go(func() {
		_ = v.Verdicts(ctx, tandem.Subscription{Owner: owner, Began: func() { close(began) }, Deliver: func(all []tandem.Verdict) {
			for _, x := range all {
				verdicts <- x
			}
		}})
	})
	<-began
	text := []tandem.Token{11, 12, 13, 14, 11, 12, 13} // for lookup
	for i, d := range drafters {
		o := tandem.Opening{Session: tandem.SessionID(i + 1), Epoch: 1, Tokens: text, Limit: positions, MaxNodes: 16, Owner: owner,
			Sampling: tandem.Sampling{TopP: 1}}
		if _, err := v.Open(ctx, o); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Open(ctx, o); err != nil {
			t.Fatal(err)
		}
		done, err := d.Propose(ctx, tandem.Proposal{Session: o.Session, Epoch: 1, Base: tandem.Position(len(text)),
			Hash: tandem.EmptyPrefix.Add(text...), From: tandem.Position(len(text)), Bounds: tandem.Bounds{Nodes: 4, Depth: 3, Width: 1},
			SelfDrafts: []string{tandem.Medusa}})
		if err != nil || done.Nodes < 2 {
			t.Fatalf("drafter %d proposed %+v, %v", i, done, err)
		}
		select {
		case x := <-verdicts:
			if x.Kind != tandem.OK || x.Nodes != done.Nodes || len(x.Guesses) != 1 || x.Guesses[0].SelfDraft != tandem.Medusa {
				t.Errorf("drafter %d: the verdict %+v on %d nodes brings no guess of medusa's", i, x, done.Nodes)
			}
		case <-time.After(time.Minute):
			t.Fatalf("drafter %d: no verdict", i)
		}
	}
}

// TestGuessesInOneProcess: eight requests at once, greedy and drawn, with self-drafts alone, beside drafters and beside lookup,
// by every strategy: each text is that of plain decoding, also while the verifier forgets everything again and again.
func TestGuessesInOneProcess(t *testing.T) {
	var o *oracle
	g, d, v := assembleWith(t, func(c *verifier.Config) {
		o = &oracle{c.Model, map[uint64][]tandem.Token{}}
		if err := c.Model.OpenSide(writePrompts(t, c.Model, 3, 2)); err != nil {
			t.Fatal(err)
		}
		c.Guesser, c.FirstShare, c.Costs = o, 1e9, []tandem.Cost{{Rows: 1, Time: 1}}
	}, "go", lookup.Name)
	described, err := v.Describe(t.Context())
	if err != nil || len(described.SelfDrafts) != 2 {
		t.Fatalf("described %+v, %v: want two self-drafts", described.SelfDrafts, err)
	}
	g.SelfDraftsAre(described.SelfDrafts)
	twin, err := engine.Open(targetFile, engine.Options{Device: testdevice.CPU(t, 1), MaxRows: positions,
		KVPages: engine.PagesFor(1, positions, 0)})
	if err != nil {
		t.Fatal(err)
	}
	defer twin.Close()
	prompts := []string{"func (r *Reader) Read(", "def main(", "package sort\n\n// ", "It was a dark night, and the"}
	requests := make([]tandem.Request, 8)
	plain := make([]tokensOf, len(requests))
	for i := range requests {
		s := tandem.Sampling{TopP: 1}
		if i >= 4 {
			s = tandem.Sampling{Temperature: 0.8, TopP: 0.95, Seed: uint64(i)}
		}
		requests[i] = tandem.Request{Prompt: prompts[i%len(prompts)], MaxTokens: 40, IgnoreEOS: true, Sampling: s}
		if _, err := g.Generate(t.Context(), requests[i], &plain[i]); err != nil {
			t.Fatal(err)
		}
		o.learn(t, twin, append(twin.Vocab().Encode(requests[i].Prompt, true), plain[i]...))
	}
	// all runs the requests at once and returns the rounds and what was accepted of each drafter.
	// disturb is called again and again, each time when some requests have gone on.
	all := func(t *testing.T, change func(*tandem.Request), disturb func()) (rounds int, accepted map[string]int) {
		t.Helper()
		accepted = map[string]int{}
		var mu sync.Mutex
		var group sync.WaitGroup
		var moved atomic.Int64
		over := make(chan struct{})
		more := make(chan struct{}, 1)
		var disturbing sync.WaitGroup
		if disturb != nil {
			disturbing.Go(func() {
				for {
					select {
					case <-more:
						disturb()
					case <-over:
						return
					}
				}
			})
		}
		for i, r := range requests {
			group.Go(func() {
				r.Bounds = tandem.Bounds{Nodes: 20, Depth: 6, Width: 4}
				change(&r)
				var got tokensOf
				res, err := g.Generate(context.Background(), r, progress{&got, func() {
					if moved.Add(1)%50 == 0 {
						select {
						case more <- struct{}{}:
						default: // it is told already
						}
					}
				}})
				if err != nil || !slices.Equal(got, plain[i]) {
					t.Errorf("request %d: tokens %v, error %v, want %v", i, got, err, plain[i])
				}
				mu.Lock()
				defer mu.Unlock()
				rounds += res.Stats.Rounds
				for _, s := range res.Stats.Drafters {
					accepted[s.Name] += s.Accepted
				}
			})
		}
		group.Wait()
		close(over)
		disturbing.Wait()
		return rounds, accepted
	}
	for _, c := range []struct {
		strategy tandem.Strategy
		vote     tandem.Vote
		names    []string
		most     int // rounds for 320 tokens
	}{
		{tandem.StrategyFixed, tandem.VoteNone, []string{"medusa"}, 160},
		{tandem.StrategyFixed, tandem.VoteNone, []string{"ppd"}, 320},
		{tandem.StrategyLLMCad, tandem.VoteNone, []string{"medusa"}, 160},
		{tandem.StrategyMinions, tandem.VoteMajority, []string{"medusa", "ppd", lookup.Name}, 260},
		{tandem.StrategyFixed, tandem.VoteTree, []string{"medusa", "ppd", "go", lookup.Name}, 160},
		{tandem.StrategyPlanner, tandem.VoteAuto, []string{"medusa", "ppd"}, 320}, // what pays here depends on what else the machine does
		{tandem.StrategyPlanner, tandem.VoteAuto, nil, 320},
	} {
		t.Run(fmt.Sprintf("%s %s %v", c.strategy, c.vote, c.names), func(t *testing.T) {
			rounds, accepted := all(t, func(r *tandem.Request) { r.Strategy, r.Vote, r.Drafters = c.strategy, c.vote, c.names }, nil)
			if c.strategy != tandem.StrategyPlanner && slices.Contains(c.names, "medusa") && accepted["medusa"] < 60 || rounds > c.most {
				t.Errorf("%d rounds for 320 tokens, want at most %d; accepted %v", rounds, c.most, accepted)
			}
			t.Logf("%d rounds, accepted %v", rounds, accepted)
		})
	}
	t.Run("forgetting", func(t *testing.T) {
		_, accepted := all(t, func(r *tandem.Request) { r.Strategy, r.Drafters = tandem.StrategyPlanner, nil }, func() {
			if err := v.CloseOwned(context.Background(), 0); err != nil {
				t.Error(err)
			}
			if err := d[0].CloseOwned(context.Background(), 0); err != nil {
				t.Error(err)
			}
		})
		t.Logf("accepted %v", accepted)
	})
}
