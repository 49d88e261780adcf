package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine/gguf"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/roles/drafter"
)

// The models used by default.
const (
	defaultTarget = models.Target
	defaultDraft  = models.Draft
	modulePath    = "github.com/tandem-llm/tandem"
)

// targetPath returns path, or the shipped target's if path is empty.
func targetPath(path string) (string, error) { return modelPath(path, defaultTarget, "target") }

// draftPath returns path, or the shipped draft model's if path is empty.
func draftPath(path string) (string, error) { return modelPath(path, defaultDraft, "draft") }

// draftPaths returns the paths of the drafts, the shipped one's if none is named. Errors: Invalid for two
// drafters of one name.
func draftPaths(drafts []string) ([]string, error) {
	if len(drafts) == 0 {
		path, err := draftPath("")
		return []string{path}, err
	}
	return drafts, drafter.Check(drafts)
}

// modelPath returns path or, if it is empty, the shipped model's: in the folder models of the checkout around the working
// directory, in one beside the program, or in the program itself.
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
	if p, ok := gguf.Carries(name); ok {
		return p, nil
	}
	return "", tandem.Errorf("", tandem.Invalid,
		"no model named, and this program was built without the shipped ones: give --%s FILE, or run inside a checkout of tandem, whose "+
			"models/%s is the default (looked above %s)", flag, name, cwd)
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
