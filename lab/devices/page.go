package devices

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/lab/passes"
)

// Page writes the result as Markdown, for an issue.
func (r *Result) Page(to io.Writer) error {
	w := &markdown{to: to}
	w.line("## %s, drafted by %s", r.Target, r.Draft)
	var numbers int64
	for _, b := range r.Bits {
		numbers += b.Numbers
	}
	switch {
	case len(r.Differ) > 0:
		w.line("**Other bits than %s.**", r.Reference)
	case numbers > 0:
		w.line("All %d logits that were compared have the bits of %s.", numbers, r.Reference)
	}
	w.table("bits on | model | passes | rows | logits | equal", len(r.Bits), func(i int) string {
		b := r.Bits[i]
		return fmt.Sprintf("%s | %s | %d | %d | %d | %s", b.Device, b.Model, b.Passes, b.Rows, b.Numbers, yes(b.Equal))
	})
	if s := r.Step; s != nil {
		launches := "the device does not tell its launches"
		if s.Launches > 0 {
			launches = fmt.Sprintf("%d launches, which take %.3f ms if they do nothing", s.Launches, s.EmptyMS)
		}
		if s.ChainMS > 0 {
			launches += fmt.Sprintf("; in a chain of %d, %.3f ms a step", passes.ChainRows, s.ChainMS)
		}
		w.line("A draft's step on %s behind %d tokens: %.3f ms, %.2f times its limit (reading at %.0f GB/s %.3f ms; %s).", s.Device,
			s.Context, s.MS, s.Times, s.ReadGBS, s.ReadMS, launches)
	}
	joules := ""
	for _, m := range r.Meters {
		joules += " | J, " + m
	}
	w.table("pass of the target on | rows | ms | limit ms | share | launches"+joules, len(r.Passes), func(i int) string {
		p := r.Passes[i]
		return fmt.Sprintf("%s | %d | %.2f | %.2f | %.2f | %d%s", p.Device, p.Rows, p.MS, p.LimitMS, p.Share, p.Launches, cells(p.Joules))
	})
	r.placements(w)
	for _, list := range []struct {
		name string
		all  []string
	}{{"NOT THE SAME", r.Differ}, {"saved", r.Saved}, {"bar missed", r.Missed}, {"not on this device", r.Absent},
		{"not measured", r.Failed}, {"skipped, for lack of time", r.Skipped}, {"no meter", r.NoMeters}} {
		for i, x := range list.all {
			if i == 20 {
				w.line("- %s: %d more", list.name, len(list.all)-i)
				break
			}
			w.line("- %s: %s", list.name, x)
		}
	}
	if len(r.Saved) > 0 {
		w.line("To compute a saved result on an emulated GPU, in a checkout: `go test ./kernels/cuda -run '^TestReplay$' -v -replay FILE`")
	}
	return w.err
}

func (r *Result) placements(w *markdown) {
	const head = "placement | plain tok/s | drafting tok/s | tokens a round | verifying | drafting | ids equal | flags"
	w.table(head, len(r.Places), func(i int) string {
		p := r.Places[i]
		equal := yes(p.Equal)
		if p.Error != "" {
			equal = "not run"
		}
		return fmt.Sprintf("%s | %.1f | %.1f | %.2f | %.2f | %.2f | %s | `%s`", p.Name, p.Plain.TokS, p.Spec.TokS, p.Spec.PerRound, p.Busy,
			p.Drafts, equal, p.Flags)
	})
	var ahead []placeResult
	for _, p := range r.Places {
		if p.Ahead != nil {
			ahead = append(ahead, p)
		}
	}
	w.table("drafting ahead | share d | hits h | in turn tok/s | ahead tok/s | ratio | bound | of bound", len(ahead), func(i int) string {
		a := ahead[i].Ahead
		return fmt.Sprintf("%s | %.2f | %.2f | %.1f | %.1f | %.2f | %.2f | %.2f", ahead[i].Name, a.Drafting, a.Hits, a.InTurn, a.Ahead,
			a.Ratio, a.Bound, a.Share)
	})
	if len(r.Meters) == 0 {
		return
	}
	ran := slices.DeleteFunc(slices.Clone(r.Places), func(p placeResult) bool { return p.Error != "" })
	w.table("J a token | "+strings.Join(r.Meters, " | "), 2*len(ran), func(i int) string {
		p := ran[i/2]
		if i%2 == 0 {
			return p.Name + ", plain" + cells(p.Plain.Joules)
		}
		return p.Name + ", drafting" + cells(p.Spec.Joules)
	})
}

func cells(joules []float64) (s string) {
	for _, j := range joules {
		s += fmt.Sprintf(" | %.3g", j)
	}
	return s
}

// markdown writes paragraphs and tables, and keeps the first error.
type markdown struct {
	to  io.Writer
	err error
}

func (m *markdown) line(format string, args ...any) {
	if m.err == nil {
		_, m.err = fmt.Fprintf(m.to, format+"\n\n", args...)
	}
}

// table writes n rows, none without its head.
func (m *markdown) table(head string, n int, row func(i int) string) {
	if n == 0 {
		return
	}
	lines := []string{"| " + head + " |", strings.Repeat("|---", strings.Count(head, "|")+1) + "|"}
	for i := range n {
		lines = append(lines, "| "+row(i)+" |")
	}
	m.line("%s", strings.Join(lines, "\n"))
}
