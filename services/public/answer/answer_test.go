package answer

import (
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/services/public/conversation"
	"github.com/tandem-llm/tandem/text/calls"
)

// TestThoughts: tokens of thoughts are counted, with their markers' ends; those of a piece that ends a thought by their part.
func TestThoughts(t *testing.T) {
	o := conversation.Output{Reader: func() *calls.Reader { return calls.Hermes.Reader(calls.Options{}) }}
	for _, c := range []struct {
		pieces  []string
		tokens  int // of each
		thought int
		text    string
	}{
		{[]string{"Hello", " you"}, 1, 0, "Hello you"},
		{[]string{"<think>", "Hm", ".", "</think>", "Yes"}, 1, 3, "Yes"},
		{[]string{"<think>abc</think>abc"}, 8, 4, "abc"},
	} {
		var got Whole
		m := New(o, "", got.Add)
		for _, p := range c.pieces {
			if err := m.Delta(tandem.Delta{Text: p, Tokens: make([]tandem.Token, c.tokens)}); err != nil {
				t.Fatal(err)
			}
		}
		if err := m.End(tandem.Result{Finish: tandem.FinishStop}); err != nil || got.Thoughts != c.thought || got.Text.String() != c.text {
			t.Errorf("%q: %d tokens of thoughts, text %q, %v", c.pieces, got.Thoughts, got.Text.String(), err)
		}
	}
}

// TestOutputs: each output comes with its first event, and whatever makes no piece with an empty text; ids follow from a name.
func TestOutputs(t *testing.T) {
	o := conversation.Output{Custom: map[string]bool{"patch": true}, Reader: func() *calls.Reader {
		return calls.Hermes.Reader(calls.Options{Tools: calls.Tools{{Name: "patch"}, {Name: "f"}}})
	}}
	ids := ""
	for _, step := range []int{1, 7, 1000} {
		var got Whole
		outputs, seen := 0, ""
		m := New(o, "x", func(e *Event) error {
			if e.Output != nil {
				outputs++
			}
			seen += e.ID
			return got.Add(e)
		})
		text, deltas := "Look:\n<tool_call>{\"name\":\"patch\",\"arguments\":{\"input\":\"a\\nb\"}}</tool_call><tool_call>{\"name\":\"f\","+
			"\"arguments\":{\"a\":1}}</tool_call>", 0
		for rest := text; rest != ""; deltas++ {
			n := min(step, len(rest))
			_ = m.Delta(tandem.Delta{Text: rest[:n], Tokens: []tandem.Token{1}})
			rest = rest[n:]
		}
		_ = m.End(tandem.Result{Finish: tandem.FinishStop})
		if outputs != deltas || len(got.Tokens) != deltas {
			t.Errorf("in steps of %d: %d outputs and %d tokens, want %d", step, outputs, len(got.Tokens), deltas)
		}
		if len(got.Calls) != 2 || got.Calls[0].Arguments != "a\nb" || got.Calls[1].Arguments != `{"a":1}` || !got.Called {
			t.Errorf("in steps of %d: calls %+v, called %v", step, got.Calls, got.Called)
		}
		if ids == "" {
			ids = seen
		}
		if seen != ids {
			t.Errorf("in steps of %d the ids are %s, want %s", step, seen, ids)
		}
	}
}
