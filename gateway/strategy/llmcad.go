package strategy

import (
	"fmt"
	"math"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec/learn"
)

// llmcad is LLMCad (Xu et al., 2023): the branch pacer grows trees, drafting ends when no branch is likelier
// than α, α adapts to the verdicts, and drafting goes on while the target verifies.
type llmcad struct {
	unweighing
	vote            tandem.Vote
	alpha           *learn.Alpha
	branch          float64
	adaptive, ahead bool
	pass, token     time.Duration // running means: of a draft pass, and of a committed token
}

func newLLMCad(o options) Strategy {
	r := o.shared.rules
	return &llmcad{vote: o.vote, alpha: learn.NewAlpha(r.Alpha), branch: r.Branch, adaptive: o.adaptive, ahead: o.ahead}
}

func (l *llmcad) Several() bool { return l.vote != tandem.VoteNone }
func (l *llmcad) HandOn()       {}

func (l *llmcad) Decide(ready []string, b tandem.Bounds) Decision {
	return poll(ready, l.vote, tandem.Proposal{Bounds: b, Growth: tandem.GrowPacer, Branch: l.branch, Stop: l.alpha.Now(), Ahead: l.ahead},
		reasonThreshold)
}

func (l *llmcad) Explain(d Decision) string {
	return fmt.Sprintf("α %.3g, branches from %.3g", l.alpha.Now(), l.branch)
}

func (l *llmcad) Learn(o *Outcome) {
	if !l.adaptive || !o.Judged {
		return
	}
	l.weigh(o)
	if all, ok, confidence := bestBranch(o.Tree, o.Verdict.Tokens); all > 0 {
		l.alpha.Record(all, ok, confidence)
	}
}

// weigh compares the cost of drafting with the time that it is expected to save.
func (l *llmcad) weigh(o *Outcome) {
	var busy time.Duration
	passes := 0
	for _, d := range o.Drafts {
		busy, passes = busy+d.Got.Busy, passes+d.Got.Passes
	}
	if passes == 0 || o.Tokens == 0 || o.AtEnd || o.Lossy {
		return
	}
	l.pass, l.token = learn.Mean(l.pass, busy/time.Duration(passes)), learn.Mean(l.token, o.Wall/time.Duration(o.Tokens))
	l.alpha.Bound(float64(l.pass) / float64(l.token))
}

// bestBranch follows the committed tokens in t as far as they go, then the likeliest nodes to a leaf. It returns the
// length of that branch, how much of it was right, and the confidence of the likeliest
// leaf of all when drafting stopped (LLMCad's N_all, N_ok and Tc).
func bestBranch(t tandem.Tree, committed []tandem.Token) (all, ok int, confidence float64) {
	if len(t.LogProbs) != t.Len() {
		return 0, 0, 0
	}
	at, best := int32(0), float32(math.Inf(-1))
	inner := make([]bool, t.Len())
	for i := t.Len() - 1; i > 0; i-- {
		if !inner[i] {
			best = max(best, t.LogProbs[i])
		}
		inner[t.Parents[i]] = true
	}
	for deeper := true; deeper; {
		deeper = false
		next := int32(-1)
		for i := int(at) + 1; i < t.Len(); i++ {
			switch {
			case t.Parents[i] != at:
			case ok == all && ok < len(committed) && t.Tokens[i] == committed[ok]:
				next, deeper = int32(i), true
			case !deeper && (next < 0 || t.LogProbs[i] > t.LogProbs[next]):
				next = int32(i)
			}
		}
		if next < 0 {
			break
		}
		if deeper {
			ok++
		}
		all, at, deeper = all+1, next, true
	}
	return all, ok, math.Exp(float64(min(best, 0)))
}
