package conversation

import (
	crand "crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/text/calls"
)

// Turn makes the assistant's turn of what the model writes. Not safe for concurrent use.
type Turn struct {
	reader   *calls.Reader // nil: it is text as it comes
	shortIDs bool
	texts    map[string]bool
	custom   map[int]bool // calls of tools that take a text
	name     string       // of which ids of calls are made; "": they are random
	made     int          // ids of it
	within   bool         // the last piece was of a thought
	thought  int          // tokens of thoughts
}

// Turn returns the turn of one answer.
func (o Output) Turn() *Turn {
	t := &Turn{shortIDs: o.ShortIDs, texts: o.Custom, custom: map[int]bool{}}
	if o.Reader != nil {
		t.reader = o.Reader()
	}
	return t
}

// Read returns what further output of so many tokens adds to the turn. The pieces are valid until the next call.
func (t *Turn) Read(text string, tokens int) []calls.Piece {
	var pieces []calls.Piece
	switch {
	case t.reader != nil:
		pieces = t.reader.Read(text)
	case text != "":
		pieces = []calls.Piece{{Kind: calls.Text, Text: text}}
	}
	t.count(pieces, tokens)
	return t.inputs(pieces)
}

// inputs puts the texts in the place of the arguments of calls whose tools take one.
func (t *Turn) inputs(pieces []calls.Piece) []calls.Piece {
	for i := range pieces {
		switch p := &pieces[i]; {
		case p.Kind == calls.Begin && t.texts[p.Text]:
			t.custom[p.Call] = true
		case p.Kind == calls.Arguments && t.custom[p.Call]:
			p.Text = customInput(p.Text)
		}
	}
	return pieces
}

// Custom reports whether a call that was read is one of a tool that takes a text.
func (t *Turn) Custom(call int) bool { return t.custom[call] }

// count counts the tokens of thoughts: of output that ends one, by their part of its bytes.
func (t *Turn) count(pieces []calls.Piece, tokens int) {
	thought, all := 0, 0
	for _, p := range pieces {
		all += len(p.Text)
		if t.within = p.Kind == calls.Thought; t.within {
			thought += len(p.Text)
		}
	}
	switch {
	case all > 0:
		t.thought += (tokens*thought + all/2) / all
	case t.within: // markers, and the beginning of what may be one
		t.thought += tokens
	}
}

// End returns what is left at the end of the output, by how it ended. The pieces are valid until the next call.
func (t *Turn) End(how tandem.Result) []calls.Piece {
	if t.reader == nil {
		return nil
	}
	return t.inputs(t.reader.End(how.Finish != tandem.FinishStop || how.Stopped != ""))
}

// Thoughts returns how many tokens of the output were thoughts.
func (t *Turn) Thoughts() int { return t.thought }

// Calls returns how many calls have come so far.
func (t *Turn) Calls() int {
	if t.reader == nil {
		return 0
	}
	return t.reader.Calls()
}

// Called reports whether the turn ended with calls of tools, which is another end than that of a text.
func (t *Turn) Called(why tandem.FinishReason) bool {
	return why == tandem.FinishStop && t.Calls() > 0
}

// Name makes the ids of calls follow from a name and their order: an answer whose stream is taken up again has the same ones.
func (t *Turn) Name(name string) { t.name = name }

// ID returns a new id of a call.
func (t *Turn) ID() string {
	b := t.bytes()
	if !t.shortIDs {
		return "call_" + hex.EncodeToString(b[:])
	}
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	id := make([]byte, 9)
	for i := range id {
		id[i] = letters[int(b[i])%len(letters)]
	}
	return string(id)
}

// bytes returns those of a new id.
func (t *Turn) bytes() (b [12]byte) {
	if t.name == "" {
		_, _ = crand.Read(b[:])
		return b
	}
	sum := sha256.Sum256(fmt.Appendf(nil, "call %s %d", t.name, t.made))
	t.made++
	return [12]byte(sum[:12])
}
