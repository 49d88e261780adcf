package guess

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// dflash guesses a block of tokens in one pass (DFlash; dflash/model.py of z-lab/dflash). A position of the text has keys and values, made
// of the target's states alone, and nothing else:
//
//	c = norm(Σ fc_i tap_i); each layer: k = RoPE(norm(Wk c)), v = Wv c
//
// The block follows it: the last token, whose states are not known yet, and mask tokens. Its rows are those of ordinary layers, whose
// attention sees the text and all rows of the block, later ones too, unless the layer is causal. Row i guesses the token of its position;
// the first guesses nothing, unless the draft samples from it: then row i guesses the token after it.
//
// So a pass of rows of the text ends after stage Context. A pass of blocks runs that as well, since devices prepare in the first stage what
// later ones need; the keys and values that it leaves in a block's cells are overwritten before a layer reads them.
//
// DFlash2 has convolutions over the rows of a block as well (blocks.BlockConv), and a selector.
type dflash struct {
	norm []float32 // of Σ fc_i tap_i
}

// Context is the stage of a block draft's program that makes keys and values of the text.
const Context = 0

func (k *dflash) collect(c *tensors.Catalog, d *Draft) {
	d.collectTaps(c, true, side.FCMatrix)
	k.norm = c.Vector("hidden_norm.weight", true, d.Config.Dim)
	b := d.Spec.Draft.Block
	if d.Config.BlockConv = (blocks.BlockConvShape{Taps: b.ConvTaps, Group: b.ConvGroup}); b.Rank > 0 {
		d.selector = collectSelector(c, &d.Spec)
	}
	for i := range d.Config.Shapes {
		causal := d.Spec.Draft.Block.Causal
		d.Config.Shapes[i].Later = len(causal) == 0 || !causal[i]
	}
}

// enter lays out the stage Context. The embeddings are written into the residual stream.
func (k *dflash) enter(b *blocks.Planner, _, h kernels.Buf) {
	c := b.Act(b.Dim)
	b.RMSNorm(h, k.norm, b.NormEps, c)
	for i := range b.W.Layers {
		b.W.Layers[i].Keep(b, c)
	}
	b.Stage("the embedding")
}

// Block returns how a block draft guesses; the zero value: it is none.
func (d *Draft) Block() side.Block { return d.Spec.Draft.Block }

// CheckContext returns Invalid unless there is a state for each of so many rows, each one that WriteContext takes.
func (d *Draft) CheckContext(all []State, rows int) error {
	if len(all) != rows {
		return tandem.Errorf("engine", tandem.Invalid, "%d states for %d rows of %s: want one for each", len(all), rows, d.Config.Name)
	}
	features, _ := d.Spec.StateWidth()
	for i, s := range all {
		if n := len(s.Target); n != 0 && n != features || len(s.Own) != 0 {
			return tandem.Errorf("engine", tandem.Invalid, "state %d has %d numbers of the target and %d of the draft: want %d of the "+
				"target, or none", i, n, len(s.Own), features)
		}
	}
	return nil
}

// WriteContext writes the target's states of rows of the text into the buffers that Enter has laid out; the first is for row `at` of the
// pass. States that are not known count as zeros. CheckContext must have accepted them.
func (d *Draft) WriteContext(r kernels.Runner, at int, all []State) {
	for i, s := range all {
		d.write(r, at+i, s)
	}
}

// WriteBlock writes the embeddings of rows of blocks into the buffer that Enter has laid out; the first is for row `at` of the pass.
// Errors: those of Embed.
func (d *Draft) WriteBlock(r kernels.Runner, at int, tokens []tandem.Token) error {
	for i, token := range tokens {
		if err := d.Embed.Read(int(token), kernels.Give(r, d.embedded, at+i)); err != nil {
			return err
		}
	}
	return nil
}
