package pass

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/sequence"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Block says how a block draft guesses.
type Block = side.Block

// rows collects the rows of one pass; its slices are reused from pass to pass.
type rows struct {
	kernels.Pass
	cells []kernels.Cell // scratch: of a node and its ancestors, nearest first
}

func (p *rows) reset(topK int) {
	q := &p.Pass
	*q = kernels.Pass{Tokens: q.Tokens[:0], Given: q.Given[:0], Pos: q.Pos[:0], Turn: q.Turn[:0], Store: q.Store[:0], Pages: q.Pages[:0],
		Table: q.Table[:0], Prefix: q.Prefix[:0], Anc: q.Anc[:0], AncOff: q.AncOff[:0], AncLen: q.AncLen[:0], Wanted: q.Wanted[:0],
		TopK: topK, Walks: q.Walks[:0]}
}

// add appends the rows of a part that has entered. block is the model's; prompts are the embeddings of prompt rows, (number, dim).
func (p *rows) add(part *sequence.Part, block *Block, prompts []float32, dim int) {
	table := int32(len(p.Pages))
	end := part.Prefix()
	p.Pages = append(p.Pages, part.Table()...)
	hidden := 0 // positions that the table of the latest row leaves out
	row := func(t tandem.Token, pos int, store kernels.Cell, prefix int, anc []kernels.Cell, wanted bool) {
		if wanted {
			p.Wanted = append(p.Wanted, int32(len(p.Tokens)))
		}
		if first, n := part.Hidden(pos); n != hidden {
			first, all := first/kernels.PageRows, part.Table()
			hidden, table = n, int32(len(p.Pages))
			p.Pages = append(append(p.Pages, all[:first]...), all[first+n/kernels.PageRows:]...)
		}
		p.Tokens = append(p.Tokens, p.embedding(t, prompts, dim))
		p.Pos, p.Turn = append(p.Pos, int32(pos-hidden)), append(p.Turn, int32(part.InText(pos)))
		p.Store = append(p.Store, store)
		p.Table = append(p.Table, table)
		p.Prefix = append(p.Prefix, int32(prefix-hidden))
		p.AncOff = append(p.AncOff, int32(len(p.Anc)))
		p.AncLen = append(p.AncLen, int32(len(anc)))
		for i := len(anc) - 1; i >= 0; i-- {
			p.Anc = append(p.Anc, anc[i])
		}
	}
	for i, t := range part.Extend {
		pos := end - len(part.Extend) + i
		row(t, pos, part.At(pos), pos+1, nil, wantsText(block, part, pos == end-1))
	}
	for i, t := range part.Nodes {
		p.cells = part.Ancestors(i, p.cells[:0])
		row(t, end+len(p.cells)-1, part.Cell(i), end, p.cells, wantsNode(block, part, i))
	}
	if block.Rows > 0 {
		p.seeBlock(part)
	}
}

// embedding returns what Embed looks up for a row: a token, or the place that the embedding of a prompt row gets in Given.
func (p *rows) embedding(t tandem.Token, prompts []float32, dim int) int32 {
	if t >= 0 {
		return int32(t)
	}
	at := int(-1-t) * dim
	p.Given = append(p.Given, prompts[at:at+dim]...)
	return -int32(len(p.Given) / dim)
}

// wantsText reports whether an Extend row of part, perhaps the last, gets logits.
func wantsText(block *Block, part *sequence.Part, last bool) bool {
	return block.Rows == 0 && (part.Want == sequence.WantAll || part.Want == sequence.WantTail && last)
}

// wantsNode reports whether node i of part gets logits.
func wantsNode(block *Block, part *sequence.Part, i int) bool {
	if block.Rows > 0 && i == 0 && !block.Anchor {
		return false
	}
	return part.Want != sequence.WantNone && part.Nodes[i] >= 0
}

// seeBlock makes the rows of a part's nodes, which end the pass so far, see each other.
func (p *rows) seeBlock(part *sequence.Part) {
	n := len(part.Nodes)
	for i := range n {
		row := len(p.Tokens) - n + i
		p.AncOff[row], p.AncLen[row] = int32(len(p.Anc)), int32(n)
	}
	for i := range n {
		p.Anc = append(p.Anc, part.Cell(i))
	}
}

// of returns the pass of some rows of p, whose wanted ones are numbered anew.
func (p *rows) of(some []int) kernels.Pass {
	out := kernels.Pass{Rows: len(some), Given: p.Given, Pages: p.Pages, Anc: p.Anc, TopK: p.TopK}
	wanted := map[int]bool{}
	for _, w := range p.Wanted {
		wanted[int(w)] = true
	}
	for i, r := range some {
		out.Tokens, out.Turn = append(out.Tokens, p.Tokens[r]), append(out.Turn, p.Turn[r])
		out.Pos, out.Store, out.Table = append(out.Pos, p.Pos[r]), append(out.Store, p.Store[r]), append(out.Table, p.Table[r])
		out.Prefix = append(out.Prefix, p.Prefix[r])
		out.AncOff, out.AncLen = append(out.AncOff, p.AncOff[r]), append(out.AncLen, p.AncLen[r])
		if wanted[r] {
			out.Wanted = append(out.Wanted, int32(i))
		}
	}
	return out
}
