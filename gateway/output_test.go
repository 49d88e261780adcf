package gateway

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testkit"
)

// slowSubmit is a verifier to which a ticket takes a while.
type slowSubmit struct {
	Verifier
	took func() // called when the ticket is there
}

const submitTime = 3 * time.Millisecond

func (v slowSubmit) Submit(ctx context.Context, t tandem.Ticket) error {
	testkit.Sleep(submitTime)
	v.took()
	return v.Verifier.Submit(ctx, t)
}

// startedDrafting tells when a draft is asked for.
type startedDrafting struct {
	tandem.Drafter
	asked func()
}

func (d startedDrafting) Propose(ctx context.Context, p tandem.Proposal) (tandem.Proposed, error) {
	d.asked()
	return d.Drafter.Propose(ctx, p)
}

// TestOutputFollowsTheQuestion: the client gets a round's output when the next round's question is on its way: its ticket is put, or
// its draft is asked for.
func TestOutputFollowsTheQuestion(t *testing.T) {
	for name, bounds := range map[string]tandem.Bounds{"plain": {}, "drafted": {Nodes: 8, Depth: 4, Width: 2}} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld()
			w.quiet = true
			c := w.config()
			var questions, outputs []time.Duration
			at := func(list *[]time.Duration) func() {
				return func() { *list = append(*list, time.Since(w.began)) }
			}
			if bounds.Plain() {
				c.Verifier = slowSubmit{c.Verifier, at(&questions)}
			} else {
				c.Drafters[0].Drafter = startedDrafting{c.Drafters[0].Drafter, at(&questions)}
			}
			w.gw, _ = New(c)
			r := tandem.Request{Prompt: "x", MaxTokens: 24, Sampling: tandem.Sampling{TopP: 1}, Bounds: bounds}
			output := at(&outputs)
			if _, err := w.gw.Generate(context.Background(), r, &sink{each: func(tandem.Delta) { output() }}); err != nil {
				t.Fatal(err)
			}
			if len(outputs) < 5 || len(questions) < 4 {
				t.Fatalf("%s: %d outputs, %d questions: want several", name, len(outputs), len(questions))
			}
			for i, out := range outputs[:4] {
				if !slices.Contains(questions, out) {
					t.Errorf("%s: output %d came at %v: want it with a question, at one of %v", name, i+1, out, questions)
				}
			}
			if err := w.gw.Shutdown(context.Background()); err != nil {
				t.Error(err)
			}
			w.flights.Wait()
		})
	}
}
