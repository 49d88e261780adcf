// Package find finds model files: those that are named, and the shipped ones.
package find

import (
	"bufio"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/gateway/strategy"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
	"github.com/tandem-llm/tandem/models"
	"github.com/tandem-llm/tandem/processes/roles/drafter"
	"github.com/tandem-llm/tandem/text/token"
)

const modulePath = "github.com/tandem-llm/tandem"

// Target returns path, or the path of the shipped target if path is empty. Errors: Invalid if the shipped models cannot be found.
func Target(path string) (string, error) { return modelPath(path, models.Target, "target") }

// Drafts returns the paths of the drafts for requests like r. "mtp" in drafts stands for the draft inside target's file; target "" is the
// shipped one. If drafts names none, they are the shipped experts, or the one draft for everything if r's strategy asks only one drafter.
// For a target of another vocabulary they are then the draft inside its file or, without one, drafter.Lookup. Errors: Invalid for two
// drafters of one name, and for mtp without a target; those of a target that cannot be read.
func Drafts(drafts []string, target string, r tandem.Request) ([]string, error) {
	drafts = slices.DeleteFunc(slices.Clone(drafts), func(d string) bool { return d == "" }) // TANDEM_DRAFT= names none
	if len(drafts) > 0 {
		if err := shippedSides(drafts, "draft"); err != nil {
			return nil, err
		}
		if i := slices.Index(drafts, string(side.MTP)); i >= 0 && target == "" {
			return nil, tandem.Errorf("", tandem.Invalid,
				"--draft mtp is part of a target's file, and the shipped one has none: want --target")
		} else if i >= 0 {
			drafts[i] = side.MTPPath(target)
		}
		return drafts, drafter.Check(drafts)
	}
	if target != "" {
		if own, err := ownDrafts(target); err != nil || own != nil {
			return own, err
		}
	}
	if strategy.AsksOne(r.Strategy) && r.Vote != tandem.VoteTree &&
		r.Vote != tandem.VoteMajority {
		return Shipped(models.Draft)
	}
	return Shipped(models.Experts()...)
}

// ownDrafts returns what drafts for a target that has another vocabulary than the shipped drafts, if nobody names a draft: the layer for
// that in its own file, else lookup alone. It returns nothing for a target of the shipped vocabulary.
func ownDrafts(target string) ([]string, error) {
	shipped, err := Shipped(models.Draft)
	if err != nil {
		return nil, err
	}
	var vocabs [2]*token.Vocab
	for i, path := range []string{target, shipped[0]} {
		if vocabs[i], err = token.Open(path); err != nil {
			return nil, err
		}
	}
	if vocabs[0].Fingerprint() == vocabs[1].Fingerprint() {
		return nil, nil
	}
	mtp := side.MTPPath(target)
	if _, err := engine.SideOf(mtp); tandem.KindOf(err) == tandem.Invalid {
		return []string{drafter.Lookup}, nil
	} else if err != nil {
		return nil, err
	}
	return []string{mtp}, nil
}

// Shipped returns the paths of the shipped drafts of these file names. Errors: Invalid if the shipped models cannot be found.
func Shipped(names ...string) (paths []string, err error) {
	for _, name := range names {
		path, err := modelPath("", name, "draft")
		if err != nil {
			return nil, err
		}
		paths = append(paths, path)
	}
	return paths, nil
}

// Heads returns the paths of the side files that --heads names, in order; medusa and ppd stand for the shipped ones. Errors: Invalid.
func Heads(heads []string) ([]string, error) {
	heads = slices.Clone(heads)
	return heads, shippedSides(heads, "heads")
}

// shippedSides replaces the names medusa, ppd and dovetail of the flag, which stand for the shipped side files, by their paths.
func shippedSides(names []string, flag string) (err error) {
	for i, name := range names {
		file := ""
		switch {
		case flag == "heads" && name == "medusa":
			file = models.Medusa
		case flag == "heads" && name == "ppd":
			file = models.PPD
		case flag == "draft" && name == "dovetail":
			file = models.Dovetail
		default:
			continue
		}
		if names[i], err = modelPath("", file, flag); err != nil {
			return err
		}
	}
	return nil
}

// modelPath returns path or, if it is empty, the shipped model's: in the folder models of the checkout around the working
// directory, in one beside the program, or in the program itself.
func modelPath(path, name, flag string) (string, error) {
	if path != "" {
		return path, nil
	}
	if dir, ok := Checkout(); ok {
		return filepath.Join(dir, "models", name), nil
	}
	if exe, err := os.Executable(); err == nil {
		if p := filepath.Join(filepath.Dir(exe), "models", name); exists(p) {
			return p, nil
		}
	}
	if p, ok := gguf.Carries(name); ok {
		return p, nil
	}
	cwd, _ := os.Getwd() // the working directory may have been removed
	return "", tandem.Errorf("", tandem.Invalid,
		"no model named, and this program was built without the shipped ones: give --%s FILE, or run inside a checkout of tandem, whose "+
			"models/%s is the default (looked above %s)", flag, name, cwd)
}

// Checkout returns the folder of the checkout of tandem that the working directory is in; ok is false outside of one.
func Checkout() (dir string, ok bool) {
	cwd, err := os.Getwd()
	for dir := cwd; err == nil; dir = filepath.Dir(dir) { // the working directory may have been removed
		if isCheckout(dir) {
			return dir, true
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	return "", false
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
