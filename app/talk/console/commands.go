package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk"
)

// help is what /help prints.
const help = `/set                  the options
/set NAME VALUE       change one, as /set temperature 0.7; VALUE default takes it back
/plain                speculation off, or on again
/stats                how the latest answer came about
/measure              the latest request again, with and without speculation
/clear                forget the conversation
/bye                  end, as Ctrl-D does
"""                   begins and ends a message of several lines`

// command splits a line that is a command: a slash and a word. Anything else, such as a comment of a programming
// language, is for the model.
func command(text string) (name, rest string, is bool) {
	word, rest, _ := strings.Cut(strings.TrimSpace(text), " ")
	name, is = strings.CutPrefix(word, "/")
	is = is && name != "" && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz?") == ""
	return name, strings.TrimSpace(rest), is
}

// command runs a command.
func (t *Conversation) command(ctx context.Context, name, rest string) (bye bool, err error) {
	if rest != "" && name != "set" {
		return false, t.tell(tandem.Errorf("", tandem.Invalid, "/%s takes nothing after it", name))
	}
	switch name {
	case "bye", "exit", "quit":
		return true, nil
	case "help", "?":
		t.note("%s", help)
	case "clear":
		t.Clear()
		t.note("the conversation begins anew")
	case "plain":
		t.Options.NoDraft = !t.Options.NoDraft
		t.note("speculation is %s", map[bool]string{true: "off", false: "on"}[t.Options.NoDraft])
	case "stats":
		t.printStats()
	case "measure":
		return false, t.measure(ctx)
	case "set":
		return false, t.set(rest)
	default:
		return false, t.tell(tandem.Errorf("", tandem.Invalid, "/%s: there is no such command; /help lists them", name))
	}
	return false, nil
}

// option is what /set changes: what points to its value, and what it is where that is nil or empty.
type option struct {
	at, otherwise any
}

// options returns them by name.
func (t *Conversation) options() map[string]option {
	c, d := t.Options, t.Drawn
	return map[string]option{"max_tokens": {&c.MaxTokens, 0}, "temperature": {&c.Temperature, d.Temperature}, "top_k": {&c.TopK, d.TopK},
		"top_p": {&c.TopP, d.TopP}, "min_p": {&c.MinP, d.MinP}, "seed": {&c.Seed, "random"},
		"repeat_penalty": {&c.RepeatPenalty, d.RepeatPenalty}, "accept": {&c.Accept, "exact"}, "strategy": {&c.Strategy, "planner"},
		"tree": {&c.Tree, "the strategy's"}, "vote": {&c.Vote, "auto"}}
}

// set changes an option, or lists them.
func (t *Conversation) set(rest string) error {
	all := t.options()
	if rest == "" {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.note("%-16s %s", name, all[name])
		}
		return nil
	}
	name, v, _ := strings.Cut(rest, " ")
	v = strings.TrimSpace(v)
	o, known := all[name]
	if !known {
		return t.tell(tandem.Errorf("", tandem.Invalid, "/set %.50s: want one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(all)), ", ")))
	}
	before := *t.Options
	err := o.parse(v)
	if err == nil {
		_, err = t.Options.Request("x", t.Drawn)
	}
	if err != nil {
		*t.Options = before
		return t.tell(tandem.Errorf("", tandem.Invalid, "/set %s: %w", name, err))
	}
	t.note("%s is %s", name, o)
	return nil
}

// parse stores v. "default" takes back what was set.
func (o option) parse(v string) (err error) {
	switch at := o.at.(type) {
	case *int:
		if v == "default" {
			*at = 0
			return nil
		}
		*at, err = strconv.Atoi(v)
	case *string:
		if *at = v; v == "default" {
			*at = ""
		}
	case **float64:
		err = set(at, v, func(v string) (float64, error) { return strconv.ParseFloat(v, 64) })
	case **int:
		err = set(at, v, strconv.Atoi)
	case **uint64:
		err = set(at, v, func(v string) (uint64, error) { return strconv.ParseUint(v, 10, 64) })
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%.50q is not a valid number", v)
	}
	return nil
}

// set stores a number, nil for the default.
func set[T any](at **T, v string, parse func(string) (T, error)) error {
	if *at = nil; v == "default" {
		return nil
	}
	n, err := parse(v)
	*at = &n
	return err
}

// String returns the value as it is shown.
func (o option) String() string {
	var v any
	switch at := o.at.(type) {
	case *int:
		if v = *at; *at <= 0 {
			return fmt.Sprint(*at) + ", no limit"
		}
	case *string:
		if *at != "" {
			v = *at
		}
	case **float64:
		v = shown(*at)
	case **int:
		v = shown(*at)
	case **uint64:
		v = shown(*at)
	}
	if v == nil {
		return fmt.Sprintf("%v (default)", o.otherwise)
	}
	return fmt.Sprint(v)
}

// shown returns what at points to, nil for nil.
func shown[T any](at *T) any {
	if at == nil {
		return nil
	}
	return *at
}

// printStats prints the statistics of the latest answer.
func (t *Conversation) printStats() {
	if t.Last == nil {
		t.note("nothing was asked yet")
		return
	}
	if !t.Last.Whole {
		t.note("%d tokens; the answer was stopped", len(t.Last.Tokens))
		return
	}
	s := talk.Statistics(t.Last)
	t.note("%s", talk.Line(s, len(t.Last.Tokens)))
	t.note("first token %.1f ms, prefill %.1f ms, decoding %.1f ms: drafts %.1f ms, target %.1f ms, between them %.2f ms a round",
		s.FirstTokenMS, s.PrefillMS, s.DecodeMS, s.DraftMS, s.VerifyMS, s.CoordinationP50/1000)
	for _, d := range s.Drafters {
		t.note("%s: %d rounds, %d nodes drafted, %d accepted, weight %.2f", d.Name, d.Rounds, d.Drafted, d.Accepted, d.Weight)
	}
	var choices []string
	for _, name := range slices.SortedFunc(maps.Keys(s.Choices), func(a, b string) int { return s.Choices[b] - s.Choices[a] }) {
		choices = append(choices, fmt.Sprintf("%s %d", name, s.Choices[name]))
	}
	t.note("chosen: %s", cmp.Or(strings.Join(choices, ", "), "nothing"))
}
