package system

import (
	"fmt"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// pipelineSessions are how many sessions the suite pipeline runs at once, if the command line does not say.
var pipelineSessions = []int{8, 16, 32}

// division is how the verifiers of the suite pipeline divide sessions.
type division struct {
	name    string
	batches int // Group.Batches
}

// divisions begin with what the others are compared with.
var divisions = []division{{"lockstep", 1}, {"as set", 0}, {"two batches", 2}}

// pipelineSuite compares drafting for some sessions while others are verified with drafting for all and then verifying all. Each
// division has processes of its own, all started before, and they run the same texts in turn.
func (b *runner) pipelineSuite() (*suiteResult, error) {
	r := &suiteResult{}
	return r, b.divided(divisions, func(runners []*runner) error { return b.pipelines(r, runners) })
}

// divided calls do with a runner for each division, all of whose processes run.
func (b *runner) divided(divisions []division, do func([]*runner) error) error {
	runners := make([]*runner, len(divisions))
	var start func(i int) error
	start = func(i int) (failed error) {
		switch {
		case i == len(divisions):
			return do(runners)
		case divisions[i].batches == b.launched.Batches:
			runners[i] = b
			return start(i + 1)
		}
		g := b.launched
		g.Batches = divisions[i].batches
		err := b.group(g, func(mine *runner) {
			runners[i] = mine
			failed = start(i + 1)
		})
		if failed == nil {
			failed = err
		}
		return failed
	}
	return start(0)
}

// pipelines measures with one runner for each division.
func (b *runner) pipelines(r *suiteResult, runners []*runner) error {
	v := b.as("pipeline", func(r *tandem.Request) { r.IgnoreEOS = true }) // so that all decode for as long
	all := b.crowd()
	counts := pipelineSessions
	if b.cfg.Parallel > 1 {
		counts = []int{b.cfg.Parallel}
	}
	for i, n := range counts {
		b := b.within(len(counts) - i)
		var prompts []benchPrompt
		for j := range n {
			p := all[j%len(all)]
			p.ID += ", beginning"
			p.Prompt = beginning(p.Prompt)
			prompts = append(prompts, p)
		}
		flows := make([]flow, len(divisions))
		for k := range b.cfg.Repeat {
			if k > 0 && b.over() {
				b.note("%d sessions: time is over after %d of %d repetitions", n, k, b.cfg.Repeat)
				break
			}
			for _, at := range order(k, len(divisions)) {
				f, _, err := runners[at].together(variant{divisions[at].name, v.request}, prompts)
				if err != nil {
					return err
				}
				if f.Tokens == 0 {
					b.note("%d sessions, %s: never decoded all at once: want a larger --max-tokens", n, divisions[at].name)
				}
				flows[at].join(f)
			}
		}
		for at, f := range flows {
			f.Division = divisions[at].name
			r.Pipeline = append(r.Pipeline, f)
			if at > 0 {
				r.figure(fmt.Sprintf("%d sessions: %s over %s", n, f.Division, divisions[0].name), figures.Share(f.TokS, flows[0].TokS),
					"at least 1.3 where drafters have a processor of their own")
			}
		}
	}
	return nil
}

// beginning returns about the first 48 bytes of a prompt, so that all sessions decode soon.
func beginning(prompt string) string {
	for i := range prompt { // at the start of a character
		if i >= 48 {
			return prompt[:i]
		}
	}
	return prompt
}

func printPipeline(w io.Writer, flows []flow) {
	t := figures.NewTable(w, "%d\t%s\t%.1f\t%.2f\t%.1f\t%.2f\t%.2f")
	for i, f := range flows {
		if i == 0 {
			t.Head("sessions", "passes", "tok/s", "ratio", "sessions in a pass", "verifier busy", "drafters busy")
		}
		first := flows[i-i%len(divisions)]
		t.Row(f.Sessions, f.Division, f.TokS, figures.Share(f.TokS, first.TokS), f.Batch, f.VerifierBusy, f.DrafterBusy)
	}
	_ = t.Flush()
}
