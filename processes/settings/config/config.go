// Package config resolves the settings of the command line: a flag, or --set, wins over the environment (TANDEM_…), the environment over a
// YAML file, and the file over the default. It remembers where each value came from. What settings there are, package settings says.
package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/processes/settings"
)

const (
	op       = "config"
	fileFlag = "config" // the flag that names the file; its variable is TANDEM_CONFIG
	setFlag  = "set"    // the flag of settings without a flag of their own
	maxFile  = 1 << 20  // bytes
)

// perCall tags a flag that belongs to one call and is no setting: `setting:"-"`.
const perCall = "setting"

// secret tags a flag whose value is not shown: `secret:"x"`.
const secret = "secret"

// Resolver is a kong.Resolver over --set, the environment and the file. Use one per parse.
type Resolver struct {
	// Others returns the names of all commands' flags. It is asked for keys that are not those of package settings and not of the command
	// at hand. nil: there are no others.
	Others func() []string

	environ func(string) (string, bool)
	loaded  bool
	path    string
	file    map[string]any // the file's values by flag name: a string, or a []any of strings
	set     map[string]any // values of --set, likewise
	err     error          // what is wrong with the file or with --set
	origin  map[string]string
}

// NewResolver returns a resolver that reads variables with environ (os.LookupEnv).
func NewResolver(environ func(string) (string, bool)) *Resolver {
	return &Resolver{environ: environ, origin: map[string]string{}}
}

// Validate implements kong.Resolver; everything is checked once the file is known.
func (r *Resolver) Validate(*kong.Application) error { return nil }

// Resolve implements kong.Resolver: the value of a flag that the command line does not set, nil for its
// default.
func (r *Resolver) Resolve(ctx *kong.Context, _ *kong.Path, flag *kong.Flag) (any, error) {
	if !isSetting(flag) {
		return nil, nil
	}
	if !r.loaded {
		r.loaded = true
		r.err = r.load(ctx)
	}
	if r.err != nil {
		return nil, nil // kong would blame this flag: see Err
	}
	if v, ok := r.set[flag.Name]; ok {
		return r.take(flag, v, "--"+setFlag)
	}
	if s, ok := r.environ(settings.Env(flag.Name)); ok {
		return r.take(flag, s, settings.Env(flag.Name))
	}
	if v, ok := r.file[flag.Name]; ok {
		return r.take(flag, v, r.path)
	}
	return nil, nil
}

// Err returns what is wrong with the file of settings or with --set, nil for nothing. A parse does not fail by it, so ask after each.
func (r *Resolver) Err() error { return r.err }

// Origin says where the value of a flag came from: "flag", "--set", the name of a variable, the path of the
// file, or "default". To be called after the parse.
func (r *Resolver) Origin(ctx *kong.Context, flag *kong.Flag) string {
	for _, p := range ctx.Path {
		if p.Flag == flag && !p.Resolved {
			return "flag"
		}
	}
	if o, ok := r.origin[flag.Name]; ok {
		return o
	}
	return "default"
}

// Old returns a line for each flag on the command line that has become a setting of the file: what to write instead.
func Old(ctx *kong.Context) (lines []string) {
	for _, p := range ctx.Path {
		if p.Flag == nil || p.Resolved || !p.Flag.Hidden || !isSetting(p.Flag) {
			continue
		}
		s, ok := settings.Find(p.Flag.Name)
		if !ok {
			continue
		}
		flag, value := "--"+s.Name, "…"
		if v, ok := ctx.FlagValue(p.Flag).(bool); ok {
			if value = fmt.Sprint(v); !v {
				flag = "--no-" + s.Name
			}
		}
		if line := fmt.Sprintf("%s is now --%s %s=%s", flag, setFlag, s.Key, value); !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return lines
}

// isSetting reports whether a flag may be set by the environment and the file.
func isSetting(f *kong.Flag) bool {
	return f.Name != "help" && f.Name != fileFlag && f.Tag.Get(perCall) != "-"
}

// take checks that flag can hold value, so that the error for a wrong one names its origin.
func (r *Resolver) take(flag *kong.Flag, value any, origin string) (any, error) {
	probe := reflect.New(flag.Target.Type()).Elem()
	if probe.Kind() == reflect.Pointer { // as kong does
		probe.Set(reflect.New(probe.Type().Elem()))
	}
	if list, ok := value.([]any); ok && probe.Kind() != reflect.Slice {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %s is given %d times: want one value", origin, flag.Name, len(list))
	}
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(value, kong.FlagValueToken)},
		probe); err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %s: %w", origin, flag.Name, err)
	}
	r.origin[flag.Name] = origin
	return value, nil
}

