package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/processes/settings/config"
	"github.com/tandem-llm/tandem/test/testkit"
)

// documented is a command line of tandem in a document, up to a comment.
var documented = regexp.MustCompile(`(?m)^(?:(?:    )?(?:go run \./cmd/tandem|\./tandem)|    tandem) ([^#\n]*)`)

// TestDocumentedCommands: every command line in the documents is one that tandem understands, as it is to be written from the next release
// on; those of the guides are also run, by package test.
func TestDocumentedCommands(t *testing.T) {
	all := testkit.Documented(t, "../..", documented)
	for _, args := range all {
		parser, err := newParser(config.NewResolver(func(string) (string, bool) { return "", false }))
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := parser.Parse(args)
		if err != nil {
			t.Errorf("tandem %q: %v", args, err)
		} else if lines := config.Old(parsed); len(lines) > 0 {
			t.Errorf("tandem %q: %s", args, strings.Join(lines, "; "))
		}
	}
	if len(all) < 30 {
		t.Errorf("%d command lines found: want all of them", len(all))
	}
}
