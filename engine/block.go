package engine

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// A block draft (dflash) runs two passes for a batch: the Extend rows of all parts, which leave keys and values alone, and then the Nodes.
// The Nodes of a part are one block: a chain of the last token and mask tokens. Each sees the prefix and the whole block, and gets logits
// as Block says. Of an Output, rows are those of Nodes.

// Block says how a block draft guesses.
type Block = side.Block

// Block returns how m guesses if it is a block draft; the zero value: it is none.
func (m *Model) Block() Block {
	if m.draft == nil {
		return Block{}
	}
	return m.draft.Block()
}

// checkBlock refuses nodes that are no block.
func (f running) checkBlock(part *Part) error {
	b := f.Block()
	switch {
	case b.Rows == 0 || len(part.Nodes) == 0:
		return nil
	case len(part.Seq.parents) > 0:
		return tandem.Errorf("engine", tandem.Invalid, "a block behind %d tree rows: want it behind the prefix", len(part.Seq.parents))
	case len(part.Nodes) > b.Rows:
		return tandem.Errorf("engine", tandem.Invalid, "a block of %d rows: want at most %d", len(part.Nodes), b.Rows)
	}
	for i, parent := range part.Parents {
		if int(parent) != i-1 {
			return tandem.Errorf("engine", tandem.Invalid, "row %d of a block has parent %d: want %d, a chain", i, parent, i-1)
		}
	}
	return nil
}

// wantsText reports whether an Extend row of part, perhaps the last, gets logits.
func (f running) wantsText(part *Part, last bool) bool {
	return f.Block().Rows == 0 && (part.Want == WantAll || part.Want == WantTail && last)
}

// wantsNode reports whether node i of part gets logits.
func (f running) wantsNode(part *Part, i int) bool {
	if b := f.Block(); b.Rows > 0 && i == 0 && !b.Anchor {
		return false
	}
	return part.Want != WantNone && part.Nodes[i] >= 0
}

// seeBlock makes the rows of a part's nodes, which end the pass so far, see each other.
func (p *pass) seeBlock(part *Part) {
	n := len(part.Nodes)
	for i := range n {
		row := len(p.Tokens) - n + i
		p.AncOff[row], p.AncLen[row] = int32(len(p.Anc)), int32(n)
	}
	for _, x := range part.places {
		p.Anc = append(p.Anc, x.cell)
	}
}

// of returns the pass of those rows of p, whose wanted ones are numbered anew.
func (p *pass) of(rows []int) kernels.Pass {
	out := kernels.Pass{Rows: len(rows), Pages: p.Pages, Anc: p.Anc, TopK: p.TopK}
	wanted := map[int]bool{}
	for _, w := range p.Wanted {
		wanted[int(w)] = true
	}
	for i, r := range rows {
		out.Pos, out.Store, out.Table = append(out.Pos, p.Pos[r]), append(out.Store, p.Store[r]), append(out.Table, p.Table[r])
		out.Prefix = append(out.Prefix, p.Prefix[r])
		out.AncOff, out.AncLen = append(out.AncOff, p.AncOff[r]), append(out.AncLen, p.AncLen[r])
		if wanted[r] {
			out.Wanted = append(out.Wanted, int32(i))
		}
	}
	return out
}

// runBlocks runs the passes of a batch whose rows are laid out, of a block draft, and numbers the rows of out anew.
func (f running) runBlocks(batch []Part, out *Output) error {
	var text, blocks []int
	for i := range batch {
		part, at := &batch[i], out.begin[i]
		f.draft.WriteContext(f.runner, len(text), part.States[:len(part.Extend)])
		for j := range part.Extend {
			text = append(text, at+j)
		}
	}
	if len(text) > 0 {
		p := f.pass.of(text)
		if err := f.runner.Start(&p); err != nil {
			return err
		}
		if err := f.runner.Stage(guess.Context); err != nil {
			return err
		}
	}
	for i := range batch {
		part, at := &batch[i], out.begin[i]+len(batch[i].Extend)
		out.begin[i] = len(blocks)
		if err := f.draft.WriteBlock(f.runner, len(blocks), part.Nodes); err != nil {
			return err
		}
		for j := range part.Nodes {
			blocks = append(blocks, at+j)
		}
	}
	out.begin[len(batch)] = len(blocks)
	if len(blocks) == 0 {
		return nil
	}
	p := f.pass.of(blocks)
	return f.runner.Run(&p)
}

// Steps returns what the selector of a block draft adds to the logits of candidates of wanted row i: of each token before, in order, a
// number for each token after it. nil: the model has no selector (Block.Rank). Errors: Corrupt for a file that was written to since it was
// opened.
func (o *Output) Steps(i int, before, after []tandem.Token) ([][]float32, error) {
	if o.model.draft == nil {
		return nil, nil
	}
	return o.model.draft.Steps(o.model.runner, i, before, after)
}
