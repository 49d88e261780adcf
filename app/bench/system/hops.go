package system

import (
	"context"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Hops are processes that send empty rounds, while they run.
type Hops interface {
	// Rounds sends n rounds, one after the other, and returns what each took, without the time for which memory was read.
	Rounds(ctx context.Context, n int, s EmptyRound) ([]time.Duration, error)
}

// EmptyRound says what the messages of an empty round hold.
type EmptyRound struct {
	Bounds   tandem.Bounds // the tree has exactly so many nodes and levels; plain: the round has no draft
	Accepted int           // nodes that a verdict accepts
	Prompt   int           // tokens of the session before its first round
	Read     time.Duration // how long memory is read where a pass would run, so that the caches are as cold as after one; 0: not at all
}

// Ways in which the suite hops sends rounds.
const (
	wayReal  = iota
	wayEmpty // nothing is computed
	wayCold  // nothing is computed, but memory is read for as long as a pass takes
	ways
)

var wayNames = [ways]string{"real", "empty", "empty, cold caches"}

// hopsResult puts the coordination of real rounds of one kind beside empty rounds.
type hopsResult struct {
	Kind     string     `json:"kind"` // drafted or plain
	Tree     string     `json:"tree"`
	Nodes    int        `json:"nodes"`    // of a tree, root included; in an empty round the mean of the real ones
	Accepted int        `json:"accepted"` // of them; likewise
	PassMS   float64    `json:"pass_ms"`  // mean
	Ways     []wayTimes `json:"ways"`
}

// wayTimes are the times of the rounds that were sent in one way.
type wayTimes struct {
	Name   string    `json:"name"`
	Rounds int       `json:"rounds"`
	Times  quantiles `json:"us"`
	Ratio  quantiles `json:"ratio"` // of the real rounds' times to these
}

// hopsKind gathers the rounds of one kind.
type hopsKind struct {
	name  string
	of    func(set string) variant
	tally *tally // of the real rounds
	last  int    // rounds of the latest text
	times [ways][]time.Duration
}

// hopsSuite compares what the coordination of a round costs with what the same hops cost empty. Real and empty rounds take turns:
// one text's rounds in one way, then as many in the next.
func (b *runner) hopsSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if b.cfg.StartHops == nil {
		return r, tandem.Errorf("", tandem.Unsupported, "empty rounds cannot be sent here")
	}
	kinds := []*hopsKind{
		{name: "drafted", tally: newTally(1), of: func(set string) variant {
			return b.fixed(b.one(set)[0], b.bounds(tandem.StrategyFixed))
		}},
		{name: "plain", tally: newTally(1), of: func(string) variant { return b.plainly() }},
	}
	err := b.cfg.StartHops(b.ctx, func(ctx context.Context, h Hops) error {
		turn := 0
		return b.each(b.pick(b.domains()...), func(b *runner, set promptSet) error {
			for range b.cfg.Repeat {
				for i, p := range set.Prompts {
					if i > 0 && b.over() {
						b.note("%s: time is over after %d of %d prompts", set.Name, i, len(set.Prompts))
						return nil
					}
					if err := b.takeTurns(ctx, h, kinds, set.Name, p, turn); err != nil {
						return err
					}
					turn++
				}
			}
			return nil
		})
	})
	for _, k := range kinds {
		if len(k.times[wayReal]) > 0 {
			r.Hops = append(r.Hops, k.result())
		}
	}
	for _, k := range r.Hops {
		r.Figures = append(r.Figures, k.figures()...)
	}
	return r, err
}

// takeTurns runs one prompt by all kinds and ways, forwards or backwards. Empty rounds are as many as the latest real ones and have
// their shape, so the first turn must go forwards.
func (b *runner) takeTurns(ctx context.Context, h Hops, kinds []*hopsKind, set string, p benchPrompt, turn int) error {
	for _, i := range order(turn, len(kinds)*ways) {
		k, way := kinds[i/ways], i%ways
		if way == wayReal {
			v := k.of(set)
			o, err := b.generate(v, p, nil)
			if err != nil {
				return err
			}
			b.agrees(v, p, o)
			k.tally.add(o)
			k.last = o.Stats.Rounds
			k.times[way] = append(k.times[way], o.Stats.Coordination...)
			continue
		}
		s := k.shape()
		if way == wayCold {
			s.Read = k.pass()
		}
		times, err := h.Rounds(ctx, k.last, s)
		if err != nil {
			return fmt.Errorf("%s rounds: %w", wayNames[way], err)
		}
		k.times[way] = append(k.times[way], times...)
	}
	return nil
}

// shape returns an empty round like the mean of the real ones.
func (k *hopsKind) shape() EmptyRound {
	s, rounds := k.tally.stats, float64(k.tally.stats.Rounds)
	mean := func(sum int) int { return int(math.Round(figures.Share(float64(sum), rounds))) }
	out := EmptyRound{Prompt: emptyPrompt, Accepted: mean(s.Accepted)}
	if s.Drafted > 0 {
		out.Bounds = tandem.Bounds{Nodes: mean(s.Drafted) + 1, Depth: max(mean(s.DraftedDepth), 1), Width: 1}
	}
	return out
}

// emptyPrompt is the prompt's length in sessions of empty rounds. It is sent once, before the rounds.
const emptyPrompt = 64

// pass returns the mean time of a pass.
func (k *hopsKind) pass() time.Duration {
	return k.tally.stats.VerifyBusy / time.Duration(max(k.tally.stats.Rounds, 1))
}

func (k *hopsKind) result() hopsResult {
	s := k.shape()
	out := hopsResult{Kind: k.name, Tree: s.Bounds.String(), Nodes: max(s.Bounds.Nodes, 1), Accepted: s.Accepted,
		PassMS: figures.MS(k.pass())}
	real := quantilesOf(k.times[wayReal])
	for way, times := range k.times {
		q := quantilesOf(times)
		out.Ways = append(out.Ways, wayTimes{Name: wayNames[way], Rounds: len(times), Times: q,
			Ratio: quantiles{figures.Share(real.P50, q.P50), figures.Share(real.P99, q.P99)}})
	}
	return out
}

// figures are the ratios.
func (r hopsResult) figures() (out []figure) {
	for _, w := range r.Ways[wayEmpty:] {
		out = append(out, figure{Name: fmt.Sprintf("%s: coordination over %s, p50", r.Kind, w.Name), Value: w.Ratio.P50},
			figure{Name: fmt.Sprintf("%s: coordination over %s, p99", r.Kind, w.Name), Value: w.Ratio.P99})
	}
	return out
}

func printHops(w io.Writer, all []hopsResult) {
	t := figures.NewTable(w, "%s\t%d\t%.0f\t%.0f\t%.2f\t%.2f")
	for _, r := range all {
		t.Head(fmt.Sprintf("%s: %d rows, %d accepted, pass %.1f ms", r.Kind, r.Nodes, r.Accepted, r.PassMS), "rounds", "p50 µs", "p99 µs",
			"real over it, p50", "p99")
		for _, way := range r.Ways {
			t.Row(way.Name, way.Rounds, way.Times.P50, way.Times.P99, way.Ratio.P50, way.Ratio.P99)
		}
	}
	_ = t.Flush()
}
