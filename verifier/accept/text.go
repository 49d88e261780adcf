package accept

import (
	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/sample"
)

// Text is the committed text of a session, with what decides how it goes on. Not safe for concurrent use.
type Text struct {
	Sampling tandem.Sampling
	Tokens   []tandem.Token // only ever appended to
	Hash     tandem.PrefixHash

	history *sample.History // of Tokens, as far as sampling needs it
	sampler *sample.Sampler
}

// New returns the text of a session that o opens. sampler is scratch memory, which texts of one goroutine may share.
func New(o tandem.Opening, sampler *sample.Sampler) Text {
	return Text{Sampling: o.Sampling, Tokens: append([]tandem.Token(nil), o.Tokens...), Hash: tandem.EmptyPrefix.Add(o.Tokens...),
		history: sample.NewHistory(o.Sampling, o.Tokens, o.Prompt), sampler: sampler}
}

// Root returns the last token, which is the root of the next tree.
func (x *Text) Root() tandem.Token { return x.Tokens[len(x.Tokens)-1] }

// Tree is a tree below the end of a Text, with the target's logits behind each of its nodes.
type Tree struct {
	tandem.Tree
	Depths []int32        // of the nodes; the root's is 0
	Out    *engine.Output // of the pass
	First  int            // wanted row of Out that belongs to the root; that of node i is First+i
}

// row returns the wanted row that belongs to a node.
func (t *Tree) row(node int32) int { return t.First + int(node) }

// Accepted is what became of a tree.
type Accepted struct {
	Path     []int32          // accepted nodes, from the root's child down
	Tokens   []tandem.Token   // those of Path, and the one that follows them
	Logprobs []tandem.Logprob // of Tokens; nil unless the sampling options want them
}

// draw returns the token that follows at a position, by the logits of a wanted row and the text that the history has counted.
func (x *Text) draw(out *engine.Output, row int, at tandem.Position) tandem.Token {
	if x.Sampling.Temperature == 0 && !x.Sampling.Shapes() {
		return tandem.Token(out.Top(row).IDs[0])
	}
	return x.sampler.Draw(x.sampler.Shape(out.Logits(row), x.Sampling, x.history), x.Sampling, at)
}
