// Package settings holds every setting of tandem's processes: one struct a role, Gateway, Drafter and Verifier, one for the commands that
// start all three, Group, and one for a request of the command line, Sampling. A setting is one field. From its tags come the flag, the
// variable TANDEM_…, the key of the configuration file and of --set, what `tandem config` prints, its check, and the line in the file that
// configures a child process.
//
// Tags, most of them kong's: name (default: the field's name in lower case with dashes), default, help (its first sentence is shown by
// --help; ${strategies} in it is one of Words), group (one of Groups), check (see Check), secret (its value is never printed), section (of
// a struct: where its settings are in the file), more (not in the --help of commands with many settings: to be set by --set, the file or a
// variable), completes (what a shell offers: cmd/tandem/completion.go), and setting:"-" (belongs to one call: no setting).
package settings

import (
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"unicode"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/gateway/strategy"
)

// Groups are the groups of settings, in the order of --help.
var Groups = []string{"Text", "Model", "Serving", "Memory", "Speculation", "Devices", "Security"}

// Setting describes one setting.
type Setting struct {
	Key     string `json:"key"` // in the file and for --set: the name, with the section in front if it has one
	Default string `json:"default"`
	Help    string `json:"help"`
	Group   string `json:"group"`
	Env     string `json:"env"`

	Name string `json:"-"` // the flag's; unique
	tag  reflect.StructTag
}

// All has every setting once: Effective values are those of this struct.
type All struct {
	Sampling
	Web
	Answers
	Logging
	Group
	Addresses
	Taps
	Beside
	Advertise string `help:"Address under which others reach a drafter (default: where it listens)." placeholder:"ADDR" group:"Serving"`
	Threads   int    `help:"Threads of a single process; 0 = all cores." default:"0" group:"Devices"`
	Addr      string `help:"Use the gateway at this address and its models." placeholder:"ADDR" group:"Serving"`
}

// List describes the settings of All, in its order. The caller must not change the list.
var List = sync.OnceValue(func() (all []Setting) {
	each(reflect.ValueOf(All{}), "", func(s Setting, _ reflect.Value) { all = append(all, s) })
	return all
})

// Find returns the setting with that name or key.
func Find(nameOrKey string) (Setting, bool) {
	for _, s := range List() {
		if s.Name == nameOrKey || s.Key == nameOrKey {
			return s, true
		}
	}
	return Setting{}, false
}

// Env returns the variable of the setting with that name: TANDEM_MAX_TOKENS for max-tokens.
func Env(name string) string { return "TANDEM_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")) }

// each calls f with the settings in v, a struct, and their values.
func each(v reflect.Value, section string, f func(s Setting, v reflect.Value)) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Anonymous && field.Type.Kind() == reflect.Struct {
			within := field.Tag.Get("section")
			if within == "" {
				within = section
			}
			each(v.Field(i), within, f)
			continue
		}
		if field.Tag.Get("setting") == "-" || field.Tag.Get("help") == "" {
			continue
		}
		s := Setting{Name: field.Tag.Get("name"), Default: field.Tag.Get("default"), Help: words(field.Tag.Get("help")),
			Group: field.Tag.Get("group"), tag: field.Tag}
		if s.Name == "" {
			s.Name = dashed(field.Name)
		}
		if s.Key = s.Name; section != "" {
			s.Key = section + "." + s.Name
		}
		s.Env = Env(s.Name)
		f(s, v.Field(i))
	}
}

// Words are the ${words} in helps that stand for what a table lists.
var Words = sync.OnceValue(func() map[string]string {
	var names, helps, trees []string
	for _, name := range strategy.Names() {
		names, helps = append(names, string(name)), append(helps, fmt.Sprintf("%s drafts %s", name, strategy.Help(name)))
		trees = append(trees, fmt.Sprintf("%s %s", name, tandem.DefaultBounds(name)))
	}
	return map[string]string{"strategies": strings.Join(names, ", "), "drafts": strings.Join(helps, "; "),
		"trees": strings.Join(trees, ", "), "selfdrafts": strings.Join(tandem.SelfDrafts(), ", ")}
})

// words replaces the Words in a help.
func words(help string) string {
	if !strings.Contains(help, "${") {
		return help
	}
	return os.Expand(help, func(name string) string { return Words()[name] })
}

// dashed returns a field's name as a flag's: kv-type of KvType.
func dashed(name string) string {
	var b strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}
