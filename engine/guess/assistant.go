package guess

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Assistant drafts a chain of tokens beside its target, whose keys and values it reads (Gemma 4). Each step takes the token before and a
// state of the target's width:
//
//	x = W [e; s], e the target's embedding of the token as its layers get it
//	layers as the target's, without keys and values of their own: one reads those of the last own layer of the target of its kind
//	y = norm(x); logits = its own embedding · y, perhaps of some clusters of tokens alone; the state for the next step = W' y
//
// The first state is the target's after its final norm. All steps of a chain have the position of the first token, since the target's cache
// does not grow meanwhile.
type Assistant struct {
	pass
	target       *Target
	config       blocks.Config
	weights      blocks.Weights
	enter, leave kernels.W
	clusters     *clusters   // nil: a step computes the logits of all tokens
	in, next     kernels.Buf // (rows, 2·target's d), (wanted, target's d)
	lookup       pass        // of the target's embeddings
	embedded     kernels.Buf // (rows, target's d)
}

// Step is one chain of an assistant: what its next step takes, and the part of the cache that the chain sees.
type Step struct {
	Token tandem.Token
	State []float32 // (target's d)
	Seen
}

func planAssistant(p *planning) (Guesser, error) {
	arch, err := p.file.String("general.architecture")
	if err != nil {
		return nil, err
	}
	s, path, of := &p.Spec, p.file.Path(), p.Config
	refuse := func(format string, args ...any) error {
		return tandem.Errorf("engine", tandem.Invalid, "%s: an assistant %s", path, fmt.Sprintf(format, args...))
	}
	switch {
	case of.Family.Assistant == nil:
		return nil, refuse("of a gemma4 target: %s is a model of the %s architecture", p.Path, of.Arch)
	case s.Dim != of.Dim:
		return nil, refuse("for a target of width %d: %s has width %d", s.Dim, p.Path, of.Dim)
	case s.Vocab != of.Vocab:
		return nil, refuse("for a target with %d tokens: %s has %d", s.Vocab, p.Path, of.Vocab)
	}
	a := &Assistant{target: p.Target}
	if a.config, err = blocks.NewReader(p.file, arch).Config(*of.Family.Assistant, of.Vocab, s.Draft.Width); err != nil {
		return nil, err
	}
	c := &a.config
	for i := range c.Shapes {
		l := &c.Shapes[i]
		if l.Source, err = readBy(of, l, i, refuse); err != nil {
			return nil, err
		}
	}
	if c.Rope.Base != of.Rope.Base || c.Rope.LocalBase != of.Rope.LocalBase || c.RopeDim != of.RopeDim ||
		c.LocalRopeDim != of.LocalRopeDim {
		return nil, refuse("with RoPE bases %g and %g over %d and %d elements: the target has %g and %g over %d and %d", c.Rope.Base,
			c.Rope.LocalBase, c.RopeDim, c.LocalRopeDim, of.Rope.Base, of.Rope.LocalBase, of.RopeDim, of.LocalRopeDim)
	}
	// A row sees the target's positions before its own, at which the target keeps nothing yet.
	if c.Window = max(0, of.Window-1); of.Window == 1 {
		return nil, refuse("of a target whose window is the token itself: there is nothing to read")
	}
	if err := a.collect(p, arch); err != nil {
		return nil, err
	}
	a.plan()
	a.planLookup()
	p.passes = []*pass{&a.lookup, &a.pass}
	return a, nil
}

