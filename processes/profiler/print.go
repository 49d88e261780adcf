package profiler

import (
	"cmp"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/tandem-llm/tandem/processes/profile"
)

// Print shows what was measured, and the file that it was written to.
func (r *Result) Print(to io.Writer, file string) error {
	fmt.Fprintf(to, "%v\n\n", r.Plan.Machine.Box)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	for _, s := range r.Plan.Machine.Subjects {
		fmt.Fprintf(w, "%s %.12s, %d threads, %s\n", s.Kind, s.Identity, s.Threads, s.Device)
		for i, q := range s.Points {
			if i == 0 || q.Context != s.Points[i-1].Context {
				fmt.Fprintf(w, "\n  behind %d tokens:", q.Context)
			}
			fmt.Fprintf(w, "\t%d: %.2f ms", q.Rows, float64(q.NS)/1e6)
		}
		fmt.Fprint(w, "\n\n")
	}
	for _, d := range r.Plan.Machine.Divided {
		fmt.Fprintf(w, "%s %.12s divided between %s\n", d.Kind, d.Identity, d.Device)
		if d.MeetingNS > 0 {
			fmt.Fprintf(w, "  a meeting takes %.2f µs if both come at once\n", float64(d.MeetingNS)/1e3)
		}
		fmt.Fprintln(w, "  rows\tcontext\tleft's columns\tblocks\tms\tleft alone\tright alone")
		for _, x := range d.Points {
			fmt.Fprintf(w, "  %d\t%d\t%.3f\t%.3f\t%.2f\t%.2f\t%.2f\n", x.Rows, x.Context, x.Columns, x.Blocks, float64(x.NS)/1e6,
				float64(x.LeftNS)/1e6, float64(x.RightNS)/1e6)
		}
		fmt.Fprintln(w)
	}
	for _, t := range r.latest {
		fmt.Fprintf(w, "%s on %s: tokens a round\t", t.Name, t.Text.Name)
		for _, l := range t.Lengths {
			what, n := "chain", l.Nodes-1
			if t.Accuracy != nil {
				what, n = "tree", l.Nodes
			}
			fmt.Fprintf(w, "%s of %d: %.2f (expected %.2f)\t", what, n, l.Measured, l.Expected)
		}
		fmt.Fprintln(w)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for i := range r.pairs {
		fmt.Fprintf(to, "\n%v\n", &r.pairs[i])
	}
	for i := range r.Plan.Machine.Decisions {
		fmt.Fprintln(to)
		if err := PrintDecision(to, &r.Plan.Machine.Decisions[i]); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintf(to, "\nwritten to %s\n", file)
	return err
}

// PrintDecision shows where a target and its drafts are best computed, and why.
func PrintDecision(to io.Writer, d *profile.Decision) error {
	best := d.Placements[0]
	fmt.Fprintf(to, "%s with keys and values of type %s: best with --device %s", d.Name, d.KV, best.Device)
	if drafts := d.Drafts(best.Device); drafts != nil {
		fmt.Fprintf(to, " --draft-device %s", drafts.DraftDevice)
	}
	fmt.Fprintf(to, ", %.1f tokens/s expected\n\n", best.TokensPerSecond)
	w := tabwriter.NewWriter(to, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "target on\tdrafts on\ttokens/s\ton text\tdrafter\tnodes\ttokens a round\tverify ms\tdraft ms\thidden ms\thits\tburden")
	for _, p := range d.Placements {
		for i, r := range p.Rounds {
			if i == 0 {
				fmt.Fprintf(w, "%s\t%s\t%.1f\t", p.Device, cmp.Or(p.DraftDevice, "-"), p.TokensPerSecond)
			} else {
				fmt.Fprint(w, "\t\t\t")
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", r.Text, cmp.Or(r.Drafter, "none"), r.Nodes, r.Tokens,
				float64(r.VerifyNS)/1e6, float64(r.DraftNS)/1e6, float64(r.HiddenNS)/1e6, r.Hits, r.Burden)
		}
	}
	fmt.Fprint(w, "\ntokens/s = tokens a round / (verify + draft - hidden)\n"+
		"hidden = (hits - burden) x the shorter of verify and draft, where target and drafts have nothing in common\n"+
		"hits is a lower bound: the whole chain and the token behind it are right\n")
	return w.Flush()
}
