package talk

import (
	"context"
	"errors"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
	"github.com/tandem-llm/tandem/services/conversation"
)

// scripted is a gateway that answers each request with the next of its texts, a token a word; after "!" an answer fails.
type scripted struct {
	texts  []string
	decode []time.Duration // of each answer
	asked  []client.Request
}

func (s *scripted) Generate(_ context.Context, r client.Request) iter.Seq2[client.Event, error] {
	n := len(s.asked)
	s.asked = append(s.asked, r)
	return func(yield func(client.Event, error) bool) {
		if !yield(client.Event{Started: &client.Started{PromptTokens: []uint32{7}, Identity: "i"}}, nil) {
			return
		}
		for i, word := range strings.Fields(s.texts[n]) {
			if word == "!" {
				yield(client.Event{}, &client.Error{Kind: client.Unavailable, Message: "gone"})
				return
			}
			if !yield(client.Event{Delta: &client.Delta{Tokens: []uint32{uint32(i)}, Text: word + " "}}, nil) {
				return
			}
		}
		done := client.Finished{Reason: "stop"}
		if n < len(s.decode) {
			done.Statistics.Decode = s.decode[n]
		}
		yield(client.Event{Finished: &done}, nil)
	}
}

func (s *scripted) Detokenize(_ context.Context, tokens []uint32) (string, error) {
	return strings.Repeat("x", int(tokens[0])), nil
}

// rendered is a chat template that joins what was said.
type rendered struct{}

func (rendered) Reads(string) bool { return false }

func (rendered) Prompt(_ context.Context, of conversation.Conversation) (conversation.Prompt, error) {
	messages := of.Messages
	var tokens []tandem.Token
	for _, m := range messages {
		if m.Content == "unspeakable" {
			return conversation.Prompt{}, errors.New("refused")
		}
		tokens = append(tokens, tandem.Token(len(m.Content)))
	}
	return conversation.Prompt{Tokens: func() []tandem.Token { return tokens }}, nil
}

func request(prompt string) (tandem.Request, error) {
	if prompt == "bad" {
		return tandem.Request{}, errors.New("bad request")
	}
	return tandem.Request{Prompt: prompt, MaxTokens: 9, Bounds: tandem.DefaultBounds(tandem.StrategyFixed),
		Strategy: tandem.StrategyFixed}, nil
}

func nothing(*client.Delta) error { return nil }

// TestTextIsContinued: without a template each line is added to the text so far, with the answers.
func TestTextIsContinued(t *testing.T) {
	gateway := &scripted{texts: []string{"one two", "!", "three !", "four"}}
	c := &Conversation{Client: gateway, Request: request}
	var shown string
	show := func(d *client.Delta) error { shown += d.Text; return nil }
	if a, err := c.Say(t.Context(), "a", show); err != nil || a.Text != "one two " || shown != a.Text || !a.Whole || a.Identity != "i" ||
		!slices.Equal(a.Tokens, []tandem.Token{0, 1}) || a.First <= 0 {
		t.Errorf("answer %+v, %v, shown %q", a, err, shown)
	}
	if a, err := c.Say(t.Context(), "b", nothing); a != nil || tandem.KindOf(err) != tandem.Unavailable {
		t.Errorf("answer %+v, %v: want none", a, err)
	}
	if a, err := c.Say(t.Context(), "c", nothing); err == nil || a.Text != "three " || a.Whole || c.Last != a {
		t.Errorf("answer %+v, %v: want the half that came", a, err)
	}
	if _, err := c.Say(t.Context(), "d", nothing); err != nil {
		t.Error(err)
	}
	var prompts []string
	for _, r := range gateway.asked {
		prompts = append(prompts, r.Prompt)
	}
	if want := []string{"a", "a" + "one two \nb", "a" + "one two \nc", "aone two \ncthree \nd"}; !slices.Equal(prompts, want) {
		t.Errorf("prompts %q, want %q", prompts, want)
	}
	c.Clear()
	gateway.texts = append(gateway.texts, "five")
	if _, err := c.Say(t.Context(), "e", nothing); err != nil || gateway.asked[4].Prompt != "e" {
		t.Errorf("prompt %q after it was cleared, %v", gateway.asked[4].Prompt, err)
	}
}

