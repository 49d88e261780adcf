package wire

import (
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	peerv1 "github.com/tandem-llm/tandem/proto/peer/v1"
	"github.com/tandem-llm/tandem/services/peers/shm"
)

// growths are the numbers of tandem.Growth on the wire, where 0 is "not told".
var growths = map[tandem.Growth]peerv1.Growth{
	tandem.GrowLevels: peerv1.Growth_GROWTH_LEVELS,
	tandem.GrowBest:   peerv1.Growth_GROWTH_BEST,
	tandem.GrowPacer:  peerv1.Growth_GROWTH_PACER,
}

// maxCosts bounds Plan.Verify of a proposal: no pass has more rows.
const maxCosts = 1 << 12

// FromProposal encodes p for the named drafter of a process, "" for its first.
func FromProposal(p tandem.Proposal, drafter string) *peerv1.ProposeRequest {
	return &peerv1.ProposeRequest{Session: uint64(p.Session), Epoch: uint32(p.Epoch), Base: int32(p.Base), Hash: uint64(p.Hash),
		From: int32(p.From), Suffix: FromTokens(p.Suffix), Drafter: drafter,
		Policy: &peerv1.Policy{Nodes: int32(p.Bounds.Nodes), Depth: int32(p.Bounds.Depth), Width: int32(p.Bounds.Width)},
		Growth: growths[p.Growth], Branch: p.Branch, Stop: p.Stop, Plan: fromPlan(p.Plan), Return: p.Return, Ahead: p.Ahead,
		Temper: p.Temper, Ways: p.SelfDrafts, Successors: uint32(p.Successors), Place: fromPlace(p.Place)}
}

// ToProposal decodes p. An impossible growth, probability or plan is Invalid; the drafter checks
// the rest.
func ToProposal(p *peerv1.ProposeRequest) (tandem.Proposal, error) {
	w := p.GetPolicy()
	out := tandem.Proposal{Session: tandem.SessionID(p.GetSession()), Epoch: tandem.Epoch(p.GetEpoch()), Base: tandem.Position(p.GetBase()),
		Hash: tandem.PrefixHash(p.GetHash()), From: tandem.Position(p.GetFrom()), Suffix: ToTokens(p.GetSuffix()),
		Bounds: tandem.Bounds{Nodes: int(w.GetNodes()), Depth: int(w.GetDepth()), Width: int(w.GetWidth())},
		Branch: p.GetBranch(), Stop: p.GetStop(), Return: p.GetReturn(), Ahead: p.GetAhead(), Temper: p.GetTemper()}
	switch g := p.GetGrowth(); g {
	case peerv1.Growth_GROWTH_UNSPECIFIED, peerv1.Growth_GROWTH_LEVELS:
	case peerv1.Growth_GROWTH_BEST:
		out.Growth = tandem.GrowBest
	case peerv1.Growth_GROWTH_PACER:
		out.Growth = tandem.GrowPacer
	default:
		return out, tandem.Errorf(op, tandem.Invalid, "growth is %d: want 0 to %d", g, len(growths))
	}
	for name, v := range map[string]float64{"branch": out.Branch, "stop": out.Stop, "temper": out.Temper} {
		if !(v >= 0 && v <= 1) {
			return out, tandem.Errorf(op, tandem.Invalid, "%s is %v: want a probability, 0 to 1", name, v)
		}
	}
	var err error
	if out.SelfDrafts, err = toWays(p.GetWays()); err != nil {
		return out, tandem.Errorf(op, tandem.Invalid, "%w", err)
	}
	if out.Successors, err = toSuccessors(p.GetSuccessors()); err != nil {
		return out, tandem.Errorf(op, tandem.Invalid, "%w", err)
	}
	if out.Place, err = toPlace(p.GetPlace()); err != nil {
		return out, err
	}
	out.Plan, err = toPlan(p.GetPlan())
	return out, err
}

