package engine

import (
	"fmt"
	"math"
	"slices"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// SideAssistant is the architecture of a draft that reads its target's keys and values (Gemma 4).
const SideAssistant = "gemma4-assistant"

// spelling is how files of one architecture name what no other file has: the key of the target's width, and two matrices.
type spelling struct{ width, enter, leave string }

// spellings of an assistant, by architecture: that of today, and older ones.
var spellings = map[string]spelling{
	SideAssistant:      {"embedding_length_out", "nextn.pre_projection.weight", "nextn.post_projection.weight"},
	"gemma4_mtp":       {"backbone_embedding_length", "mtp_pre_proj.weight", "mtp_post_proj.weight"},
	"gemma4_assistant": {"n_embd_backbone", "mtp.pre_projection.weight", "mtp.post_projection.weight"},
}

const embeddingName = "token_embd.weight"

// assistantLevels is how many tokens an assistant drafts in a chain.
const assistantLevels = 4

// assistant drafts a chain of tokens. Each step takes the token before, a state of the target's width, and the target's keys and values:
//
//	x = W [e; s], e the target's embedding of the token as its layers get it
//	layers as the target's, without keys and values of their own: one reads those of the last own layer of the target of its kind
//	y = norm(x); logits = its own embedding · y, perhaps of some clusters of tokens alone; the state for the next step = W' y
//
// The first state is the target's after its final norm. All steps of a chain have the position of the first token, since the target's cache
// does not grow meanwhile.
type assistant struct {
	config       blocks.Config
	weights      blocks.Weights
	matrices     []tensors.Matrix
	enter, leave kernels.W
	clusters     *clusters // nil: a step computes the logits of all tokens
	program      *kernels.Program
	in, next     kernels.Buf // (rows, 2·target's d), (wanted, target's d)
	store        kernels.Store
	runner       kernels.Runner
	embedding    *kernels.Program // of the target's rows
	embedded     kernels.Buf      // (rows, target's d)
	embed        kernels.Runner
}

// isAssistant reports whether f holds an assistant, of which spelling.
func isAssistant(f *gguf.File) (arch string, ok bool) {
	arch, err := f.String("general.architecture")
	_, ok = spellings[arch]
	return arch, err == nil && ok
}

// assistantSide reads what the header of an assistant says.
func assistantSide(f *gguf.File, arch string) (Side, error) {
	h := blocks.NewReader(f, arch)
	rows := -1 // the number of tokens, which not all converters write
	if e := f.Tensor(embeddingName); e != nil && len(e.Shape) == 2 {
		rows = e.Shape[1]
	}
	s := Side{Kind: SideAssistant, Width: h.Count(spellings[arch].width, -1, blocks.MaxDim),
		Vocab: h.Count("vocab_size", rows, blocks.MaxVocab),
		Taps:  []int{-1}, Levels: assistantLevels, Blocks: h.Count("block_count", -1, blocks.MaxLayers),
		DraftWidth: h.Count("embedding_length", -1, blocks.MaxDim)}
	s.Clusters, s.Chosen = readClusters(h, s.Vocab)
	var err error
	s.Name, err = f.StringOr("general.name", SideAssistant)
	h.Keep(err)
	return s, h.Err
}

// planAssistant reads the assistant in f and plans it for m, which it must fit.
func (m *Model) planAssistant(f *gguf.File) (*assistant, error) {
	arch, _ := isAssistant(f)
	side, err := assistantSide(f, arch)
	if err != nil {
		return nil, err
	}
	path, of := f.Path(), &m.config
	refuse := func(format string, args ...any) error {
		return tandem.Errorf("engine", tandem.Invalid, "%s: an assistant %s", path, fmt.Sprintf(format, args...))
	}
	switch {
	case of.Arch != "gemma4":
		return nil, refuse("of a gemma4 target: %s is a model of the %s architecture", m.path, of.Arch)
	case side.Width != of.Dim:
		return nil, refuse("for a target of width %d: %s has width %d", side.Width, m.path, of.Dim)
	case side.Vocab != of.Vocab:
		return nil, refuse("for a target with %d tokens: %s has %d", side.Vocab, m.path, of.Vocab)
	}
	t := blocks.Architectures["gemma4"]
	t.ScaleEmbed, t.Caps, t.FinalCap, t.ValueNorms, t.Beside = false, false, 0, false, false
	t.Guesses, t.Reads = true, []string{blocks.KeyMTP}
	h := blocks.NewReader(f, arch)
	a := &assistant{}
	if a.config, err = h.Config(t, of.Vocab, side.DraftWidth); err != nil {
		return nil, err
	}
	c := &a.config
	for i := range c.Shapes {
		l := &c.Shapes[i]
		if l.Source, err = m.readBy(l, i, refuse); err != nil {
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
	if err := a.collect(f, arch, side); err != nil {
		return nil, err
	}
	a.plan(m)
	return a, nil
}

// readBy returns the target's layer whose keys and values layer i of an assistant reads: the last of its kind that keeps its own.
func (m *Model) readBy(l *blocks.LayerShape, i int, refuse func(string, ...any) error) (int, error) {
	kind := map[bool]string{true: "with a window", false: "without a window"}[l.Local]
	for j, of := range slices.Backward(m.config.Shapes) {
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

func (a *assistant) collect(f *gguf.File, arch string, side Side) error {
	c, w, cfg := blocks.Finder{Catalog: tensors.New(f)}, &a.weights, &a.config
	c.Matrix(&a.enter, spellings[arch].enter, true, cfg.Dim, 2*side.Width)
	c.Matrix(&a.leave, spellings[arch].leave, true, side.Width, cfg.Dim)
	c.Matrix(&w.Head, embeddingName, true, cfg.Vocab, cfg.Dim)
	w.OutputNorm = c.Vector("output_norm.weight", true, cfg.Dim)
	c.CollectRopeFactors(w, cfg)
	w.Layers = make([]blocks.Layer, cfg.Layers)
	own := slices.Clone(cfg.Shapes)
	for i := range w.Layers {
		cfg.Shapes[i].Source = kernels.None // so that no tensors for keys and values are asked for
		c.CollectLayer(&w.Layers[i], w, cfg, i)
	}
	cfg.Shapes = own
	if c.Err == nil && side.Clusters > 0 {
		a.clusters = collectClusters(c.Catalog, w, cfg, side.Clusters, side.Chosen)
	}
	if c.Err == nil {
		c.RefuseOthers(arch)
	}
	a.matrices = c.Matrices
	return c.Err
}

// plan lays out a step of the chain, and the look-up of the target's embeddings.
func (a *assistant) plan(m *Model) {
	c, d := &a.config, m.config.Dim
	b := blocks.NewPlanner(kernels.NewProgram(guessRows, guessRows), c, &a.weights)
	b.Temper, b.Reads, b.Ahead = nil, make([]int, c.Layers), 1
	for i, l := range c.Shapes {
		b.Reads[i] = l.Source
	}
	b.KV = m.plan.KV
	tensors.AddTo(b.Program, a.matrices, m.device.Layout)
	b.Stage("the entrance")
	a.in, a.next = b.Buf(2*d), b.WantedBuf(d)
	b.X, b.Normed = b.Buf(c.Dim), b.Act(c.Dim)
	both := b.Act(2 * d)
	b.Feed(a.in, both)
	b.MatMul(a.enter, both, b.X, kernels.MatMulOpt{})
	for i := range b.W.Layers {
		b.Attention(i)
		b.FeedForward(i)
		b.EndLayer(i)
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
	a.program = b.Program

	p := kernels.NewProgram(min(guessRows, m.plan.MaxRows), 0) // streamed, the embedding has room for the rows of a pass
	a.embedded = p.Buf(d)
	p.Embed(p.Weight(m.plan.Weights[m.weights.Embed]), a.embedded)
	if m.config.EmbedScale != 1 {
		p.Scale(a.embedded, m.config.EmbedScale)
	}
	a.embedding = p
}

// measure returns what an assistant takes beside its target.
func (a *assistant) measure(path string, d kernels.Device) (f Footprint, err error) {
	for _, p := range []*kernels.Program{a.program, a.embedding} {
		if err := p.Check(); err != nil {
			return f, tandem.Errorf("engine", tandem.Unsupported, "%s: %w", path, err)
		}
		need, err := d.Footprint(p)
		if err != nil {
			return f, deviceError(path, err)
		}
		if f.Scratch += need.Buffers; p == a.program { // the other's weights are the model's
			f.Weights, f.Own.Weights = need.Weights, need.Own.Weights
		}
		f.Own.Buffers += need.Own.Buffers
	}
	return f, nil
}

func (a *assistant) load(m *Model, f *gguf.File) error {
	loan, err := kernels.Borrow(a.embedding, m.plan, m.store, []kernels.W{m.weights.Embed})
	if err != nil {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: %w", f.Path(), err)
	}
	if a.embed, err = m.device.Compile(a.embedding, loan, nil); err != nil {
		return deviceError(f.Path(), err)
	}
	if a.store, err = m.near().NewWeights(a.program); err != nil {
		return deviceError(f.Path(), err)
	}
	if a.runner, err = m.near().Compile(a.program, a.store, m.memory); err != nil {
		return deviceError(f.Path(), err)
	}
	if a.clusters != nil {
		if err := tensors.Warm(a.matrices[a.weights.Head].Tensor); err != nil {
			return err
		}
	}
	to := tensors.Into(a.store)
	to.Add = f.NewDigest().Add
	if err := tensors.Fill(a.matrices, to, nil); err != nil {
		return err
	}
	if m.options.Forget {
		f.Forget()
	}
	if !m.options.Lock {
		return nil
	}
	return lockAll(a.store)
}

func (a *assistant) close() {
	for _, r := range []kernels.Runner{a.embed, a.runner} {
		if r != nil {
			r.Close()
		}
	}
	if a.store != nil {
		a.store.Close()
	}
}

// drafting is a row of an assistant's passes: the state and the token that its next step takes, and what it sees.
type drafting struct {
	token tandem.Token
	state []float32 // (target's d)
	seq   *Sequence
	path  []int32 // tree rows of seq, the first a child of the prefix, each the parent of the next
}

// check refuses what a pass cannot take.
func (d *drafting) check(m *Model) error {
	const op = "engine"
	switch {
	case d.seq == nil || d.seq.model != m:
		return tandem.Errorf(op, tandem.Invalid, "a guess by %s behind no sequence of the model: want the one whose end it follows",
			tandem.Assistant)
	case d.token < 0 || int(d.token) >= m.config.Vocab:
		return tandem.Errorf(op, tandem.Invalid, "a guess by %s behind token %d: vocabulary has %d", tandem.Assistant, d.token,
			m.config.Vocab)
	case len(d.state) != m.config.Dim:
		return tandem.Errorf(op, tandem.Invalid, "a guess by %s from a state of %d numbers: want %d", tandem.Assistant, len(d.state),
			m.config.Dim)
	case d.seq.length+len(d.path) == 0:
		return tandem.Errorf(op, tandem.Invalid, "a guess by %s behind an empty prefix", tandem.Assistant)
	}
	above := int32(-1)
	for i, n := range d.path {
		if n < 0 || int(n) >= len(d.seq.parents) || d.seq.parents[n] != above || d.seq.rows[n] < 0 {
			return tandem.Errorf(op, tandem.Invalid, "a guess by %s behind tree rows %v: entry %d is not a child of the one before",
				tandem.Assistant, d.path, i)
		}
		above = n
	}
	return nil
}

// step runs a step for rows, at most guessRows, and calls use with what each found. Their states are then those for the next step.
func (a *assistant) step(m *Model, rows []drafting, top int, use func(i int, best kernels.Top)) error {
	p := &kernels.Pass{Rows: len(rows), TopK: top}
	for i := range rows {
		r := &rows[i]
		p.Pos = append(p.Pos, int32(r.seq.length+len(r.path)-1))
		p.Store = append(p.Store, 0) // nothing is stored
		p.Table, p.Prefix = append(p.Table, int32(len(p.Pages))), append(p.Prefix, int32(r.seq.length))
		p.Pages = append(p.Pages, r.seq.pages.Table...)
		p.AncOff, p.AncLen = append(p.AncOff, int32(len(p.Anc))), append(p.AncLen, int32(len(r.path)))
		for _, n := range r.path {
			p.Anc = append(p.Anc, r.seq.places[n].cell)
		}
		p.Wanted = append(p.Wanted, int32(i))
	}
	if err := a.enterRows(m.config.Dim, rows); err != nil {
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
		rows[i].state = append([]float32(nil), a.runner.Row(a.next, i)...)
	}
	return nil
}

// enterRows fills in what a step takes: the target's embedding of each row's token, and the row's state.
func (a *assistant) enterRows(d int, rows []drafting) error {
	for from := 0; from < len(rows); from += a.embedding.MaxRows {
		part := rows[from:min(from+a.embedding.MaxRows, len(rows))]
		e := &kernels.Pass{Rows: len(part)}
		for _, r := range part {
			e.Tokens = append(e.Tokens, int32(r.token))
		}
		if err := a.embed.Run(e); err != nil {
			return err
		}
		for i, r := range part {
			in := a.runner.Row(a.in, from+i)
			copy(in[:d], a.embed.Row(a.embedded, i))
			copy(in[d:], r.state)
		}
	}
	return nil
}

// best returns what a step found for row i.
func (a *assistant) best(i int) (kernels.Top, error) {
	if a.clusters == nil {
		return a.runner.Top(i), nil
	}
	var chosen []int32
	if r, tells := a.runner.(kernels.RouteReader); tells {
		chosen = r.Chosen(a.clusters.route, i)
	}
	return a.clusters.name(a.runner.Top(i), chosen)
}

// runAssistant makes chains: each step's best token goes into the next.
func (g *guessing) runAssistant() error {
	for from := 0; from < len(g.chains); from += guessRows {
		rows := g.chains[from:min(from+guessRows, len(g.chains))]
		for level := range assistantLevels {
			err := g.assistant.step(g.Model, rows, g.top, func(i int, best kernels.Top) {
				g.fill(spot{g.chainAsks[from+i], level}, best)
				if len(best.IDs) > 0 && !math.IsNaN(float64(best.Max)) {
					rows[i].token = tandem.Token(best.IDs[0])
				}
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}
