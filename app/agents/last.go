package agents

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// Models are the files of a server's models.
type Models struct {
	Target       string   `json:"target,omitempty"`
	Draft        []string `json:"draft,omitempty"`
	Heads        []string `json:"heads,omitempty"`
	DraftHeads   []string `json:"draft_heads,omitempty"`
	ChatTemplate string   `json:"chat_template,omitempty"`
	NoDraft      bool     `json:"no_draft,omitempty"`
}

// Last is what launch remembers from one call to the next: the models, for a call that names none, and the key of its servers. It is in a
// file of the cache's folder, for this user alone. The key stays the same, since what a server keeps of texts belongs to a key.
type Last struct {
	Models
	Key string `json:"key"`

	path string
}

const (
	lastName = "launch.json"
	maxLast  = 64 << 10
)

// OpenLast reads what is remembered in a folder. A file that is missing, or that others can write or read, counts as empty. Without a key
// it makes one. Errors: Invalid for a file that cannot be read.
func OpenLast(folder string) (*Last, error) {
	l := &Last{path: filepath.Join(folder, lastName)}
	text, err := files.ReadFile(l.path, maxLast)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	} else if err == nil && private(l.path) {
		err = json.Unmarshal(text, l)
	}
	if err != nil {
		return nil, tandem.Errorf("", tandem.Invalid, "%s: %w: remove it", l.path, err)
	}
	if l.Key == "" {
		l.Key = rand.Text()
	}
	return l, nil
}

// private reports whether only this user can have written a file, and can read it.
func private(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().Perm()&0o077 == 0 && files.Trusted(filepath.Dir(path)) == nil
}

// Else gives c the models of the last time if it names no target; a template that c names stays. Errors: Invalid if c names drafts without
// a target, or if there was no last time.
func (l *Last) Else(c *Models) error {
	switch {
	case c.Target != "":
		return nil
	case len(c.Draft)+len(c.Heads)+len(c.DraftHeads) > 0 || c.NoDraft:
		return tandem.Errorf("", tandem.Invalid, "drafts are named and no target: want --target FILE too")
	case l.Target == "":
		return tandem.Errorf("", tandem.Invalid, "no model named, and none is remembered: want --target FILE, and --draft FILE for a "+
			"small model of the same family")
	}
	template := cmp.Or(c.ChatTemplate, l.ChatTemplate)
	*c = l.Models
	c.ChatTemplate = template
	return nil
}

// Save writes c and the key to the file, with absolute paths of files that exist. Errors: Unavailable.
func (l *Last) Save(c Models) error {
	l.Target, l.NoDraft, l.ChatTemplate = absolute(c.Target), c.NoDraft, absolute(c.ChatTemplate)
	l.Draft, l.Heads, l.DraftHeads = allAbsolute(c.Draft), allAbsolute(c.Heads), allAbsolute(c.DraftHeads)
	text, err := json.MarshalIndent(l, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(l.path), 0o700)
	}
	if err == nil {
		err = files.Replace(l.path, append(text, '\n'))
	}
	if err != nil {
		return tandem.Errorf("", tandem.Unavailable, "the models are not remembered: %w", err)
	}
	return nil
}

// absolute returns the path of a file that there is; names that stand for files stay.
func absolute(path string) string {
	if _, err := os.Stat(path); err != nil {
		return path
	}
	if abs, err := filepath.Abs(path); err == nil {
		return abs
	}
	return path
}

func allAbsolute(paths []string) []string {
	paths = slices.Clone(paths)
	for i, p := range paths {
		paths[i] = absolute(p)
	}
	return paths
}
