package engine

import (
	"context"
	"fmt"
	"io"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/text/token"
)

// State is the hidden state of the position before a row's: the target's, as Output.Features of the target returned it, or the draft's
// own, as Output.Hidden of the draft returned it. If neither is known both are nil, which counts as zeros.
type State struct{ Target, Own []float32 }

// draft is what a draft with states has beside transformer blocks (docs/sidefiles.md), and where its inputs and outputs are.
//
//	dovetail: x = g∘h1 + (1-g)∘h2, h1 = W1 h [+ b], h2 = W2 e [+ b], g = σ(Wg [h1; h2] [+ b])
//	eagle:    x = fc [e; h] [+ b]
//	eagle3:   x = Σ fc.i tap.i + own; block 0 makes q, k and v of [norm(e); norm(x)]
//	mtp:      x = W [norm(e); norm(h)], from the target's own file (mtp.go)
//
// e is the embedding of the row's token, h its state. Forward writes states into `inputs` before the pass.
type draft struct {
	side                 Side
	hidden, embd         kernels.W // dovetail: W1, W2; eagle: the halves of fc
	hiddenBias, embdBias []float32 // eagle: the bias of fc is hiddenBias
	gateHidden, gateEmbd kernels.W
	gateBias             []float32
	fc                   []kernels.W // eagle3: per tap
	hiddenNorm           []float32   // mtp: of the state
	vocab                []int32     // eagle3: target's ids
	inputs               []kernels.Buf
	own                  kernels.Buf // where the draft's own state goes: the input, or eagle3's residual stream
	zeros                []float32
	embdNorm             []float32      // mtp: of the embedding; hiddenNorm is of the state
	uses                 []*gguf.Tensor // mtp: its tensors in its target's file
	spread               [][]float32    // eagle3: per wanted row, logits of the target's vocabulary
	targetLineage        string
}

// wide reports whether block 0 reads the embedding beside the residual stream.
func (d *draft) wide() bool { return d.side.Kind == SideEagle3 }

