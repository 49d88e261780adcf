package main

import (
	"cmp"
	"embed"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/app/agents"
	"github.com/tandem-llm/tandem/app/terminal"
	"github.com/tandem-llm/tandem/modelfile/hub"
	"github.com/tandem-llm/tandem/processes/settings"
)

//go:embed completion
var completions embed.FS

type completionCmd struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the shell's script, which asks completeCmd.
func (c *completionCmd) Run(a *app) error {
	script, err := completions.ReadFile("completion/" + c.Shell)
	if err != nil {
		return err
	}
	_, err = a.stdout.Write(script)
	return err
}

type completeCmd struct {
	Words []string `arg:"" optional:"" passthrough:"" sep:"none"`
}

// Run prints what the last of the words may be, a line each: a word, perhaps with a tab and what it means, or "/" alone for files.
func (c *completeCmd) Run(a *app) error {
	words := c.Words
	if len(words) > 0 && words[0] == "--" {
		words = words[1:]
	}
	if len(words) == 0 {
		return nil
	}
	for _, s := range a.complete(words) {
		if strings.ContainsFunc(s, terminal.Dangerous) {
			continue // out of the name of a file
		}
		if _, err := io.WriteString(a.stdout, s+"\n"); err != nil {
			return err
		}
	}
	return nil
}

// complete returns what the last of the words behind "tandem" may be.
func (a *app) complete(words []string) []string {
	node, last := a.kong.Model.Node, words[len(words)-1]
	var value *kong.Value // to which the next word belongs
	args, plain := 0, false
	for _, word := range words[:len(words)-1] {
		name, _, given := strings.Cut(word, "=")
		flag := findFlag(node, name)
		child := findCommand(node, word)
		switch {
		case value != nil:
			value = nil
		case plain:
			args++
		case word == "--":
			plain = true
		case flag != nil && !given && !flag.IsBool():
			value = flag.Value
		case strings.HasPrefix(word, "-"):
		case child != nil:
			node = child
		default:
			args++
		}
	}
	name, _, given := strings.Cut(last, "=")
	flag := findFlag(node, name)
	switch {
	case value != nil:
		return a.values(value, "", last)
	case !plain && given && flag != nil:
		return a.values(flag.Value, name+"=", last)
	case !plain && strings.HasPrefix(last, "-"):
		var all []string
		for _, f := range knownFlags(node) {
			all = append(all, described("--"+f.Name, f.Help))
		}
		return begin(all, last)
	case args < len(node.Positional):
		return a.values(node.Positional[args], "", last)
	case len(node.Positional) > 0 && node.Positional[len(node.Positional)-1].IsCumulative():
		return a.values(node.Positional[len(node.Positional)-1], "", last)
	}
	var all []string
	for _, child := range node.Children {
		if !child.Hidden {
			all = append(all, described(child.Name, child.Help))
		}
	}
	return begin(all, last)
}

// values returns what a flag or an argument may be, each with prefix before it. The tag "completes" says what beside its enum.
func (a *app) values(v *kong.Value, prefix, last string) (all []string) {
	if v.Enum != "" {
		all = slices.DeleteFunc(v.EnumSlice(), func(s string) bool { return s == "" })
	}
	kind := v.Tag.Get("completes")
	switch kind {
	case "strategies":
		for _, s := range tandem.DefaultLimits.Strategies {
			all = append(all, string(s))
		}
	case "agents":
		all = agents.Names()
	case "models", "pulled":
		for _, f := range a.models() {
			if kind == "models" || f.Ours {
				all = append(all, f.Name)
			}
		}
	}
	for i := range all {
		all[i] = prefix + all[i]
	}
	all = begin(all, last)
	files := v.Flag == nil && cmp.Or(v.Enum, kind) == ""
	for _, of := range []string{"FILE", "DIR", "PATH"} {
		files = files || v.Flag != nil && strings.HasPrefix(v.Flag.PlaceHolder, of)
	}
	if files || kind == "models" {
		all = append(all, "/")
	}
	return all
}

// models returns the models that are here, none if they cannot be found.
func (a *app) models() []hub.Found {
	p, err := a.puller(settings.CacheDir{})
	if err != nil {
		return nil
	}
	return p.Hub.List()
}

// begin returns those of all that begin with what was typed.
func begin(all []string, typed string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, typed) })
}

// described is a word with the first sentence of its help.
func described(word, help string) string {
	first, _, _ := strings.Cut(help, ". ")
	return fmt.Sprintf("%s\t%s", word, terminal.OneLine(first))
}

// findFlag returns the flag that a word such as --ctx or -m names, nil for none.
func findFlag(node *kong.Node, word string) *kong.Flag {
	for _, f := range knownFlags(node) {
		long, is := strings.CutPrefix(word, "--")
		if is && (f.Name == long || slices.Contains(f.Aliases, long)) || f.Short != 0 && word == "-"+string(f.Short) {
			return f
		}
	}
	return nil
}

// findCommand returns the command below node that a word names, nil for none.
func findCommand(node *kong.Node, word string) *kong.Node {
	for _, child := range node.Children {
		if child.Name == word || slices.Contains(child.Aliases, word) {
			return child
		}
	}
	return nil
}
