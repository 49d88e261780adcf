package config

import (
	"cmp"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/settings"
)

// screenful is how many settings the help of a command lists at most before it leaves out those that few need.
const screenful = 24

// Shorten hides those settings of commands with many that are tagged "more".
func Shorten(k *kong.Kong) error {
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

// Help prints the help of a command: its flags in groups without lines between them, each with the first sentence of its help.
func Help(options kong.HelpOptions, ctx *kong.Context) error {
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
	group := func(f *kong.Flag) int {
		if f.Group == nil {
			return -1
		}
		return slices.Index(settings.Groups, f.Group.Key)
	}
	grouped := false
	slices.SortStableFunc(node.Flags, func(a, b *kong.Flag) int {
		grouped = grouped || group(a) >= 0
		return cmp.Compare(group(a), group(b))
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
