package guess

import (
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// mtp is the draft inside a model's own file: a layer behind the last ("multi-token prediction"; DeepSeek-AI, "DeepSeek-V3", 2024) whose
// tensors are blk.N.nextn.*. It guesses the token after the next from the model's state h and the next token's embedding e. The target's
// last layer with attention and the output matrix follow:
//
//	x = W [norm(e); norm(h)]
//
// Of several such layers the first is used, for every token of a chain.
type mtp struct {
	embd, hidden         kernels.W // the halves of W
	embdNorm, hiddenNorm []float32
}

// DescribeMTP describes the draft inside the model in f, of that shape and vocabulary. Errors: Invalid if there is none.
func DescribeMTP(f *gguf.File, c *blocks.Config, vocabulary string) (side.Spec, error) {
	if name := mtpTensor(c.Layers, "eh_proj"); c.Nextn == 0 || f.Tensor(name) == nil {
		return side.Spec{}, tandem.Errorf("engine", tandem.Invalid,
			"%s has no layers that guess further tokens (key %q, tensor %q): want another draft than mtp", f.Path(),
			c.NextnKey(), name)
	}
	tap := side.LastNorm
	if c.NextnBeforeNorm {
		tap = c.Layers
	}
	return side.Spec{Kind: side.MTP, Name: string(side.MTP), Vocabulary: vocabulary, Dim: c.Dim, Vocab: c.Vocab, Taps: []int{tap},
		Blocks: 1, Draft: side.Draft{Width: c.Dim}}, nil
}

// NewMTP plans the draft inside the file f of its target, which has that shape.
func NewMTP(f *gguf.File, spec side.Spec, target blocks.Config) (*Draft, error) {
	k := &mtp{}
	d := &Draft{Spec: spec, Config: target, entrance: k, taps: []kernels.W{kernels.None},
		unnormed: spec.Taps[0] != side.LastNorm}
	c := &d.Config
	c.Name, c.First, c.Layers, c.Nextn = target.Name+" mtp", target.Layers, 1, 0
	c.Shapes = []blocks.LayerShape{target.Shapes[target.Layers-1]}
	for i := target.Layers - 1; c.Shapes[0].Recurrent && i >= 0; i-- {
		c.Shapes[0] = target.Shapes[i]
	}
	if c.Shapes[0].Source = 0; c.Shapes[0].Recurrent {
		return nil, tandem.Errorf("engine", tandem.Unsupported, "mtp of %s, which has no layer with attention: want one", f.Path())
	}
	c.Delta = kernels.DeltaShape{} // no layer of it is recurrent, so it can be rolled back to any position
	cat := tensors.New(f)
	k.collect(cat, d)
	d.Matrices = cat.Matrices
	for i, t := range f.Tensors() {
		if cat.Uses(t.Name) {
			d.Uses = append(d.Uses, &f.Tensors()[i])
		}
	}
	return d, cat.Err
}

// collect finds the tensors of the layer. What it does not have of its own are the model's: embedding, output matrix, and the norm
// before that.
func (k *mtp) collect(cat *tensors.Catalog, d *Draft) {
	w, cfg := &d.Weights, &d.Config
	c := blocks.Finder{Catalog: cat, C: cfg, W: w, Bare: true}
	name := func(s string) string { return mtpTensor(cfg.First, s) }
	or := func(own, shared string) string {
		if c.File.Tensor(own) != nil {
			return own
		}
		return shared
	}
	c.BesideEachOther(name("eh_proj"), cfg.Dim, &k.embd, &k.hidden, cfg.Dim)
	k.embdNorm, k.hiddenNorm = c.Vector(name("enorm"), true, cfg.Dim), c.Vector(name("hnorm"), true, cfg.Dim)
	w.OutputNorm = c.Vector(or(name("shared_head_norm"), "output_norm.weight"), true, cfg.Dim)
	w.Embed = kernels.None
	d.embedIn(c.File, c.Lookup(or(name("embed_tokens"), "token_embd.weight"), true, cfg.Vocab, cfg.Dim))
	c.Matrix(&w.Head, or(name("shared_head_head"), or("output.weight", "token_embd.weight")), true, cfg.Vocab, cfg.Dim)
	c.CollectLayers()
}

// mtpTensor names a tensor of the layer that comes after so many.
func mtpTensor(layers int, name string) string {
	return fmt.Sprintf("blk.%d.nextn.%s.weight", layers, name)
}

func (k *mtp) enter(b *blocks.Planner, e, h kernels.Buf) {
	act, state := b.Act(b.Dim), b.Act(b.Dim)
	b.RMSNorm(e, k.embdNorm, b.NormEps, act)
	b.RMSNorm(h, k.hiddenNorm, b.NormEps, state)
	b.MatMul(k.embd, act, b.X, kernels.MatMulOpt{})
	b.MatMul(k.hidden, state, b.X, kernels.MatMulOpt{Add: true})
}
