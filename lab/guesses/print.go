package guesses

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem/app/bench/figures"
)

// Published is what a paper reports.
type Published struct {
	System string    `json:"system"`
	Of     string    `json:"of"`            // model and task
	At     []float64 `json:"at"`            // temperatures beside which it is shown
	Tau    []Length  `json:"tau,omitempty"` // by width
	Words  string    `json:"words,omitempty"`
}

// published are the figures to compare with: of Ghidorah Table I (MT-bench), of PPD the abstract and section 6, of Dovetail Tables I and
// II.
var published = []Published{
	{System: "Ghidorah (Medusa heads)", Of: "Vicuna-7B, MT-bench, greedy", At: []float64{0, 1}, Tau: []Length{{Width: 2, Tau: 1.72},
		{Width: 4, Tau: 2.28}, {Width: 8, Tau: 2.59}, {Width: 16, Tau: 2.93}, {Width: 32, Tau: 3.19}, {Width: 64, Tau: 3.34}}},
	{System: "PPD", Of: "MobileLLaMA 1.4B to Vicuna-13B, passes of 60 to 285 rows", At: []float64{0, 1},
		Words: "2.43 to 2.54 tokens a pass, 2.12 to 2.49 times as fast as plain decoding"},
	{System: "Dovetail (DGF)", Of: "LLaMA2-Chat-7B, temperature 0", At: []float64{0}, Tau: []Length{{Width: 16, Tau: 4.99}},
		Words: "τ is the mean of tasks; HumanEval 2.77 times as fast as plain decoding"},
	{System: "Dovetail (DGF)", Of: "LLaMA2-Chat-7B, temperature 1", At: []float64{1}, Tau: []Length{{Width: 16, Tau: 4.66}},
		Words: "τ is the mean of tasks; HumanEval 2.20 times as fast as plain decoding"},
}

// publishedAccuracy is PPD's Table 6.3: top 10 at distances 1, 2 and 3.
const publishedAccuracy = "published, Vicuna-7B, top 10 at distances 1, 2 and 3: PPD 0.837, 0.690, 0.583; Medusa 0.784, 0.567, 0.431"

// differ is what to bear in mind when figures stand beside published ones.
const differ = "The papers have other tasks, other models, far larger ones, and other types of weights: figures to compare, not to match."

// Print writes the result as text.
func (r *Result) Print(to io.Writer) error {
	w := bufio.NewWriter(to) // remembers an error until the end
	fmt.Fprintf(w, "%s, at most %d tokens to a prompt\n", r.Target, r.Tokens)
	for _, s := range r.Sources {
		fmt.Fprintf(w, "  %s: %s\n", s.Name, s.words())
	}
	fmt.Fprintf(w, "\nTime of a pass, T_V, by its rows; equal passes differ by %.0f %%\n", 100*r.Spread)
	var head, row []string
	for _, p := range r.Passes {
		head, row = append(head, fmt.Sprint(p.Width)), append(row, fmt.Sprintf("%.2f", p.MS))
	}
	table(w, append([]string{"rows"}, head...), [][]string{append([]string{"ms"}, row...)})
	for _, t := range r.Temperatures {
		t.print(w, slices.DeleteFunc(slices.Clone(r.Published), func(p Published) bool { return !slices.Contains(p.At, t.Temperature) }))
	}
	return w.Flush()
}

func (s Source) words() string {
	switch {
	case s.Members > 0:
		return fmt.Sprintf("%d prompt tokens, embeddings of each: %d", s.Levels, s.Members)
	case s.Levels > 0:
		return fmt.Sprintf("%d heads", s.Levels)
	}
	return fmt.Sprintf("%s of %d blocks, trees of %d levels, %d nodes a level", s.Kind, s.Blocks, draftDepth, draftWidth)
}

// table writes rows of cells, of which the first is as wide as it needs to be.
func table(w io.Writer, names []string, rows [][]string) {
	t := figures.NewTable(w, strings.TrimSuffix(strings.Repeat("%s\t", len(names)), "\t"))
	t.Head(names...)
	for _, cells := range rows {
		values := make([]any, len(names))
		for i := range values {
			if values[i] = ""; i < len(cells) {
				values[i] = cells[i]
			}
		}
		t.Row(values...)
	}
	_ = t.Flush()
}

// every is the name of all domains together.
func every(domain string) string {
	if domain == "" {
		return "all"
	}
	return domain
}

func (t *Temperature) print(w io.Writer, all []Published) {
	fmt.Fprintf(w, "\nTemperature %v:", t.Temperature)
	for _, c := range t.Texts {
		fmt.Fprintf(w, " %s %d tokens judged, %d to calibrate;", c.Domain, c.Judged, c.Calibration)
	}
	fmt.Fprint(w, "\n\nTokens a round (τ) by the nodes of a tree\n")
	t.printLengths(w, all)
	fmt.Fprintln(w, differ)
	t.printAccuracy(w)
	fmt.Fprint(w, "\nWhat tables of the calibration texts foretell, or the chances of trees that follow each guess, and what is\n")
	var rows [][]string
	for _, p := range t.Predictions {
		rows = append(rows, []string{p.Trees, fmt.Sprint(p.Width), number(p.Independent), number(p.Foretold), number(p.Calibration),
			off(p.Foretold, p.Calibration), number(p.Judged), off(p.Foretold, p.Judged)})
	}
	table(w, []string{"trees", "nodes", "product of accuracies", "foretold", "calibration texts", "off", "judged texts", "off"}, rows)
	if len(t.Sizes) == 0 {
		return // drafts alone
	}
	t.printTransfer(w)
	fmt.Fprint(w, "\nTrees with a part of their making left out\n")
	rows = nil
	for _, a := range t.Ablations {
		rows = append(rows, []string{a.Way, fmt.Sprint(a.Width), a.Trees, number(a.Tau), number(a.OfBest)})
	}
	table(w, []string{"way", "nodes", "trees", "τ", "of the first"}, rows)
	t.printSizes(w)
}

