package talk

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/client"
)

// scripted is a gateway that answers each request with the next of its texts, a token a word; after "!" an answer fails.
type scripted struct {
	texts  []string
	decode []time.Duration // of each answer
	asked  []client.Request

	messages  [][]client.Message // of each conversation
	variables string             // of the latest
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

// Converse answers as Generate does, and thinks "hm" before; a conversation that ends with "unspeakable" is refused. Its prompt is the
// lengths of what was said.
func (s *scripted) Converse(ctx context.Context, messages []client.Message, variables string, r client.Request) iter.Seq2[
	client.Piece, error] {
	s.messages, s.variables = append(s.messages, messages), variables
	return func(yield func(client.Piece, error) bool) {
		if messages[len(messages)-1].Content == "unspeakable" {
			yield(client.Piece{}, &client.Error{Kind: client.Invalid, Message: "refused"})
			return
		}
		for event, err := range s.Generate(ctx, r) {
			if event.Started != nil {
				event.Started.PromptTokens = nil
				for _, m := range messages {
					event.Started.PromptTokens = append(event.Started.PromptTokens, uint32(len(m.Content)))
				}
			}
			text := ""
			if event.Delta != nil {
				text = event.Delta.Text
				event.Delta.Text = "<raw>"
			}
			if !yield(client.Piece{Event: event}, err) || err != nil {
				return
			}
			if event.Started != nil && !yield(client.Piece{Thought: "hm"}, nil) || text != "" && !yield(client.Piece{Text: text}, nil) {
				return
			}
		}
	}
}

func request(prompt string) (tandem.Request, error) {
	if prompt == "bad" {
		return tandem.Request{}, errors.New("bad request")
	}
	return tandem.Request{Prompt: prompt, MaxTokens: 9, Bounds: tandem.DefaultBounds(tandem.StrategyFixed),
		Strategy: tandem.StrategyFixed}, nil
}

func nothing(*Shown) error { return nil }

// TestTextIsContinued: without a template each line is added to the text so far, with the answers.
func TestTextIsContinued(t *testing.T) {
	gateway := &scripted{texts: []string{"one two", "!", "three !", "four"}}
	c := &Conversation{Client: gateway, Request: request}
	var shown string
	show := func(d *Shown) error { shown += d.Text; return nil }
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

// TestChat: the gateway's chat service answers turns, and what was thought goes back to it; what was refused is taken back. The latest
// request is repeated with the prompt that the gateway made.
func TestChat(t *testing.T) {
	gateway := &scripted{texts: []string{"one", "two", "1", "1", "1", "1"}}
	c := &Conversation{Client: gateway, Chat: true, Variables: "{}", Request: request}
	var shown []string
	show := func(d *Shown) error {
		shown = append(shown, fmt.Sprintf("%s %v %v", d.Text, d.Thought, d.Tokens))
		return nil
	}
	for _, said := range []string{"a", "unspeakable", "bbb"} {
		if a, err := c.Say(t.Context(), said, show); (err != nil) != (said == "unspeakable") || (a == nil) != (err != nil) {
			t.Errorf("%s: %+v, %v", said, a, err)
		}
	}
	if want := []string{"hm true []", "one  false [0]", "hm true []", "two  false [0]"}; !slices.Equal(shown, want) {
		t.Errorf("shown %q, want %q", shown, want)
	}
	want := []client.Message{{Role: "user", Content: "a"}, {Role: "assistant", Content: "one ", Thought: "hm"},
		{Role: "user", Content: "bbb"}}
	if got := gateway.messages[2]; !slices.Equal(got, want) || gateway.variables != "{}" {
		t.Errorf("asked with %+v and variables %s, want %+v", got, gateway.variables, want)
	}
	if r := gateway.asked[1]; r.Prompt != "x" || !r.Report {
		t.Errorf("second request %+v: want its report, which tells who guessed", r)
	}
	if c.Last.Said != "two " || c.Last.Thought != "hm" || c.Last.Text != "<raw>" || !slices.Equal(c.Last.Tokens, []tandem.Token{0}) {
		t.Errorf("the latest answer is %+v", c.Last)
	}
	got, err := c.Compare(t.Context(), func(*tandem.Request) error { return nil }, func(int) {})
	if err != nil || got.Differ != "" || got.Runs != 5 || !slices.Equal(gateway.asked[2].Tokens, []uint32{1, 4, 3}) {
		t.Errorf("compared: %+v, %v, with the prompt %v", got, err, gateway.asked[2].Tokens)
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
	salts := map[string]bool{}
	for i, r := range gateway.asked {
		if salts[r.CacheSalt] || (r.CacheSalt == "") != (i == 0) {
			t.Errorf("run %d has salt %q", i, r.CacheSalt)
		}
		salts[r.CacheSalt] = true
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
