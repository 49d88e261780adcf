package system

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Print writes the result as text.
func (r *Result) Print(to io.Writer) error {
	w := bufio.NewWriter(to) // remembers an error until the end
	if len(r.Scenarios) > 0 {
		t := figures.NewTable(w, "%s\t%s\t%d\t%.1f\t%.1f\t%.2f\t%.2f\t%.2f\t%.2f\t%v")
		t.Head("scenario", "draft", "at once", "plain tok/s", "spec tok/s", "ratio", "median", "tokens/round", "verifier busy", "equal")
		for _, s := range r.Scenarios {
			t.Row(s.Name, s.Draft, s.Sessions, s.PlainTokS, s.SpecTokS, s.Ratio, s.MedianRatio, s.TokensPerRound, s.VerifierBusy, s.Equal)
		}
		_ = t.Flush()
	}
	for _, s := range r.Scenarios {
		fmt.Fprintf(w, "%s, %s: chose %s; because %s\n", s.Name, s.Draft, shares(s.Choices), shares(s.Reasons))
	}
	for _, s := range r.Suites {
		s.print(w)
	}
	if r.Coordination.P50 > 0 {
		fmt.Fprintf(w, "coordination per round: p50 %.0f µs, p99 %.0f µs\n", r.Coordination.P50, r.Coordination.P99)
	}
	for _, d := range r.Differ {
		fmt.Fprintln(w, "NOT EQUAL: "+d)
	}
	return w.Flush()
}

// shares formats counts as shares of their sum, the largest first; those below 1 % are added up.
func shares(counts map[string]int) string {
	names, sum, few := slices.Sorted(maps.Keys(counts)), 0, 0
	for _, n := range counts {
		sum += n
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(counts[b], counts[a]) })
	var out []string
	for _, name := range names {
		if n := counts[name]; 100*n >= sum {
			out = append(out, fmt.Sprintf("%s %.0f %%", name, 100*figures.Share(float64(n), float64(sum))))
		} else {
			few += n
		}
	}
	if few > 0 {
		out = append(out, fmt.Sprintf("others %.1g %%", 100*figures.Share(float64(few), float64(sum))))
	}
	if len(out) == 0 {
		return "nothing"
	}
	return strings.Join(out, ", ")
}

func (s *suiteResult) print(w io.Writer) {
	fmt.Fprintf(w, "\n%s: %s, drafts %s, %.0f s\n", s.Name, s.Target, strings.Join(s.Drafts, " "), s.Seconds)
	if len(s.scenarios) == 0 { // else in the table of scenarios
		printSets(w, s.Sets)
	}
	printPipeline(w, s.Pipeline)
	printMinions(w, s.Minions)
	if s.Memory != nil {
		s.Memory.print(w)
	}
	printFigures(w, s.Figures)
	for _, n := range s.Notes {
		fmt.Fprintln(w, "note: "+n)
	}
	if s.Error != "" {
		fmt.Fprintln(w, "error: "+s.Error)
	}
}

func printSets(w io.Writer, sets []setResult) {
	t := figures.NewTable(w, "%s\t%.1f\t%.3f\t%.3f\t%.2f\t%.2f\t%.0f\t%.2f\t%.2f")
	for _, set := range sets {
		t.Head(set.Name, "tok/s", "ratio", "median", "tokens/round", "accepted/depth", "planning µs", "ahead hits", "plain rounds")
		for _, v := range set.Variants {
			t.Row(v.Name, v.TokS, v.Ratio.Total, v.Ratio.Median, v.TokensPerRound, v.PerDepth, v.PlanningUS, v.AheadHits, v.PlainRounds)
		}
	}
	_ = t.Flush()
}

func printFigures(w io.Writer, all []figure) {
	t := figures.NewTable(w, "%s\t%.4g\t%s")
	for i, f := range all {
		if i == 0 {
			t.Head("figure", "value", "")
		}
		t.Row(f.Name, f.Value, f.Note)
	}
	_ = t.Flush()
}