// readBy returns the target's layer whose keys and values layer i of an assistant reads: the last of its kind that keeps its own.
func readBy(target *blocks.Config, l *blocks.LayerShape, i int, refuse func(string, ...any) error) (int, error) {
	kind := map[bool]string{true: "with a window", false: "without a window"}[l.Local]
	for j, of := range slices.Backward(target.Shapes) {
		switch {
		case of.Local != l.Local || of.Source != j:
		case of.HeadDim != l.HeadDim:
			return 0, refuse("whose layer %d, %s, has heads of %d elements: the target's have %d", i, kind, l.HeadDim, of.HeadDim)
		case l.Heads%of.KVHeads != 0:
			return 0, refuse("whose layer %d, %s, has %d heads: want a multiple of the target's %d key-value heads", i, kind, l.Heads,
				of.KVHeads)
		default:
			l.KVHeads = of.KVHeads
			return j, nil
		}
	}
	return 0, refuse("whose layer %d is one %s: the target has none that keeps keys and values", i, kind)
}

// collect finds the assistant's tensors.
func (a *Assistant) collect(p *planning, arch string) error {
	w, cfg, names := &a.weights, &a.config, &p.Spec.Helper
	c := blocks.Finder{Catalog: tensors.New(p.file), C: cfg, W: w, Borrows: true}
	c.Matrix(&a.enter, names.Enter, true, cfg.Dim, 2*p.Spec.Dim)
	c.Matrix(&a.leave, names.Leave, true, p.Spec.Dim, cfg.Dim)
	c.Matrix(&w.Head, "token_embd.weight", true, cfg.Vocab, cfg.Dim)
	w.OutputNorm = c.Vector("output_norm.weight", true, cfg.Dim)
	if c.CollectLayers(); c.Err == nil && names.Clusters > 0 {
		a.clusters = collectClusters(c.Catalog, w, cfg, names)
	}
	if c.Err == nil {
		c.RefuseOthers(arch)
	}
	a.matrices = c.Matrices
	return c.Err
}

// plan lays out a step of the chain.
func (a *Assistant) plan() {
	c, t := &a.config, a.target
	b := blocks.NewPlanner(kernels.NewProgram(maxRows, maxRows), c, &a.weights)
	b.Ahead = 1
	b.KV = t.Plan.KV
	tensors.AddTo(b.Program, a.matrices, t.Device.Layout)
	b.Stage("the entrance")
	a.in, a.next = b.Buf(2*t.Config.Dim), b.WantedBuf(t.Config.Dim)
	b.X, b.Normed = b.Buf(c.Dim), b.Act(c.Dim)
	both := b.Act(2 * t.Config.Dim)
	b.Feed(a.in, both)
	b.MatMul(a.enter, both, b.X, kernels.MatMulOpt{})
	for i := range b.W.Layers {
		b.W.Layers[i].Lay(b)
	}
	last, lastNorm := b.WantedBuf(c.Dim), b.WantedAct(c.Dim)
	b.Gather(b.X, last)
	b.Norm(last, b.W.OutputNorm, lastNorm)
	b.Stage("the output")
	b.MatMul(a.leave, lastNorm, a.next, kernels.MatMulOpt{})
	if a.clusters != nil {
		a.clusters.logits(b)
	} else {
		logits := b.WantedBuf(c.Vocab)
		b.MatMul(b.W.Head, lastNorm, logits, kernels.MatMulOpt{})
		b.TopK(logits)
	}
	a.program, a.near = b.Program, true
}

// planLookup lays out the look-up of the target's embeddings.
func (a *Assistant) planLookup() {
	t := a.target
	p := kernels.NewProgram(min(maxRows, t.Plan.MaxRows), 0) // streamed, the embedding has room for the rows of a pass
	a.embedded = p.Buf(t.Config.Dim)
	p.Embed(p.Weight(t.Plan.Weights[t.Weights.Embed]), a.embedded)
	if t.Config.EmbedScale != 1 {
		p.Scale(a.embedded, t.Config.EmbedScale)
	}
	a.lookup = pass{program: p, borrows: []kernels.W{t.Weights.Embed}, near: true}
}

