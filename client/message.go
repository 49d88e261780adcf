package client

import (
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	tandemv1 "github.com/tandem-llm/tandem/proto/tandem/v1"
)

// check refuses text that is not UTF-8, which no message can carry.
func (r Request) check() error {
	for field, texts := range map[string][]string{"prompt": {r.Prompt}, "stop": r.Stop, "speculation.strategy": {r.Strategy},
		"speculation.vote": {r.Vote}, "speculation.drafters": r.Drafters, "speculation.without": r.Without, "sampling.accept": {r.Accept}} {
		if !utf8.ValidString(strings.Join(texts, " ")) {
			return &Error{Kind: Invalid, Field: field, Message: "request: " + field + " is not valid UTF-8"}
		}
	}
	return nil
}

func (r Request) encode() *tandemv1.GenerateRequest {
	m := &tandemv1.GenerateRequest{MaxTokens: number(r.MaxTokens), Stop: r.Stop, CacheSalt: r.CacheSalt, Constraint: r.Constraint.encode(),
		Sampling: &tandemv1.Sampling{Temperature: r.Temperature, TopK: number(r.TopK), TopP: r.TopP, MinP: r.MinP, Seed: r.Seed,
			RepeatPenalty: r.RepeatPenalty, RepeatLast: number(r.RepeatLast), FrequencyPenalty: r.FrequencyPenalty,
			PresencePenalty: r.PresencePenalty, LogitBias: r.LogitBias, AcceptEpsilon: r.AcceptEpsilon, AcceptDelta: r.AcceptDelta}}
	if r.Accept != "" {
		m.Sampling.Accept = &r.Accept
	}
	if r.Logprobs {
		m.Sampling.Logprobs = &r.Logprobs
	}
	if r.TopLogprobs != 0 {
		m.Sampling.TopLogprobs = number(&r.TopLogprobs)
	}
	if r.Report {
		m.Report = &r.Report
	}
	if r.Progress {
		m.ReturnProgress = &r.Progress
	}
	if r.Written {
		m.Written = &r.Written
	}
	if r.Tokens != nil {
		m.Prompt = &tandemv1.GenerateRequest_Tokens{Tokens: &tandemv1.TokenList{Ids: r.Tokens}}
	} else {
		m.Prompt = &tandemv1.GenerateRequest_Text{Text: r.Prompt}
	}
	if r.IgnoreEOS {
		m.IgnoreEos = &r.IgnoreEOS
	}
	if r.FullTrace {
		m.FullTrace = &r.FullTrace
	}
	m.Speculation = &tandemv1.Speculation{Drafters: r.Drafters, Without: r.Without}
	if t := r.Tree; t != nil {
		m.Speculation.Nodes, m.Speculation.Depth, m.Speculation.Width = number(&t.Nodes), number(&t.Depth), number(&t.Width)
	}
	if enabled := !r.NoDraft; r.Tree != nil || r.NoDraft {
		m.Speculation.Enabled = &enabled
	}
	if r.Strategy != "" {
		m.Speculation.Strategy = &r.Strategy
	}
	if r.Vote != "" {
		m.Speculation.Vote = &r.Vote
	}
	return m
}

// number returns n clamped to int32: a number out of range stays out of range, and the gateway refuses it.
func number(n *int) *int32 {
	if n == nil {
		return nil
	}
	v := int32(max(min(*n, 1<<31-1), -1<<31))
	return &v
}

// gap is the error of an event that is not the next of its stream.
func gap(sequence, next uint64) error {
	return &Error{Kind: Corrupt, Message: fmt.Sprintf("event %d arrived where event %d was due", sequence, next)}
}

// decode returns the event of m, which must be number next of its stream.
func decode(m *tandemv1.GenerateResponse, next uint64) (Event, error) {
	if m.GetSequence() != next {
		return Event{}, gap(m.GetSequence(), next)
	}
	switch e := m.GetEvent().(type) {
	case *tandemv1.GenerateResponse_PromptProgress:
		return Event{Progress: progress(e.PromptProgress)}, nil
	case *tandemv1.GenerateResponse_Started:
		return Event{Started: started(e.Started)}, nil
	case *tandemv1.GenerateResponse_Delta:
		return Event{Delta: delta(e.Delta)}, nil
	case *tandemv1.GenerateResponse_Finished:
		return Event{Finished: finished(e.Finished)}, nil
	}
	return Event{}, &Error{Kind: Unsupported, Message: fmt.Sprintf("event %d is of a kind that this client does not know", next)}
}

func progress(m *tandemv1.PromptProgress) *PromptProgress {
	return &PromptProgress{int(m.GetTotal()), int(m.GetCached()), int(m.GetProcessed()), time.Duration(m.GetTimeNs())}
}

func delta(m *tandemv1.Delta) *Delta {
	d := &Delta{Text: m.GetText(), Tokens: m.GetTokens().GetIds(), Drafted: make([]bool, len(m.GetOrigins())), Round: round(m.GetRound())}
	for i, o := range m.GetOrigins() {
		d.Drafted[i] = o == tandemv1.Origin_ORIGIN_DRAFT
	}
	for _, l := range m.GetLogprobs() {
		out := Logprob{LogProb: l.GetLogProb()}
		for _, t := range l.GetTop() {
			out.Top = append(out.Top, TopLogprob{t.GetToken(), t.GetLogProb()})
		}
		d.Logprobs = append(d.Logprobs, out)
	}
	return d
}

