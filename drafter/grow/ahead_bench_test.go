package grow_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
	"github.com/tandem-llm/tandem/drafter/draftertest"
)

// BenchmarkAhead decodes the shipped target's own text with the shipped draft model, one thread, and a
// verifier that sleeps for the time of a pass; rounds/s with and without drafting ahead.
func BenchmarkAhead(b *testing.B) {
	r := draftertest.New(b, drafter.Config{})
	all := draftertest.Truth(b, r.Text, draftertest.Limit)
	plan := tandem.Plan{Round: time.Millisecond}
	for w := range 32 { // what a target of 0.97 b at Q8_0 takes on two cores: flat to 8 rows
		plan.Verify = append(plan.Verify, 40*time.Millisecond+time.Duration(max(w-7, 0))*3*time.Millisecond)
	}
	for _, verify := range []time.Duration{10 * time.Millisecond, 40 * time.Millisecond} {
		for _, shape := range []struct {
			name string
			tandem.Bounds
			tandem.Growth
			tandem.Plan
		}{
			{"levels", draftertest.Bounds, tandem.GrowLevels, tandem.Plan{}},
			{"pacer", draftertest.Bounds, tandem.GrowPacer, tandem.Plan{}},
			{"chain", tandem.Bounds{Nodes: 8, Depth: 7, Width: 1}, tandem.GrowLevels, tandem.Plan{}},
			{"plan", tandem.Bounds{Nodes: 32, Depth: 12, Width: 10}, tandem.GrowBest, plan},
		} {
			for _, ahead := range []bool{false, true} {
				b.Run(fmt.Sprintf("verify=%v/%s/ahead=%v", verify, shape.name, ahead), func(b *testing.B) {
					decode(b, r, all, verify, tandem.Proposal{Bounds: shape.Bounds, Growth: shape.Growth, Plan: shape.Plan, Ahead: ahead,
						Return: true})
				})
			}
		}
	}
}

// decode goes through the text again and again, a round an iteration.
func decode(b *testing.B, r *draftertest.Rig, all []tandem.Token, verify time.Duration, p tandem.Proposal) {
	var tokens, nodes, reused, passes int
	var busy, waited time.Duration
	before := r.Counters.Snapshot()
	at, told := 0, 0
	for b.Loop() {
		if at == 0 || at >= len(all)-8 {
			b.StopTimer()
			at, told = len(r.Text), len(r.Text)
			r.Begin(1, r.Text)
			b.StartTimer()
		}
		q := draftertest.Proposal(1, all[:at], told)
		q.Bounds, q.Growth, q.Plan, q.Ahead, q.Return = p.Bounds, p.Growth, p.Plan, p.Ahead, p.Return
		asked := time.Now()
		done, err := r.Propose(context.Background(), q)
		waited += time.Since(asked)
		if err != nil {
			b.Fatal(err)
		}
		time.Sleep(verify)
		told = at
		node := int32(0)
		for node >= 0 {
			next := all[at]
			at++
			tokens++
			child := int32(-1)
			for i, parent := range done.Tree.Parents {
				if parent == node && done.Tree.Tokens[i] == next {
					child = int32(i)
				}
			}
			node = child
		}
		nodes, reused, passes, busy = nodes+done.Nodes-1, reused+done.Reused, passes+done.Passes, busy+done.Busy
	}
	n, after := float64(b.N), r.Counters.Snapshot()
	b.ReportMetric(n/b.Elapsed().Seconds(), "rounds/s")
	b.ReportMetric(float64(tokens)/b.Elapsed().Seconds(), "tokens/s")
	b.ReportMetric(float64(busy.Microseconds())/n, "draft-µs")
	b.ReportMetric(float64(passes)/n, "passes")
	b.ReportMetric(float64(nodes)/n, "nodes")
	b.ReportMetric(float64(waited.Microseconds())/n, "propose-µs")
	b.ReportMetric(float64(reused)/float64(nodes), "reused")
	count := func(name string) float64 { return float64(after["ahead."+name] - before["ahead."+name]) }
	if tried := count("hits") + count("misses"); tried > 0 {
		b.ReportMetric(count("hits")/tried, "hits")
		b.ReportMetric(count("nodes")/n, "ahead-nodes")
		b.ReportMetric(count("busy_ns")/1e3/n, "ahead-µs")
		b.ReportMetric(count("useful_ns")/count("busy_ns"), "useful")
	}
}
