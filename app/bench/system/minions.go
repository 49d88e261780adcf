package system

import (
	"fmt"
	"io"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
)

// ablationSessions are how many sessions the suite minions runs at once, if the command line does not say.
const ablationSessions = 4

// ablationStep is a part of Minions switched on, in the suite minions.
type ablationStep struct {
	Name         string  `json:"name"`
	TokensARound float64 `json:"tokens_a_round"`
	OverPlain    float64 `json:"over_plain"`       // tokens/s
	OverBefore   float64 `json:"over_step_before"` // tokens/s
	Flow         flow    `json:"flow"`
}

// minionsSteps returns variants with the parts of Minions switched on one after the other, after plain decoding; and for each the number
// of its division.
func (b *runner) minionsSteps() (variants []variant, division []int) {
	step := func(name string, at int, vote tandem.Vote, without tandem.Technique, bounds tandem.Bounds, drafters []string) {
		division = append(division, at)
		variants = append(variants, b.as(name, func(r *tandem.Request) {
			r.Strategy, r.Vote, r.Without, r.Bounds, r.Drafters = tandem.StrategyMinions, vote, without, bounds, drafters
			r.IgnoreEOS = true // so that all decode for as long
		}))
	}
	plain := b.plainly()
	plain.request.IgnoreEOS = true
	variants, division = []variant{plain}, []int{0}
	still, some := tandem.TechniqueAdaptive|tandem.TechniqueAhead, chain(b.cfg.LengthStart)
	step("chain of one drafter", 0, tandem.VoteNone, still, some, b.drafters[:1])
	step("+ vote", 0, tandem.VoteMajority, still, some, nil)
	step("+ length", 0, tandem.VoteMajority, tandem.TechniqueAhead, chain(12), nil)
	step("+ pipeline", 1, tandem.VoteMajority, tandem.TechniqueAhead, chain(12), nil)
	step("merged in place of the vote", 1, tandem.VoteTree, tandem.TechniqueAhead, tandem.Bounds{Nodes: 16, Depth: 12, Width: 1}, nil)
	return variants, division
}

// minionsSuite switches the parts of Minions on one after the other, for several sessions at once: a vote of all drafters, a length that
// adapts, and two batches that are verified in turn.
func (b *runner) minionsSuite() (*suiteResult, error) {
	r := &suiteResult{}
	if len(b.drafters) < 2 {
		return r, tandem.Errorf("", tandem.Invalid, "%d draft model: a vote wants several, give --draft more than once", len(b.drafters))
	}
	return r, b.divided([]division{{"lockstep", 1}, {"two batches", 2}}, func(runners []*runner) error {
		variants, at := b.minionsSteps()
		sessions := ablationSessions
		if b.cfg.Parallel > 1 {
			sessions = b.cfg.Parallel
		}
		all, flows, equal := b.crowd(), make([]flow, len(variants)), true
		for k := range b.cfg.Repeat {
			if k > 0 && b.over() {
				b.note("time is over after %d of %d repetitions", k, b.cfg.Repeat)
				break
			}
			prompts := make([]benchPrompt, sessions)
			for i := range prompts {
				prompts[i] = all[(k*sessions+i)%len(all)]
				prompts[i].ID += ", beginning"
				prompts[i].Prompt = beginning(prompts[i].Prompt)
			}
			for _, i := range order(k, len(variants)) {
				f, same, err := runners[at[i]].together(variants[i], prompts)
				if err != nil {
					return err
				}
				flows[i].join(f)
				equal = equal && same
			}
		}
		if !equal {
			b.note("texts differ")
		}
		r.ablation(variants, flows)
		return nil
	})
}

// ablation puts the steps into the result.
func (r *suiteResult) ablation(variants []variant, flows []flow) {
	for i, f := range flows {
		s := ablationStep{Name: variants[i].name, TokensARound: figures.Share(float64(f.Tokens), float64(f.verdicts)),
			OverPlain: figures.Share(f.TokS, flows[0].TokS), OverBefore: 1, Flow: f}
		if i > 0 {
			s.OverBefore = figures.Share(f.TokS, flows[i-1].TokS)
			r.figure(fmt.Sprintf("%d sessions: %s over plain", f.Sessions, s.Name), s.OverPlain, "")
		}
		r.Minions = append(r.Minions, s)
	}
}

func printMinions(w io.Writer, steps []ablationStep) {
	t := figures.NewTable(w, "%s\t%.1f\t%.2f\t%.2f\t%.2f\t%.1f\t%.2f\t%.2f")
	for i, s := range steps {
		if i == 0 {
			t.Head("minions", "tok/s", "over plain", "over the step before", "tokens a round", "sessions in a pass", "verifier busy",
				"drafters busy")
		}
		f := s.Flow
		t.Row(s.Name, f.TokS, s.OverPlain, s.OverBefore, s.TokensARound, f.Batch, f.VerifierBusy, f.DrafterBusy)
	}
	_ = t.Flush()
}
