package guess

import (
	"fmt"
	"io"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/ref"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// entrance is what a kind of draft has beside transformer blocks: it makes the residual stream of embeddings and states.
type entrance interface {
	collect(c *tensors.Catalog, d *Draft)
	// enter lays out b.X from e, the embeddings of the rows' tokens, and h, the states of the positions before. h is b.X itself for a
	// draft whose residual stream begins with the state.
	enter(b *blocks.Planner, e, h kernels.Buf)
}

// State is the hidden state of the position before a row's: the target's, as Output.Features of the target returned it, or the draft's
// own, as Output.Hidden of the draft returned it. If neither is known both are nil, which counts as zeros.
type State struct{ Target, Own []float32 }

// Draft is a draft with states: a model of its own whose rows read the states of the positions before them. Before a pass, Write puts
// them into the buffers that Enter has laid out. The state of a position is
//
//	h = Σ T_i tap_i   where the target has been,
//	h = the draft's own state   elsewhere, zeros if there is none.
//
// A tap without a matrix T_i is added as it is.
type Draft struct {
	Spec     side.Spec
	Config   blocks.Config
	Weights  blocks.Weights
	Matrices []tensors.Matrix
	Embed    *tensors.Lookup
	EmbedIn  *gguf.File     // where that is
	Borrowed []*gguf.Tensor // those of Matrices and Embed that are in the target's file
	Uses     []*gguf.Tensor // mtp whose tensors are called as in its target's file: those of its own file; nil: all of that

	entrance entrance
	lineage  string    // of the target
	wide     bool      // eagle3: the residual stream begins with h
	block    bool      // dflash: the residual stream begins with the embedding
	selector *selector // of a block draft; nil: none
	unnormed bool      // its own state is the residual stream, whatever norm comes before the output matrix
	embeds   bool      // passes look embeddings up: see Hold

	stateNorm []float32 // eagle3: weights of the norm of the target's states, for one after the other; nil: no norm
	stateBias []float32 // eagle3: joins the products of the target's states; nil: none

	taps     []kernels.W   // T_i; None: the tap has no matrix, as at most one
	states   []kernels.Buf // of taps: that of one without a matrix is h
	h        kernels.Buf
	embedded kernels.Buf
	zeros    []float32
}

// oneOf returns the first of these tensors that f has, or else the last.
func oneOf(f *gguf.File, names ...string) string {
	if i := slices.IndexFunc(names, func(name string) bool { return f.Tensor(name) != nil }); i >= 0 {
		return names[i]
	}
	return names[len(names)-1]
}

// borrow finds in the target's file what the draft's has not: embedding and output matrix, which have these names there.
func (d *Draft) borrow(c *tensors.Catalog, of *gguf.File, embedding, output string) error {
	w, cfg := &d.Weights, &d.Config
	t := tensors.New(of)
	t.Matrices = c.Matrices
	if d.Embed == nil && cfg.Dim != d.Spec.Dim {
		return tandem.Errorf("engine", tandem.Corrupt, "%s: a draft of width %d without an embedding matrix: the target's has width %d",
			c.File.Path(), cfg.Dim, d.Spec.Dim)
	}
	if d.Embed == nil {
		if x := t.Lookup(embedding, true, cfg.Vocab, cfg.Dim); x != nil {
			d.embedIn(of, x)
			d.Borrowed = append(d.Borrowed, x)
		}
	}
	if w.Head == kernels.None {
		if cfg.Outputs != nil {
			t.Gathered(&w.Head, output, cfg.Vocab, cfg.Dim, cfg.Outputs)
		} else {
			t.Matrix(&w.Head, output, true, cfg.Vocab, cfg.Dim)
		}
	}
	for _, x := range t.Matrices[len(c.Matrices):] {
		if !slices.Contains(d.Borrowed, x.Tensor) {
			d.Borrowed = append(d.Borrowed, x.Tensor)
		}
	}
	d.Matrices = t.Matrices
	return t.Err
}

// Borrows returns the output matrix if that is the target's, the last of Matrices; nil: it is the draft's own.
func (d *Draft) Borrows() *tensors.Matrix {
	last := len(d.Matrices) - 1
	if int(d.Weights.Head) != last || !slices.Contains(d.Borrowed, d.Matrices[last].Tensor) {
		return nil
	}
	return &d.Matrices[last]
}

// embedIn makes rows of t, a matrix in f, the embeddings; nil: f has none.
func (d *Draft) embedIn(f *gguf.File, t *gguf.Tensor) {
	if t != nil {
		d.Embed, d.EmbedIn = tensors.NewLookup(t), f
	}
}

// Enter lays out how the residual stream b.X is made of embeddings and states. Call it before the draft's layers are laid out.
func (d *Draft) Enter(b *blocks.Planner) {
	if d.embedded = b.X; d.block {
		b.Stage("the context")
	} else {
		d.embedded = b.Buf(b.Dim)
	}
	d.states, d.h, d.zeros = nil, b.X, make([]float32, max(d.Spec.Dim, b.Dim))
	if !d.wide {
		d.h = b.Buf(b.Dim)
	}
	if d.embeds {
		b.Embed(d.Weights.Embed, d.embedded)
	}
	for _, w := range d.taps {
		if w == kernels.None {
			d.states = append(d.states, d.h)
		} else {
			d.states = append(d.states, b.Buf(d.Spec.Dim))
		}
	}
	for i, w := range d.taps {
		if w != kernels.None {
			tap := b.ActOf("tap", d.Spec.Dim)
			b.Feed(d.states[i], tap)
			b.MatMul(w, tap, d.h, kernels.MatMulOpt{Add: true})
		}
	}
	d.entrance.enter(b, d.embedded, d.h)
}

// Write writes the embeddings and states of the rows of tokens into the buffers that Enter has laid out; the first is for row `at` of the
// pass. Errors: Invalid for states of another number or width, and those of Embed.
func (d *Draft) Write(r kernels.Runner, at int, tokens []tandem.Token, all []State) error {
	if len(all) != len(tokens) {
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %d rows of %s: want one for each", len(all), len(tokens),
			d.Config.Name)
	}
	features, own := d.Spec.StateWidth()
	for i, s := range all {
		if n := len(s.Target); n != 0 && (n != features || len(s.Own) != 0) || len(s.Own) != 0 && len(s.Own) != own {
			return tandem.Errorf("engine", tandem.Invalid,
				"state %d has %d numbers of the target and %d of the draft: want %d, or %d, or none", i, n, len(s.Own), features, own)
		}
		d.write(r, at+i, s)
		if d.embeds {
			continue
		}
		if err := d.Embed.Read(int(tokens[i]), kernels.Give(r, d.embedded, at+i)); err != nil {
			return err
		}
	}
	return nil
}

