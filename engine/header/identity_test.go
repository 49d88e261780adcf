package header

import (
	"fmt"
	"io"
	"reflect"
	"slices"
	"testing"

	"github.com/tandem-llm/tandem/engine/blocks"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// Every field of a configuration is in the identity or known not to affect results.
func TestIdentityOfShape(t *testing.T) {
	apart := []string{"Arch", "Name", "Context", "Family", // names and bounds, and how a file is read
		"Heads", "KVHeads", "FFN", // follow from layers
		"RopeDim", "LocalRopeDim", "Rope", // are in the rope part
		"Later", "BlockConv", // are in a block draft's part: guess.Draft.WriteShape
		"First", "Nextn", "NextnBeforeNorm", "Together", "StatedScale"} // say how a file is read or described
	f, err := gguf.Open("../../models/gopher-draft-all-f16.gguf")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	h, err := Read(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	digest := func(c *blocks.Config) string {
		return digestOf(func(w io.Writer) { writeConfig(w, c, &h.Weights) })
	}
	var walk func(c *blocks.Config, v reflect.Value, name string)
	walk = func(c *blocks.Config, v reflect.Value, name string) {
		if slices.Contains(apart, name) {
			return
		}
		before := digest(c)
		v = reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
		switch v.Kind() {
		case reflect.Struct:
			for i := range v.NumField() {
				walk(c, v.Field(i), v.Type().Field(i).Name)
			}
			return
		case reflect.Slice:
			for i := range v.Len() {
				walk(c, v.Index(i), fmt.Sprint(name, i))
			}
			return
		case reflect.Bool:
			v.SetBool(!v.Bool())
		case reflect.Int:
			v.SetInt(v.Int() + 1)
		case reflect.Float32, reflect.Float64:
			v.SetFloat(v.Float() + 1)
		default:
			t.Errorf("field %s is a %s: teach this test to change it", name, v.Kind())
		}
		if digest(c) == before {
			t.Errorf("field %s is not in the identity: add it to writeConfig, or here to those that do not compute", name)
		}
	}
	c := h.Config
	c.Shapes = slices.Clone(c.Shapes)
	walk(&c, reflect.ValueOf(&c).Elem(), "Config")
	for name, trait := range map[string]blocks.Traits{"norms of heads": blocks.HeadNorms, "norms of outputs": blocks.PostNorms,
		"sinks": blocks.Sinks, "a gate of shared expert": blocks.GatedShare} {
		fresh := h.Config
		fresh.Experts.Count, fresh.Shapes = 1, slices.Clone(fresh.Shapes)
		fresh.Shapes[0].Shared = 1
		before := digest(&fresh)
		if h.Weights.Layers[0].Traits |= trait; digest(&fresh) == before {
			t.Errorf("%s of the weights are not in the identity", name)
		}
	}
}
