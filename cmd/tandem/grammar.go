package main

import (
	"cmp"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/settings/config"
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
		kong.TypeMapper(reflect.TypeFor[[]string](), kong.MapperFunc(rawStrings)), kong.Help(printHelp),
		kong.PostBuild(shorten),
		kong.Description("Speculative decoding of language models, split into a drafter, a verifier and a gateway."),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, FlagsLast: true}))
}

// screenful is how many settings the help of a command lists at most before it leaves out those that few need.
const screenful = 24

// shorten hides those settings of commands with many that are tagged "more".
func shorten(k *kong.Kong) error {
	return kong.Visit(k.Model, func(n kong.Visitable, next kong.Next) error {
		if node, ok := n.(*kong.Node); ok {
			list := slices.DeleteFunc(slices.Clone(node.Flags), func(f *kong.Flag) bool { return f.Group == nil })
			for _, f := range list {
				f.Hidden = f.Hidden || len(list) > screenful && f.Tag.Has("more")
			}
		}
		return next(nil)
	})
}

// printHelp prints the help of a command: its flags in groups without lines between them, each with the first sentence of its help.
func printHelp(options kong.HelpOptions, ctx *kong.Context) error {
	options.ValueFormatter = func(v *kong.Value) string {
		first, _, more := strings.Cut(v.Help, ". ")
		if more && v.Flag != nil && v.Flag.Group != nil {
			return first + "."
		}
		return v.Help
	}
	node := ctx.Selected()
	if node == nil {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	place := func(f *kong.Flag) int {
		if f.Group == nil {
			return -1
		}
		return slices.Index(settings.Groups, f.Group.Key)
	}
	grouped := false
	slices.SortStableFunc(node.Flags, func(a, b *kong.Flag) int {
		grouped = grouped || place(a) >= 0
		return cmp.Compare(place(a), place(b))
	})
	if !grouped {
		return kong.DefaultHelpPrinter(options, ctx)
	}
	to := ctx.Stdout
	var all strings.Builder
	ctx.Stdout = &all
	err := kong.DefaultHelpPrinter(options, ctx)
	ctx.Stdout = to
	head, flags, _ := strings.Cut(all.String(), "\nFlags:\n")
	_, _ = io.WriteString(to, head+"\nFlags:\n"+strings.ReplaceAll(flags, "\n\n", "\n"))
	return err
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
		if isCommand(f) && !slices.Contains(words, name) {
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