func (d *Draft) write(r kernels.Runner, row int, s State) {
	put := func(b kernels.Buf, x []float32) {
		to := kernels.Give(r, b, row)
		copy(to[copy(to, x):], d.zeros)
	}
	if len(s.Target) == 0 {
		for _, b := range d.states {
			put(b, nil)
		}
		put(d.h, s.Own)
		return
	}
	put(d.h, d.stateBias)
	target := d.normed(s.Target)
	for i, b := range d.states {
		put(b, target[i*d.Spec.Dim:(i+1)*d.Spec.Dim])
	}
}

// normed returns the target's states after the norm that the draft has before its fc: of each by itself, or of all as one vector.
func (d *Draft) normed(states []float32) []float32 {
	if d.stateNorm == nil {
		return states
	}
	out, width := make([]float32, len(states)), len(states)
	if d.Spec.Draft.Norms.States == side.NormEach {
		width = d.Spec.Dim
	}
	for i := 0; i < len(states); i += width {
		ref.RMSNorm(states[i:i+width], d.stateNorm[i:i+width], d.Config.NormEps, out[i:i+width])
	}
	return out
}

// OwnState returns the draft's own state, which the row of the next position reads. x is the residual stream after the last layer: (d). The
// result may be x itself.
func (d *Draft) OwnState(x []float32) []float32 {
	if d.unnormed || d.Weights.OutputNorm == nil {
		return x
	}
	out := make([]float32, len(x))
	ref.RMSNorm(x, d.Weights.OutputNorm, d.Config.NormEps, out)
	return out
}

