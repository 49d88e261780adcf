package engine

import (
	"context"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/engine/tensors"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// program lays out a pass over the model for a device that wants weights in these layouts. Each layer's products and attention are a
// stage; the norm before them is at the end of the previous stage, where it can be chained with the operation that made its input.
func (m opening) program(layout func(kernels.Type) kernels.Layout) *kernels.Program {
	c := &m.config
	b := blocks.NewPlanner(kernels.NewProgram(m.options.MaxRows, m.options.MaxWanted), c, &m.weights)
	if b.KV = c.KVShape(m.kvType); len(b.KV.States) > 0 {
		b.KV.Slots, b.KV.Records = m.options.slots(&m.config), m.options.records(&m.config)
	}
	tensors.AddTo(b.Program, m.matrices, layout)
	b.Stage("the embedding")
	b.X, b.Normed = b.Buf(c.Dim), b.Act(c.Dim)
	m.logits, m.residual = b.WantedBuf(m.outputs.rows()), b.X
	if m.draft != nil {
		m.draft.Enter(b)
	} else {
		b.Embed(b.W.Embed, b.X)
	}
	if c.EmbedScale != 1 {
		b.Scale(b.X, c.EmbedScale)
	}
	if c.Family.Enter != nil {
		c.Family.Enter(b)
	}
	for i := range c.Layers {
		c.Family.Pass(b, i)
		b.Tap(i+1, m.options.Taps)
	}
	m.taps = b.TapsAt(m.options.Taps)
	last, lastNorm := b.WantedBuf(c.Dim), b.WantedAct(c.Dim)
	b.Gather(b.X, last)
	b.Norm(last, b.W.OutputNorm, lastNorm)
	b.Stage("the output")
	b.MatMul(b.W.Head, lastNorm, m.logits, kernels.MatMulOpt{})
	if m.draft != nil {
		m.draft.Leave(b, lastNorm)
	}
	c.Finish(b.Program, m.logits)
	b.TopK(m.logits)
	return b.Program
}

// fill makes weights, cache and names ready.
func (m opening) fill(f, of *gguf.File, progress func(done, total int64)) error {
	digests := m.newDigests(f, of)
	s, streamed := m.store.(kernels.FileStore)
	if streamed && of != nil {
		return tandem.Errorf("engine", tandem.Unsupported, "%s: the weights of a draft with states cannot be streamed", f.Path())
	}
	to := tensors.Into(m.store)
	src := tensors.NewSource(m.matrices, f.Path())
	if streamed {
		to.Take = src.Note()
	}
	if m.options.Lock {
		to.Cache = m.memory
	}
	to.Add, to.Forget = digests.add, m.options.Forget || streamed
	if m.draft != nil {
		to.Lookup = append(m.draft.SelectorTables(), m.draft.Embed.Tensor())
	}
	if err := tensors.Fill(m.matrices, to, progress); err != nil {
		return err
	}
	if to.Forget {
		f.Forget()
	}
	sum, err := digests.sum(context.Background())
	if err != nil {
		return err
	}
	if m.names, err = m.nameOf(f, sum); err != nil || !streamed {
		return err
	}
	src.Named(sum)
	if err := s.Fill(context.Background(), src, progress); err != nil {
		if tandem.KindOf(err) != tandem.Internal {
			return err
		}
		return tandem.Errorf("engine", tandem.Unavailable, "%s: %w", f.Path(), err)
	}
	return nil
}
