package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem/processes/settings/config"
)

// TestGrammar: the parser that reads only the flags of the commands that are named prints the help of every command, and refuses every
// wrong line, as the parser of all does.
func TestGrammar(t *testing.T) {
	type ended struct{} // --help ends the program
	say := func(whole bool, line []string) (said string) {
		t.Helper()
		words := line
		if whole {
			words = nil
		}
		parser, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }), words...)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		parser.Stdout, parser.Exit = &out, func(int) { panic(ended{}) }
		defer func() {
			if r := recover(); r != nil && r != any(ended{}) {
				panic(r)
			}
			said = out.String() + said
		}()
		if _, err = parser.Parse(line); err != nil {
			return err.Error()
		}
		return ""
	}
	parser, err := newParser(config.NewResolver(os.LookupEnv))
	if err != nil {
		t.Fatal(err)
	}
	lines := [][]string{{"--help"}, {},
		{"generat"}, {"--max-tokens", "3"}, {"bench"}, {"cache"}, {"generate", "--nonsense"}, {"version", "run"},
		{"--config", "/nowhere", "version"}, {"model", "inf"}}
	var walk func(n *kong.Node, path []string)
	walk = func(n *kong.Node, path []string) {
		for _, c := range n.Children {
			p := append(path[:len(path):len(path)], c.Name)
			lines = append(lines, append(p[:len(p):len(p)], "--help"))
			walk(c, p)
		}
	}
	walk(parser.Model.Node, nil)
	if len(lines) < 35 {
		t.Errorf("%d lines: want those of all commands", len(lines))
	}
	for _, line := range lines {
		if got, want := say(false, line), say(true, line); got != want || got == "" && len(line) > 0 && line[len(line)-1] == "--help" {
			t.Errorf("tandem %s:\n%s\nwant\n%s", strings.Join(line, " "), got, want)
		}
	}
}
