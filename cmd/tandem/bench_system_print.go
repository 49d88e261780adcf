package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
)

func (r *benchResult) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	if len(r.Scenarios) > 0 {
		fmt.Fprintln(t, "scenario\tdraft\tat once\tplain tok/s\tspec tok/s\tratio\tmedian\ttokens/round\tverifier busy\tequal\t")
	}
	for _, s := range r.Scenarios {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%v\t\n", s.Name, s.Draft, s.Sessions, s.PlainTokS, s.SpecTokS, s.Ratio, s.MedianRatio, s.TokensPerRound, s.VerifierBusy, s.Equal)
	}
	_ = t.Flush()
	for _, s := range r.Scenarios {
		fmt.Fprintf(t, "%s, %s: chose %s; because %s\n", s.Name, s.Draft, shares(s.Choices), shares(s.Reasons))
	}
	for _, s := range r.Suites {
		s.print(t)
	}
	if r.Coordination.P50 > 0 {
		fmt.Fprintf(t, "coordination per round: p50 %.0f µs, p99 %.0f µs\n", r.Coordination.P50, r.Coordination.P99)
	}
	for _, d := range r.Differ {
		fmt.Fprintln(t, "NOT EQUAL: "+d)
	}
	return t.Flush()
}

// shares words counts as shares of their sum, the largest first; what is less than 1 % of it together.
func shares(counts map[string]int) string {
	names, sum, few := slices.Sorted(maps.Keys(counts)), 0, 0
	for _, n := range counts {
		sum += n
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var out []string
	for _, name := range names {
		if n := counts[name]; 100*n >= sum {
			out = append(out, fmt.Sprintf("%s %.0f %%", name, 100*share(float64(n), float64(sum))))
		} else {
			few += n
		}
	}
	if few > 0 {
		out = append(out, fmt.Sprintf("others %.1g %%", 100*share(float64(few), float64(sum))))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

func (s *suiteResult) print(t *tabwriter.Writer) {
	_ = t.Flush()
	fmt.Fprintf(t, "\n%s: %s, drafts %s, %.0f s\n", s.Name, s.Target, strings.Join(s.Drafts, " "), s.Seconds)
	for _, set := range s.Sets {
		if len(s.scenarios) > 0 {
			break // in the table of scenarios
		}
		fmt.Fprintf(t, "%s\ttok/s\tratio\tmedian\ttokens/round\taccepted/depth\tplanning µs\tahead hits\tplain rounds\t\n", set.Name)
		for _, v := range set.Variants {
			fmt.Fprintf(t, "%s\t%.1f\t%.3f\t%.3f\t%.2f\t%.2f\t%.0f\t%.2f\t%.2f\t\n", v.Name, v.TokS, v.Ratio.Total, v.Ratio.Median, v.TokensPerRound, v.PerDepth, v.PlanningUS, v.AheadHits, v.PlainRounds)
		}
	}
	_ = t.Flush()
	s.Memory.print(t)
	if len(s.Bars) > 0 {
		fmt.Fprintln(t, "figure\tvalue\twanted\t\t")
	}
	for _, b := range s.Bars {
		wanted, met := "", b.Note
		if b.Bar != nil {
			sign := "≥"
			if b.AtMost {
				sign = "≤"
			}
			wanted, met = fmt.Sprintf("%s %.4g", sign, *b.Bar), map[bool]string{true: "met", false: "NOT MET"}[*b.Met]
		}
		fmt.Fprintf(t, "%s\t%.4g\t%s\t%s\t\n", b.Name, b.Value, wanted, met)
	}
	_ = t.Flush()
	for _, n := range s.Notes {
		fmt.Fprintln(t, "note: "+n)
	}
	if s.Error != "" {
		fmt.Fprintln(t, "error: "+s.Error)
	}
}
