package test

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tandem-llm/tandem/client"
)

// experts are the drafters that TestExactness starts.
var experts = []string{"gopher-draft-go-f16", "gopher-draft-py-f16", "gopher-draft-prose-f16", "lookup"}

// expertFlags start all of them.
func expertFlags() (flags []string) {
	for _, name := range experts {
		if name != "lookup" {
			name = filepath.Join("..", "models", name+".gguf")
		}
		flags = append(flags, "--draft", name)
	}
	return flags
}

// speculation is one way to speculate.
type speculation struct {
	strategy, vote string
	drafters       []string
	without        []string
	tree           *client.Tree
}

func (s speculation) String() string {
	tree := "default"
	if s.tree != nil {
		tree = fmt.Sprintf("%d/%d/%d", s.tree.Nodes, s.tree.Depth, s.tree.Width)
	}
	return fmt.Sprintf("%s, vote %s, drafters %s, without %s, tree %s", s.strategy, s.vote, strings.Join(s.drafters, "+"),
		strings.Join(s.without, "+"), tree)
}

// of returns r speculated in this way.
func (s speculation) of(r client.Request) client.Request {
	r.Strategy, r.Vote, r.Drafters, r.Without, r.Tree = s.strategy, s.vote, s.drafters, s.without, s.tree
	return r
}

var (
	allStrategies = []string{"planner", "fixed", "llmcad", "minions"}
	allVotes      = []string{"auto", "none", "majority", "tree"}
	allSets       = [][]string{nil, experts[:1], experts[1:3], experts[:3], experts[3:], {experts[2], "lookup"}, {"lookup", "recycling"},
		{experts[1], "recycling"}}
	allWithout = [][]string{nil, nil, {"branches"}, {"adaptive"}, {"ahead"}, {"branches", "adaptive", "ahead"}}
	allShapes  = []*client.Tree{nil, nil, {Nodes: 16, Depth: 7, Width: 10}, {Nodes: 5, Depth: 4, Width: 1},
		{Nodes: 2, Depth: 1, Width: 1}, {Nodes: 128, Depth: 24, Width: 16}}
)

func oneOf[T any](r *rand.Rand, all []T) T { return all[r.IntN(len(all))] }

// anySpeculation returns a random way to speculate.
func anySpeculation(r *rand.Rand) speculation {
	return speculation{oneOf(r, allStrategies), oneOf(r, allVotes), oneOf(r, allSets), oneOf(r, allWithout), oneOf(r, allShapes)}
}

// TestExactness runs every strategy with every vote and random drafters, shapes and techniques, in
// batches of random size, and requests whose speculation changes in the middle: the tokens are always
// those of plain decoding.
func TestExactness(t *testing.T) {
	t.Parallel()
	r := newRandom(t)
	repeats, tokens, changes := 1, 24, 12
	if *long {
		repeats, tokens, changes = 60, 128, 600
	}
	g := up(t, append(expertFlags(), "--sessions", "8")...)
	jobs := g.workload(t, 12, tokens)

	type trial struct {
		job
		speculation
	}
	var trials []trial
	for range repeats {
		for _, strategy := range allStrategies {
			for _, vote := range allVotes {
				s := anySpeculation(r)
				s.strategy, s.vote = strategy, vote
				trials = append(trials, trial{oneOf(r, jobs), s})
			}
		}
	}
	r.Shuffle(len(trials), func(i, j int) { trials[i], trials[j] = trials[j], trials[i] })
	var mu sync.Mutex
	accepted, contributed := map[string]int{}, map[string]int{}
	for rest := trials; len(rest) > 0 && !t.Failed(); {
		n := min(1+r.IntN(8), len(rest))
		var wg sync.WaitGroup
		for _, x := range rest[:n] {
			wg.Go(func() {
				got, err := g.try(t.Context(), x.of(x.request))
				if err != nil || !slices.Equal(got.tokens, x.want) {
					t.Errorf("%s, %v: %v: tokens\n%v, plain\n%v", x.id, x.speculation, err, got.tokens, x.want)
				}
				mu.Lock()
				defer mu.Unlock()
				accepted[x.strategy] += got.finished.Statistics.Accepted
				for _, d := range got.finished.Statistics.Drafters {
					contributed[d.Name] += d.Drafted
				}
			})
		}
		wg.Wait()
		rest = rest[n:]
	}
	for _, s := range allStrategies {
		if accepted[s] == 0 && (s != "planner" || *long) { // it may find that nothing pays beside all these tests
			t.Errorf("no drafted token of strategy %s was accepted: did it speculate at all?", s)
		}
	}
	for _, d := range experts[:3] { // prompts may repeat nothing that lookup could find
		if contributed[d] == 0 {
			t.Errorf("drafter %s has drafted nothing", d)
		}
	}
	t.Logf("%d requests; accepted by strategy %v, drafted by drafter %v", len(trials), accepted, contributed)

	eightAtOnce(changes, func(i int) {
		mu.Lock()
		own := rand.New(rand.NewPCG(r.Uint64(), uint64(i)))
		mu.Unlock()
		if !t.Failed() {
			g.changing(t, own, jobs[i%len(jobs)])
		}
	})
}

// changing runs a job in pieces, each with another speculation: what was said becomes the prompt of the
// next piece. A draw depends on seed and position alone, so the pieces make the whole.
func (g *group) changing(t *testing.T, r *rand.Rand, j job) {
	t.Helper()
	var said, prompt []uint32
	var how []speculation
	for left := len(j.want); left > 0; left = len(j.want) - len(said) {
		how = append(how, anySpeculation(r))
		q := how[len(how)-1].of(j.request)
		n := min(1+r.IntN(max(1, len(j.want)/2)), left)
		if q.MaxTokens = &n; prompt != nil {
			q.Prompt, q.Tokens = "", slices.Concat(prompt, said)
		}
		if r.IntN(8) == 0 {
			q = plain(q)
			q.Strategy, q.Vote, q.Drafters, q.Without = "", "", nil, nil
		}
		for event, err := range g.client.Generate(t.Context(), q) {
			switch {
			case err != nil:
				t.Errorf("%s after %d tokens, %v: %v", j.id, len(said), how, err)
				return
			case event.Started != nil && prompt == nil:
				prompt = event.Started.PromptTokens
			case event.Delta != nil:
				said = append(said, event.Delta.Tokens...)
			}
		}
	}
	if !slices.Equal(said, j.want) {
		t.Errorf("%s in %d pieces, %v: tokens\n%v, plain\n%v", j.id, len(how), how, said, j.want)
	}
}
