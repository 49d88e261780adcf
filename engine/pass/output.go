package pass

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
)

// Top holds the best tokens of one row of logits: (k) ids and (k) logits, best first, ties to the lower id. Max is the largest logit, and
// Sum the sum of exp(logit-Max) over the vocabulary. It is valid as long as its Output.
type Top struct {
	IDs      []int32
	Logits   []float32
	Max, Sum float32
}

// Output holds the results of a pass for its wanted rows, part by part, in order. It is valid until the next Forward of its Runner.
type Output struct {
	of     *results
	first  []int
	begin  []int // per part: its first row in the batch; and the number of rows
	n      int
	wanted []int32 // rows of the batch
	chain  *chain  // nil: the pass was one pass, of these rows

	waited  time.Duration
	experts []int32
}

// results are where the results of a model's passes are, and what they mean.
type results struct {
	model   *header.Header
	plan    *plan.Pass
	runner  kernels.Runner
	outputs outputs
}

// Waited returns how much of its time the pass waited for weights that are streamed; 0 on a device that streams none.
func (o *Output) Waited() time.Duration { return o.waited }

// Experts returns how many experts the rows of the pass have used. nil: the model has none, or the device does not tell.
func (o *Output) Experts() tandem.Experts { return o.experts }

// Len returns the number of wanted rows.
func (o *Output) Len() int { return o.n }

// First returns the index of the first wanted row of part i of the batch. If the part has none, it is where one would be.
func (o *Output) First(i int) int { return o.first[i] }

// Logits returns the logits of wanted row i: (vocab); -Inf for a token for which the output matrix of a draft has no row. They are valid as
// long as the Output; do not change them. nil for a part with a chain: of its rows only the best tokens are known.
func (o *Output) Logits(i int) []float32 {
	if i = o.result(i); o.chain != nil && !o.chain.whole(i) {
		return nil
	}
	return o.of.outputs.widen(i, o.of.runner.Row(o.of.plan.Logits, i))
}

// Top returns the best tokens of wanted row i, as many as Forward was asked for.
func (o *Output) Top(i int) Top {
	top := Top(o.of.runner.Top(o.result(i)))
	top.IDs = o.of.outputs.tokens(top.IDs)
	return top
}

// TopBelow returns the k best tokens with ids below limit of wanted row i, for a caller that may use only those. Sum is over these tokens
// alone. There may be fewer than k, or none, as for a part with a chain. NaN counts as the lowest. Unlike Top it scans the row.
func (o *Output) TopBelow(i, k, limit int) Top {
	i = o.result(i)
	logits, of := o.of.runner.Row(o.of.plan.Logits, i), &o.of.outputs
	if o.chain != nil && !o.chain.whole(i) {
		logits = nil
	}
	top := Top{IDs: make([]int32, 0, k+1), Logits: make([]float32, 0, k+1)}
	for row, v := range logits {
		id := of.token(row)
		if v != v {
			v = float32(math.Inf(-1))
		}
		if n := len(top.IDs); int(id) >= limit || n == k && v <= top.Logits[n-1] {
			continue
		}
		at := sort.Search(len(top.Logits), func(i int) bool { return top.Logits[i] < v })
		top.IDs, top.Logits = slices.Insert(top.IDs, at, id), slices.Insert(top.Logits, at, v)
		top.IDs, top.Logits = top.IDs[:min(k, len(top.IDs))], top.Logits[:min(k, len(top.IDs))]
	}
	if len(top.IDs) == 0 {
		return top
	}
	top.Max = top.Logits[0]
	sum := 0.0
	for row, v := range logits {
		if v == v && int(of.token(row)) < limit {
			sum += math.Exp(float64(v - top.Max))
		}
	}
	top.Sum = float32(sum)
	return top
}

// Sound returns nil if the best logit of wanted row i is a finite number. Else no token may be drawn from the row; the error is Corrupt
// and names the tensor that gave the logits. If Forward was asked for no best tokens, Sound always returns nil.
func (o *Output) Sound(i int) error {
	top := o.of.runner.Top(o.result(i))
	if len(top.Logits) == 0 || !math.IsInf(float64(top.Logits[0]), 0) && top.Logits[0] == top.Logits[0] {
		return nil
	}
	w, seen := &o.of.model.Weights, "not a number"
	if math.IsInf(float64(top.Logits[0]), 1) {
		seen = fmt.Sprintf("infinite, token %d's first", o.of.outputs.token(int(top.IDs[0])))
	}
	return tandem.Errorf("engine", tandem.Corrupt, "model %s: the logits of tensor %q are %s: want finite numbers, so weights of the "+
		"model are damaged or too large", filepath.Base(o.of.model.Path), o.of.model.Matrices[w.Head].Tensor.Name, seen)
}

// Features copies the hidden states that Options.Taps names, one after the other, to dst: (FeatureWidth). row counts a part's Extend rows
// and then its Nodes. The state after the final norm is computed here, since that takes some microseconds and most rows are never asked
// for.
func (o *Output) Features(part, row int, dst []float32) {
	r, at := o.of, o.row(part, row)
	for i, b := range r.plan.States {
		if to := dst[i*r.model.Config.Dim : (i+1)*r.model.Config.Dim]; b != kernels.None {
			copy(to, r.runner.Row(b, at))
		} else {
			o.Final(part, row, to)
		}
	}
}

// Final computes the state after the final norm and puts it into dst: (d). row counts a part's Extend rows and then its Nodes. It needs no
// Options.Taps.
func (o *Output) Final(part, row int, dst []float32) {
	r := o.of
	ref.RMSNorm(r.runner.Row(r.plan.Residual, o.row(part, row)), r.model.Weights.OutputNorm, r.model.Config.NormEps, dst)
}

// Hidden returns the residual stream after the last layer, before the final norm: (d). row counts a part's Extend rows and then its Nodes.
// Of a draft with states it is the draft's own state, State.Own of the next position. It is valid until the next Forward; do not change
// it.
func (o *Output) Hidden(part, row int) []float32 {
	if x := o.state(part, row); x != nil {
		return x
	}
	x := o.of.runner.Row(o.of.plan.Residual, o.row(part, row))
	if d := o.of.model.Draft; d != nil {
		return d.OwnState(x)
	}
	return x
}

// row returns where a row of a part is in the pass.
func (o *Output) row(part, row int) int {
	if at := o.begin[part] + row; row >= 0 && at < o.begin[part+1] {
		return o.at(at)
	}
	panic(fmt.Sprintf("engine: row %d of part %d, which has %d", row, part, o.begin[part+1]-o.begin[part]))
}

// Steps returns what the selector of a block draft adds to the logits of candidates of wanted row i: (before, after), a row for each token
// before with a number for each token after it. nil: the model has no selector (Block.Rank). Errors: Corrupt if the file was written to
// since it was opened.
func (o *Output) Steps(i int, before, after []tandem.Token) ([][]float32, error) {
	if o.of.model.Draft == nil {
		return nil, nil
	}
	return o.of.model.Draft.Steps(o.of.runner, i, before, after)
}
