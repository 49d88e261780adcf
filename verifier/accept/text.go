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
	limits  *Constraint     // nil: none
	sampler *sample.Sampler
}

// New returns the text of a session that o opens, with its constraint, nil for none. sampler is scratch memory, which texts of one
// goroutine may share.
func New(o tandem.Opening, limits *Constraint, sampler *sample.Sampler) Text {
	return Text{Sampling: o.Sampling, Tokens: append([]tandem.Token(nil), o.Tokens...), Hash: tandem.EmptyPrefix.Add(o.Tokens...),
		history: sample.NewHistory(o.Sampling, o.Tokens, o.Prompt), limits: limits, sampler: sampler}
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

// draw returns the token that follows at a position, by the logits of a wanted row, the text that the history has counted, and where the
// constraint stands. ok is false if the constraint leaves no token.
func (x *Text) draw(out *engine.Output, row int, at tandem.Position, here place) (t tandem.Token, ok bool) {
	if x.limits != nil {
		if t, ok = here.only(x.limits); ok {
			return t, true
		}
	}
	if x.Sampling.Temperature == 0 && !x.Sampling.Shapes() {
		if t = tandem.Token(out.Top(row).IDs[0]); x.limits == nil || here.allows(x.limits, t) {
			return t, true
		}
	}
	shaped := x.sampler.Shape(out.Logits(row), x.Sampling, x.history)
	if x.limits == nil {
		return x.sampler.Draw(shaped, x.Sampling, at), true
	}
	return x.sampler.DrawAllowed(shaped, x.Sampling, at, choice{x.limits, here})
}

// place returns where the constraint stands behind the text.
func (x *Text) place() (p place) {
	if x.limits != nil {
		p = x.limits.at
	}
	return p
}

// follow returns where the constraint stands behind a token.
func (x *Text) follow(p place, t tandem.Token) place {
	if x.limits == nil {
		return p
	}
	return p.next(x.limits, t)
}
