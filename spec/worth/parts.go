package worth

import (
	"maps"
	"time"
)

// The time of a round. It is the sum of its parts, each a mean of its own, so a way is priced by its parts even if it was used little:
//
//	T(round) = rest + away + passes·T_D(1) + read + T(pass of the target)
//	read     = T_D(rows read) − T_D(1), of the committed tokens that the draft model has not read
//
// rest is neither draft, nor the way to the drafter, nor pass; it is measured apart for plain rounds. Drafting ahead leaves a share of the
// drafting in the round, and makes the pass beside it slower.

// Time is the time of a round, in seconds.
type Time struct {
	Rest   float64 // the way to the drafters included
	Draft  float64 // passes of the draft model
	Read   float64 // passes over committed tokens that the draft model has not read yet; this round's share of them
	Verify float64 // pass of the target
	Left   float64 // share of Draft and Read that is in the round: 1, or less of a way that drafts ahead
	Slow   float64 // factor on Verify: 1, or more of such a way
	Free   bool    // Left and Slow are not known: all drafting may happen ahead, and may slow nothing
}

// Seconds returns the time of the round.
func (t Time) Seconds() float64 { return max(t.Rest+t.Left*(t.Draft+t.Read)+t.Slow*t.Verify, 1e-9) }

// Least returns the shortest time that the round may take: Seconds, but without Draft and Read where Free.
func (t Time) Least() float64 {
	if t.Free {
		return max(t.Rest+t.Verify, 1e-9)
	}
	return t.Seconds()
}

// Drafter is what is known of one drafter's costs.
type Drafter struct {
	Pass   time.Duration // of its model over one row, or of a draft without a model; 0: unknown
	Away   time.Duration // the way to it and back, as its calls show: near nothing on the same machine; 0: unknown
	Model  bool          // it has a draft model: it ran one in a round, or said what passes of it cost
	Free   bool          // it costs next to nothing
	Asked  bool          // rounds have shown Pass
	Tried  bool          // a session was opened at it to see what it brings
	Window int           // tokens of a text that it reads at most; 0: all
	// Rows is what a pass costs by its rows, as the drafter has measured it; nil: as in the target, in proportion. Pass goes on to be
	// measured, so a machine that was busy then does not make all prompts dear.
	Rows *Costs
}

// Time returns how long a pass of the drafter's model over rows rows takes; 0: unknown. target returns the same for the target; it counts
// where d.Rows is nil.
func (d *Drafter) Time(rows int, target func(rows int) time.Duration) time.Duration {
	if d.Rows != nil {
		target = d.Rows.Time
	}
	one := target(1)
	if one == 0 || rows < 2 {
		return d.Pass
	}
	return time.Duration(float64(d.Pass) * float64(target(rows)) / float64(one))
}

// Reads returns how many tokens the drafter reads of a text that has so many.
func (d *Drafter) Reads(tokens int) int {
	if d.Window > 0 {
		return min(tokens, d.Window)
	}
	return tokens
}

// Ahead is what drafting ahead does to rounds of a set of drafters; 0: unknown.
type Ahead struct {
	Left float64 // the share of the drafting that remains in the round
	Slow float64 // time of a pass beside which drafters draft, over that of another pass
	Idle int     // rounds in a row for which nobody had drafted ahead, though asked to
}

// Parts is what is known of the parts of a round's time beside the target's passes.
type Parts struct {
	Plain, Drafted time.Duration // the rest of a plain round, and of one with a draft
	drafters       map[string]*Drafter
	ahead          map[string]*Ahead
}

// NewParts returns what is known before the first round: nothing.
func NewParts() *Parts { return &Parts{drafters: map[string]*Drafter{}, ahead: map[string]*Ahead{}} }

// Clone returns an independent copy.
func (p *Parts) Clone() *Parts {
	out := &Parts{p.Plain, p.Drafted, maps.Clone(p.drafters), maps.Clone(p.ahead)}
	for name, d := range out.drafters {
		out.drafters[name] = new(*d)
	}
	for name, a := range out.ahead {
		out.ahead[name] = new(*a)
	}
	return out
}

// Drafter returns what is known of a drafter, for the caller to change.
func (p *Parts) Drafter(name string) *Drafter { return named(p.drafters, name) }

// Ahead returns what is known of drafting ahead by a set of drafters, for the caller to change.
func (p *Parts) Ahead(set string) *Ahead { return named(p.ahead, set) }

// All returns what is known of all drafters, by name. It must not be changed.
func (p *Parts) All() map[string]*Drafter { return p.drafters }

// mostNames is how many drafters' names are remembered, those that are gone included.
const mostNames = 1 << 8

func named[T any](all map[string]*T, name string) *T {
	if all[name] == nil {
		if len(all) > mostNames {
			clear(all) // names that came and went
		}
		all[name] = new(T)
	}
	return all[name]
}

// Measure puts a time into the running mean of a part. A time of more than twice the mean counts as twice the mean, because something
// disturbed it. One of less than half of the mean replaces it, because then the mean was disturbed.
func Measure(mean *time.Duration, latest time.Duration) {
	old := *mean
	switch {
	case old == 0 || latest < old/2:
		*mean = max(latest, 1)
	default:
		*mean = max(old+time.Duration(CostGain*float64(min(latest, 2*old)-old)), 1)
	}
}