// Hold makes passes look embeddings up themselves, in a matrix beside those of the draft, or in its output matrix if that is the same one.
// It does nothing for a block draft. Call it before the draft's layers are laid out; it returns Weights and Matrices as they are then.
func (d *Draft) Hold() (blocks.Weights, []tensors.Matrix) {
	if d.block || d.embeds {
		return d.Weights, d.Matrices
	}
	t, at := d.Embed.Tensor(), d.Weights.Head
	if m := &d.Matrices[at]; m.Tensor != t || m.Order != nil {
		if int(at) == len(d.Matrices)-1 {
			d.Weights.Head++ // it stays the last: see Borrows
		} else {
			at = kernels.W(len(d.Matrices))
		}
		d.Matrices = slices.Insert(d.Matrices, int(at), tensors.Matrix{Tensor: t, Rows: d.Config.Vocab})
	}
	d.embeds, d.Weights.Embed = true, at
	return d.Weights, d.Matrices
}

// Link returns how a row of a chain follows; p is the program that Enter was called for, x its residual stream after the last layer. ok is
// false for a draft that has no chains: a block draft, and one that does not Hold embeddings.
func (d *Draft) Link(x kernels.Buf) (l kernels.Link, ok bool) {
	if !d.embeds {
		return l, false
	}
	l = kernels.Link{Tokens: d.Config.Outputs, From: x, To: d.h, Eps: d.Config.NormEps}
	if !d.unnormed {
		l.Norm = d.Weights.OutputNorm
	}
	for _, b := range d.states {
		if b != d.h {
			l.Zero = append(l.Zero, b)
		}
	}
	return l, true
}

// collectTaps finds the matrices of taps, which the file may lack.
func (d *Draft) collectTaps(c *tensors.Catalog, required bool, name func(i int) string) {
	d.taps = make([]kernels.W, len(d.Spec.Taps))
	for i := range d.taps {
		d.taps[i] = kernels.None
		c.Matrix(&d.taps[i], name(i), required, d.Config.Dim, d.Spec.Dim)
	}
}

// WriteShape writes, for the draft's identity, all of its header that changes what it computes, except the shape of its blocks.
func (d *Draft) WriteShape(w io.Writer) {
	fmt.Fprintln(w, d.Spec.Kind, d.Spec.Dim, d.Spec.Taps, len(d.Config.Outputs), d.lineage)
	if n := d.Spec.Draft.Norms; n != (side.Norms3{}) {
		fmt.Fprintln(w, "norms 1", n.States, n.Residual, n.Output)
	}
	if x := d.Spec.Draft.Block; x.Rows > 0 {
		fmt.Fprintln(w, "block 1", x.Rows, x.Mask, x.Anchor, x.Causal)
		if x.ConvTaps > 0 || x.Rank > 0 {
			fmt.Fprintln(w, "dflash2 1", x.ConvTaps, x.ConvGroup, x.Rank, x.Best)
		}
	}
	for _, id := range d.Config.Outputs {
		fmt.Fprintln(w, id)
	}
}

// SelectorTables returns the tensors that Steps reads from the draft's file while the model is open; nil: the draft has no selector.
func (d *Draft) SelectorTables() []*gguf.Tensor {
	if d.selector == nil {
		return nil
	}
	return d.selector.tables()
}

// Leave lays out what a selector, if the draft has one, computes of wanted rows; normed are their states after the final norm.
func (d *Draft) Leave(b *blocks.Planner, normed kernels.Act) {
	if d.selector != nil {
		d.selector.leave(b, normed)
	}
}

// Steps returns what the selector adds to the logits of wanted row i: number [j][k] is for token after[k] behind token before[j]. nil: the
// draft has no selector. Errors: Corrupt for a file that was written to since it was opened.
func (d *Draft) Steps(r kernels.Runner, i int, before, after []tandem.Token) ([][]float32, error) {
	if d.selector == nil {
		return nil, nil
	}
	return d.selector.steps(r, i, before, after)
}
