// Package blocks is the kind of draft that guesses all levels of a tree in one pass (DFlash):
//
//  1. Rows of the text are those of package states, but row i is that of position i with its own state, and its token does not count.
//  2. The tree's pass has the last token and mask tokens behind the text. They leave the cache after it.
//  3. The guess of the first is the root's candidates; those of the others foretell the levels below (spec.Explored). The tree grows from
//     that alone (spec.Sketch), as a chain where its bounds are narrow.
//
// What a level guesses does not depend on the tokens between, so a path's chance is the product of its levels' chances, corrected by how
// often such guesses were right (spec.Trust). With a selector (DFlash2) it depends on the token before: see steps. Nothing is drafted
// ahead: what a block draft would compute ahead of the target's states is not worth sending.
package blocks

import (
	"slices"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter/grow"
	"github.com/tandem-llm/tandem/drafter/states"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/schedule"
	"github.com/tandem-llm/tandem/spec"
)

// Is reports whether a model is of this kind: whether its passes have blocks.
func Is(m *engine.Model) bool { return m.Block().Rows > 0 }

// New returns the kind. Errors: those of states.NewFeeds, and Invalid if a block does not fit into a pass or a tree.
func New(d *grow.Draft) (grow.Kind, error) {
	c := &d.Config
	if b := c.Model.Block(); b.Rows > min(c.TreeRows, c.Model.MaxRows(), c.Model.MaxWanted()) {
		return nil, tandem.Errorf("drafter", tandem.Invalid, "a draft of blocks of %d rows with passes of %d, %d of them with logits, and "+
			"%d tree rows: want at least %d each", b.Rows, c.Model.MaxRows(), c.Model.MaxWanted(), c.TreeRows, b.Rows)
	}
	feeds, err := states.NewFeeds(d)
	return kind{feeds, c.Model.Block()}, err
}

type kind struct {
	feeds *states.Feeds
	shape engine.Block
}

// Traits implements grow.Kind.
func (k kind) Traits() grow.Traits {
	t := k.feeds.Traits()
	t.Mute, t.Candidates = true, k.shape.Best
	return t
}

// Parts implements grow.Kind.
func (k kind) Parts(s *grow.Session, found int) grow.Parts {
	feed, fill := k.feeds.Open(s, found)
	b := &block{s: s, feed: feed, shape: k.shape}
	return grow.Parts{Adopter: b, Trees: b, Passes: b, Opener: fill}
}

// block is how a session drafts: a block stands for the trees, the passes, and what the cache holds of them. It implements grow.Adopter,
// grow.Trees and grow.Passes.
type block struct {
	s     *grow.Session
	feed  *states.Feed
	shape engine.Block
}

// Begin implements grow.Trees. A tree is sketched anew whenever it is to grow.
func (b *block) Begin() {}

// Grow implements grow.Trees.
func (b *block) Grow(time.Time) (tandem.Tree, bool) {
	p := b.s.Job.Proposal
	sketched := spec.NewSketch(&b.s.Explored, b.s.Text.Tokens[p.Base-1], p, b.s.Trust())
	return sketched.Tree, !sketched.Root
}

// Nodes implements grow.Trees: the block.
func (b *block) Nodes(part *engine.Part, n int) {
	if n < b.shape.Rows {
		return
	}
	part.Nodes = append(part.Nodes, b.s.Vocab.Known(b.s.Text.Tokens[len(b.s.Text.Tokens)-1:])...)
	for i := range b.shape.Rows {
		part.Parents = append(part.Parents, int32(i-1))
		if i > 0 {
			part.Nodes = append(part.Nodes, tandem.Token(b.shape.Mask))
		}
	}
}

// Complete implements grow.Passes: what a draft of states computes with its own outputs, a block draft computes with zeros.
func (b *block) Complete(part *engine.Part, _ int, _ bool) {
	b.feed.Complete(part)
	part.States = append(part.States, make([]engine.State, len(part.Nodes))...)
}

