package pass

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/guess"
	"github.com/tandem-llm/tandem/engine/sequence"
	"github.com/tandem-llm/tandem/kernels"
)

// A block draft (dflash) runs two passes for a batch: the Extend rows of all parts, which leave keys and values alone, and then the Nodes.
// The Nodes of a part are one block: a chain of the last token and mask tokens. Each sees the prefix and the whole block, and gets logits
// as Block says. Of an Output, rows are those of Nodes.

// checkBlock refuses nodes that are no block.
func checkBlock(b *Block, part *sequence.Part) error {
	switch {
	case b.Rows == 0 || len(part.Nodes) == 0:
		return nil
	case part.Seq.Nodes() > 0:
		return tandem.Errorf("engine", tandem.Invalid, "a block behind %d tree rows: want it behind the prefix", part.Seq.Nodes())
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

// runBlocks runs the passes of a batch whose rows are laid out in all, of a block draft, and numbers the rows of out anew.
func runBlocks(d *guess.Draft, on kernels.Runner, all *rows, batch []sequence.Part, out *Output) error {
	var text, blocks []int
	for i := range batch {
		part, at := &batch[i], out.begin[i]
		d.WriteContext(on, len(text), part.States[:len(part.Extend)])
		for j := range part.Extend {
			text = append(text, at+j)
		}
	}
	if len(text) > 0 {
		p := all.of(text)
		if err := on.Start(&p); err != nil {
			return err
		}
		if err := on.Stage(guess.Context); err != nil {
			return err
		}
	}
	for i := range batch {
		part, at := &batch[i], out.begin[i]+len(batch[i].Extend)
		out.begin[i] = len(blocks)
		if err := d.WriteBlock(on, len(blocks), part.Nodes); err != nil {
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
	p := all.of(blocks)
	return on.Run(&p)
}
