package public

import (
	"cmp"

	"github.com/tandem-llm/tandem"
	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
	"github.com/tandem-llm/tandem/services/peers/wire"
	"github.com/tandem-llm/tandem/services/public/ask"
)

func fromStarted(e tandem.Started, model string) *tandemv1.Started {
	r := e.Request
	return &tandemv1.Started{Session: e.Session.String(), Prompt: &tandemv1.TokenList{Ids: wire.FromTokens(e.PromptTokens)}, Model: model,
		Drafter: e.Drafter, MaxTokens: int32(r.MaxTokens), Sampling: fromSampling(r.Sampling), Speculation: fromSpeculation(r),
		Identity: string(e.Identity)}
}

func fromProgress(p tandem.PromptProgress) *tandemv1.PromptProgress {
	return &tandemv1.PromptProgress{Total: int32(p.Total), Cached: int32(p.Cached), Processed: int32(p.Processed), TimeNs: int64(p.Time)}
}

func fromDelta(d tandem.Delta) *tandemv1.Delta {
	out := &tandemv1.Delta{Text: d.Text, Tokens: &tandemv1.TokenList{Ids: wire.FromTokens(d.Tokens)},
		Origins: make([]tandemv1.Origin, len(d.Origins)), Round: fromRound(d.Round)}
	for i, o := range d.Origins {
		out.Origins[i] = tandemv1.Origin_ORIGIN_TARGET
		if o == tandem.OriginDraft {
			out.Origins[i] = tandemv1.Origin_ORIGIN_DRAFT
		}
	}
	for _, l := range d.Logprobs {
		m := &tandemv1.Logprob{LogProb: l.LogProb}
		for _, t := range l.Top {
			m.Top = append(m.Top, &tandemv1.TopLogprob{Token: uint32(t.Token), LogProb: t.LogProb})
		}
		out.Logprobs = append(out.Logprobs, m)
	}
	return out
}

func fromRound(r *tandem.Round) *tandemv1.Round {
	if r == nil {
		return nil
	}
	out := &tandemv1.Round{Index: int32(r.Index), Base: int32(r.Base), Choice: r.Choice, Why: r.Why, Drafters: r.Drafters}
	for i, t := range r.Tree.Tokens {
		n := &tandemv1.RoundNode{Token: uint32(t), Parent: r.Tree.Parents[i]}
		if i < len(r.Tree.LogProbs) {
			n.LogProb = &r.Tree.LogProbs[i]
		}
		if i < len(r.Votes) {
			n.Votes = uint32(r.Votes[i])
		}
		out.Nodes = append(out.Nodes, n)
	}
	for _, n := range r.Path {
		if int(n) < len(out.Nodes) {
			out.Nodes[n].Accepted = true
		}
	}
	for _, l := range r.Lanes {
		out.Lanes = append(out.Lanes, &tandemv1.Lane{Stage: l.Stage, By: l.By, FromNs: int64(l.From), ToNs: int64(l.To)})
	}
	return out
}

func finished(r tandem.Result) *tandemv1.Finished {
	reason := tandemv1.FinishReason_FINISH_REASON_UNSPECIFIED
	switch r.Finish {
	case tandem.FinishStop:
		reason = tandemv1.FinishReason_FINISH_REASON_STOP
	case tandem.FinishLength:
		reason = tandemv1.FinishReason_FINISH_REASON_LENGTH
	}
	return &tandemv1.Finished{Reason: reason, Stopped: r.Stopped, RepeatedPiece: int32(r.Repeated), Statistics: fromStats(r.Stats),
		Usage: &tandemv1.Usage{PromptTokens: int32(r.PromptTokens), OutputTokens: int32(r.OutputTokens),
			CachedPromptTokens: int32(r.CachedTokens)}}
}

func fromStats(s tandem.Stats) *tandemv1.Statistics {
	out := &tandemv1.Statistics{Rounds: int32(s.Rounds), Drafted: int32(s.Drafted), DraftedDepth: int32(s.DraftedDepth),
		Accepted: int32(s.Accepted), PlainRounds: int32(s.PlainRounds), Reopened: int32(s.Reopened), PrefillNs: int64(s.Prefill),
		DecodeNs: int64(s.Decode), DraftBusyNs: int64(s.DraftBusy), VerifyBusyNs: int64(s.VerifyBusy), PlainNs: int64(s.Plain),
		CoordinationNs: make([]int64, len(s.Coordination)), AheadHits: int32(s.AheadHits), AheadTries: int32(s.AheadTries),
		AheadBusyNs: int64(s.AheadBusy), AheadUsefulNs: int64(s.AheadUseful), PlanningNs: int64(s.Planning), Choices: map[string]int32{},
		Reasons: map[string]int32{}, Accept: s.Accept,
		DraftedByDepth: fromCounts(s.DraftedByDepth), AcceptedByDepth: fromCounts(s.AcceptedByDepth)}
	for i, d := range s.Coordination {
		out.CoordinationNs[i] = int64(d)
	}
	for _, d := range s.Drafters {
		out.Drafters = append(out.Drafters, &tandemv1.DrafterStatistics{Name: d.Name, Rounds: int32(d.Rounds), Drafted: int32(d.Drafted),
			Accepted: int32(d.Accepted), Weight: d.Weight})
	}
	for name, n := range s.Choices {
		out.Choices[name] = int32(n)
	}
	for name, n := range s.Reasons {
		out.Reasons[name] = int32(n)
	}
	return out
}

func fromCounts(n []int) []int32 {
	out := make([]int32, len(n))
	for i, c := range n {
		out[i] = int32(c)
	}
	return out
}

func fromSampling(s tandem.Sampling) *tandemv1.Sampling {
	k, last, top := int32(s.TopK), int32(s.RepeatLast), int32(s.TopLogprobs)
	accept := string(cmp.Or(s.Accept, tandem.AcceptExact))
	out := &tandemv1.Sampling{Temperature: &s.Temperature, TopK: &k, TopP: &s.TopP, Seed: &s.Seed, MinP: &s.MinP,
		RepeatPenalty: &s.RepeatPenalty,
		RepeatLast:    &last, FrequencyPenalty: &s.FrequencyPenalty, PresencePenalty: &s.PresencePenalty, Logprobs: &s.Logprobs,
		TopLogprobs: &top, Accept: &accept, AcceptEpsilon: &s.Epsilon, AcceptDelta: &s.Delta}
	for _, b := range s.Bias {
		if out.LogitBias == nil {
			out.LogitBias = make(map[uint32]float32, len(s.Bias))
		}
		out.LogitBias[uint32(b.Token)] = b.Add
	}
	return out
}

// speculation encodes d, every field set.
func speculation(d ask.Defaults) *tandemv1.Speculation {
	return fromSpeculation(tandem.Request{Bounds: d.Bounds, Strategy: d.Strategy, Vote: d.Vote, Drafters: d.Drafters, Without: d.Without})
}

// fromSpeculation encodes r's fields about speculation, every field set.
func fromSpeculation(r tandem.Request) *tandemv1.Speculation {
	p, strategy, vote := r.Bounds, string(cmp.Or(r.Strategy, tandem.StrategyFixed)), string(cmp.Or(r.Vote, tandem.VoteAuto))
	enabled, n, d, w := !p.Plain(), int32(p.Nodes), int32(p.Depth), int32(p.Width)
	return &tandemv1.Speculation{Enabled: &enabled, Nodes: &n, Depth: &d, Width: &w, Strategy: &strategy, Vote: &vote,
		Drafters: r.Drafters, Without: r.Without.Names()}
}
