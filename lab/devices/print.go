package devices

import (
	"fmt"
	"io"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Print writes the result as text.
func (r *Result) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s, drafted by %s; bits and ids are compared with %s\n", r.Target, r.Draft, r.Reference)
	if len(r.Bits) > 0 {
		t := figures.NewTable(to, "%s\t%s\t%d\t%d\t%d\t%s")
		t.Head("bits on", "model", "passes", "rows", "logits", "equal")
		for _, b := range r.Bits {
			t.Row(b.Device, b.Model, b.Passes, b.Rows, b.Numbers, yes(b.Equal))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if s := r.Step; s != nil {
		empty := "the device does not tell what launches cost: no bar"
		if s.Launches > 0 {
			empty = fmt.Sprintf("an empty graph of %d launches %.3f ms: %.2f times the limit, bar %.1f", s.Launches, s.EmptyMS, s.Times,
				stepBar)
		}
		fmt.Fprintf(to, "the draft's step on %s, context %d: %.3f ms (best %.3f); weights and cache at %.0f GB/s %.3f ms, %s\n",
			s.Device, s.Context, s.MS, s.BestMS, s.ReadGBS, s.ReadMS, empty)
	}
	if len(r.Passes) > 0 {
		t := figures.NewTable(to, "%s\t%d\t%.2f\t%.2f\t%.2f\t%d")
		t.Head("pass of the target on", "rows", "ms", "limit ms", "share", "launches")
		for _, p := range r.Passes {
			t.Row(p.Device, p.Rows, p.MS, p.LimitMS, p.Share, p.Launches)
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if err := r.printPlaces(to); err != nil {
		return err
	}
	for _, list := range []struct {
		name string
		all  []string
	}{{"NOT THE SAME", r.Differ}, {"saved", r.Saved}, {"not measured", r.Failed}, {"not on this device", r.Absent}, {"skipped", r.Skipped},
		{"bar missed", r.Missed}} {
		for _, x := range list.all {
			fmt.Fprintf(to, "%s: %s\n", list.name, x)
		}
	}
	return nil
}

func (r *Result) printPlaces(to io.Writer) error {
	if len(r.Places) == 0 {
		return nil
	}
	t := figures.NewTable(to, "%s\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%s\t%s")
	t.Head("placement", "plain tok/s", "drafting tok/s", "tokens a round", "verifying", "drafting", "ids equal", "flags")
	for _, p := range r.Places {
		equal := yes(p.Equal)
		if p.Error != "" {
			equal = "not run"
		}
		t.Row(p.Name, p.Plain.TokS, p.Spec.TokS, p.Spec.PerRound, p.Busy, p.Drafts, equal, p.Flags)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	t = figures.NewTable(to, "%s\t%.2f\t%.2f\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f")
	t.Head("drafting ahead", "share d", "hits h", "in turn tok/s", "ahead tok/s", "ratio", "bound", "of bound")
	for _, p := range r.Places {
		if a := p.Ahead; a != nil {
			t.Row(p.Name, a.Drafting, a.Hits, a.InTurn, a.Ahead, a.Ratio, a.Bound, a.Share)
		}
	}
	return t.Flush()
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "NO"
}
