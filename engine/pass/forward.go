// Package pass runs passes of a loaded model: it lays the rows of several sequences out as one pass, runs it on the device, and hands out
// what it has computed of each row.
package pass

import (
	"errors"
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/header"
	"github.com/tandem-llm/tandem/engine/plan"
	"github.com/tandem-llm/tandem/engine/sequence"
	"github.com/tandem-llm/tandem/kernels"
)

// Machine is what a device has compiled and allocated for the passes of a model. Whoever made it frees it.
type Machine struct {
	Device kernels.Device
	Runner kernels.Runner // of the passes
	Cache  kernels.Cache  // that the Runner was compiled with
}

// Runner makes sequences of a model and runs its passes. One goroutine at a time may use it and its sequences.
type Runner struct {
	*sequence.Cache
	results
	device  kernels.Device
	sizes   plan.Sizes
	block   Block       // the zero value: the model is no block draft
	beside  *guess.List // has the embeddings of prompt rows
	rows    rows
	runPass func(*kernels.Pass) error // run, for sequences that need passes of their own
	linked  bool                      // the runner knows how rows of chains follow
}

// NewRunner returns the runner of the model h, whose passes are laid out as p, in sizes s, and made by m. beside are the model's side
// files, also those that are opened later, before the first pass. The caller frees m.
func NewRunner(h *header.Header, p *plan.Pass, s plan.Sizes, m Machine, beside *guess.List) *Runner {
	r := &Runner{
		Cache:   sequence.NewCache(&h.Config, s, m.Cache, h.Draft != nil),
		results: results{model: h, plan: p, runner: m.Runner, outputs: outputs{ids: h.Config.Outputs, vocab: h.Config.Vocab}},
		device:  m.Device, sizes: s, beside: beside,
	}
	if h.Draft != nil {
		r.block = h.Draft.Block()
	}
	r.runPass = r.run
	return r
}

// Forward runs one pass over all rows of the batch and finds the topK best tokens of each wanted row (0 ≤ topK ≤ 64). Then Extend rows are
// committed and tree rows held. A row's result depends on its own tokens alone, not on what else is in the pass. The output is valid until
// the next Forward.
//
// On error no sequence has changed; but if the pass had begun and the model has recurrent layers, its sequences can only be closed. Errors:
// Invalid (a part that does not fit its sequence, too many rows), Exhausted (memory), Unavailable (the device, or states, are lost), those
// of the files that passes read, Internal.
func (r *Runner) Forward(batch []sequence.Part, topK int) (*Output, error) {
	p := &r.rows
	p.reset(topK)
	defer func() {
		for i := range batch {
			batch[i].Leave()
		}
	}()
	out := &Output{of: &r.results, first: make([]int, len(batch)), begin: make([]int, len(batch)+1)}
	for i := range batch {
		out.first[i], out.begin[i] = len(p.Wanted), len(p.Tokens)
		if err := r.enter(&batch[i]); err != nil {
			return nil, err
		}
	}
	out.n = len(p.Wanted)
	p.Rows = len(p.Tokens)
	out.begin[len(batch)] = p.Rows
	switch {
	case p.Rows == 0:
		return out, nil
	case p.Rows > r.sizes.Rows:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass of %d rows: at most %d allowed", p.Rows, r.sizes.Rows)
	case out.n > r.sizes.Wanted:
		return nil, tandem.Errorf("engine", tandem.Invalid, "a pass with %d rows of logits: at most %d allowed", out.n, r.sizes.Wanted)
	}
	err := r.unchain(batch, out)
	if err != nil {
		return nil, err
	}
	for i := range batch {
		if err := r.give(&batch[i], out.at(out.begin[i])); err != nil {
			return nil, err
		}
	}
	if p.Walks, err = sequence.Walks(r.Cache, batch, out.begin, p.Walks, r.runPass); err != nil {
		return nil, err
	}
	before := r.waited()
	if err := r.runBatch(batch, out); err != nil {
		for i := range batch {
			batch[i].Fail()
		}
		return nil, err
	}
	if out.waited = r.waited() - before; out.chain == nil {
		out.experts = r.experts(p.Rows)
	}
	for i := range batch {
		batch[i].Commit()
	}
	return out, nil
}

