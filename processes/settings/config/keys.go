package config

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/processes/settings"
)

// keys are those that a file and --set may hold: those of package settings, and flags of commands that are none of its settings.
type keys struct {
	here   []string        // names of the flags of the command at hand
	others func() []string // names of all commands; nil: none
}

// name returns the name of the setting with a key. A setting of a section may be named with and without it. Error: what is known instead.
func (k *keys) name(key string) (string, error) {
	if s, ok := settings.Find(key); ok {
		return s.Name, nil
	}
	if k.others != nil && !slices.Contains(k.here, key) {
		k.here, k.others = append(k.here, k.others()...), nil
	}
	if slices.Contains(k.here, key) {
		return key, nil
	}
	known := slices.Clone(k.here)
	for _, s := range settings.List() {
		known = append(known, s.Name, s.Key)
	}
	slices.Sort(known)
	return "", fmt.Errorf("unknown key %q%s", key, hint(key, slices.Compact(known)))
}

// section reports whether settings have keys that begin with this section.
func section(prefix string) bool {
	return slices.ContainsFunc(settings.List(), func(s settings.Setting) bool { return strings.HasPrefix(s.Key, prefix+".") })
}

// assignments reads what --set was given, KEY=VALUE each. Several values of one key are a list.
func (k *keys) assignments(given []string) (map[string]any, error) {
	values := map[string]any{}
	for _, text := range given {
		key, value, ok := strings.Cut(text, "=")
		if !ok {
			return nil, tandem.Errorf("", tandem.Invalid, "--set %.100q: want KEY=VALUE; `tandem config --all` lists the keys", text)
		}
		name, err := k.name(key)
		if err != nil {
			return nil, tandem.Errorf("", tandem.Invalid, "--set: %w", err)
		}
		switch before := values[name].(type) {
		case nil:
			values[name] = value
		case string:
			values[name] = []any{before, value}
		case []any:
			values[name] = append(before, value)
		}
	}
	return values, nil
}

// parse reads a YAML mapping of known keys to scalars or lists of scalars, and of sections to such mappings. It returns the values by the
// settings' names. Scalars stay as they are written, so that a flag's own rules read them.
func (k *keys) parse(data []byte) (map[string]any, error) {
	var doc yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil // no document: nothing is set
	case err != nil:
		return nil, oneLine(err)
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, errors.New("goes on after the first YAML document: want one")
	}
	root := doc.Content[0]
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return nil, nil
	}
	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("line %d: want a mapping of settings, like \"threads: 2\"", root.Line)
	}
	values := map[string]any{}
	if err := k.mapping(root, "", values); err != nil {
		return nil, err
	}
	return values, nil
}

// mapping reads the mapping of a section, whose keys have prefix before them, into values.
func (k *keys) mapping(node *yaml.Node, prefix string, values map[string]any) error {
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		full := prefix + key.Value
		if value.Kind == yaml.MappingNode && section(full) {
			if err := k.mapping(value, full+".", values); err != nil {
				return err
			}
			continue
		}
		name, err := k.name(full)
		if err != nil {
			return fmt.Errorf("line %d: %w", key.Line, err)
		}
		if _, twice := values[name]; twice {
			return fmt.Errorf("line %d: key %q is there twice", key.Line, full)
		}
		if values[name], err = plain(value); err != nil {
			return fmt.Errorf("line %d: key %q: %w", value.Line, full, err)
		}
	}
	return nil
}

// plain turns a YAML node into a string or a list of strings.
func plain(n *yaml.Node) (any, error) {
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!binary":
		text, err := base64.StdEncoding.DecodeString(n.Value)
		return string(text), err
	case n.Kind == yaml.ScalarNode && n.Tag != "!!null":
		return n.Value, nil
	case n.Kind == yaml.SequenceNode:
		list := make([]any, len(n.Content))
		for i, item := range n.Content {
			if item.Kind != yaml.ScalarNode || item.Tag == "!!null" {
				return nil, errors.New("want a list of plain values")
			}
			var err error
			if list[i], err = plain(item); err != nil {
				return nil, err
			}
		}
		return list, nil
	}
	return nil, errors.New("want a value or a list of values")
}

func oneLine(err error) error {
	return errors.New(strings.Join(strings.Fields(strings.TrimPrefix(err.Error(), "yaml: ")), " "))
}

// hint names the known key nearest to name, if one is near.
func hint(name string, known []string) string {
	best := Nearest(name, known)
	if best == "" {
		return "; `tandem config --all` lists the settings"
	}
	return fmt.Sprintf(", did you mean %q?", best)
}

// Nearest returns the known word that is nearest to name, "" if none is near.
func Nearest(name string, known []string) string {
	best, distance := "", max(1, len(strings.TrimLeft(name, "-"))/3)+1
	for _, k := range known {
		if d := editDistance(strings.ToLower(strings.ReplaceAll(name, "_", "-")), k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance returns the number of bytes to insert, delete or replace to make b of a (Levenshtein).
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal, row[j+1] = row[j+1], min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
