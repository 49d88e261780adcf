package hub

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Found is a model that lies on this machine.
type Found struct {
	Name  string   `json:"name"` // which Parse takes
	Path  string   `json:"path"` // of its only or first file
	Files []string `json:"files"`
	Size  int64    `json:"size_bytes"` // of all files
	Quant string   `json:"quant,omitempty"`
	Store string   `json:"store"`  // folder of the store
	Ours  bool     `json:"pulled"` // tandem has fetched it: Remove removes it
	Left  []string `json:"left,omitempty"`

	// Of Ollama's models: files, "" if there is none.
	Template string `json:"-"` // of chats
	Params   string `json:"-"` // JSON: how tokens are drawn
	System   string `json:"-"` // the first message of chats

	root string // the folder that holds receipts
	link string // below it: what gives the model its name
}

// Find returns the model of that name from this machine; ok is false if there is none. It asks no server and writes nothing. Errors:
// Invalid for a folder without a model, or a name that means several; Corrupt for a store that cannot be understood.
func (c Config) Find(n Name) (f Found, ok bool, err error) {
	switch n.Source {
	case File:
		return c.findFile(n)
	case Hugging:
		if f, ok, err = c.findHugging(n); ok || err != nil {
			return f, ok, err
		}
		return c.findManifest(Name{Source: Ollama, Host: "hf.co", Namespace: n.Org, Model: n.Repo, Tag: orLatest(n.Quant)})
	case Ollama:
		return c.findManifest(n)
	}
	return c.findWeb(n)
}

func orLatest(tag string) string {
	if tag == "" {
		return latest
	}
	return tag
}

// findFile finds what a path leads to: a file, or the model in a folder.
func (c Config) findFile(n Name) (f Found, ok bool, err error) {
	if strings.HasPrefix(n.Path, gguf.Builtin) {
		return Found{Name: n.Path, Path: n.Path, Files: []string{n.Path}}, true, nil
	}
	path := n.Path
	if rest, home := strings.CutPrefix(path, "~/"); home {
		dir, err := os.UserHomeDir()
		if err != nil {
			return f, false, tandem.Errorf(op, tandem.Invalid, "%s: %w", path, err)
		}
		path = filepath.Join(dir, rest)
	}
	st, err := os.Stat(path)
	if err != nil {
		return f, false, tandem.Errorf(op, tandem.Invalid, "%q: %w", path, files.Reason(err))
	}
	if !st.IsDir() {
		return Found{Name: path, Path: path, Files: []string{path}, Size: st.Size(), Store: filepath.Dir(path)}, true, nil
	}
	f, err = chosenIn(path, "")
	if err != nil {
		return f, false, tandem.Errorf(op, tandem.KindOf(err), "folder %q: %w", path, err)
	}
	f.Name = f.Path
	return f, true, nil
}

// chosenIn returns the model that quant means among the files below dir.
func chosenIn(dir, quant string) (f Found, err error) {
	entries, err := below(dir)
	if err != nil {
		return f, err
	}
	choice, err := Choose(entries, quant)
	if err != nil {
		return f, err
	}
	f = Found{Size: choice.Size(), Store: dir, Left: choice.Left, Quant: choice.Quant}
	for _, e := range choice.Files {
		f.Files = append(f.Files, filepath.Join(dir, filepath.FromSlash(e.Path)))
	}
	f.Path = f.Files[0]
	return f, nil
}

// maxBelow bounds how many files of a folder are looked at: a home folder given by mistake has millions.
const maxBelow = 10000

// below returns the GGUF files below dir, also those that are links; a link to nothing is left out.
func below(dir string) (all []Entry, err error) {
	seen := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if seen++; seen > maxBelow {
			return tandem.Errorf(op, tandem.Invalid, "it holds more than %d files: want the folder of one model", maxBelow)
		}
		if err != nil || filepath.Ext(path) != ".gguf" {
			return nil // one that may not be read holds nothing that can be used
		}
		st, err := os.Stat(path)
		if err != nil || !st.Mode().IsRegular() {
			return nil
		}
		rel, err := filepath.Rel(dir, path)
		all = append(all, Entry{Path: filepath.ToSlash(rel), Size: st.Size()})
		return err
	})
	return all, err
}

// repoFolder returns the folder of a repository in the hub's cache.
func (n Name) repoFolder() string { return "models--" + n.Org + "--" + n.Repo }

// snapshots returns the folders of a repository's snapshots: that of the name's revision, else if the cache has no such reference, and the
// name says none, all of them.
func (c Config) snapshots(n Name) []string {
	repo := filepath.Join(c.HubCache, n.repoFolder())
	commit := n.Revision
	if !commitPart.MatchString(commit) {
		b, err := files.ReadFile(filepath.Join(repo, "refs", n.Revision), 100)
		commit = strings.TrimSpace(string(b))
		if err != nil && n.Revision == mainRevision {
			all, _ := filepath.Glob(filepath.Join(repo, "snapshots", "*"))
			return all
		}
	}
	if !part(commit) {
		return nil
	}
	return []string{filepath.Join(repo, "snapshots", commit)}
}

// findHugging finds a model in the hub's cache.
func (c Config) findHugging(n Name) (f Found, ok bool, err error) {
	for _, dir := range c.snapshots(n) {
		entries, wrong := below(dir)
		if wrong != nil || len(entries) == 0 {
			continue
		}
		found, wrong := chosenIn(dir, n.Quant+n.Path)
		if wrong != nil {
			continue // another quantisation lies there
		}
		found.Name, found.Store, found.root = n.String(), c.HubCache, filepath.Join(c.HubCache, n.repoFolder())
		found.link, err = filepath.Rel(found.root, found.Path)
		found.Ours = err == nil && hasReceipt(found.root, found.link)
		return found, err == nil, err
	}
	return f, false, nil
}

// webFolder returns the folder of a file from another address, below Own.
func (n Name) webFolder() string { return filepath.Join("pulled", shortSum(n.URL)) }

// findWeb finds a file that was fetched from an address.
func (c Config) findWeb(n Name) (f Found, ok bool, err error) {
	link := filepath.Join(n.webFolder(), n.base())
	path := filepath.Join(c.Own, link)
	st, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return f, false, nil
	case err != nil:
		return f, false, tandem.Errorf(op, tandem.Unavailable, "%w", err)
	}
	f = Found{Name: n.String(), Path: path, Files: []string{path}, Size: st.Size(), Quant: quantOf(path), Store: c.Own, root: c.Own,
		link: link}
	f.Ours = hasReceipt(c.Own, link)
	return f, true, nil
}
