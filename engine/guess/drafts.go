package guess

import (
	"github.com/tandem-llm/tandem/engine/arch"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// entrances lists the kinds of drafts. NewMTP makes those of mtp, which may also be a part of their target's file.
var entrances = map[side.Kind]func() entrance{
	side.Dovetail: func() entrance { return &dovetail{} },
	side.Eagle:    func() entrance { return &eagle{} },
	side.Eagle3:   func() entrance { return &eagle3{} },
	side.DFlash:   func() entrance { return &dflash{} },
	side.MTP:      func() entrance { return &mtp{} },
}

// NewDraft plans the draft in f, which spec describes, for the target in the file of. It borrows embedding and output matrix from there
// unless f has them; of the output matrix only the rows of the tokens that the draft knows. Embeddings stay in their file. lineage is the
// target's. Errors: Corrupt and Unsupported, for either file.
func NewDraft(f *gguf.File, spec side.Spec, of *gguf.File, target *blocks.Config, lineage string) (*Draft, error) {
	wide, block := spec.Kind == side.Eagle3, spec.Kind == side.DFlash
	d := &Draft{Spec: spec, lineage: lineage, entrance: entrances[spec.Kind](), wide: wide, block: block, unnormed: wide}
	var err error
	if d.Config, err = blocks.NewReader(f, string(spec.Kind)).Config(arch.Draft, spec.Vocab, spec.Draft.Width); err != nil {
		return nil, err
	}
	for _, id := range spec.Draft.IDs {
		d.Config.Outputs = append(d.Config.Outputs, int32(id))
	}
	c, w, cfg := tensors.New(f), &d.Weights, &d.Config
	d.entrance.collect(c, d)
	w.OutputNorm = c.Vector("output_norm.weight", wide || block, cfg.Dim)
	find := blocks.Finder{Catalog: c, C: cfg, W: w, Bare: !wide && !block}
	find.CollectLayers()
	w.Embed, w.Head = kernels.None, kernels.None
	if wide || block {
		d.embedIn(f, c.Lookup("token_embd.weight", false, cfg.Vocab, cfg.Dim))
	}
	if block && d.Embed == nil {
		cfg.EmbedScale = target.EmbedScale
	}
	if n := len(cfg.Outputs); n > 0 {
		c.Matrix(&w.Head, "output.weight", false, n, cfg.Dim)
	} else if block {
		c.Matrix(&w.Head, "output.weight", false, cfg.Vocab, cfg.Dim)
	}
	if cfg.FinalCap = target.FinalCap; w.Head == kernels.None {
		cfg.LogitScale = target.LogitScale
	}
	if b := &spec.Draft.Block; b.Two() {
		cfg.EmbedScale, cfg.LogitScale, cfg.FinalCap = float32(b.EmbedScale), float32(b.LogitScale), float32(b.LogitCap)
	}
	if c.Err != nil {
		return nil, c.Err
	}
	return d, d.borrow(c, of, "token_embd.weight", oneOf(of, "output.weight", "token_embd.weight"))
}
