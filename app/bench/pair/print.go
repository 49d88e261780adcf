package pair

import (
	"bufio"
	"fmt"
	"io"
	"strings"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Print writes the result as text.
func (r *Result) Print(to io.Writer) error {
	w := bufio.NewWriter(to) // remembers an error until the end
	if len(r.Prompts) > 0 {
		r.printPrompts(w)
	}
	for _, c := range r.Crowds {
		t := figures.NewTable(w, "%s\t%.1f\t%s\t%.2f\t%.2f")
		t.Head(fmt.Sprintf("%d requests", c.AtOnce), "tokens/s", "over plain", "s a request", "plain's over it")
		for _, way := range r.Ways {
			cell := c.Cells[way]
			t.Row(way, cell.TokS, shortly(cell.Ratio), cell.WaitS, cell.Waits.Median)
		}
		_ = t.Flush()
	}
	t := figures.NewTable(w, "%s\t%.3f\t%s")
	t.Head("figure", "median", "spread")
	for _, f := range r.Suites[0].Figures {
		t.Row(f.Name, f.Value, f.Note)
	}
	_ = t.Flush()
	fmt.Fprintln(w, r.Ended)
	for _, p := range r.Peers {
		fmt.Fprintf(w, "%s: %d of %d texts are the same\n", p.Name, p.Equal, p.Texts)
	}
	for _, d := range r.Differ {
		fmt.Fprintln(w, "NOT EQUAL: "+d)
	}
	return w.Flush()
}

// shortly returns a ratio and its interval.
func shortly(s figures.Spread) string {
	if s.Sure == 0 {
		return fmt.Sprintf("%.2f", s.Median)
	}
	return fmt.Sprintf("%.2f [%.2f %.2f]", s.Median, s.Low, s.High)
}

// printPrompts writes a table for each clock: tokens per second of plain decoding, the other ways' ratios to it and their tokens a round,
// and the subject's to the best fixed way.
func (r *Result) printPrompts(w io.Writer) {
	for i, clock := range clocks {
		t := figures.NewTable(w, "%s\t%.1f\t%s")
		t.Head(append(append([]string{clock.name, r.Ways[0] + ", tokens/s"}, r.Ways[1:]...), "over the best fixed way")...)
		for _, p := range r.Prompts {
			var cells []string
			for _, way := range r.Ways[1:] {
				cells = append(cells, fmt.Sprintf("%s · %.2f", shortly(p.Cells[way][i].Ratio), p.Cells[way][i].Round))
			}
			if len(p.Best) > 0 {
				cells = append(cells, strings.TrimSpace(shortly(p.Best[i].Ratio)+" "+strings.Join(p.Best[i].Ways, ", ")))
			}
			t.Row(p.Prompt, p.Cells[r.Ways[0]][i].TokS, strings.Join(cells, "\t"))
		}
		_ = t.Flush()
	}
}
