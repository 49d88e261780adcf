package drafter

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// blockGrower is the grower of a block draft (DFlash), one pass of which guesses all levels of a tree:
//
//  1. Rows of the text are those of stateGrower, but row i is that of position i with its own state, and its token does not count. What a
//     stateGrower computes with the draft's own outputs, a block draft computes with zeros.
//  2. The tree's pass has the last token and mask tokens behind the text. They leave the cache after it.
//  3. What they guess is what the root's candidates are, and what has been foretold of the levels below (spec.Explored). The tree grows
//     from that alone (spec.Sketch), as a chain where its bounds are narrow.
//
// What a level guesses does not depend on the tokens between, so a path's chance is the product of its levels' chances, corrected by how
// often such guesses were right (spec.Trust). With a selector (DFlash2) it depends on the token before: see steps.
type blockGrower struct {
	*stateGrower
	block    engine.Block
	sketched *spec.Sketch // the job's tree
}

// begin implements grower.
func (b *blockGrower) begin() { b.sketched = nil }

// grow implements grower.
func (b *blockGrower) grow(time.Time) (tandem.Tree, bool) {
	p := b.job.proposal
	b.sketched = spec.NewSketch(&b.explored, b.Tokens[p.Base-1], p, b.d.trusted(b.session))
	return b.sketched.Tree, !b.sketched.Root
}

// nodes implements grower: the block.
func (b *blockGrower) nodes(part *engine.Part, n int) {
	if n < b.block.Rows {
		return
	}
	part.Nodes = append(part.Nodes, b.known(b.Tokens[len(b.Tokens)-1:])...)
	for i := range b.block.Rows {
		part.Parents = append(part.Parents, int32(i-1))
		if i > 0 {
			part.Nodes = append(part.Nodes, tandem.Token(b.block.Mask))
		}
	}
}

// complete implements grower.
func (b *blockGrower) complete(part *engine.Part, _ int, _ bool) {
	b.completeText(part)
	part.States = append(part.States, make([]engine.State, len(part.Nodes))...)
}

// take implements grower.
func (b *blockGrower) take(r result) {
	b.ran(len(r.part.Extend), b.seq.Len())
	if len(r.part.Nodes) == 0 {
		return
	}
	b.foretell(r.part, r.out, r.out.First(r.part.At)) // not r.first: the schedule counts a row with logits for each node
	if err := b.seq.Reroot(nil, nil); err != nil {
		panic(err)
	}
}

// foretell takes what a block guesses. first is the wanted row of its first guess.
func (b *blockGrower) foretell(p schedule.Part, out *engine.Output, first int) {
	width, next := b.width(), tandem.Position(len(b.Tokens))
	held := width
	if b.block.Best > 0 {
		held = b.block.Best
	}
	var levels [][]spec.Candidate
	for i := range len(p.Nodes) - b.block.Rows + b.block.Levels() {
		levels = append(levels, b.guesses(out, first+i, held, next+tandem.Position(i)))
	}
	steps := b.steps(out, first, levels)
	for i, list := range levels {
		levels[i] = list[:min(width, len(list))]
	}
	if steps == nil {
		b.explored.Start(levels[0], width)
		b.explored.Foretell(0, levels[1:])
		return
	}
	b.explored.Start(steps[0][b.last()], width)
	b.explored.ForetellSteps(0, levels[1:], steps[1:])
}

// last returns the token that a block begins with.
func (b *blockGrower) last() tandem.Token { return b.known(b.Tokens[len(b.Tokens)-1:])[0] }

// steps returns what each level guesses behind each candidate of the level above, by the draft's selector; nil: it has none, or its tables
// could not be read, which costs guesses only. A step's chance is that of the candidate, times e to the power of what the selector adds to
// its logit, and then so that the candidates together stay as likely as they were: the selector knows nothing of other tokens.
func (b *blockGrower) steps(out *engine.Output, first int, levels [][]spec.Candidate) (all []spec.Steps) {
	if b.block.Best == 0 {
		return nil
	}
	before := []tandem.Token{b.last()}
	for i, list := range levels {
		tokens := make([]tandem.Token, len(list))
		for j, c := range list {
			tokens[j] = c.Token
		}
		added, err := out.Steps(first+i, before, tokens)
		if err != nil {
			b.d.cfg.Counters.Add("selector.failed", 1)
			return nil
		}
		level := spec.Steps{}
		for k, token := range before {
			behind := spec.Shift(list, added[k])
			level[token] = behind[:min(b.width(), len(behind))]
		}
		all, before = append(all, level), tokens
	}
	return all
}

// retain implements grower: no row of a block stays.
func (b *blockGrower) retain([]int32) {}

// adopt implements grower. Rows of the text stay as far as it does and their states had come; guesses only if nothing has.
func (b *blockGrower) adopt(p tandem.Proposal) error {
	held := len(b.Tokens)
	keep := b.Follow(p)
	b.recall.Keep(keep)
	if keep == held && b.explored.Len() > 0 {
		b.learnLevels(held)
		if int(p.Base) == held && p.Bounds.Width <= b.explored.Width() && !b.fresh(b.seq.Len()) {
			return nil
		}
	}
	b.explored.Clear()
	n := max(min(b.seq.Len(), keep-1, int(p.Base)-1, b.sure), 0)
	err := b.seq.Truncate(n)
	b.rollBack(min(n, b.seq.Len()), keep < held)
	return err
}

// learnLevels compares the last block's guesses with the tokens that have come since, up to the first that the tree cannot hold.
func (b *blockGrower) learnLevels(held int) {
	levels := append([][]spec.Candidate{b.explored.Candidates(0)}, b.explored.Foretold(0)...)
	above := 0
	for i, token := range b.Tokens[held:] {
		if i == len(levels) {
			return
		}
		list := levels[i]
		if i > 0 {
			list = b.explored.Foretells(0, i-1, b.Tokens[held+i-1])
		}
		at := slices.IndexFunc(list, func(c spec.Candidate) bool { return c.Token == token })
		b.recall.Saw(held+i, at == 0)
		if i > 0 {
			b.d.trusted(b.session).Drew(i-1, above, list, token)
		}
		if at < 0 {
			return
		}
		if i > 0 {
			above += at
		}
	}
}

// goes implements grower: what a block draft would compute ahead of the target's states is not worth sending.
func (b *blockGrower) goes(tandem.Proposal) bool { return false }

// renew implements grower.
func (b *blockGrower) renew(*engine.Part, int) bool { return false }