// load reads --set and the file that --config or TANDEM_CONFIG names, if any, and checks their keys.
func (r *Resolver) load(ctx *kong.Context) error {
	named := settings.Env(fileFlag)
	r.path, _ = r.environ(named)
	var given []string
	flags := map[string]bool{}
	for _, p := range ctx.Path {
		if p.Flag == nil {
			continue
		}
		flags[p.Flag.Name] = true
		switch p.Flag.Name {
		case fileFlag:
			named = "--" + fileFlag
			r.path, _ = ctx.FlagValue(p.Flag).(string)
		case setFlag:
			given, _ = ctx.FlagValue(p.Flag).([]string)
		}
	}
	k := keys{here: names(ctx.Model.Node), others: r.Others}
	var err error
	if r.set, err = k.assignments(given); err != nil {
		return err
	}
	for name := range r.set {
		switch at := ctx.Selected(); {
		case flags[name]:
			return tandem.Errorf("", tandem.Invalid, "--%s and --%s %s=…: want one of them", name, setFlag, name)
		case at != nil && !slices.Contains(names(at), name):
			return tandem.Errorf("", tandem.Invalid, "--%s %s: `%s` has no such setting", setFlag, name, at.FullPath())
		}
	}
	if r.path == "" {
		return nil
	}
	data, err := files.ReadFile(r.path, maxFile)
	if err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", named, r.path, files.Reason(err))
	}
	if r.file, err = k.parse(data); err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", named, r.path, err)
	}
	return nil
}

// names returns the names of the settings of all commands at and below node.
func names(node *kong.Node) []string {
	var all []string
	for _, f := range node.Flags {
		if isSetting(f) {
			all = append(all, f.Name)
		}
	}
	for _, c := range node.Children {
		all = append(all, names(c)...)
	}
	return all
}

// Names returns the names of all settings of an application.
func Names(app *kong.Application) []string { return names(app.Node) }

// Setting is one effective value.
type Setting struct {
	Name   string `json:"name"`
	Value  any    `json:"value"`
	Origin string `json:"origin"`
	Env    string `json:"env"`
}

// hidden stands for a value that is not shown.
const hidden = "(hidden)"

// hideUser hides the part of a URL before its "@", which may be a token or a password; other texts stay as they are.
func hideUser(text string) string {
	scheme, rest, isURL := strings.Cut(text, "://")
	host, _, _ := strings.Cut(rest, "/")
	at := strings.LastIndex(host, "@")
	if !isURL || at < 0 {
		return text
	}
	return scheme + "://" + hidden + host[at:] + rest[len(host):]
}

// Effective returns the settings of the command that ctx selected, with their values and origins. Secrets are not among the values.
func (r *Resolver) Effective(ctx *kong.Context) []Setting {
	var out []Setting
	for _, f := range ctx.Selected().Flags {
		if isSetting(f) {
			value := ctx.FlagValue(f)
			if v := reflect.ValueOf(value); f.Tag.Get(secret) != "" && !v.IsZero() {
				value = hidden
			}
			if text, ok := value.(string); ok {
				value = hideUser(text)
			}
			out = append(out, Setting{f.Name, value, r.Origin(ctx, f), settings.Env(f.Name)})
		}
	}
	return out
}
