package convert

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// recipe says which type each tensor of a model gets.
type recipe struct {
	name     string
	fileType uint32    // general.file_type, as llama.cpp numbers it
	most     gguf.Type // of most weights
}

var recipes = []recipe{
	{"f32", 0, gguf.F32}, {"f16", 1, gguf.F16}, {"bf16", 32, gguf.BF16}, {"q8_0", 7, gguf.Q8_0}, {"q4_0", 2, gguf.Q4_0},
	{"q5_0", 8, gguf.Q5_0}, {"q4_k_m", 15, gguf.Q4_K}, {"q6_k", 18, gguf.Q6_K}, {"q3_k_m", 12, gguf.Q3_K},
	{"q2_k", 10, gguf.Q2_K},
}

// Types returns the names that Quantize and Expand take as a type.
func Types() []string {
	names := make([]string, len(recipes))
	for i, r := range recipes {
		names[i] = r.name
	}
	return names
}

func findRecipe(name string) (*recipe, error) {
	i := slices.IndexFunc(recipes, func(r recipe) bool { return r.name == strings.ToLower(name) })
	if i < 0 {
		return nil, tandem.Errorf(op, tandem.Invalid, "type %q: want one of %s", name, strings.Join(Types(), ", "))
	}
	return &recipes[i], nil
}

// mix is a recipe applied to one model.
type mix struct {
	*recipe
	layers int
	tied   bool // token_embd is the output matrix too
}

// typeOf returns the type in which a tensor is stored; was is its type in the source.
func (m *mix) typeOf(name string, shape []int, was gguf.Type) gguf.Type {
	switch {
	case len(shape) == 1:
		return gguf.F32 // norms and biases
	case !strings.HasSuffix(name, ".weight") || strings.Contains(name, "_norm.") || slices.ContainsFunc(kept, func(part string) bool {
		return strings.Contains(name, part)
	}):
		return was
	}
	return fallback(m.ideal(name), shape[0])
}

// kept are parts of the names of matrices that stay as they are, as in llama.cpp's tool: small ones on which much depends, such as those
// that choose experts.
var kept = []string{"ffn_gate_inp", "ssm_conv1d", "per_layer_model_proj"}

// ideal is typeOf without regard to row lengths: the mixtures of llama.cpp's quantize tool, which gives the
// output matrix Q6_K in all quantised types but Q8_0. With two differences: where its Q3_K_M takes Q5_K, which tandem does not write,
// this takes Q6_K; and attn_v of Q2_K is Q4_K however few query heads share a KV head.
func (m *mix) ideal(name string) gguf.Type {
	output := name == "output.weight" || m.tied && name == "token_embd.weight"
	value, down := strings.Contains(name, "attn_v."), strings.Contains(name, "ffn_down")
	switch {
	case isFloat(m.most) || m.most == gguf.Q8_0:
		return m.most
	case output:
		return gguf.Q6_K
	case m.most == gguf.Q4_K && (value || down) && m.moreBits(layerOf(name)):
		return gguf.Q6_K
	case m.most == gguf.Q3_K && (value && layerOf(name) < 2 || down && layerOf(name) < m.layers/16):
		return gguf.Q6_K
	case m.most == gguf.Q2_K && value:
		return gguf.Q4_K
	case down || value || strings.Contains(name, "attn_output."):
		return m.oneMore()
	}
	return m.most
}

// oneMore returns the next better type for the matrices whose errors harm most, in mixtures of 2 and 3 bits.
func (m *mix) oneMore() gguf.Type {
	switch m.most {
	case gguf.Q2_K:
		return gguf.Q3_K
	case gguf.Q3_K:
		return gguf.Q4_K
	}
	return m.most
}

// moreBits picks the first and the last eighth of the layers and every third between.
func (m *mix) moreBits(layer int) bool {
	eighth := m.layers / 8
	return layer < eighth || layer >= 7*m.layers/8 || (layer-eighth)%3 == 2
}

// fallback returns a type whose blocks fit rows of that length.
func fallback(t gguf.Type, cols int) gguf.Type {
	if (t == gguf.Q2_K || t == gguf.Q3_K) && cols%256 != 0 {
		t = gguf.Q4_0
	}
	if t == gguf.Q4_K && cols%256 != 0 {
		t = gguf.Q5_0
	}
	if t == gguf.Q6_K && cols%256 != 0 {
		t = gguf.Q8_0
	}
	if block, _ := t.Block(); cols%block != 0 {
		t = gguf.F16
	}
	return t
}

// keys sets the keys that say how the weights are stored.
func (m *mix) keys(w *gguf.Writer) {
	// The default alignment will do.
	w.DropKey("general.alignment")
	w.DropKey("general.quantization_version") // both move to the end, where other tools have them
	w.DropKey("general.file_type")
	if !isFloat(m.most) {
		w.Set("general.quantization_version", uint32(2))
	}
	w.Set("general.file_type", m.fileType)
}

// mixOf applies the recipe to the model in f; layers is the number of layers of the result.
func (r *recipe) mixOf(f *gguf.File, layers int) *mix {
	return &mix{recipe: r, layers: layers, tied: f.Tensor("output.weight") == nil}
}

// layersOf reads the architecture and the number of layers.
func layersOf(f *gguf.File) (arch string, layers int, err error) {
	if arch, err = f.String("general.architecture"); err != nil {
		return "", 0, err
	}
	layers, err = f.Int(fmt.Sprintf("%s.block_count", arch), 1, maxLayers)
	return arch, layers, err
}