func fromPlan(p tandem.Plan) *peerv1.Plan {
	if p.Verify == nil && p.Accept == nil && p.Round == 0 && p.Others == 0 {
		return nil
	}
	verify := make([]int64, len(p.Verify))
	for i, t := range p.Verify {
		verify[i] = int64(t)
	}
	return &peerv1.Plan{VerifyNs: verify, RoundNs: int64(p.Round), Others: p.Others, Chances: p.Accept}
}

func toPlan(p *peerv1.Plan) (out tandem.Plan, err error) {
	switch n := len(p.GetChances()); {
	case p == nil:
		return out, nil
	case len(p.GetVerifyNs()) > maxCosts:
		return out, tandem.Errorf(op, tandem.Invalid, "plan has costs of %d widths: at most %d", len(p.GetVerifyNs()), maxCosts)
	case n != 0 && n != tandem.AcceptBins():
		return out, tandem.Errorf(op, tandem.Invalid, "plan has %d chances: want none or %d", n, tandem.AcceptBins())
	case p.GetRoundNs() < 0:
		return out, tandem.Errorf(op, tandem.Invalid, "plan has a round of %d ns: want 0 or more", p.GetRoundNs())
	case !(p.GetOthers() >= 0) || math.IsInf(p.GetOthers(), 0):
		return out, tandem.Errorf(op, tandem.Invalid, "plan has %v tokens of others: want 0 or more", p.GetOthers())
	}
	out = tandem.Plan{Round: time.Duration(p.GetRoundNs()), Others: p.GetOthers(), Accept: p.GetChances()}
	for i, c := range out.Accept {
		if !(c >= 0 && c <= 1) {
			return out, tandem.Errorf(op, tandem.Invalid, "plan's chance %d is %v: want 0 to 1", i, c)
		}
	}
	for i, ns := range p.GetVerifyNs() {
		if ns < 0 {
			return out, tandem.Errorf(op, tandem.Invalid, "plan's cost of %d rows is %d ns: want 0 or more", i+1, ns)
		}
		out.Verify = append(out.Verify, time.Duration(ns))
	}
	return out, nil
}

// FromProposed encodes p. A tree, if there is one, must be valid; it is left out if tree is the handle of a payload that holds it.
func FromProposed(p tandem.Proposed, tree shm.Handle) *peerv1.ProposeResponse {
	out := &peerv1.ProposeResponse{Nodes: int32(p.Nodes), Depth: int32(p.Depth), BusyNs: int64(p.Busy), Passes: int32(p.Passes),
		Reused: int32(p.Reused), AheadNs: int64(p.Ahead), Hindsight: FromHindsight(p.Hindsight)}
	switch {
	case tree != (shm.Handle{}):
		out.Handle = FromHandle(tree)
	case p.Tree.Len() > 0:
		out.Tree = FromTree(p.Tree)
	}
	return out
}

// ToProposed decodes p, and returns the handle of a payload that holds its tree, zero for none. A tree must still pass
// Tree.Validate. Errors: Corrupt.
func ToProposed(p *peerv1.ProposeResponse) (tandem.Proposed, shm.Handle, error) {
	out := tandem.Proposed{Nodes: int(p.GetNodes()), Depth: int(p.GetDepth()), Busy: time.Duration(p.GetBusyNs()),
		Passes: int(p.GetPasses()),
		Reused: int(p.GetReused()), Ahead: time.Duration(p.GetAheadNs()), Hindsight: ToHindsight(p.GetHindsight())}
	var err error
	var tree shm.Handle
	switch {
	case p.GetHandle() != nil:
		tree = ToHandle(p.GetHandle())
	case p.GetTree() != nil:
		out.Tree, err = ToTree(p.GetTree())
	}
	return out, tree, err
}

// FromHindsight encodes h; nil if nothing is known.
func FromHindsight(h tandem.Hindsight) *peerv1.Hindsight {
	if h == (tandem.Hindsight{}) {
		return nil
	}
	return &peerv1.Hindsight{Tokens: int32(h.Tokens), Hits: h.Hits}
}

// ToHindsight decodes h, which must still pass Hindsight.Validate.
func ToHindsight(h *peerv1.Hindsight) tandem.Hindsight {
	return tandem.Hindsight{Tokens: int(h.GetTokens()), Hits: h.GetHits()}
}
