package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"

	"go.yaml.in/yaml/v3"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/files"
)

// maxWeights bounds a weights file in bytes.
const maxWeights = 1 << 20

// maxDrafterName bounds the name of a drafter in bytes, as a request's validation does.
const maxDrafterName = 200

// Weights reads a JSON object of drafter names and weights. It parses it as YAML, which includes JSON,
// because then the error can name the drafter whose weight is NaN.
func Weights(path string) (map[string]float64, error) {
	bad := func(format string, args ...any) (map[string]float64, error) {
		return nil, tandem.Errorf("", tandem.Invalid, "--weights %s: %w", path, fmt.Errorf(format, args...))
	}
	data, err := files.ReadFile(path, maxWeights)
	if err != nil {
		return bad("%w", files.Reason(err))
	}
	var doc, more yaml.Node
	documents := yaml.NewDecoder(bytes.NewReader(data))
	if err := documents.Decode(&doc); err != nil && !errors.Is(err, io.EOF) {
		return bad("%w", err)
	}
	if err := documents.Decode(&more); !errors.Is(err, io.EOF) {
		return bad("goes on after the first object: want one")
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return bad(`want an object of names and numbers, like {"go": 1.5}`)
	}
	weights := map[string]float64{}
	for nodes := doc.Content[0].Content; len(nodes) > 1; nodes = nodes[2:] {
		name, value := nodes[0].Value, nodes[1]
		v, err := strconv.ParseFloat(value.Value, 64)
		_, twice := weights[name]
		switch {
		case name == "" || len(name) > maxDrafterName:
			return bad("drafter %.50q: want a name of 1 to %d bytes", name, maxDrafterName)
		case twice:
			return bad("drafter %q is there twice", name)
		case value.Kind != yaml.ScalarNode || err != nil || !(v > 0) || math.IsInf(v, 0):
			return bad("weight of drafter %q is %.50s: want a number above 0", name, value.Value)
		}
		weights[name] = v
	}
	return weights, nil
}
