package source

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/roster"
	"github.com/tandem-llm/tandem/text/grammar"
)

// letters are words of one character each, ASCII from the blank on; the last of a text that goes on is held back.
type letters struct{}

const endOfLetters = tandem.Token(99)

func (letters) AppendMarked(dst []byte, t tandem.Token) ([]byte, bool) {
	return append(dst, byte(t)+' '), t != endOfLetters
}

func (letters) EncodeMarked(text string, more bool) (out []tandem.Token) {
	for _, b := range []byte(text) {
		out = append(out, tandem.Token(b-' '))
	}
	if more && len(out) > 0 {
		out = out[:len(out)-1]
	}
	return out
}

// newForcedSet is newTestSet for a session with a constraint, which may ask the gateway's drafter by it alone.
func newForcedSet(t *testing.T, of grammar.Spec) (*Set, *Session) {
	t.Helper()
	set, s, _ := newTestSet(t, &chains{})
	spec, err := json.Marshal(of)
	if err != nil {
		t.Fatal(err)
	}
	set.Words, s.Text.Prompt = letters{}, s.Text.Len()
	s.Sampling.Constraint, s.Names = &tandem.Constraint{Spec: string(spec), Ends: []tandem.Token{endOfLetters}}, []string{tandem.Grammar}
	set.Roster.Enlist(roster.Enlisted{Name: tandem.Grammar, Grammar: true, Last: true})
	set.Update(t.Context(), bounds)
	return set, s
}

// drafts returns what the set drafts next, as text with a $ for the end and a ? before what is not sure; "" if it drafts nothing.
func drafts(set *Set) string {
	ready := set.Ready()
	if len(ready) == 0 {
		return ""
	}
	t := ready[0].(*forced).draw(3, tandem.Proposal{Bounds: tandem.Bounds{Nodes: 100, Depth: 60, Width: 1}}).Tree
	out := ""
	for i, token := range t.Tokens {
		if i == 0 {
			continue
		} else if t.LogProbs[i] < 0 && t.LogProbs[i-1] == 0 {
			out += "?"
		}
		if token == endOfLetters {
			out += "$"
		} else {
			b, _ := letters{}.AppendMarked(nil, token)
			out += string(b)
		}
	}
	return out
}

// TestForcedBytesAreDrafted: what the constraint forces behind the committed text is drafted, its end included, from the middle of a word
// as well. Where a free value begins nothing is, and nothing of a text that the constraint does not allow.
func TestForcedBytesAreDrafted(t *testing.T) {
	of := grammar.Spec{Seq: []grammar.Spec{{Text: `{"name":`}, {Regex: ` ?"[a-z]*"`}, {Text: `,"on":true}`}}}
	for _, c := range []struct{ committed, want string }{
		{"", `{"name": ?"`}, {`{"na`, `me": ?"`}, {`{"name":`, ` ?"`}, {`{"name": "ab`, ``}, {`{"name": "ab"`, `,"on":true}$`},
		{`{"name": "ab","on":tru`, `e}$`}, {`{"name": "ab","on":true}`, `$`}, {`{"other`, ``}, {`{"name": 7`, ``},
	} {
		set, s := newForcedSet(t, of)
		for i := range c.committed { // as it comes, and as it is found after a kill
			if i%2 == 0 {
				set.Ready()
			}
			s.Text.Append(letters{}.EncodeMarked(c.committed[i:i+1], false)...)
		}
		if got := drafts(set); got != c.want {
			t.Errorf("behind %q: %q: want %q", c.committed, got, c.want)
		}
	}
}

// TestForcedBlanks: where a blank is allowed, it is guessed if the model has written one in such a place before.
func TestForcedBlanks(t *testing.T) {
	field := func(name string) grammar.Spec {
		return grammar.Spec{Seq: []grammar.Spec{{Text: `"` + name + `":`}, {Regex: ` ?`}, {Text: `"x"`}}}
	}
	set, s := newForcedSet(t, grammar.Spec{Seq: []grammar.Spec{field("a"), field("b"), field("c")}})
	if got := drafts(set); !strings.HasPrefix(got, `"a": "x"`) {
		t.Errorf("at first %q: want a blank", got)
	}
	s.Text.Append(letters{}.EncodeMarked(`"a":"x"`, false)...)
	if got := drafts(set); !strings.HasPrefix(got, `"b":"x"`) {
		t.Errorf("after none %q: want none", got)
	}
	s.Text.Append(letters{}.EncodeMarked(`"b": "x"`, false)...)
	if got := drafts(set); got != `"c": "x"$` {
		t.Errorf("after one %q: want one", got)
	}
}

// TestNothingIsForcedWithoutConstraint: sessions without one do not know of the drafter, and one that cannot be compiled forces nothing.
func TestNothingIsForcedWithoutConstraint(t *testing.T) {
	set, s, _ := newTestSet(t, &chains{})
	set.Words = letters{}
	set.Roster.Enlist(roster.Enlisted{Name: tandem.Grammar, Grammar: true, Last: true})
	set.Update(t.Context(), bounds)
	if slices.ContainsFunc(set.list, func(x Source) bool { return x.Name() == tandem.Grammar }) {
		t.Error("a session without a constraint has its drafter")
	}
	s.Sampling.Constraint = &tandem.Constraint{Spec: `{"regex":"("}`}
	set.Leave()
	set.Update(t.Context(), bounds)
	for _, x := range set.Ready() {
		if x.Name() == tandem.Grammar {
			t.Error("a constraint that cannot be compiled has a drafter")
		}
	}
}

// TestEveryEndIsGuessed: where the output must end, each of the tokens that may end it is guessed, as far as the tree's bounds allow.
func TestEveryEndIsGuessed(t *testing.T) {
	set, s := newForcedSet(t, grammar.Spec{Text: "ok"})
	s.Sampling.Constraint.Ends = []tandem.Token{97, 98, endOfLetters}
	set.Leave()
	set.Update(t.Context(), bounds)
	s.Text.Append(letters{}.EncodeMarked("o", false)...)
	for _, c := range []struct{ nodes, depth, width, want int }{{10, 5, 5, 5}, {10, 5, 2, 4}, {3, 5, 5, 3}, {10, 1, 5, 2}, {2, 5, 5, 2}} {
		b := tandem.Bounds{Nodes: c.nodes, Depth: c.depth, Width: c.width}
		tree := set.Ready()[0].(*forced).draw(3, tandem.Proposal{Bounds: b}).Tree
		if err := tree.Validate(c.nodes, 100); err != nil || tree.Len() != c.want {
			t.Errorf("%v: %d nodes, %v: want %d", b, tree.Len(), err, c.want)
		}
	}
}
