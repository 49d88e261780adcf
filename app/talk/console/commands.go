package console

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/talk"
	"github.com/tandem-llm/tandem/app/terminal"
)

// help is what /help prints.
const help = `/set                  the options
/set NAME VALUE       change one, as /set temperature 0.7; VALUE default takes it back
/system TEXT          the system message; without TEXT none
/save FILE            write the conversation to a file
/load FILE            go on with the conversation in a file
/show                 the model, the system message and the options
/plain                speculation off, or on again
/stats                how the latest answer came about
/measure              the latest request again, with and without speculation
/clear                forget the conversation
/bye                  end, as Ctrl-D does
"""                   begins and ends a message of several lines; a backslash at the end of a line, Alt-Enter or a paste do too`

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
	takes := map[string]string{"set": "", "system": "", "save": "a file's name", "load": "a file's name"}
	if wants, some := takes[name]; rest != "" && !some || rest == "" && wants != "" {
		return false, t.tell(tandem.Errorf("", tandem.Invalid, "/%s takes %s after it", name, cmp.Or(wants, "nothing")))
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
	case "show":
		t.note("%s, context %d tokens; system: %s", t.Model, t.Context, cmp.Or(t.SystemText(), "none"))
		return false, t.set("")
	case "system":
		return false, t.did(t.System(rest), "the system message is "+cmp.Or(rest, "none"))
	case "save":
		return false, t.did(t.Save(rest), "saved in "+rest)
	case "load":
		return false, t.did(t.Load(rest), "the conversation of "+rest+" goes on")
	default:
		return false, t.tell(tandem.Errorf("", tandem.Invalid, "/%s: there is no such command; /help lists them", name))
	}
	return false, nil
}

// did tells that something was done, or why not.
func (t *Conversation) did(err error, what string) error {
	if err != nil {
		return t.tell(err)
	}
	t.note("%s", what)
	return nil
}

// complete returns the lines that begin with before: commands, options of /set, and files.
func (t *Conversation) complete(before string) (out []string) {
	var all []string
	switch word, rest, more := strings.Cut(before, " "); {
	case !strings.HasPrefix(before, "/"):
		return nil
	case !more:
		for line := range strings.Lines(help) {
			if word, _, _ := strings.Cut(strings.TrimSpace(line), " "); strings.HasPrefix(word, "/") {
				all = append(all, word)
			}
		}
	case word == "/set":
		for _, name := range slices.Sorted(maps.Keys(t.options())) {
			all = append(all, "/set "+name)
		}
	case word == "/save", word == "/load":
		files, _ := filepath.Glob(glob.Replace(rest) + "*") // of a wrong pattern there are none
		for _, file := range files {
			if st, err := os.Stat(file); err == nil && st.IsDir() {
				file += "/"
			}
			if terminal.Shown(file) == file {
				all = append(all, word+" "+file)
			}
		}
	}
	for _, s := range all {
		if strings.HasPrefix(s, before) && !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// glob escapes what patterns of files give a meaning.
var glob = strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`)

// option is what /set changes: what points to its value, and what it is where that is nil or empty.
type option struct {
	at, otherwise any
	one           bool // a list whose value is one text, commas and all
	unlimited     bool // 0 and less are no limit
}

// optionName returns the name of a field as requests over HTTP have it: max_tokens of MaxTokens.
func optionName(field string) string {
	var out strings.Builder
	for i, r := range field {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(rune(field[i-1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// options returns them by name: every setting of a request of the command line.
func (t *Conversation) options() map[string]option {
	all := map[string]option{}
	drawn := reflect.ValueOf(t.Drawn)
	var add func(v reflect.Value)
	add = func(v reflect.Value) {
		for f, at := range v.Fields() {
			if f.Anonymous {
				add(at)
				continue
			}
			o := option{at.Addr().Interface(), cmp.Or(f.Tag.Get("default"), "none"), f.Tag.Get("sep") == "none", false}
			if d := drawn.FieldByName(f.Name); d.IsValid() && at.Kind() == reflect.Pointer {
				o.otherwise = d.Interface()
			}
			o.unlimited = f.Name == "MaxTokens"
			all[optionName(f.Name)] = o
		}
	}
	add(reflect.ValueOf(t.Options).Elem())
	for name, says := range map[string]string{"seed": "random", "strategy": "planner", "tree": "the strategy's", "vote": "auto"} {
		all[name] = option{all[name].at, says, false, false}
	}
	return all
}

// set changes an option, or lists them.
func (t *Conversation) set(rest string) error {
	all := t.options()
	if rest == "" {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			t.note("%-17s %s", name, all[name])
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
	case *[]string:
		switch *at = nil; {
		case v == "default":
		case o.one:
			*at = []string{v}
		default:
			*at = strings.Split(v, ",")
		}
	case *bool:
		switch v {
		case "true", "on":
			*at = true
		case "false", "off", "default":
			*at = false
		default:
			return tandem.Errorf("", tandem.Invalid, "%.50q: want on or off", v)
		}
	case *float64:
		if *at = 0; v != "default" {
			*at, err = strconv.ParseFloat(v, 64)
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
		if v = *at; o.unlimited && *at <= 0 {
			return fmt.Sprint(*at) + ", no limit"
		}
	case *string:
		if *at != "" {
			v = *at
		}
	case *[]string:
		if len(*at) > 0 {
			v = fmt.Sprintf("%q", *at)
		}
	case *bool:
		v = map[bool]string{true: "on", false: "off"}[*at]
	case *float64:
		v = *at
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
