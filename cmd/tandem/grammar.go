package main

import (
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/settings"
	"github.com/tandem-llm/tandem/processes/settings/config"
)

// newParser returns a parser of command lines; from fills in the flags that they leave out. If words are given, the commands that
// none of them names have a name and a line of help, but no flags: kong needs most of a short command's time to read the flags of all.
func newParser(from *config.Resolver, words ...string) (*kong.Kong, error) {
	grammar := any(new(cli))
	if words != nil {
		grammar = reflect.New(outline(reflect.TypeFor[cli](), words)).Interface()
		from.Others = func() []string { // the keys of a file may be flags of any command
			whole, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }))
			if err != nil {
				return nil
			}
			return config.Names(whole.Model)
		}
	}
	return kong.New(grammar, kong.Name("tandem"), kong.Resolvers(from), kong.KindMapper(reflect.String, kong.MapperFunc(rawString)),
		kong.TypeMapper(reflect.TypeFor[[]string](), kong.MapperFunc(rawStrings)),
		kong.KindMapper(reflect.Int, number(reflect.TypeFor[int]())), kong.KindMapper(reflect.Float64, number(reflect.TypeFor[float64]())),
		kong.Help(config.Help), kong.Vars(settings.Words()),
		kong.PostBuild(config.Shorten),
		kong.Description("Speculative decoding of language models, split into three processes."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}))
}

// outline returns the struct t without what is in its commands, except those that a word names.
func outline(t reflect.Type, words []string) reflect.Type {
	fields := make([]reflect.StructField, t.NumField())
	for i := range fields {
		f := t.Field(i)
		name := f.Tag.Get("name")
		if name == "" {
			name = strings.ToLower(f.Name)
		}
		if isCommand(f) && !slices.Contains(words, name) && !slices.Contains(words, f.Tag.Get("aliases")) {
			if f.Type.NumField() > 0 && isCommand(f.Type.Field(0)) {
				f.Type = outline(f.Type, nil)
			} else {
				f.Type = reflect.TypeFor[struct{}]()
			}
		}
		fields[i] = f
	}
	return reflect.StructOf(fields)
}

// isCommand reports whether kong takes a field as a command.
func isCommand(f reflect.StructField) bool {
	_, ok := f.Tag.Lookup("cmd")
	return ok
}
