// Package config resolves the settings of the command line: a flag wins over the environment
// (TANDEM_…), the environment over a YAML file, and the file over the default. It remembers where each value came from.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/files"
)

const (
	op        = "config"
	envPrefix = "TANDEM_"
	fileFlag  = "config" // the flag that names the file; its variable is TANDEM_CONFIG
	maxFile   = 1 << 20  // bytes
)

// perCall tags a flag that belongs to one call and is no setting: `setting:"-"`.
const perCall = "setting"

// secret tags a flag whose value is not shown: `secret:"x"`.
const secret = "secret"

// Resolver is a kong.Resolver over the environment and the file. Use one per parse.
type Resolver struct {
	environ func(string) (string, bool)
	loaded  bool
	path    string
	file    map[string]any // by flag name: a string, or a []any of strings
	err     error          // of the file
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
	if s, ok := r.environ(EnvName(flag.Name)); ok {
		return r.take(flag, s, EnvName(flag.Name))
	}
	if v, ok := r.file[flag.Name]; ok {
		return r.take(flag, v, r.path)
	}
	return nil, nil
}

// Err returns what is wrong with the file of settings, nil for nothing or no file. A parse does not fail by it, so ask after each.
func (r *Resolver) Err() error { return r.err }

// Origin says where the value of a flag came from: "flag", the name of a variable, the path of the
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

// EnvName returns the variable that sets a flag: TANDEM_MAX_TOKENS for max-tokens.
func EnvName(flag string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// isSetting reports whether a flag may be set by the environment and the file.
func isSetting(f *kong.Flag) bool {
	return f.Name != "help" && f.Name != fileFlag && f.Tag.Get(perCall) != "-"
}

// take checks that flag can hold value, so that the error for a wrong one names its origin.
func (r *Resolver) take(flag *kong.Flag, value any, origin string) (any, error) {
	probe := reflect.New(flag.Target.Type()).Elem()
	if err := flag.Mapper.Decode(&kong.DecodeContext{Value: flag.Value, Scan: kong.Scan().PushTyped(value, kong.FlagValueToken)},
		probe); err != nil {
		return nil, tandem.Errorf(op, tandem.Invalid, "%s: %s: %w", origin, flag.Name, err)
	}
	r.origin[flag.Name] = origin
	return value, nil
}

// HasFile reports whether the environment or one of the words of a command line may name a file of settings.
func (r *Resolver) HasFile(words []string) bool {
	_, ok := r.environ(EnvName(fileFlag))
	return ok || slices.ContainsFunc(words, func(w string) bool { return strings.HasPrefix(w, "--"+fileFlag) })
}

// load reads the file that --config or TANDEM_CONFIG names, if any, and checks its keys.
func (r *Resolver) load(ctx *kong.Context) error {
	named := EnvName(fileFlag)
	r.path, _ = r.environ(named)
	for _, p := range ctx.Path {
		if p.Flag != nil && p.Flag.Name == fileFlag {
			named = "--" + fileFlag
			r.path, _ = ctx.FlagValue(p.Flag).(string)
		}
	}
	if r.path == "" {
		return nil
	}
	data, err := read(r.path)
	if err != nil {
		var p *os.PathError
		if errors.As(err, &p) {
			err = p.Err
		}
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", named, r.path, err)
	}
	if r.file, err = parse(data, settings(ctx.Model.Node)); err != nil {
		return tandem.Errorf("", tandem.Invalid, "%s %s: %w", named, r.path, err)
	}
	return nil
}

func read(path string) ([]byte, error) {
	return files.ReadFile(path, maxFile)
}

// settings returns the names of the settings of all commands at and below node, sorted.
func settings(node *kong.Node) []string {
	var names []string
	for _, f := range node.Flags {
		if isSetting(f) {
			names = append(names, f.Name)
		}
	}
	for _, c := range node.Children {
		names = append(names, settings(c)...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// parse reads a YAML mapping of known keys to scalars or lists of scalars. Scalars stay as they are
// written, so that a flag's own rules read them.
func parse(data []byte, known []string) (map[string]any, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // no document: nothing is set
	case err != nil:
		return nil, oneLine(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("goes on after the first YAML document: want one")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want a mapping of settings, like \"threads: 2\"", root.Line)
	}
	values := map[string]any{}
	for i := 0; i+1 < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		name := key.Value
		if _, found := slices.BinarySearch(known, name); !found {
			return nil, fmt.Errorf("line %d: unknown key %q%s", key.Line, name, hint(name, known))
		}
		if _, twice := values[name]; twice {
			return nil, fmt.Errorf("line %d: key %q is there twice", key.Line, name)
		}
		v, err := plain(value)
		if err != nil {
			return nil, fmt.Errorf("line %d: key %q: %w", value.Line, name, err)
		}
		values[name] = v
	}
	return values, nil
}

// plain turns a YAML node into a string or a list of strings.
func plain(n *yaml.Node) (any, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return n.Value, nil
	case n.Kind == yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, errors.New("want a list of plain values")
			}
			list[i] = item.Value
		}
		return list, nil
	}
	return nil, errors.New("want a value or a list of values")
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
}

// hint names the known key nearest to name, if one is near.
func hint(name string, known []string) string {
	best := Nearest(name, known)
	if best == "" {
		return "; `tandem config` lists the settings"
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// Nearest returns the known word that is nearest to name, "" if none is near.
func Nearest(name string, known []string) string {
	best, distance := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := editDistance(strings.ToLower(strings.ReplaceAll(name, "_", "-")), k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, delete or replace to make b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal, row[j+1] = row[j+1], min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

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
			out = append(out, Setting{f.Name, value, r.Origin(ctx, f), EnvName(f.Name)})
		}
	}
	return out
}