func (a *Assistant) guess(r *round, asks []*ask) error {
	all := make([]Step, len(asks))
	for i, x := range asks {
		if x.Token < 0 || int(x.Token) >= a.target.Config.Vocab {
			return tandem.Errorf("engine", tandem.Invalid, "a guess by %s behind token %d: vocabulary has %d", x.SelfDraft, x.Token,
				a.target.Config.Vocab)
		}
		var seen Seen
		if x.Seq != nil {
			var err error
			if seen, err = x.Seq.Seen(x.Path); err != nil {
				return err
			}
		}
		if seen.Cache != a.target.Cache {
			return tandem.Errorf("engine", tandem.Invalid, "a guess by %s behind no sequence of the model: want the one whose end it "+
				"follows", x.SelfDraft)
		}
		all[i] = Step{x.Token, x.states[0], seen}
	}
	for from := 0; from < len(all); from += maxRows {
		if err := a.chain(r, all[from:min(from+maxRows, len(all))], asks[from:]); err != nil {
			return tandem.Errorf("engine", tandem.Internal, "chains for %d guesses: %w", len(asks), err)
		}
	}
	return nil
}

// chain makes chains: each step's best token goes into the next.
func (a *Assistant) chain(r *round, rows []Step, asks []*ask) error {
	for level := range side.AssistantLevels {
		err := a.Step(rows, r.top, func(i int, best kernels.Top) {
			fill(&asks[i].guess.Levels[level], best, nil)
			if len(best.IDs) > 0 && !math.IsNaN(float64(best.Max)) {
				rows[i].Token = tandem.Token(best.IDs[0])
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Step runs a step for rows, at most 64. It calls use with the best tokens, at most top, of each row; best is valid only during the call.
// Then it sets each row's State to the one for its next step. The caller sets Token.
func (a *Assistant) Step(rows []Step, top int, use func(i int, best kernels.Top)) error {
	p := &kernels.Pass{Rows: len(rows), TopK: top}
	for i := range rows {
		r := &rows[i]
		p.Pos = append(p.Pos, int32(r.Prefix+len(r.Path)-1))
		p.Store = append(p.Store, 0) // nothing is stored
		p.Table, p.Prefix = append(p.Table, int32(len(p.Pages))), append(p.Prefix, int32(r.Prefix))
		p.Pages = append(p.Pages, r.Pages...)
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(r.Path)))
		p.Anc = append(p.Anc, r.Path...)
		p.Wanted = append(p.Wanted, int32(i))
	}
	if err := a.enterRows(rows); err != nil {
		return err
	}
	if err := a.runner.Run(p); err != nil {
		return err
	}
	for i := range rows {
		best, err := a.best(i)
		if err != nil {
			return err
		}
		use(i, best)
		rows[i].State = slices.Clone(a.runner.Row(a.next, i))
	}
	return nil
}

// enterRows fills in what a step takes: the target's embedding of each row's token, and the row's state.
func (a *Assistant) enterRows(rows []Step) error {
	from, d := 0, a.target.Config.Dim
	for part := range slices.Chunk(rows, a.lookup.program.MaxRows) {
		e := &kernels.Pass{Rows: len(part)}
		for _, r := range part {
			e.Tokens = append(e.Tokens, int32(r.Token))
		}
		if err := a.lookup.runner.Run(e); err != nil {
			return err
		}
		for i, r := range part {
			in := kernels.Give(a.runner, a.in, from+i)
			copy(in[:d], a.lookup.runner.Row(a.embedded, i))
			copy(in[d:], r.State)
		}
		from += len(part)
	}
	return nil
}

// best returns what a step found for row i.
func (a *Assistant) best(i int) (kernels.Top, error) {
	if a.clusters == nil {
		return a.runner.Top(i), nil
	}
	var chosen []int32
	if r, tells := a.runner.(kernels.RouteReader); tells {
		chosen = r.Chosen(a.clusters.route, i)
	}
	return a.clusters.name(a.runner.Top(i), chosen)
}

// Program returns the program of a step, for tests that look at every number.
func (a *Assistant) Program() *kernels.Program { return a.program }

// Runner returns what runs Program; it stays the assistant's.
func (a *Assistant) Runner() kernels.Runner { return a.runner }