// OpenDraft loads the model in the file at path, which may be a side file of kind dovetail, eagle or eagle3. Then the embedding matrix,
// and the output matrix unless the file has one, come from the file of its target; nothing else of that is loaded. A plain model
// opens as by Open, and target is not used. Errors: Open's, and Invalid for a side file of another target or kind.
//
// Rows of such a draft depend on the states that they are given, not on tokens alone. So the pages that shared sequences hand on
// (NewShared) are as good as the states that they were made with: that costs acceptance at most, since a draft only guesses.
func OpenDraft(path, target string, o Options) (*Model, error) {
	m := &Model{}
	err := m.withFiles(path, target, func(f, of *gguf.File) error { return m.load(f, of, o) })
	if err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// MeasureDraft is Measure for what OpenDraft opens.
func MeasureDraft(path, target string, o Options) (Footprint, error) {
	m := &Model{}
	err := m.withFiles(path, target, func(f, of *gguf.File) error {
		if err := m.outline(f, of, o); err != nil {
			return err
		}
		_, err := m.layOut(f.Path())
		return err
	})
	return m.footprint, err
}

// withFiles calls use with the file at path and, if that is a draft with states, its target's; else nil.
func (m *Model) withFiles(path, target string, use func(f, of *gguf.File) error) error {
	f, side, err := openSide(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if !side.Draft() {
		return use(f, nil)
	}
	of, err := gguf.Open(target)
	if err != nil {
		return err
	}
	defer of.Close()
	return use(f, of)
}

// StateWidth returns how many numbers State.Target and State.Own have; 0, 0 for a plain model.
func (m *Model) StateWidth() (features, own int) {
	if d := m.draft; d != nil {
		return len(d.side.Taps) * d.side.Width, d.side.DraftWidth
	}
	return 0, 0
}

// outlineDraft reads the headers of a draft with states and of its target.
func (m *Model) outlineDraft(f, of *gguf.File) error {
	own, err := readSide(f)
	if err == nil && own.Kind == "" {
		if own, err = mtpSide(f); err == nil {
			return m.outlineMTP(f, of, own)
		}
	}
	if err != nil {
		return err
	}
	if m.vocab, err = token.FromGGUF(of); err != nil {
		return err
	}
	large, err := blocks.ReadConfig(of, m.vocab.Size())
	if err != nil {
		return err
	}
	lineage, err := lineageOf(of)
	if err != nil {
		return err
	}
	t := side.Target{Path: of.Path(), Lineage: lineage, Vocabulary: fmt.Sprintf("%016x", m.vocab.Fingerprint()), Dim: large.Dim,
		Vocab: large.Vocab, Layers: large.Layers}
	if err := own.fits(f.Path(), t); err != nil {
		return err
	}
	d := &draft{side: own, targetLineage: lineage}
	h := blocks.NewReader(f, own.Kind)
	if m.config, err = h.Config(blocks.Traits{}, own.Vocab, own.DraftWidth); err != nil {
		return err
	}
	if m.config.FinalCap = large.FinalCap; own.Kind != SideEagle3 { // which has an output matrix of its own
		m.config.LogitScale = large.LogitScale
	}
	m.draft = d
	c := tensors.New(f)
	d.collect(c, &m.weights, &m.config)
	if c.Err != nil {
		return c.Err
	}
	return m.borrow(c, of)
}

// lineageOf returns the lineage of the model in f, for which all of it is read if f does not state it.
func lineageOf(f *gguf.File) (string, error) {
	tensors := ""
	if !f.Has(gguf.LineageKey) {
		var err error
		if tensors, err = f.NewDigest().Sum(context.Background()); err != nil {
			return "", err
		}
	}
	return f.Lineage(tensors)
}

// collect finds the tensors of a draft with states.
func (d *draft) collect(c *tensors.Catalog, w *blocks.Weights, cfg *blocks.Config) {
	width, own := d.side.Width, d.side.DraftWidth
	square := func(into *kernels.W, name string) { c.Matrix(into, name, true, own, width) }
	switch d.side.Kind {
	case SideDovetail:
		square(&d.hidden, "fuse.hidden.weight")
		square(&d.embd, "fuse.embd.weight")
		square(&d.gateHidden, "fuse.gate.hidden.weight")
		square(&d.gateEmbd, "fuse.gate.embd.weight")
		d.hiddenBias, d.embdBias = c.Vector("fuse.hidden.bias", false, own), c.Vector("fuse.embd.bias", false, own)
		d.gateBias = c.Vector("fuse.gate.bias", false, own)
	case SideEagle:
		square(&d.hidden, "fc.hidden.weight")
		square(&d.embd, "fc.embd.weight")
		d.hiddenBias = c.Vector("fc.bias", false, own)
	case SideEagle3:
		d.fc = make([]kernels.W, len(d.side.Taps))
		for i := range d.fc {
			square(&d.fc[i], fmt.Sprintf("fc.%d.weight", i))
		}
		w.Second = &blocks.Second{Norm: c.Vector("blk.0.hidden_norm.weight", true, own)}
		for _, id := range d.side.spec.Draft.IDs {
			d.vocab = append(d.vocab, int32(id))
		}
	}
	w.OutputNorm = c.Vector("output_norm.weight", d.wide(), own)
	w.Layers = make([]blocks.Layer, cfg.Layers)
	for i := range w.Layers {
		blocks.Finder{Catalog: c, Bare: !d.wide()}.CollectLayer(&w.Layers[i], w, cfg, i)
	}
	w.Embed, w.Head = kernels.None, kernels.None
	if d.wide() {
		c.Matrix(&w.Embed, "token_embd.weight", false, cfg.Vocab, own)
		c.Matrix(&w.Head, "output.weight", true, d.side.DraftVocab, own)
	}
}

// borrow finds in the target's file what the draft's has not: embedding and output matrix.
func (m *Model) borrow(c *tensors.Catalog, of *gguf.File) error {
	w, cfg := &m.weights, &m.config
	t := tensors.New(of)
	t.Matrices = c.Matrices
	from := len(t.Matrices)
	if w.Embed == kernels.None && cfg.Dim != m.draft.side.Width {
		return tandem.Errorf("engine", tandem.Corrupt, "%s: a draft of width %d without an embedding matrix: the target's has width %d",
			c.File.Path(), cfg.Dim, m.draft.side.Width)
	}
	if w.Embed == kernels.None {
		t.Matrix(&w.Embed, "token_embd.weight", true, cfg.Vocab, cfg.Dim)
	}
	if w.Head == kernels.None {
		if w.Head = w.Embed; of.Tensor("output.weight") != nil {
			t.Matrix(&w.Head, "output.weight", true, cfg.Vocab, cfg.Dim)
		}
	}
	m.matrices = t.Matrices
	for _, x := range t.Matrices[from:] {
		m.borrowed = append(m.borrowed, x.Tensor)
	}
	return t.Err
}

// enter lays out what makes the residual stream of embeddings and states.
func (d *draft) enter(b *blocks.Planner) {
	e := b.Buf(b.Dim)
	b.Embed(b.W.Embed, e)
	d.inputs, d.zeros = nil, make([]float32, max(d.side.Width, b.Dim))
	if d.wide() {
		d.own = b.X
		d.enterWide(b, e)
		return
	}
	d.own = b.Buf(d.side.Width)
	d.inputs = []kernels.Buf{d.own}
	if d.side.Kind == SideMTP {
		d.enterMTP(b, e)
		return
	}
	act, state := b.Act(b.Dim), b.Act(d.side.Width)
	b.Feed(e, act)
	b.Feed(d.own, state)
	if d.side.Kind == SideEagle {
		b.MatMul(d.embd, act, b.X, kernels.MatMulOpt{})
		b.MatMul(d.hidden, state, b.X, kernels.MatMulOpt{Add: true})
		b.AddBiasIf(b.X, d.hiddenBias)
		return
	}
	h1, gate := b.Buf(b.Dim), b.Buf(b.Dim)
	b.MatMul(d.hidden, state, h1, blocks.Concurrent)
	b.MatMul(d.embd, act, b.X, kernels.MatMulOpt{})
	b.AddBiasIf(h1, d.hiddenBias)
	b.AddBiasIf(b.X, d.embdBias)
	b.Feed(h1, state)
	b.Feed(b.X, act)
	b.MatMul(d.gateHidden, state, gate, kernels.MatMulOpt{})
	b.MatMul(d.gateEmbd, act, gate, kernels.MatMulOpt{Add: true})
	b.AddBiasIf(gate, d.gateBias)
	b.Blend(gate, h1, b.X)
}

// enterWide is enter for eagle3: x holds the draft's own state, or zeros, when the pass begins.
func (d *draft) enterWide(b *blocks.Planner, e kernels.Buf) {
	tap := b.Act(d.side.Width)
	for _, w := range d.fc {
		in := b.Buf(d.side.Width)
		d.inputs = append(d.inputs, in)
		b.Feed(in, tap)
		b.MatMul(w, tap, b.X, kernels.MatMulOpt{Add: true})
	}
	b.W.Second.In = b.Act(b.Dim)
	b.RMSNorm(e, b.W.Layers[0].AttnNorm, b.NormEps, b.W.Second.In)
}

// give writes the states of a part's rows, the first of which is row `at` of the pass, to the inputs.
func (m *Model) give(part *Part, at int) error {
	rows := len(part.Extend) + len(part.Nodes)
	d := m.draft
	switch {
	case d == nil && part.States == nil:
		return nil
	case d == nil:
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %s, which reads none", len(part.States), m.config.Name)
	case len(part.States) != rows:
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %d rows of %s: want one for each", len(part.States), rows,
			m.config.Name)
	}
	features, own := m.StateWidth()
	for i, s := range part.States {
		if n := len(s.Target); n != 0 && (n != features || len(s.Own) != 0) || len(s.Own) != 0 && len(s.Own) != own {
			return tandem.Errorf("engine", tandem.Invalid,
				"state %d has %d numbers of the target and %d of the draft: want %d, or %d, or none", i, n, len(s.Own), features, own)
		}
		d.write(m.runner, at+i, s)
	}
	return nil
}

func (d *draft) write(r kernels.Runner, row int, s State) {
	put := func(b kernels.Buf, x []float32) {
		to := r.Row(b, row)
		copy(to[copy(to, x):], d.zeros)
	}
	if len(d.inputs) == 1 && d.inputs[0] == d.own {
		put(d.own, slices.Concat(s.Target, s.Own))
		return
	}
	for i, b := range d.inputs {
		if s.Target != nil {
			put(b, s.Target[i*d.side.Width:(i+1)*d.side.Width])
		} else {
			put(b, nil)
		}
	}
	put(d.own, s.Own)
}

// ownState returns what a draft hands to the next position, of a residual stream.
func (m *Model) ownState(x []float32) []float32 {
	if m.draft.wide() || m.weights.OutputNorm == nil || m.config.Traits.MtpBeforeNorm {
		return x
	}
	out := make([]float32, len(x))
	ref.RMSNorm(x, m.weights.OutputNorm, m.config.NormEps, out)
	return out
}

// widen returns logits of the draft's vocabulary as logits of the target's: -Inf for a token that the draft does not have.
func (d *draft) widen(row int, logits []float32) []float32 {
	for len(d.spread) <= row {
		all := make([]float32, d.side.Vocab)
		for i := range all {
			all[i] = float32(math.Inf(-1))
		}
		d.spread = append(d.spread, all)
	}
	for i, id := range d.vocab {
		d.spread[row][id] = logits[i]
	}
	return d.spread[row]
}

// writeShape writes what of the header determines the function, beside the shape of the blocks.
func (d *draft) writeShape(w io.Writer) {
	fmt.Fprintln(w, d.side.Kind, d.side.Width, d.side.Taps, len(d.vocab), d.targetLineage)
	for _, id := range d.vocab {
		fmt.Fprintln(w, id)
	}
}