func number(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}

// off returns by how much a prediction is too high.
func off(foretold, is float64) string {
	if is == 0 {
		return ""
	}
	return fmt.Sprintf("%+.1f %%", 100*(foretold/is-1))
}

func (t *Temperature) printLengths(w io.Writer, all []Published) {
	var widths []int
	for _, l := range t.Lengths {
		for _, n := range l.Tau {
			if !slices.Contains(widths, n.Width) {
				widths = append(widths, n.Width)
			}
		}
	}
	slices.Sort(widths)
	names := []string{"trees", "domain"}
	for _, n := range widths {
		names = append(names, strconv.Itoa(n))
	}
	cells := func(first, second string, tau []Length) []string {
		row := []string{first, second}
		for _, n := range widths {
			i := slices.IndexFunc(tau, func(l Length) bool { return l.Width == n })
			if i < 0 {
				row = append(row, "")
				continue
			}
			row = append(row, number(tau[i].Tau))
		}
		return row
	}
	var rows [][]string
	for _, l := range t.Lengths {
		rows = append(rows, cells(l.Trees, every(l.Domain), l.Tau))
	}
	for _, p := range all {
		if len(p.Tau) > 0 {
			rows = append(rows, cells(p.System, "published", p.Tau))
		}
	}
	table(w, names, rows)
	for _, p := range all {
		fmt.Fprintf(w, "published, %s: %s; %s\n", p.System, p.Of, cmp.Or(p.Words, "above"))
	}
}

func (t *Temperature) printAccuracy(w io.Writer) {
	if len(t.Accuracy) == 0 {
		return
	}
	fmt.Fprint(w, "\nShare of places where the right token is among the likeliest; distance 1 is the token after the target's own\n")
	var ways []string
	levels := 0
	for _, a := range t.Accuracy {
		if !slices.Contains(ways, a.Way) {
			ways = append(ways, a.Way)
		}
		levels = max(levels, a.Level)
	}
	names := []string{"distance"}
	for _, way := range ways {
		for _, n := range tops {
			names = append(names, fmt.Sprintf("%s top %d", way, n))
		}
	}
	var rows [][]string
	for level := 1; level <= levels; level++ {
		row := []string{fmt.Sprint(level)}
		for _, way := range ways {
			i := slices.IndexFunc(t.Accuracy, func(a Accuracy) bool { return a.Way == way && a.Level == level })
			for k := range tops {
				if i < 0 {
					row = append(row, "")
				} else {
					row = append(row, fmt.Sprintf("%.3f", t.Accuracy[i].Top[k].Rate))
				}
			}
		}
		rows = append(rows, row)
	}
	table(w, names, rows)
	fmt.Fprintln(w, publishedAccuracy)
}

func (t *Temperature) printTransfer(w io.Writer) {
	fmt.Fprint(w, "\nTrees calibrated on one domain and judged on others: τ, and beside it its ratio to that of the domain's own tree\n")
	var domains []string
	for _, x := range t.Transfer {
		if !slices.Contains(domains, x.To) {
			domains = append(domains, x.To)
		}
	}
	names := []string{"way", "nodes", "calibrated on"}
	for _, d := range domains {
		names = append(names, every(d), "")
	}
	var rows [][]string
	for i := 0; i < len(t.Transfer); i += len(domains) {
		first := t.Transfer[i]
		row := []string{first.Way, fmt.Sprint(first.Width), every(first.From)}
		for _, x := range t.Transfer[i : i+len(domains)] {
			row = append(row, number(x.Tau), number(x.OfOwn))
		}
		rows = append(rows, row)
	}
	table(w, names, rows)
}

func (t *Temperature) printSizes(w io.Writer) {
	fmt.Fprint(w, "\nSpeed over plain decoding by the nodes of a tree: foretold by tables and T_V, by the τ of judged texts and T_V, "+
		"and of real rounds\n")
	var rows [][]string
	best := map[string][3]Size{}
	var ways []string
	for _, s := range t.Sizes {
		rows = append(rows, []string{s.Way, fmt.Sprint(s.Width), number(s.MS), number(s.Foretold), number(s.Judged), number(s.Real)})
		b, known := best[s.Way]
		if !known {
			ways = append(ways, s.Way)
			b = [3]Size{s, s, s}
		}
		for i, better := range []bool{s.Foretold > b[0].Foretold, s.Judged > b[1].Judged, s.Real > b[2].Real} {
			if better {
				b[i] = s
			}
		}
		best[s.Way] = b
	}
	table(w, []string{"way", "nodes", "ms a pass", "foretold", "judged", "real"}, rows)
	for _, way := range ways {
		b := best[way]
		fmt.Fprintf(w, "%s: best size foretold %d, by judged τ %d", way, b[0].Width, b[1].Width)
		if b[2].Real > 0 {
			fmt.Fprintf(w, ", of real rounds %d, where the foretold one has %.2f of its speed", b[2].Width,
				t.real(way, b[0].Width)/b[2].Real)
		}
		fmt.Fprintln(w)
	}
}

// real returns the speed of real rounds with a way's trees of one size.
func (t *Temperature) real(way string, width int) float64 {
	for _, s := range t.Sizes {
		if s.Way == way && s.Width == width {
			return s.Real
		}
	}
	return 0
}
