package hub

import (
	"cmp"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	drafting = regexp.MustCompile(`(?i)^(mtp|eagle3?|dflash2?|dspark)-`)
	assisted = regexp.MustCompile(`(?i)^gemma-?4.*-assistant\b`) // the kind that llama.cpp's converter writes; others call a chat model so
	digits   = regexp.MustCompile(`[0-9]+`)
)

// usualBits: of a weight of a file whose name does not say them: F16's.
const usualBits = 16

// Drafts returns those of files, paths of files of a repository or folder, that by their names draft for the model in the file target:
// those that are called like it first, then those whose weights have about as many bits.
func Drafts(files []string, target string) []string {
	called := func(p string) string {
		name := strings.TrimSuffix(strings.ToLower(stem(p)), strings.ToLower(quantOf(p)))
		return strings.Trim(drafting.ReplaceAllString(name, ""), "-.")
	}
	other := func(p string) int {
		if like := called(target); like != "" && strings.Contains(called(p), like) {
			return 0
		}
		return 1
	}
	away := func(p string) int { d := bits(p) - bits(target); return max(d, -d) }
	var all []string
	for _, f := range files {
		if base := path.Base(f); path.Ext(f) == ".gguf" && f != target && (drafting.MatchString(base) || assisted.MatchString(base)) {
			all = append(all, f)
		}
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(other(a), other(b)), cmp.Compare(away(a), away(b)), cmp.Compare(a, b))
	})
	return all
}

// mostBeside bounds how many drafts of a repository are remembered.
const mostBeside = 8

// draftsBeside returns the files in a model's folder of its repository that by their names draft for it.
func draftsBeside(c Choice) []string {
	of := c.Files[0].Path
	all := slices.DeleteFunc(Drafts(c.Left, of), func(p string) bool { return path.Dir(p) != path.Dir(of) })
	return all[:min(len(all), mostBeside)]
}

// Beside returns the names of the drafts that a repository has beside the model in the file at path, the likeliest first, if tandem has
// fetched that, and none of them is here. Each is of the model's commit, so that it will lie beside it. It asks no server.
func (c Config) Beside(path string) (names []string) {
	rel, err := filepath.Rel(c.HubCache, path)
	parts := strings.SplitN(filepath.ToSlash(rel), "/", 4)
	if err != nil || len(parts) < 4 || parts[1] != "snapshots" || !commitPart.MatchString(parts[2]) {
		return nil
	}
	root, repo := filepath.Join(c.HubCache, parts[0]), strings.SplitN(parts[0], "--", 3)
	r, err := readReceipt(root, filepath.Join(parts[1:]...))
	if err != nil || len(repo) != 3 {
		return nil
	}
	for _, draft := range r.Drafts[:min(len(r.Drafts), mostBeside)] {
		if !inside(draft) {
			continue
		}
		if _, err := os.Stat(filepath.Join(root, "snapshots", parts[2], filepath.FromSlash(draft))); err == nil {
			return nil
		}
		names = append(names, Name{Source: Hugging, Org: repo[1], Repo: repo[2], Revision: parts[2], Path: draft}.String())
	}
	return names
}

// bits returns how many bits a weight has, by the file's name.
func bits(p string) int {
	n, err := strconv.Atoi(digits.FindString(quantOf(p)))
	if err != nil {
		return usualBits
	}
	return n
}
