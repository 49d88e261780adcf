package find

import (
	_ "embed"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem/modelfile/gguf"
)

//go:embed families.yaml
var families []byte

// Family is a family of models whose smallest drafts for the others: a row of families.yaml.
type Family struct {
	Family, Architecture, Source string
	Targets, Files               pattern
	Names                        []string
	Measured                     []struct {
		Targets pattern
		Gain    float64
		Source  string
	}
}

// pattern is a regular expression in YAML.
type pattern struct{ *regexp.Regexp }

// UnmarshalYAML implements yaml.Unmarshaler.
func (p *pattern) UnmarshalYAML(n *yaml.Node) (err error) {
	p.Regexp, err = regexp.Compile(n.Value)
	return err
}

// Families returns the rows of families.yaml.
var Families = sync.OnceValues(func() (all []Family, err error) { return all, yaml.Unmarshal(families, &all) })

// plainName writes a name as the patterns of families.yaml have it.
func plainName(s string) string {
	return strings.NewReplacer(" ", "-", "_", "-").Replace(strings.ToLower(s))
}

// familyOf returns the family whose small sibling drafts for the model in the file target, and what that was measured to bring it: 0 if
// nobody has. A nil family: the table has none. Errors: those of reading the header.
func familyOf(target string) (*Family, float64, error) {
	all, err := Families()
	if err != nil {
		return nil, 0, err
	}
	f, err := gguf.Open(target)
	if err != nil {
		return nil, 0, err
	}
	defer f.Close()
	arch, _ := f.StringOr("general.architecture", "") // a file without a name has the file's
	name, _ := f.StringOr("general.name", "")
	is := func(p pattern) bool {
		return p.MatchString(plainName(name)) || p.MatchString(plainName(filepath.Base(target)))
	}
	for i := range all {
		if all[i].Architecture != arch || !is(all[i].Targets) || is(all[i].Files) {
			continue
		}
		for _, m := range all[i].Measured {
			if is(m.Targets) {
				return &all[i], m.Gain, nil
			}
		}
		return &all[i], 0, nil
	}
	return nil, 0, nil
}
