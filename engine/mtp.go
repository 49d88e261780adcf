package engine

import (
	"fmt"
	"strings"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/text/token"
)

// SideMTP is the kind of the draft that comes inside a model's own file: a layer behind the last (MTP, "multi-token prediction"; its
// tensors are blk.N.nextn.*) that guesses the token after the next from the model's hidden state and the next token's embedding.
const SideMTP = "mtp"

const mtpPrefix = "mtp:"

// MTPPath names that draft of the model in the file at path, for SideOf, OpenDraft and MeasureDraft.
func MTPPath(path string) string { return mtpPrefix + path }

// IsMTPPath reports whether path was made by MTPPath.
func IsMTPPath(path string) bool { return strings.HasPrefix(path, mtpPrefix) }

// FileOf returns the file that a path names: of MTPPath the model's.
func FileOf(path string) string { return strings.TrimPrefix(path, mtpPrefix) }

// openSide opens the file at path and reads what it is as a side file.
func openSide(path string) (*gguf.File, Side, error) {
	f, err := gguf.Open(FileOf(path))
	if err != nil {
		return nil, Side{}, err
	}
	read := readSide
	if IsMTPPath(path) {
		read = mtpSide
	}
	s, err := read(f)
	if err != nil {
		f.Close()
		return nil, s, err
	}
	return f, s, nil
}

// mtpSide describes the draft inside a model's file. Errors: Invalid if there is none.
func mtpSide(f *gguf.File) (Side, error) {
	vocab, err := token.FromGGUF(f)
	if err != nil {
		return Side{}, err
	}
	c, err := blocks.ReadConfig(f, vocab.Size())
	if err != nil {
		return Side{}, err
	}
	if c.Extra == 0 || f.Tensor(mtpTensor(c.Layers, "eh_proj")) == nil {
		return Side{}, tandem.Errorf("engine", tandem.Invalid,
			"%s has no layers that guess further tokens (key %q, tensor %q): want another draft than mtp", f.Path(),
			c.Arch+"."+blocks.KeyMTP, mtpTensor(c.Layers, "eh_proj"))
	}
	tap := -1
	if c.Traits.MtpBeforeNorm {
		tap = c.Layers
	}
	return Side{Kind: SideMTP, Name: SideMTP, Vocabulary: fmt.Sprintf("%016x", vocab.Fingerprint()), Width: c.Dim, Vocab: c.Vocab,
		Taps: []int{tap}, Blocks: 1, DraftWidth: c.Dim}, nil
}

// outlineMTP plans the draft inside the file f of its target. Of several layers the first is used, for every token of a chain.
func (m *Model) outlineMTP(f, of *gguf.File, own Side) error {
	if f.Path() != of.Path() {
		return tandem.Errorf("engine", tandem.Invalid, "mtp of %s: want that of the target, %s", f.Path(), of.Path())
	}
	var err error
	if m.vocab, err = token.FromGGUF(f); err != nil {
		return err
	}
	large, err := blocks.ReadConfig(f, m.vocab.Size())
	if err != nil {
		return err
	}
	c := &m.config
	*c = large
	c.Name, c.First, c.Layers, c.Extra = large.Name+" mtp", large.Layers, 1, 0
	c.Shapes = []blocks.LayerShape{large.Shapes[large.Layers-1]}
	for i := large.Layers - 1; c.Shapes[0].Recurrent && i >= 0; i-- {
		c.Shapes[0] = large.Shapes[i]
	}
	c.Shapes[0].Source = 0
	if c.Shapes[0].Recurrent {
		return tandem.Errorf("engine", tandem.Unsupported, "mtp of %s, which has no layer with attention: want one", f.Path())
	}
	d := &draft{side: own}
	m.draft = d
	cat := tensors.New(f)
	d.collectMTP(cat, &m.weights, c)
	m.matrices = cat.Matrices
	for i, t := range f.Tensors() {
		if cat.Uses(t.Name) {
			d.uses = append(d.uses, &f.Tensors()[i])
		}
	}
	return cat.Err
}

// collectMTP finds the tensors of the layer. What it does not have of its own are the model's: embedding, output matrix, and the norm
// before that.
func (d *draft) collectMTP(c *tensors.Catalog, w *blocks.Weights, cfg *blocks.Config) {
	name := func(s string) string { return mtpTensor(cfg.First, s) }
	or := func(own, shared string) string {
		if c.File.Tensor(own) != nil {
			return own
		}
		return shared
	}
	c.BesideEachOther(name("eh_proj"), cfg.Dim, &d.embd, &d.hidden, cfg.Dim)
	d.embdNorm = c.Vector(name("enorm"), true, cfg.Dim)
	d.hiddenNorm = c.Vector(name("hnorm"), true, cfg.Dim)
	w.OutputNorm = c.Vector(or(name("shared_head_norm"), "output_norm.weight"), true, cfg.Dim)
	c.Matrix(&w.Embed, or(name("embed_tokens"), "token_embd.weight"), true, cfg.Vocab, cfg.Dim)
	c.Matrix(&w.Head, or(name("shared_head_head"), or("output.weight", "token_embd.weight")), true, cfg.Vocab, cfg.Dim)
	find := blocks.Finder{Catalog: c, Bare: true}
	find.CollectRopeFactors(w, cfg)
	w.Layers = make([]blocks.Layer, 1)
	find.CollectLayer(&w.Layers[0], w, cfg, 0)
}

// mtpTensor names a tensor of the layer that comes after so many.
func mtpTensor(layers int, name string) string {
	return fmt.Sprintf("blk.%d.nextn.%s.weight", layers, name)
}

// enterMTP makes the residual stream of the norms of embedding and state.
func (d *draft) enterMTP(b *blocks.Planner, e kernels.Buf) {
	act, state := b.Act(b.Dim), b.Act(b.Dim)
	b.RMSNorm(e, d.embdNorm, b.NormEps, act)
	b.RMSNorm(d.own, d.hiddenNorm, b.NormEps, state)
	b.MatMul(d.embd, act, b.X, kernels.MatMulOpt{})
	b.MatMul(d.hidden, state, b.X, kernels.MatMulOpt{Add: true})
}
