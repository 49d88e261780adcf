package devices

import (
	"context"
	"fmt"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/app/bench/prompts"
)

// placeResult is one way to place target and draft.
type placeResult struct {
	Name   string       `json:"name"`
	Flags  string       `json:"flags"`
	Plain  rateResult   `json:"plain"`
	Spec   rateResult   `json:"speculating"`
	Equal  bool         `json:"equal"` // its ids are those of the first place
	Ahead  *aheadResult `json:"ahead,omitempty"`
	Error  string       `json:"error,omitempty"`
	Busy   float64      `json:"verifier_busy"` // share of the time of speculating
	Drafts float64      `json:"drafter_busy"`
}

// rateResult is decoding in one way.
type rateResult struct {
	Tokens   int       `json:"tokens"`
	TokS     float64   `json:"tok_s"`
	PerRound float64   `json:"tokens_per_round"`
	Joules   []float64 `json:"joules,omitempty"` // a token, by each source of Config.Energy
}

// aheadResult is what drafting ahead brings. In turn a round takes verifying and drafting; ahead, the drafting of hits is done already.
type aheadResult struct {
	Drafting float64 `json:"drafting"` // d: drafting over verifying, in turn
	Hits     float64 `json:"hits"`     // h: rounds whose tree had been begun ahead, of those with a draft
	InTurn   float64 `json:"in_turn_tok_s"`
	Ahead    float64 `json:"ahead_tok_s"`
	Ratio    float64 `json:"ratio"`
	Bound    float64 `json:"bound"` // (1+d)/(1+d(1−h))
	Share    float64 `json:"of_bound"`
}

// truth holds the first ids of each prompt.
type truth struct {
	ids    map[string][]tandem.Token
	by     string
	differ []string
}

// check compares ids with the first ones of the prompt.
func (t *truth) check(prompt, by string, ids []tandem.Token) bool {
	if t.ids == nil {
		t.ids, t.by = map[string][]tandem.Token{}, by
	}
	first, known := t.ids[prompt]
	if !known {
		t.ids[prompt] = ids
		return true
	}
	if slices.Equal(first, ids) {
		return true
	}
	at := 0
	for at < min(len(first), len(ids)) && first[at] == ids[at] {
		at++
	}
	t.differ = append(t.differ, fmt.Sprintf("prompt %s: %s has other ids than %s from token %d on", prompt, by, t.by, at+1))
	return false
}

// sum adds up generations.
type sum struct {
	tokens int
	joules []float64
	tandem.Stats
}

func (s *sum) add(tokens int, o tandem.Stats) {
	s.tokens += tokens
	s.Rounds += o.Rounds
	s.PlainRounds += o.PlainRounds
	s.Decode += o.Decode
	s.DraftBusy += o.DraftBusy
	s.VerifyBusy += o.VerifyBusy
	s.AheadHits += o.AheadHits
}

func (s *sum) spend(joules []float64) {
	if s.joules == nil {
		s.joules = make([]float64, len(joules))
	}
	for i, j := range joules {
		s.joules[i] += j
	}
}

func (s *sum) rate() rateResult {
	r := rateResult{Tokens: s.tokens, TokS: figures.Share(float64(s.tokens), s.Decode.Seconds()),
		PerRound: figures.Share(float64(s.tokens), float64(s.Rounds))}
	for _, j := range s.joules {
		r.Joules = append(r.Joules, figures.Share(j, float64(s.tokens)))
	}
	return r
}

// way is one way to decode.
type way struct {
	name    string
	request tandem.Request
	sum     sum
}

// run decodes all prompts in all ways, in turn.
func (p *placeResult) run(ctx context.Context, c *Config, place Place, processes Processes, ids *truth) error {
	ways := []*way{{name: "plain", request: c.Plain}, {name: "speculating", request: c.Speculating}}
	if !c.Speculating.Bounds.Plain() {
		steady := c.Speculating // trees of one size, so that both ways draft as much
		steady.Strategy, steady.Vote, steady.Bounds = tandem.StrategyLLMCad, tandem.VoteNone, tandem.DefaultBounds(tandem.StrategyLLMCad)
		steady.Without = tandem.TechniqueAdaptive | tandem.TechniqueAhead
		ahead := steady
		ahead.Without = tandem.TechniqueAdaptive
		ways = append(ways, &way{name: "drafting in turn", request: steady}, &way{name: "drafting ahead", request: ahead})
	}
	p.Equal = true
	for round := range c.Repeat {
		for i, prompt := range c.Prompts {
			for k := range ways {
				w := ways[k]
				if (round+i)%2 == 1 { // slow changes of the machine affect all alike
					w = ways[len(ways)-1-k]
				}
				before := c.Energy.Joules()
				equal, err := w.generate(ctx, place.Name, prompt, processes, ids)
				w.sum.spend(c.Energy.since(before, 1))
				if err != nil {
					return err
				}
				p.Equal = p.Equal && equal
			}
		}
	}
	p.Plain, p.Spec = ways[0].sum.rate(), ways[1].sum.rate()
	s := &ways[1].sum
	p.Busy, p.Drafts = figures.Share(float64(s.VerifyBusy), float64(s.Decode)), figures.Share(float64(s.DraftBusy), float64(s.Decode))
	if len(ways) > 2 {
		p.Ahead = aheadOf(&ways[2].sum, &ways[3].sum)
	}
	return nil
}

func (w *way) generate(ctx context.Context, place string, p prompts.Prompt, processes Processes, ids *truth) (equal bool, err error) {
	r := w.request
	r.Prompt, r.Tokens = p.Prompt, p.Tokens
	var tokens []tandem.Token
	out, err := processes.Generate(ctx, r, func(more []tandem.Token) { tokens = append(tokens, more...) })
	if err != nil {
		return false, fmt.Errorf("prompt %s, %s: %w", p.ID, w.name, err)
	}
	w.sum.add(len(tokens), out.Stats)
	return ids.check(p.ID, place+", "+w.name, tokens), nil
}

// aheadOf compares drafting ahead with drafting in turn; nil if nothing was drafted.
func aheadOf(inTurn, ahead *sum) *aheadResult {
	if inTurn.DraftBusy == 0 || ahead.Rounds == ahead.PlainRounds {
		return nil
	}
	a := &aheadResult{
		Drafting: figures.Share(float64(inTurn.DraftBusy), float64(inTurn.VerifyBusy)),
		Hits:     figures.Share(float64(ahead.AheadHits), float64(ahead.Rounds-ahead.PlainRounds)),
		InTurn:   inTurn.rate().TokS, Ahead: ahead.rate().TokS,
	}
	a.Ratio = figures.Share(a.Ahead, a.InTurn)
	a.Bound = (1 + a.Drafting) / (1 + a.Drafting*(1-a.Hits))
	a.Share = figures.Share(a.Ratio, a.Bound)
	return a
}