// runBatch computes the pass that is laid out: of a block draft, two passes.
func (r *Runner) runBatch(batch []sequence.Part, out *Output) error {
	switch {
	case r.block.Rows > 0:
	case out.chain != nil || r.linked && r.model.Draft != nil:
		return r.runChain(batch, out)
	default:
		return r.run(&r.rows.Pass)
	}
	if err := runBlocks(r.model.Draft, r.runner, &r.rows, batch, out); err != nil {
		return r.passError(r.rows.Rows, err)
	}
	return nil
}

// run runs a pass and gives its error a kind.
func (r *Runner) run(p *kernels.Pass) error {
	if err := r.runner.Run(p); err != nil {
		return r.passError(p.Rows, err)
	}
	return nil
}

// waited returns for how long all passes so far have waited for weights.
func (r *Runner) waited() time.Duration {
	if s, ok := r.device.(kernels.Streamer); ok {
		return s.StreamStats().Waited
	}
	return 0
}

// passError gives the error of a pass its kind: that of the model file that the pass reads, if it does; Unavailable if the device is lost,
// since the process will start again; else Internal.
func (r *Runner) passError(rows int, err error) error {
	kind := tandem.Internal
	if e := (*tandem.Error)(nil); errors.As(err, &e) {
		kind = e.Kind
	} else if d, ok := r.device.(kernels.Losable); ok && d.Lost() != nil {
		kind = tandem.Unavailable
	}
	return tandem.Errorf("engine", kind, "pass of %d rows: %w", rows, err)
}

// Reserve takes the pages that a pass with part writes to, and those that Commit and Reroot may then need, so that none of them can fail
// for lack of memory. Forward does the same; a caller that has several parts learns here whose memory is missing. Exhausted if too few
// pages are free; then nothing has changed. It reports nothing else: a part that does not fit its sequence is refused by Forward.
func (r *Runner) Reserve(part *sequence.Part) error {
	if r.check(part) != nil {
		return nil
	}
	return part.Settle()
}

// enter checks a part, takes memory for it, and appends its rows to the pass.
func (r *Runner) enter(part *sequence.Part) error {
	if err := r.check(part); err != nil {
		return err
	}
	if err := part.Enter(); err != nil {
		return err
	}
	r.rows.add(part, &r.block, r.beside.Prompts(), r.model.Config.Dim)
	return nil
}

// check refuses a part that does not fit its sequence or the vocabulary.
func (r *Runner) check(part *sequence.Part) error {
	const op = "engine"
	if err := part.Check(r.Cache); err != nil {
		return err
	}
	if err := checkBlock(&r.block, part); err != nil {
		return err
	}
	c := &r.model.Config
	prompts := len(r.beside.Prompts()) / c.Dim
	for _, t := range part.Extend {
		if t < 0 || int(t) >= c.Vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d: vocabulary has %d", t, c.Vocab)
		}
	}
	for _, t := range part.Nodes {
		if int(t) < -prompts || int(t) >= c.Vocab {
			return tandem.Errorf(op, tandem.Invalid, "token %d in a tree: vocabulary has %d, and there are %d prompt rows, from -1 down", t,
				c.Vocab, prompts)
		}
	}
	return nil
}

// give writes the embeddings and states of a draft's rows in a part, the first of which is row `at` of the pass, to the inputs. Those of a
// block draft are checked alone: runBlocks writes them.
func (r *Runner) give(part *sequence.Part, at int) error {
	switch d := r.model.Draft; {
	case r.block.Rows > 0:
		return d.CheckContext(part.States, len(part.Extend)+len(part.Nodes))
	case d != nil:
		return d.Write(r.runner, at, slices.Concat(part.Extend, part.Nodes[:len(part.Nodes)-part.Chain]), part.States)
	case part.States != nil:
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %s, which reads none", len(part.States), r.model.Config.Name)
	}
	return nil
}

// experts counts the experts that the last pass has used: what it read of them from memory. nil for a model without experts, or on a device
// that does not tell.
func (r *Runner) experts(rows int) tandem.Experts {
	routes, tells := r.runner.(kernels.RouteReader)
	if !tells || len(r.plan.Routes) == 0 {
		return nil
	}
	added := make([]int, rows)
	seen := make([]int, r.model.Config.Experts.Count) // the latest layer in which an expert was used, counted from 1
	for i, s := range r.plan.Routes {
		if s.Fixed {
			continue
		}
		for row := range added {
			chosen := routes.Chosen(kernels.Route(i), row)
			if chosen == nil {
				return nil
			}
			for _, e := range chosen {
				if seen[e] <= i {
					seen[e] = i + 1
					added[row]++
				}
			}
		}
	}
	return tandem.CountExperts(added)
}