// TestChat: with a template the turns are rendered; what was refused is taken back.
func TestChat(t *testing.T) {
	gateway := &scripted{texts: []string{"one", "two"}}
	c := &Conversation{Client: gateway, Chat: rendered{}, Request: request}
	for _, said := range []string{"a", "unspeakable", "bbb"} {
		if a, err := c.Say(t.Context(), said, nothing); (err != nil) != (said == "unspeakable") || (a == nil) != (err != nil) {
			t.Errorf("%s: %+v, %v", said, a, err)
		}
	}
	// what the user said, "one ", and what he said then
	if r := gateway.asked[1]; !slices.Equal(r.Tokens, []uint32{1, 4, 3}) || r.Prompt != "" {
		t.Errorf("second request %+v", r)
	}
	for range 2 {
		if word := c.Word(t.Context(), 3); word != "xxx" {
			t.Errorf("word %q", word)
		}
	}
}

// TestCompare repeats the latest request in the order with, without, without, with, and takes the faster of two.
func TestCompare(t *testing.T) {
	const ms = time.Millisecond
	gateway := &scripted{texts: slices.Repeat([]string{"a b c"}, 5), decode: []time.Duration{0, 9 * ms, 20 * ms, 16 * ms, 8 * ms}}
	c := &Conversation{Client: gateway, Request: request}
	speculate := func(*tandem.Request) error { t.Error("the request speculates already"); return nil }
	if _, err := c.Compare(t.Context(), speculate, nil); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("before anything was asked: %v", err)
	}
	if _, err := c.Say(t.Context(), "x", nothing); err != nil {
		t.Fatal(err)
	}
	var steps []int
	got, err := c.Compare(t.Context(), speculate, func(run int) { steps = append(steps, run) })
	want := Comparison{Tokens: 3, Runs: 5, With: 8 * ms, Plain: 16 * ms}
	if err != nil || got != want || !slices.Equal(steps, []int{1, 2, 3, 4}) {
		t.Errorf("%+v, %v, steps %v: want %+v", got, err, steps, want)
	}
	for i, r := range gateway.asked {
		if plain := i == 2 || i == 3; r.NoDraft != plain {
			t.Errorf("run %d: plain %v", i, r.NoDraft)
		}
	}
	c.Last.Request.Bounds = tandem.Bounds{} // it was plain
	gateway.texts = append(gateway.texts, "a b c", "a b c", "a b d", "a b c")
	set := 0
	got, err = c.Compare(t.Context(), func(r *tandem.Request) error {
		set++
		r.Bounds = tandem.DefaultBounds(tandem.StrategyFixed)
		return nil
	}, func(int) {})
	if err != nil || set != 1 || got.Differ != "the token ids are equal, but the text is not" {
		t.Errorf("%+v, %v, set %d times", got, err, set)
	}
}

func TestDifference(t *testing.T) {
	run := func(text string, tokens ...tandem.Token) *Answer { return &Answer{Text: text, Tokens: tokens} }
	for _, tc := range []struct {
		b    *Answer
		want string
	}{
		{run("ab", 1, 2), ""},
		{run("ab", 1, 3), "token 2 is 2 in one run and 3 in another"},
		{run("a", 1), "one run has 2 tokens, another 1"},
		{run("ac", 1, 2), "the token ids are equal, but the text is not"},
	} {
		if got := Difference([]*Answer{run("ab", 1, 2), run("ab", 1, 2), tc.b}); got != tc.want {
			t.Errorf("difference %q: want %q", got, tc.want)
		}
	}
}