// Take implements grow.Passes.
func (b *block) Take(r grow.Result) {
	b.feed.Ran(len(r.Part.Extend))
	if len(r.Part.Nodes) == 0 {
		return
	}
	b.foretell(r.Part, r.Out, r.Out.First(r.Part.At)) // not r.First: the schedule counts a row with logits for each node
	if err := b.s.Cache.Reroot(nil, nil); err != nil {
		panic(err)
	}
}

// foretell takes what a block guesses. first is the wanted row of its first guess.
func (b *block) foretell(p schedule.Part, out *engine.Output, first int) {
	width, next := b.s.Width(), tandem.Position(len(b.s.Text.Tokens))
	held := width
	if b.shape.Best > 0 {
		held = b.shape.Best
	}
	var levels [][]spec.Candidate
	for i := range len(p.Nodes) - b.shape.Rows + b.shape.Levels() {
		levels = append(levels, b.s.Vocab.Guesses(out, first+i, held, next+tandem.Position(i)))
	}
	steps := b.steps(out, first, levels)
	for i, list := range levels {
		levels[i] = list[:min(width, len(list))]
	}
	if steps == nil {
		b.s.Explored.Start(levels[0], width)
		b.s.Explored.Foretell(0, levels[1:])
		return
	}
	b.s.Explored.Start(steps[0][b.last()], width)
	b.s.Explored.ForetellSteps(0, levels[1:], steps[1:])
}

// last returns the token that a block begins with.
func (b *block) last() tandem.Token {
	return b.s.Vocab.Known(b.s.Text.Tokens[len(b.s.Text.Tokens)-1:])[0]
}

// steps returns what each level guesses behind each candidate of the level above, by the draft's selector; nil: it has none, or its tables
// could not be read, which costs guesses only. A step's chance is that of the candidate, times e to the power of what the selector adds to
// its logit, and then so that the candidates together stay as likely as they were: the selector knows nothing of other tokens.
func (b *block) steps(out *engine.Output, first int, levels [][]spec.Candidate) (all []spec.Steps) {
	if b.shape.Best == 0 {
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
			b.s.Draft.Config.Counters.Add("selector.failed", 1)
			return nil
		}
		level := spec.Steps{}
		for k, token := range before {
			behind := spec.Shift(list, added[k])
			level[token] = behind[:min(b.s.Width(), len(behind))]
		}
		all, before = append(all, level), tokens
	}
	return all
}

// Adopt implements grow.Adopter. Rows of the text stay as far as it does and their states had come; guesses only if nothing has.
func (b *block) Adopt(p tandem.Proposal) error {
	held := len(b.s.Text.Tokens)
	keep := b.s.Text.Follow(p)
	b.s.Recall.Keep(keep)
	if keep == held && b.s.Explored.Len() > 0 {
		b.learnLevels(held)
		if int(p.Base) == held && p.Bounds.Width <= b.s.Explored.Width() && !b.feed.Fresh() {
			return nil
		}
	}
	b.s.Explored.Clear()
	return b.feed.Truncate(max(min(b.s.Cache.Len(), keep-1, int(p.Base)-1, b.feed.Sure()), 0), keep < held)
}

// learnLevels compares the last block's guesses with the tokens that have come since, up to the first that the tree cannot hold.
func (b *block) learnLevels(held int) {
	levels := append([][]spec.Candidate{b.s.Explored.Candidates(0)}, b.s.Explored.Foretold(0)...)
	above := 0
	for i, token := range b.s.Text.Tokens[held:] {
		if i == len(levels) {
			return
		}
		list := levels[i]
		if i > 0 {
			list = b.s.Explored.Foretells(0, i-1, b.s.Text.Tokens[held+i-1])
		}
		at := slices.IndexFunc(list, func(c spec.Candidate) bool { return c.Token == token })
		b.s.Recall.Saw(held+i, at == 0)
		if i > 0 {
			b.s.Trust().Drew(i-1, above, list, token)
		}
		if at < 0 {
			return
		}
		if i > 0 {
			above += at
		}
	}
}
