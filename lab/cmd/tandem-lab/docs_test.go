package main

import (
	"regexp"
	"testing"

	"github.com/tandem-llm/tandem/test/testkit"
)

// documented is a command line of tandem-lab in a document, up to a comment.
var documented = regexp.MustCompile(`(?m)^(?:(?:    )?\./tandem-lab|    tandem-lab) ([^#\n]*)`)

// TestDocumentedCommands: every command line in the documents is one that tandem-lab understands.
func TestDocumentedCommands(t *testing.T) {
	all := testkit.Documented(t, "../../..", documented)
	for _, args := range all {
		parser, err := newParser()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse(args); err != nil {
			t.Errorf("tandem-lab %q: %v", args, err)
		}
	}
	if len(all) < 8 {
		t.Errorf("%d command lines found: want all of them", len(all))
	}
}
