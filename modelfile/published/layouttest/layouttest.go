// Package layouttest writes side files as others publish them, for tests alone: the inverse of package published. Tests download nothing,
// so import is tested with these checkpoints.
package layouttest

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// Checkpoint is a side file in a published layout.
type Checkpoint struct {
	sttest.File
	Config     map[string]any
	ConfigName string
}

// Write writes the checkpoint to a folder and returns its path.
func (c *Checkpoint) Write(t testing.TB, dir string) string {
	t.Helper()
	c.File.Write(t, filepath.Join(dir, "model.safetensors"))
	if c.Config != nil {
		text, err := json.Marshal(c.Config)
		if err != nil {
			t.Fatal(err)
		}
		sttest.Put(t, filepath.Join(dir, c.ConfigName), text)
	}
	return dir
}

// Of returns the side file at path, whose weights are f32, in the layout in which its kind is published.
func Of(t testing.TB, path string) *Checkpoint {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s, err := side.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{t: t, file: f, spec: s, c: &Checkpoint{ConfigName: "config.json"}}
	w.c.Metadata = map[string]string{"format": "pt"}
	switch s.Kind {
	case side.Medusa:
		w.medusa()
	case side.PPD:
		w.ppd()
	case side.Dovetail:
		w.dovetail()
	case side.Eagle:
		w.eagle()
	case side.Eagle3:
		w.eagle3()
	}
	return w.c
}

// writer puts a side file's tensors into a checkpoint.
type writer struct {
	t    testing.TB
	file *gguf.File
	spec *side.Spec
	c    *Checkpoint
}

