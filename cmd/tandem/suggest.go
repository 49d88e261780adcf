package main

import (
	"errors"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/settings"
	"github.com/tandem-llm/tandem/settings/config"
)

// elsewhere are the names of other programs for what tandem calls otherwise.
var elsewhere = map[string][]string{
	"serve": {"up"}, "server": {"up"}, "start": {"up"}, "chat": {"run"}, "complete": {"generate"},
	"--ctx-size": {"--ctx"}, "-c": {"--ctx"}, "--max-model-len": {"--ctx"}, "--context-length": {"--ctx"},
	"--threads": {"--verifier-threads", "--threads"}, "-t": {"--verifier-threads", "--threads"},
	"--parallel": {"--sessions"}, "-np": {"--sessions"}, "--max-num-seqs": {"--sessions"}, "--model-draft": {"--draft"}, "-md": {"--draft"},
	"--n-predict": {"--max-tokens"}, "-n": {"--max-tokens"}, "--predict": {"--max-tokens"}, "-p": {"--prompt"}, "-f": {"--prompt-file"},
	"--api-key-file": {"--api-keys"}, "--served-model-name": {"--alias"}, "--allowed-origins": {"--cors-origin"}, "--mlock": {"--lock"},
	"--cache-type-k": {"--kv-type"}, "--cache-type-v": {"--kv-type"}, "--chat-template-file": {"--chat-template"},
}

// inLab are commands that were moved to cmd/tandem-lab.
var inLab = []string{"bench devices", "bench experts", "bench guesses", "bench kernels", "bench split", "hops", "trace"}

// movedToLab says which command of the lab does what one of tandem did.
func movedToLab(old, command string) error {
	return tandem.Errorf("", tandem.Invalid, "%s is for tandem's developers, and not in this program: in a checkout, "+
		"go run ./cmd/tandem-lab %s", old, command)
}

// plainly returns the error of a wrong command line. An unknown command or flag is answered with the nearest one.
func plainly(err error) error {
	var p *kong.ParseError
	if !errors.As(err, &p) || p.Context == nil {
		return err
	}
	node := p.Context.Model.Node
	if at := p.Context.Selected(); at != nil {
		node = at
	}
	if word, ok := wrongWord(err, "unknown flag "); ok {
		var known []string
		for _, group := range node.AllFlags(false) {
			for _, f := range group {
				if _, ok := settings.Find(f.Name); ok || !f.Hidden {
					known = append(known, "--"+f.Name)
				}
			}
		}
		return tandem.Errorf("", tandem.Invalid, "unknown flag %s%s", word, suggestion(word, known, "`"+strings.TrimSpace(node.FullPath())+
			" --help` lists the flags"))
	}
	if word, ok := wrongWord(err, "unexpected argument "); ok {
		if command := strings.TrimPrefix(node.FullPath()+" "+word, "tandem "); slices.Contains(inLab, command) {
			return movedToLab("tandem "+command, command)
		}
		var known []string
		for _, c := range node.Children {
			if !c.Hidden {
				known = append(known, c.Name)
			}
		}
		if len(known) == 0 {
			return tandem.Errorf("", tandem.Invalid, "unexpected argument %q: `%s` takes flags alone", word, node.FullPath())
		}
		return tandem.Errorf("", tandem.Invalid, "unknown command %q%s", word, suggestion(word, known, "`"+node.FullPath()+
			" --help` lists the commands"))
	}
	return err
}

// wrongWord returns the word that an error of kong blames.
func wrongWord(err error, prefix string) (string, bool) {
	rest, ok := strings.CutPrefix(err.Error(), prefix)
	word, _, _ := strings.Cut(rest, ", did you mean")
	return word, ok
}

// suggestion names the known word that is nearest to a wrong one, or says what lists them all.
func suggestion(word string, known []string, otherwise string) string {
	for _, name := range elsewhere[word] {
		if slices.Contains(known, name) {
			return ": did you mean " + name + "?"
		}
	}
	if near := config.Nearest(word, known); near != "" {
		return ": did you mean " + near + "?"
	}
	return "; " + otherwise
}
