package guess

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// mtp is a layer behind a model's last ("multi-token prediction"; DeepSeek-AI, "DeepSeek-V3", 2024), in the model's own file, where its
// tensors are blk.N.nextn.*, in a copy of that without the model's layers (AloneMTP), or in a side file. It guesses the token after the
// next from the model's state h and the next token's embedding e. A layer like the target's last one with attention, and the output
// matrix, follow:
//
//	x = W [norm(e); norm(h)]
//
// Of several such layers in a file the first is used, for every token of a chain.
type mtp struct {
	embd, hidden         kernels.W // the halves of W
	embdNorm, hiddenNorm []float32
}

// mtpTap returns which state such a layer of a model of shape c reads.
func mtpTap(c *blocks.Config) int {
	if c.NextnBeforeNorm {
		return c.Layers
	}
	return side.LastNorm
}

// AloneMTP reports whether f is a model's file without the model's layers, as llama.cpp's converter writes it for layers that guess further
// tokens alone: keys, vocabulary and names of tensors are the model's.
func AloneMTP(f *gguf.File) bool {
	first := func(t gguf.Tensor) bool { return strings.HasPrefix(t.Name, "blk.0.") }
	return !slices.ContainsFunc(f.Tensors(), first) &&
		slices.ContainsFunc(f.Tensors(), func(t gguf.Tensor) bool { return strings.HasSuffix(t.Name, ".nextn.eh_proj.weight") })
}

// DescribeMTP describes the draft inside the model in f, of that shape and vocabulary. Errors: Invalid if there is none.
func DescribeMTP(f *gguf.File, c *blocks.Config, vocabulary string) (side.Spec, error) {
	if name := mtpTensor(c.Layers, "eh_proj"); c.Nextn == 0 || f.Tensor(name) == nil {
		return side.Spec{}, tandem.Errorf("engine", tandem.Invalid,
			"%s has no layers that guess further tokens (key %q, tensor %q): want another draft than mtp", f.Path(),
			c.NextnKey(), name)
	}
	return side.Spec{Kind: side.MTP, Name: string(side.MTP), Vocabulary: vocabulary, Dim: c.Dim, Vocab: c.Vocab, Taps: []int{mtpTap(c)},
		Blocks: 1, Draft: side.Draft{Width: c.Dim}}, nil
}

// NewMTP plans an MTP draft for the target in the file of, which has shape target. If spec names a lineage, the draft is in the side file
// f; else f is the target's file, or AloneMTP of it. What f lacks of embedding and output matrix is the target's. Errors: Corrupt,
// Unsupported.
func NewMTP(f *gguf.File, spec side.Spec, of *gguf.File, target blocks.Config) (*Draft, error) {
	d := &Draft{Spec: spec, Config: target, lineage: spec.Lineage, entrance: &mtp{}, taps: []kernels.W{kernels.None},
		unnormed: target.NextnBeforeNorm}
	c, named := &d.Config, spec.Lineage == "" // the tensors are called as in the target's file
	if err := d.shapeMTP(of, &target); err != nil {
		return nil, err
	}
	cat := tensors.New(f)
	if c.First = 0; named {
		c.First = target.Layers
	}
	if d.entrance.collect(cat, d); cat.Err != nil {
		return nil, cat.Err
	}
	embedding, embeds := firstOf(f, of, mtpTensor(target.Layers, "embed_tokens"), "token_embd.weight")
	output, heads := firstOf(f, of, mtpTensor(target.Layers, "shared_head_head"), "output.weight", "token_embd.weight")
	if !named {
		cat.RefuseOthers("mtp of " + c.Arch)
	}
	if embeds {
		d.embedIn(f, cat.Lookup(embedding, true, c.Vocab, c.Dim))
	}
	if heads {
		cat.Matrix(&d.Weights.Head, output, true, c.Vocab, c.Dim)
	}
	for i, t := range f.Tensors() {
		if named && cat.Uses(t.Name) {
			d.Uses = append(d.Uses, &f.Tensors()[i])
		}
	}
	if cat.Err != nil {
		return nil, cat.Err
	}
	return d, d.borrow(cat, of, embedding, output)
}

// firstOf returns the first of these tensors that f or `of` has, or else the last, and whether f has it.
func firstOf(f, of *gguf.File, names ...string) (name string, own bool) {
	for _, name = range names {
		if own = f.Tensor(name) != nil; own || of.Tensor(name) != nil {
			break
		}
	}
	return name, own
}

// shapeMTP makes the draft's shape of its target's, whose file is `of`: one layer like the target's last one with attention.
func (d *Draft) shapeMTP(of *gguf.File, target *blocks.Config) error {
	c := &d.Config
	if target.Nextn == 0 && d.lineage != "" { // llama.cpp's converter may leave such layers out of a model whose others it writes
		return tandem.Errorf("engine", tandem.Invalid, "%s belongs to a target with layers that guess further tokens: %s has none (key %q)",
			d.Spec.Name, of.Path(), target.NextnKey())
	}
	if want := mtpTap(target); d.Spec.Taps[0] != want {
		return tandem.Errorf("engine", tandem.Invalid, "%s reads the state %d of %s: want %d, as layers that guess further tokens do there",
			d.Spec.Name, d.Spec.Taps[0], of.Path(), want)
	}
	c.Name, c.Layers, c.Nextn = target.Name+" mtp", 1, 0
	c.Shapes = []blocks.LayerShape{target.Shapes[target.Layers-1]}
	for i := target.Layers - 1; c.Shapes[0].Recurrent && i >= 0; i-- {
		c.Shapes[0] = target.Shapes[i]
	}
	if c.Shapes[0].Source = 0; c.Shapes[0].Recurrent {
		return tandem.Errorf("engine", tandem.Unsupported, "mtp of %s, which has no layer with attention: want one", of.Path())
	}
	c.Delta = kernels.DeltaShape{} // no layer of it is recurrent, so it can be rolled back to any position
	for _, id := range d.Spec.Draft.IDs {
		c.Outputs = append(c.Outputs, int32(id))
	}
	return nil
}

// collect finds the tensors of the layer. A model's file may lack the norm before the output matrix: then it is the model's own.
func (k *mtp) collect(cat *tensors.Catalog, d *Draft) {
	w, cfg := &d.Weights, &d.Config
	c := blocks.Finder{Catalog: cat, C: cfg, W: w, Bare: true}
	name := func(s string) string { return mtpTensor(cfg.First, s) }
	c.BesideEachOther(name("eh_proj"), cfg.Dim, &k.embd, &k.hidden, cfg.Dim)
	k.embdNorm, k.hiddenNorm = c.Vector(name("enorm"), true, cfg.Dim), c.Vector(name("hnorm"), true, cfg.Dim)
	w.OutputNorm = c.Vector(oneOf(c.File, name("shared_head_norm"), "output_norm.weight"), true, cfg.Dim)
	w.Embed, w.Head = kernels.None, kernels.None
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
