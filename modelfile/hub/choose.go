package hub

import (
	"cmp"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/tandem-llm/tandem"
)

// Entry is a file of a repository or folder.
type Entry struct {
	Path   string // below the repository, with slashes
	Size   int64  // in bytes
	Digest string // "sha256:" or "git:" and hexadecimal digits; "" for a file of this machine
}

// Choice is the file, or all files of a split model in their order, that a name means.
type Choice struct {
	Files []Entry
	Quant string   // such as Q4_K_M; "": the file's name says none
	Left  []string // files beside it that are no language model: projectors of pictures and sound, drafts
}

// Size returns the bytes of all files.
func (c Choice) Size() (n int64) {
	for _, f := range c.Files {
		n += f.Size
	}
	return n
}

// preferred are the quantisations that are taken if the name says none: the first that is there.
var preferred = []string{"Q4_K_M", "Q8_0", "F16", "BF16"}

var (
	splitName = regexp.MustCompile(`^(.*)-([0-9]{5})-of-([0-9]{5})\.gguf$`)
	quantName = regexp.MustCompile(`(?i)(?:^|[-.])((?:UD-)?(?:I?Q[0-9][A-Z0-9_]*|TQ[0-9]_[0-9]|MXFP4[A-Z0-9_]*|BF16|F16|F32))$`)
	besides   = regexp.MustCompile(`(?i)mmproj|imatrix|^(mtp|eagle3?|dflash2?|dspark|medusa|ppd|dovetail)-|^gemma-?4.*-assistant\b`)
)

// stem returns a file's name without folder, ending and number of a split.
func stem(p string) string {
	base := path.Base(p)
	if m := splitName.FindStringSubmatch(base); m != nil {
		return m[1]
	}
	return strings.TrimSuffix(base, path.Ext(base))
}

// quantOf returns the quantisation that a file's name ends with, "" if with none.
func quantOf(p string) string {
	if m := quantName.FindStringSubmatch(stem(p)); m != nil {
		return strings.ToUpper(m[1])
	}
	return ""
}

// Choose returns what quant, a quantisation or the path of a GGUF file, means among files; "" means Q4_K_M, else Q8_0, F16, BF16, or the
// only model. Errors: Invalid if there is no such file, if several could be meant, or if a part of a split model is missing.
func Choose(files []Entry, quant string) (Choice, error) {
	models, left := group(files)
	if len(models) == 0 {
		return Choice{}, tandem.Errorf(op, tandem.Invalid, "there is no GGUF file of a language model%s", among(left))
	}
	var meant [][]Entry
	switch wants := []string{quant}; {
	case strings.HasSuffix(strings.ToLower(quant), ".gguf"):
		for _, all := range slices.Concat(models, asides(files)) {
			if slices.ContainsFunc(all, func(e Entry) bool { return e.Path == quant || path.Base(e.Path) == quant }) {
				meant = append(meant, all)
			}
		}
	case quant == "" && len(models) == 1:
		meant = models
	default:
		if quant == "" {
			wants = preferred
		}
		for _, want := range wants {
			if meant = ofQuant(models, want); len(meant) > 0 {
				break
			}
		}
	}
	if len(meant) > 1 { // the file that is not in a folder
		below := func(m []Entry) bool { return strings.Contains(m[0].Path, "/") }
		if top := slices.DeleteFunc(slices.Clone(meant), below); len(top) == 1 {
			meant = top
		}
	}
	if len(meant) != 1 {
		return Choice{}, ambiguous(models, meant, quant)
	}
	c := Choice{Files: meant[0], Quant: quantOf(meant[0][0].Path), Left: left}
	return c, whole(c.Files)
}

// group returns the models among files, sorted, each with all its parts, and the paths of GGUF files that are no language models.
func group(files []Entry) (models [][]Entry, left []string) {
	at := map[string]int{}
	for _, f := range slices.SortedFunc(slices.Values(files), func(a, b Entry) int { return cmp.Compare(a.Path, b.Path) }) {
		switch {
		case path.Ext(f.Path) != ".gguf" || !inside(f.Path):
			continue
		case besides.MatchString(path.Base(f.Path)):
			left = append(left, f.Path)
			continue
		}
		key := f.Path
		if m := splitName.FindStringSubmatch(f.Path); m != nil {
			key = m[1] + "-of-" + m[3]
		}
		i, known := at[key]
		if !known {
			i, at[key] = len(models), len(models)
			models = append(models, nil)
		}
		models[i] = append(models[i], f)
	}
	return models, left
}

// asides returns the GGUF files that are no language models, each alone, for a name that says which file.
func asides(files []Entry) (all [][]Entry) {
	for _, f := range files {
		if path.Ext(f.Path) == ".gguf" && inside(f.Path) && besides.MatchString(path.Base(f.Path)) {
			all = append(all, []Entry{f})
		}
	}
	return all
}

// ofQuant returns the models whose names end with a quantisation, or have it between '-' or '.'; those that end with it go first.
func ofQuant(models [][]Entry, quant string) (meant [][]Entry) {
	for _, m := range models {
		if strings.EqualFold(quantOf(m[0].Path), quant) {
			meant = append(meant, m)
		}
	}
	if len(meant) > 0 {
		return meant
	}
	word := regexp.MustCompile(`(?i)(^|[-.])` + regexp.QuoteMeta(quant) + `($|[-.])`)
	for _, m := range models {
		if word.MatchString(stem(m[0].Path)) {
			meant = append(meant, m)
		}
	}
	return meant
}

// whole refuses a split model of which a part is missing.
func whole(parts []Entry) error {
	m := splitName.FindStringSubmatch(parts[0].Path)
	if m == nil {
		return nil
	}
	count, _ := strconv.Atoi(m[3]) // five digits
	for i := range count {
		want := fmt.Sprintf("%s-%05d-of-%s.gguf", m[1], i+1, m[3])
		if i >= len(parts) || parts[i].Path != want {
			return tandem.Errorf(op, tandem.Invalid, "the model is split into %d files, and %q is missing", count, want)
		}
	}
	return nil
}

// ambiguous returns the error of a name that means no model, or several.
func ambiguous(models, meant [][]Entry, quant string) error {
	all, what := models, "the repository has no "+quant
	switch {
	case len(meant) > 1:
		all, what = meant, fmt.Sprintf("%d files could be meant", len(meant))
	case quant == "":
		what = "the repository has neither " + strings.Join(preferred, " nor ")
	}
	const most = 20
	var names []string
	for _, m := range all {
		name := quantOf(m[0].Path)
		if name == "" || len(meant) > 1 {
			name = m[0].Path
		}
		if !slices.Contains(names, name) && len(names) < most {
			names = append(names, name)
		}
	}
	return tandem.Errorf(op, tandem.Invalid, "%s: want one of %q behind a colon", what, names)
}

// among says what was left out.
func among(left []string) string {
	if len(left) == 0 {
		return ""
	}
	return fmt.Sprintf(", only %q", left)
}
