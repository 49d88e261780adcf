package strategy

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/spec"
	"github.com/tandem-llm/tandem/spec/learn"
)

// hindsights holds the drafters' hindsight on a session's text.
type hindsights struct {
	t      learn.HindsightTuning
	dearer float64 // ChoiceTuning.Dearer
	of     map[string]report
	begin  tandem.Position          // committed when the first report came: the prompt
	base   tandem.Position          // committed
	spent  map[string]time.Duration // by each drafter, on hindsight alone
	took   time.Duration            // the session's share of the time of all its rounds
}

// report is one drafter's hindsight on the first base tokens.
type report struct {
	base      tandem.Position
	hindsight tandem.Hindsight
}

func newHindsights(t learn.Tuning) hindsights {
	return hindsights{t: t.Hindsight, dearer: t.Choice.Dearer, of: map[string]report{}, spent: map[string]time.Duration{}}
}

func (h *hindsights) hear(drafter string, base tandem.Position, s tandem.Hindsight, spent time.Duration) {
	if len(h.of) == 0 {
		h.begin = base
	}
	h.base = max(h.base, base)
	if len(h.of) < mostNames || h.of[drafter].base > 0 {
		h.of[drafter] = report{base, s}
		h.spent[drafter] += spent
	}
}

// committed counts a round, after which the session has base tokens; took is its share of the round's time if others share the pass.
func (h *hindsights) committed(base tandem.Position, took time.Duration) {
	h.base, h.took = base, h.took+took
}

// follow returns the drafters, of those ready but not asked, that are to be told what was committed. takes returns how long one will
// take for it, 0 if that is unknown.
func (h *hindsights) follow(ready, asked []string, takes func(drafter string) time.Duration) (list []string) {
	share := time.Duration(h.t.Share * float64(h.took))
	for _, d := range ready {
		if h.base-h.of[d].base < tandem.Position(h.t.Every) || slices.Contains(asked, d) || isSelfDraft(d) {
			continue
		}
		spent, long := time.Duration(0), takes(d)
		for o, t := range h.spent {
			if time.Duration(h.dearer*float64(long)) >= takes(o) {
				spent += t
			}
		}
		if spent <= share && long <= share-spent+h.t.Start {
			list = append(list, d)
		}
	}
	return list
}

// together returns the hindsights, on the same tokens, of the drafters that are ready and not too far behind, and how many of
// these tokens, the latest, are not of the prompt.
func (h *hindsights) together(ready []string) (of map[string]tandem.Hindsight, output int) {
	end, begin := h.base, tandem.Position(0) // of the tokens
	for _, d := range ready {
		if s, ok := h.of[d]; ok && h.current(s) {
			end, begin = min(end, s.base), max(begin, s.base-tandem.Position(s.hindsight.Tokens))
		}
	}
	if int(end-begin) < h.t.Least {
		return nil, 0
	}
	of = map[string]tandem.Hindsight{}
	for _, d := range ready {
		if s, ok := h.of[d]; ok && h.current(s) {
			of[d] = spec.Latest(spec.Before(s.hindsight, int(s.base-end)), int(end-begin))
		}
	}
	return of, max(int(end-h.begin), 0)
}

// current reports whether s is recent enough to be compared.
func (h *hindsights) current(s report) bool {
	return s.hindsight.Tokens >= h.t.Least && int(h.base-s.base) <= h.t.Lag
}
