package main

import (
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/terminal"
)

// Short names for what other files of this package use, until they name the room themselves.
var (
	shown, allShown, oneLine, isTerminal = terminal.Shown, terminal.AllShown, terminal.OneLine, terminal.Is
	printJSON, wide                      = terminal.PrintJSON, terminal.Wide
)

// openModel loads a model and shows its progress on stderr.
func (a *app) openModel(path string, o engine.Options) (*engine.Model, error) {
	return terminal.Open(a.stderr, path, o, engine.Open)
}

// openDrafts returns openModel for models among which are drafts that read the hidden states of target.
func (a *app) openDrafts(target string) func(path string, o engine.Options) (*engine.Model, error) {
	return func(path string, o engine.Options) (*engine.Model, error) {
		return terminal.Open(a.stderr, path, o, func(path string, o engine.Options) (*engine.Model, error) {
			return engine.OpenDraft(path, target, o)
		})
	}
}
