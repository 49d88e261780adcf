package hub

import (
	"cmp"
	"path"
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

// bits returns how many bits a weight has, by the file's name.
func bits(p string) int {
	n, err := strconv.Atoi(digits.FindString(quantOf(p)))
	if err != nil {
		return usualBits
	}
	return n
}
