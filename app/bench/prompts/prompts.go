// Package prompts reads files of prompts to measure with.
package prompts

import (
	"bufio"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/test/testdata"
)

// Prompt is one line of a prompts file, or a generated prompt.
type Prompt struct {
	ID     string         `json:"id"`
	Domain string         `json:"domain"`
	Prompt string         `json:"prompt,omitempty"`
	Tokens []tandem.Token `json:"tokens,omitempty"` // instead of Prompt
}

// Set is the prompts of one class.
type Set struct {
	Name    string
	Prompts []Prompt
}

// The files that the program carries: Read takes them where there is no such file.
const (
	Texts = "test/testdata/prompts.jsonl" // to continue
	Chats = "test/testdata/chats.jsonl"
)

// Read reads a file of prompts, by domain in order of appearance. Errors: Invalid, in the words of the command line.
func Read(path string) ([]Set, error) {
	var f fs.File
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) && (path == Texts || path == Chats) {
		f, err = testdata.Prompts.Open(filepath.Base(path))
	}
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: %w", path, errors.Unwrap(err))
	}
	defer f.Close()
	var sets []Set
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, tandem.DefaultLimits.PromptBytes)
	for n := 1; lines.Scan(); n++ {
		var p Prompt
		if err := json.Unmarshal(lines.Bytes(), &p); err != nil || (p.Prompt == "") == (len(p.Tokens) == 0) {
			return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: line %d: want an object with id, domain, and prompt or tokens",
				path, n)
		}
		i := slices.IndexFunc(sets, func(s Set) bool { return s.Name == p.Domain })
		if i < 0 {
			i, sets = len(sets), append(sets, Set{Name: p.Domain})
		}
		sets[i].Prompts = append(sets[i].Prompts, p)
	}
	if err := lines.Err(); err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: %w", path, err)
	}
	if len(sets) == 0 {
		return nil, tandem.Errorf("", tandem.Invalid, "--prompts %s: no prompts", path)
	}
	return sets, nil
}

// Take returns the set with its first n prompts; with all for n = 0. It shares the prompts.
func (s Set) Take(n int) Set {
	if n > 0 && n < len(s.Prompts) {
		s.Prompts = s.Prompts[:n]
	}
	return s
}
