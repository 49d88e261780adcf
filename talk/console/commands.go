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
	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/talk"
)

// help is what /help prints.
const help = `/set                  the options
/set NAME VALUE       change one, for example /set temperature 0.7
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

// options returns pointers to the options that /set changes, by name.
func options(c *settings.Sampling) map[string]any {
	return map[string]any{"max_tokens": &c.MaxTokens, "temperature": &c.Temperature, "top_k": &c.TopK, "top_p": &c.TopP, "min_p": &c.MinP,
		"accept": &c.Accept,
		"seed":   &c.Seed, "repeat_penalty": &c.RepeatPenalty, "strategy": &c.Strategy, "tree": &c.Tree, "vote": &c.Vote}
}

// set changes an option, or lists them.
func (t *Conversation) set(rest string) error {
	all := options(t.Options)
	if rest == "" {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.note("%-16s %s", name, value(all[name]))
		}
		return nil
	}
	name, v, _ := strings.Cut(rest, " ")
	v = strings.TrimSpace(v)
	at, known := all[name]
	if !known {
		return t.tell(tandem.Errorf("", tandem.Invalid, "/set %.50s: want one of %s", name,
			strings.Join(slices.Sorted(maps.Keys(all)), ", ")))
	}
	before := *t.Options
	err := parse(at, v)
	if err == nil {
		_, err = t.Options.Request("x")
	}
	if err != nil {
		*t.Options = before
		return t.tell(tandem.Errorf("", tandem.Invalid, "/set %s: %w", name, err))
	}
	t.note("%s is %s", name, value(at))
	return nil
}

// parse stores v where at points.
func parse(at any, v string) (err error) {
	switch at := at.(type) {
	case *float64:
		*at, err = strconv.ParseFloat(v, 64)
	case *int:
		*at, err = strconv.Atoi(v)
	case *uint64:
		*at, err = strconv.ParseUint(v, 10, 64)
	case *string:
		*at = v
	}
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%.50q is not a valid number", v)
	}
	return nil
}

// value returns the text of the value that at points to.
func value(at any) string {
	switch at := at.(type) {
	case *float64:
		return strconv.FormatFloat(*at, 'g', -1, 64)
	case *int:
		return strconv.Itoa(*at)
	case *uint64:
		return strconv.FormatUint(*at, 10)
	case *string:
		return cmp.Or(*at, "default")
	}
	return ""
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
