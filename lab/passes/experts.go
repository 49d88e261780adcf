// Package passes measures what passes cost beyond what tandem bench shows: by the experts that they use, and divided between two devices.
package passes

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/bench"
	"github.com/tandem-llm/tandem/app/bench/figures"
	"github.com/tandem-llm/tandem/engine"
)

// Experts measures what the passes of a model with experts cost by the experts that they use.
type Experts struct {
	Name  string
	Texts [][]tandem.Token // passes are measured at their ends
	bench.Passes
}

// ExpertsResult is the result of Experts.
type ExpertsResult struct {
	Model       string       `json:"model"`
	ISA         string       `json:"isa"`
	Threads     int          `json:"threads"`
	Texts       int          `json:"texts"`
	Row         int          `json:"experts_of_a_row"` // counted layer by layer, as everywhere here
	ExpertBytes int64        `json:"expert_bytes"`     // of one expert of one layer on average
	Passes      []expertPass `json:"passes"`
}

// expertPass is passes of one form: a chain, a tree, or rows that are all alike.
type expertPass struct {
	Form     string    `json:"form"`
	Width    int       `json:"width"`
	MS       float64   `json:"ms"` // median
	Experts  float64   `json:"experts"`
	ByRows   []float64 `json:"experts_by_rows"`     // of the first 1, 2, 4 … rows, and last of all
	ExpertNS float64   `json:"expert_ns,omitempty"` // what an expert costs beyond rows that are all alike
}

// Options returns the options with which a model must be opened: buffers and KV memory for the passes. The caller adds the device. Errors:
// Invalid, in the words of the command line.
func (e Experts) Options() (engine.Options, error) {
	if err := e.Validate(); err != nil {
		return engine.Options{}, err
	}
	longest, widest := 0, slices.Max(e.Widths)
	for _, t := range e.Texts {
		longest = max(longest, len(t))
	}
	return engine.Options{MaxRows: max(256, widest), MaxWanted: widest, KVPages: engine.PagesFor(1, longest, widest)}, nil
}

// Run measures passes of m, which was opened with Options. Errors: those of measureForms.
func (e Experts) Run(ctx context.Context, m *engine.Model) (*ExpertsResult, error) {
	found, err := measureForms(ctx, m, e.Texts, e.Widths, e.Rounds)
	if err != nil {
		return nil, err
	}
	r := &ExpertsResult{Model: e.Name, ISA: m.About().Kernels, Threads: m.About().Threads, Texts: len(e.Texts),
		Row:         m.Passes().Work().Experts,
		ExpertBytes: m.Passes().Work().Expert}
	for i := range found {
		p := &found[i]
		out := expertPass{Form: string(p.Form), Width: p.Rows, MS: figures.MS(p.Median()), Experts: p.Used(), ByRows: p.Experts}
		alike := slices.IndexFunc(found, func(q formPass) bool { return q.Form == FormAlike && q.Rows == p.Rows })
		if alike >= 0 && p.Used() > found[alike].Used() {
			out.ExpertNS = float64(p.Median()-found[alike].Median()) / (p.Used() - found[alike].Used())
		}
		r.Passes = append(r.Passes, out)
	}
	return r, nil
}

// Print writes the result as text.
func (r *ExpertsResult) Print(to io.Writer) error {
	fmt.Fprintf(to, "%s, %s, %d threads, at the ends of %d texts; a row uses %d experts, counted layer by layer, of %s each\n",
		r.Model, r.ISA, r.Threads, r.Texts, r.Row, figures.MiB(r.ExpertBytes))
	t := figures.NewTable(to, "%s\t%d\t%.2f\t%.0f\t%.2f\t%.0f")
	t.Head("rows", "", "median ms", "experts", "in experts of a row", "ns an expert")
	for _, p := range r.Passes {
		t.Row(p.Form, p.Width, p.MS, p.Experts, p.Experts/float64(r.Row), p.ExpertNS)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	find := func(f Form, width int) *expertPass {
		return &r.Passes[slices.IndexFunc(r.Passes, func(p expertPass) bool { return p.Form == string(f) && p.Width == width })]
	}
	for _, p := range r.Passes {
		if p.Form == string(FormTree) {
			c := find(FormChain, p.Width)
			fmt.Fprintf(to, "a tree of %d against a chain of %d: %.2f times the experts, %.2f times the time\n", p.Width, p.Width,
				p.Experts/c.Experts, p.MS/c.MS)
		}
	}
	return nil
}