func round(r *tandemv1.Round) *Round {
	if r == nil {
		return nil
	}
	out := &Round{Index: int(r.GetIndex()), Base: int(r.GetBase()), Choice: r.GetChoice(), Why: r.GetWhy(), Drafters: r.GetDrafters()}
	for _, n := range r.GetNodes() {
		out.Nodes = append(out.Nodes, Node{n.GetToken(), int(n.GetParent()), n.LogProb, n.GetVotes(), n.GetAccepted()})
	}
	for _, l := range r.GetLanes() {
		out.Lanes = append(out.Lanes, Lane{l.GetStage(), l.GetBy(), time.Duration(l.GetFromNs()), time.Duration(l.GetToNs())})
	}
	return out
}

func (c *Constraint) encode() *tandemv1.Constraint {
	switch {
	case c == nil:
		return nil
	case c.Schema != "":
		return &tandemv1.Constraint{Form: &tandemv1.Constraint_JsonSchema{JsonSchema: c.Schema}}
	case c.Object:
		return &tandemv1.Constraint{Form: &tandemv1.Constraint_JsonObject{JsonObject: true}}
	case c.Regex != "":
		return &tandemv1.Constraint{Form: &tandemv1.Constraint_Regex{Regex: c.Regex}}
	}
	return &tandemv1.Constraint{Form: &tandemv1.Constraint_Choices{Choices: &tandemv1.Choices{Texts: c.Choices}}}
}

func started(s *tandemv1.Started) *Started {
	out := &Started{Session: s.GetSession(), PromptTokens: s.GetPrompt().GetIds(), Model: s.GetModel(), Drafter: s.GetDrafter(),
		Identity:  s.GetIdentity(),
		MaxTokens: int(s.GetMaxTokens()), Temperature: s.GetSampling().GetTemperature(), TopK: int(s.GetSampling().GetTopK()),
		TopP: s.GetSampling().GetTopP(), MinP: s.GetSampling().GetMinP(), Seed: s.GetSampling().GetSeed(),
		RepeatPenalty: s.GetSampling().GetRepeatPenalty(), RepeatLast: int(s.GetSampling().GetRepeatLast()),
		FrequencyPenalty: s.GetSampling().GetFrequencyPenalty(), PresencePenalty: s.GetSampling().GetPresencePenalty(),
		LogitBias: s.GetSampling().GetLogitBias(), Accept: s.GetSampling().GetAccept(),
		AcceptEpsilon: s.GetSampling().GetAcceptEpsilon(), AcceptDelta: s.GetSampling().GetAcceptDelta()}
	if t := s.GetSpeculation(); t.GetEnabled() {
		out.Tree = Tree{int(t.GetNodes()), int(t.GetDepth()), int(t.GetWidth())}
		out.Strategy, out.Vote, out.Drafters, out.Without = t.GetStrategy(), t.GetVote(), t.GetDrafters(), t.GetWithout()
	}
	return out
}

func finished(f *tandemv1.Finished) *Finished {
	reason := ""
	switch f.GetReason() {
	case tandemv1.FinishReason_FINISH_REASON_STOP:
		reason = "stop"
	case tandemv1.FinishReason_FINISH_REASON_LENGTH:
		reason = "length"
	}
	s := f.GetStatistics()
	out := &Finished{Reason: reason, Stopped: f.GetStopped(), RepeatedPiece: int(f.GetRepeatedPiece()),
		CachedPromptTokens: int(f.GetUsage().GetCachedPromptTokens()),
		PromptTokens:       int(f.GetUsage().GetPromptTokens()), OutputTokens: int(f.GetUsage().GetOutputTokens()),
		Statistics: Statistics{Rounds: int(s.GetRounds()), Drafted: int(s.GetDrafted()), DraftedDepth: int(s.GetDraftedDepth()),
			Accepted: int(s.GetAccepted()), PlainRounds: int(s.GetPlainRounds()), Reopened: int(s.GetReopened()),
			Prefill: time.Duration(s.GetPrefillNs()), Decode: time.Duration(s.GetDecodeNs()),
			DraftBusy: time.Duration(s.GetDraftBusyNs()), VerifyBusy: time.Duration(s.GetVerifyBusyNs()),
			Plain:     time.Duration(s.GetPlainNs()),
			AheadHits: int(s.GetAheadHits()), AheadTries: int(s.GetAheadTries()), AheadBusy: time.Duration(s.GetAheadBusyNs()),
			AheadUseful: time.Duration(s.GetAheadUsefulNs()), Planning: time.Duration(s.GetPlanningNs()),
			Accept: s.GetAccept()}}
	for _, d := range s.GetDrafters() {
		out.Statistics.Drafters = append(out.Statistics.Drafters, Contribution{Name: d.GetName(), Rounds: int(d.GetRounds()),
			Drafted: int(d.GetDrafted()), Accepted: int(d.GetAccepted()), Weight: d.GetWeight()})
	}
	for name, n := range s.GetChoices() {
		if out.Statistics.Choices == nil {
			out.Statistics.Choices = map[string]int{}
		}
		out.Statistics.Choices[name] = int(n)
	}
	for name, n := range s.GetReasons() {
		if out.Statistics.Reasons == nil {
			out.Statistics.Reasons = map[string]int{}
		}
		out.Statistics.Reasons[name] = int(n)
	}
	for _, n := range s.GetAcceptedByDepth() {
		out.Statistics.AcceptedByDepth = append(out.Statistics.AcceptedByDepth, int(n))
	}
	for _, n := range s.GetDraftedByDepth() {
		out.Statistics.DraftedByDepth = append(out.Statistics.DraftedByDepth, int(n))
	}
	for _, ns := range s.GetCoordinationNs() {
		out.Statistics.Coordination = append(out.Statistics.Coordination, time.Duration(ns))
	}
	return out
}
