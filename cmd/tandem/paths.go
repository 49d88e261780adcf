package main

import (
	"bufio"
	"errors"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/drafter"
)

// The models that are used when none is named, below the folder models of the checkout.
const (
	defaultTarget = "gopher-19m-q8_0.gguf"
	defaultDraft  = "gopher-draft-all-f16.gguf"
	modulePath    = "github.com/tandem-llm/tandem"
)

// targetPath returns path, or the shipped target's if path is empty.
func targetPath(path string) (string, error) { return modelPath(path, defaultTarget, "target") }

// draftPath returns path, or the shipped draft model's if path is empty.
func draftPath(path string) (string, error) { return modelPath(path, defaultDraft, "draft") }

// lookupDraft is what --draft says for the drafter without a model, and that drafter's name.
const lookupDraft = drafter.LookupName

// draftPaths returns the paths of the drafts, the shipped one's if none is named. Errors: Invalid for two
// drafters of one name.
func draftPaths(drafts []string) ([]string, error) {
	if len(drafts) == 0 {
		path, err := draftPath("")
		return []string{path}, err
	}
	times := map[string]int{}
	for _, d := range drafts {
		times[modelName(d)]++
	}
	for _, d := range drafts {
		if n := times[modelName(d)]; n > 1 {
			return nil, tandem.Errorf("", tandem.Invalid, "--draft is given %d times with the name %s: want each name once", n, modelName(d))
		}
	}
	if len(drafts) > maxDrafts {
		return nil, tandem.Errorf("", tandem.Invalid, "--draft is given %d times: at most %d fit in one process", len(drafts), maxDrafts)
	}
	return drafts, nil
}

// maxDrafts is the number of drafters in one process.
const maxDrafts = 16

func modelPath(path, name, flag string) (string, error) {
	if path != "" {
		return path, nil
	}
	cwd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := cwd; ; dir = filepath.Dir(dir) {
		if isCheckout(dir) {
			return filepath.Join(dir, "models", name), nil
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if exe, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(exe), "models", name); exists(p) {
			return p, nil
		}
	}
	return "", tandem.Errorf("", tandem.Invalid, "no model named: give --%s FILE, or run inside a checkout of tandem, whose models/%s is the default (looked above %s)", flag, name, cwd)
}

// isCheckout reports whether dir holds this module.
func isCheckout(dir string) bool {
	f, err := os.Open(filepath.Join(dir, "go.mod"))
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "module "); ok {
			return strings.TrimSpace(name) == modulePath
		}
	}
	return false
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// reason strips an error of the os package of the operation and path, which its reader names himself.
func reason(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}
