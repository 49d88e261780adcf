// Package round decides the rounds of a session as plain values: what happens goes in, what to do next comes out. It knows no goroutine,
// channel or clock; its caller waits, sends, and passes the time in.
package round

import "github.com/tandem-llm/tandem"

// Text is the committed text of a session, which owns it. Tokens only grows, in Append alone, and Hash is always that of Tokens.
type Text struct {
	Session tandem.SessionID
	Epoch   tandem.Epoch
	Tokens  []tandem.Token // the prompt first
	Hash    tandem.PrefixHash
	Prompt  int // tokens of the prompt
	Limit   int // the most that Tokens grows to
}

// Append commits tokens. The caller sees to it that they are within Limit.
func (t *Text) Append(tokens ...tandem.Token) {
	t.Tokens = append(t.Tokens, tokens...)
	t.Hash = t.Hash.Add(tokens...)
}

// Len returns how many tokens are committed.
func (t *Text) Len() int { return len(t.Tokens) }

// Root returns the last committed token, with which every tree begins. There must be one.
func (t *Text) Root() tandem.Token { return t.Tokens[len(t.Tokens)-1] }

// Bounds returns the bounds of r's next tree: those of the request, at most nodes nodes, and no deeper than its budget still reaches.
func (t *Text) Bounds(r *tandem.Request, nodes int) tandem.Bounds {
	b := r.Bounds
	if r.Without&tandem.TechniqueBranches != 0 {
		b.Width, b.Nodes = min(b.Width, 1), min(b.Nodes, b.Depth+1)
	}
	b.Nodes = min(b.Nodes, nodes)
	b.Depth = min(b.Depth, t.Limit-t.Len()-1)
	return b
}

// Question returns the question of a ticket that is put now.
func (t *Text) Question() Question {
	return Question{Epoch: t.Epoch, Base: tandem.Position(len(t.Tokens)), Hash: t.Hash}
}

// Question identifies what a ticket asks. A verdict answers it only if all fields are equal.
type Question struct {
	Epoch tandem.Epoch
	Base  tandem.Position
	Hash  tandem.PrefixHash
}
