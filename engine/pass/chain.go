package pass

import (
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/sequence"
	"github.com/tandem-llm/tandem/kernels"
)

// chain says how a batch with chains runs: as a first pass without their rows, and then steps with a row of each chain. In the first pass,
// parts with chains come first: so what the steps leave in buffers replaces their rows alone.
type chain struct {
	steps   []kernels.ChainStep
	rows    []int // per row of the batch: its row in the first pass; of a chain: -1
	results []int // per wanted row of the batch: its number in the results
	spoiled int   // how many of the first results belong to parts with chains
}

// whole reports whether the logits of a result are still there.
func (c *chain) whole(result int) bool {
	return result >= c.spoiled && result < len(c.steps[0].Wanted)
}

// at returns the row of the pass, or of its first step, of a row of the batch.
func (o *Output) at(row int) int {
	if o.chain == nil {
		return row
	}
	return o.chain.rows[row]
}

// result returns the number that the runner gives to a wanted row of the batch.
func (o *Output) result(i int) int {
	if o.chain == nil {
		return i
	}
	return o.chain.results[i]
}

// state returns what the device has made of a row as the draft's own state; nil: nothing.
func (o *Output) state(part, row int) []float32 {
	r, links := o.of.runner.(kernels.ChainRunner)
	if i := slices.Index(o.wanted, int32(o.begin[part]+row)); links && i >= 0 && o.of.model.Draft != nil {
		return r.State(o.result(i))
	}
	return nil
}

// Chains reports whether parts may have chains.
func (r *Runner) Chains() bool {
	_, ok := r.runner.(kernels.ChainRunner)
	return ok && r.links() && r.block.Rows == 0 && !r.model.Config.Recurrent()
}

// links reports whether rows of passes can follow from others: tokens are looked up on the device.
func (r *Runner) links() bool {
	d := r.model.Draft
	if d == nil {
		return true
	}
	_, ok := d.Link(r.plan.Residual)
	return ok
}

// unchain lays out the steps of a batch whose rows are in r.rows, if it has chains. A draft with states always runs as a chain where it
// can, since its states then come with the results. Errors: Invalid for chains that the model has not; those of Link.
func (r *Runner) unchain(batch []sequence.Part, out *Output) error {
	p, longest := &r.rows, 0
	for i := range batch {
		longest = max(longest, batch[i].Chain)
	}
	if longest > 0 && (!r.Chains() || p.TopK == 0) {
		return tandem.Errorf("engine", tandem.Invalid, "a chain of %d rows of %s, with the best %d tokens: want a model with chains, "+
			"and one token", longest, r.model.Config.Name, p.TopK)
	}
	if !r.linked && r.Chains() && (longest > 0 || r.model.Draft != nil) {
		l := kernels.Link{Tokens: r.model.Config.Outputs, From: kernels.None, To: kernels.None}
		if d := r.model.Draft; d != nil {
			l, _ = d.Link(r.plan.Residual)
		}
		if err := r.runner.(kernels.ChainRunner).Link(l); err != nil {
			return r.passError(p.Rows, err)
		}
		r.linked = true
	}
	out.wanted = p.Wanted
	if longest > 0 {
		out.chain = p.unchain(batch, out.begin, longest)
	}
	return nil
}

// unchain lays out the steps; begin is the first row of each part.
func (p *rows) unchain(batch []sequence.Part, begin []int, longest int) *chain {
	c := &chain{rows: slices.Repeat([]int{-1}, p.Rows), results: make([]int, len(p.Wanted))}
	numbers := map[int]int{} // results, by row of the batch
	add := func(some []int) {
		s := p.of(some)
		for _, w := range s.Wanted {
			numbers[some[w]] = len(numbers)
		}
		c.steps = append(c.steps, kernels.ChainStep{Pass: &s})
	}
	var some []int
	for _, chained := range []bool{true, false} {
		for i := range batch {
			for row := begin[i]; (batch[i].Chain > 0) == chained && row < begin[i+1]-batch[i].Chain; row++ {
				c.rows[row], some = len(some), append(some, row)
			}
		}
		if chained {
			for _, w := range p.Wanted {
				c.spoiled += min(c.rows[w]+1, 1)
			}
		}
	}
	add(some)
	for step := range longest {
		var some, before []int
		for i := range batch {
			if n := batch[i].Chain; step < n {
				some, before = append(some, begin[i+1]-n+step), append(before, begin[i+1]-n+step-1)
			}
		}
		add(some)
		for _, row := range before {
			s := &c.steps[step+1]
			s.After = append(s.After, int32(numbers[row]))
		}
	}
	for i, w := range p.Wanted {
		c.results[i] = numbers[int(w)]
	}
	return c
}

// runChain runs the steps, and fills in the tokens of the parts' chains.
func (r *Runner) runChain(batch []sequence.Part, out *Output) error {
	steps := []kernels.ChainStep{{Pass: &r.rows.Pass}}
	if out.chain != nil {
		steps = out.chain.steps
	}
	if err := r.runner.(kernels.ChainRunner).Chain(steps); err != nil {
		return r.passError(r.rows.Rows, err)
	}
	for i := range batch {
		nodes, first := batch[i].Nodes, out.begin[i+1]-len(batch[i].Nodes)
		for n := len(nodes) - batch[i].Chain; n < len(nodes); n++ {
			before, _ := slices.BinarySearch(out.wanted, int32(first+n-1))
			nodes[n] = tandem.Token(out.Top(before).IDs[0])
		}
	}
	return nil
}
