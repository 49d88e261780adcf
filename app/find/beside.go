package find

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/hub"
)

// Candidate is a draft for a target for which nobody has named one. Whether it fits is not known yet.
type Candidate struct {
	File    string  // path
	Sibling string  // the family whose small model it is; "": a file beside the target that was made to draft for it
	Gain    float64 // of a sibling: how many times as fast as plain decoding it was measured to be; 0: nobody has measured it
}

// mostBeside bounds the files of a folder that are looked at.
const mostBeside = 10000

// Beside returns the drafts for the model in the file target that are on this machine, the likeliest first: files in its folder that by
// their names draft for it, then the small sibling of its family, in that folder or in a store. fetch are the names of drafts that are
// nowhere here, the likeliest first: those in the target's repository, then the sibling. Errors: those of reading the target.
func Beside(target string, store hub.Config) (all []Candidate, fetch []string, err error) {
	family, gain, err := familyOf(target)
	if err != nil || strings.HasPrefix(target, gguf.Builtin) {
		return nil, nil, err
	}
	names := namesIn(filepath.Dir(target))
	for _, name := range hub.Drafts(names, filepath.Base(target)) {
		all = append(all, Candidate{File: filepath.Join(filepath.Dir(target), name)})
	}
	if len(all) == 0 {
		fetch = store.Beside(target)
	}
	if family == nil {
		return all, fetch, nil
	}
	sibling := family.here(target, names, store)
	if sibling == "" {
		return all, append(fetch, family.Names[0]), nil
	}
	return append(all, Candidate{File: sibling, Sibling: family.Family, Gain: gain}), fetch, nil
}

// here returns the file of the family's sibling; "": there is none.
func (f *Family) here(target string, names []string, store hub.Config) string {
	for _, name := range names {
		if name != filepath.Base(target) && f.Files.MatchString(plainName(name)) && len(hub.Drafts([]string{name}, "")) == 0 {
			return filepath.Join(filepath.Dir(target), name)
		}
	}
	for _, text := range f.Names {
		n, err := hub.Parse(text, store.Endpoint)
		if err != nil {
			continue
		}
		if found, ok, err := store.Find(n); err == nil && ok {
			return found.Path
		}
	}
	return ""
}

// namesIn returns the names of GGUF files in a folder, as far as it can be read.
func namesIn(dir string) (names []string) {
	f, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer f.Close()
	all, _ := f.Readdirnames(mostBeside)
	for _, name := range all {
		if filepath.Ext(name) == ".gguf" {
			names = append(names, name)
		}
	}
	return names
}