// Values returns the numbers of an f32 tensor; nil if it is not there.
func Values(t testing.TB, f *gguf.File, name string) []float32 {
	t.Helper()
	x := f.Tensor(name)
	if x == nil {
		return nil
	}
	data, err := x.Bytes()
	if err != nil || x.Type != gguf.F32 {
		t.Fatalf("%s of type %s: %v", name, x.Type, err)
	}
	v := make([]float32, x.Elements())
	for i := range v {
		v[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return v
}

// set copies a tensor, if it is there.
func (w *writer) set(name, from string) {
	if x := w.file.Tensor(from); x != nil {
		shape := []int{x.Shape[0]}
		if len(x.Shape) == 2 {
			shape = []int{x.Shape[1], x.Shape[0]}
		}
		w.c.Set(name, sttest.F32(Values(w.t, w.file, from), shape...))
	}
}

// beside sets a matrix with the columns of several, one after the other.
func (w *writer) beside(name string, from ...string) {
	var parts [][]float32
	rows, cols := 0, 0
	for _, n := range from {
		x := w.file.Tensor(n)
		parts = append(parts, Values(w.t, w.file, n))
		rows, cols = x.Shape[1], cols+x.Shape[0]
	}
	var all []float32
	for r := range rows {
		for i, n := range from {
			width := w.file.Tensor(n).Shape[0]
			all = append(all, parts[i][r*width:(r+1)*width]...)
		}
	}
	w.c.Set(name, sttest.F32(all, rows, cols))
}

// halves reorders the rows of a tensor of the checkpoint from pairs to the halves that Hugging Face rotates: element 2i of a head becomes
// element i, 2i+1 becomes i + half.
func (w *writer) halves(name string) {
	x, ok := w.c.Tensors[name]
	if !ok {
		return
	}
	head := w.spec.Draft.HeadDim
	row := len(x.Data) / x.Shape[0]
	out := make([]byte, len(x.Data))
	for first := 0; first < x.Shape[0]; first += head {
		for i := range head {
			to := first + i%2*head/2 + i/2
			copy(out[to*row:(to+1)*row], x.Data[(first+i)*row:])
		}
	}
	x.Data = out
	w.c.Tensors[name] = x
}

func (w *writer) medusa() {
	for k := range w.spec.Levels {
		for b := range w.spec.Blocks {
			w.set(fmt.Sprintf("%d.%d.linear.weight", k, b), fmt.Sprintf("medusa.%d.%d.weight", k, b))
			w.set(fmt.Sprintf("%d.%d.linear.bias", k, b), fmt.Sprintf("medusa.%d.%d.bias", k, b))
		}
		w.set(fmt.Sprintf("%d.%d.weight", k, w.spec.Blocks), fmt.Sprintf("medusa.%d.output.weight", k))
	}
	w.c.Config = map[string]any{"medusa_num_heads": w.spec.Levels, "medusa_num_layers": w.spec.Blocks, "base_model_name_or_path": "x"}
}

func (w *writer) ppd() {
	s, d := w.spec, w.spec.Dim
	ours, theirs := Values(w.t, w.file, "ppd.embd.weight"), make([]float32, d*w.spec.Levels*w.spec.Members)
	for i := range s.Levels {
		for j := range s.Members {
			copy(theirs[(i*s.Members+j)*d:][:d], ours[(j*s.Levels+i)*d:])
		}
	}
	w.c.Set("prompt_embeddings", sttest.F32(theirs, s.Levels*s.Members, d))
	w.c.ConfigName = "adapter_config.json"
	w.c.Config = map[string]any{"peft_type": "PROMPT_TUNING", "num_special_tokens": s.Levels,
		"virtual_tokens_per_special_token": s.Members,
		"vt_attention_type":                "ENSEMBLE", "aggregation_type": "MEAN", "num_exits": 1}
}

var parts = [][2]string{{"attn_norm", "input_layernorm"}, {"hidden_norm", "hidden_norm"}, {"ffn_norm", "post_attention_layernorm"},
	{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"}, {"attn_v", "self_attn.v_proj"}, {"attn_output", "self_attn.o_proj"},
	{"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}}

// draft writes the blocks, each with a prefix, and the configuration.
func (w *writer) draft(prefix func(block int) string) {
	d := w.spec.Draft
	for b := range w.spec.Blocks {
		for _, p := range parts {
			ours, theirs := fmt.Sprintf("blk.%d.%s.", b, p[0]), prefix(b)+p[1]+"."
			if w.file.Tensor(ours+"embd.weight") != nil {
				w.beside(theirs+"weight", ours+"embd.weight", ours+"hidden.weight")
			}
			w.set(theirs+"weight", ours+"weight")
			w.set(theirs+"bias", ours+"bias")
			if strings.HasSuffix(p[1], "q_proj") || strings.HasSuffix(p[1], "k_proj") {
				w.halves(theirs + "weight")
				w.halves(theirs + "bias")
			}
		}
	}
	w.set("norm.weight", "output_norm.weight")
	w.c.Config = map[string]any{"architectures": []string{"LlamaForCausalLM"}, "hidden_size": d.Width, "intermediate_size": d.FFN,
		"num_attention_heads": d.Heads, "num_key_value_heads": d.KVHeads, "num_hidden_layers": w.spec.Blocks, "vocab_size": w.spec.Vocab,
		"max_position_embeddings": d.Context, "rms_norm_eps": d.Eps, "rope_theta": d.RopeBase, "hidden_act": "silu", "rope_scaling": nil}
}

func layers(b int) string { return fmt.Sprintf("layers.%d.", b) }

func (w *writer) dovetail() {
	w.set("fc1.weight", "fuse.hidden.weight")
	w.set("fc1.bias", "fuse.hidden.bias")
	w.set("fc2.weight", "fuse.embd.weight")
	w.set("fc2.bias", "fuse.embd.bias")
	w.beside("gate.weight", "fuse.gate.hidden.weight", "fuse.gate.embd.weight")
	w.set("gate.bias", "fuse.gate.bias")
	w.draft(layers)
	w.c.Config["target_layer"] = w.spec.Taps[0]
}

func (w *writer) eagle() {
	w.beside("fc.weight", "fc.embd.weight", "fc.hidden.weight")
	w.set("fc.bias", "fc.bias")
	w.draft(layers)
}

func (w *writer) eagle3() {
	s := w.spec
	w.beside("fc.weight", "fc.0.weight", "fc.1.weight", "fc.2.weight")
	w.draft(func(int) string { return "midlayer." })
	w.set("lm_head.weight", "output.weight")
	w.set("embed_tokens.weight", "token_embd.weight")
	offsets, known := make([]int64, len(s.Draft.IDs)), make([]bool, s.Vocab)
	for i, id := range s.Draft.IDs {
		offsets[i], known[id] = int64(id-i), true
	}
	w.c.Set("d2t", sttest.I64(offsets...))
	w.c.Set("t2d", sttest.Bools(known...))
	w.c.Config["draft_vocab_size"] = len(s.Draft.IDs)
	w.c.Config["architectures"] = []string{"LlamaForCausalLMEagle3"}
	outputs := make([]int, len(s.Taps)) // as SGLang counts: layers from 0, whose outputs are meant
	for i, tap := range s.Taps {
		outputs[i] = tap - 1
	}
	w.c.Config["eagle_config"] = map[string]any{"eagle_aux_hidden_state_layer_ids": outputs, "use_aux_hidden_state": true}
}
