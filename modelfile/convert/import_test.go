package convert

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const sides = "../../engine/testdata/sides/" // a target and a side file of each kind, with the results of PyTorch (training/golden)

var sideNames = []string{"medusa-shared", "medusa-own", "ppd-1", "ppd-4", "dovetail", "dovetail-bare", "eagle", "eagle3"}

// targetAt returns the target at path.
func targetAt(t testing.TB, path string) side.Target {
	t.Helper()
	names, err := engine.Identify(t.Context(), path, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	info, err := engine.Inspect(path)
	if err != nil {
		t.Fatal(err)
	}
	c := info.Config
	return side.Target{Path: path, Lineage: names.Lineage, Vocabulary: names.Vocabulary, Dim: c.Dim, Vocab: c.Vocab, Layers: c.Layers}
}

// imported imports a checkpoint for the target of sides.
func imported(t *testing.T, in string, change func(*ImportOptions)) (path string, notes []string, err error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.gguf")
	o := ImportOptions{Target: targetAt(t, sides+"target.gguf"), Type: "f32"}
	if change != nil {
		change(&o)
	}
	_, notes, err = Import(t.Context(), in, out, o)
	return out, notes, err
}

func readSide(t testing.TB, path string) (*gguf.File, *side.Spec) {
	t.Helper()
	f := open(t, path)
	s, err := side.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	return f, s
}

// sameSide checks that the files hold the same side file, but for keys in general.
func sameSide(t *testing.T, got, want string) {
	t.Helper()
	g, gs := readSide(t, got)
	w, ws := readSide(t, want)
	gs.Name, ws.Name = "", "" // of the checkpoint
	if !reflect.DeepEqual(gs, ws) {
		t.Errorf("keys %+v: want %+v", gs, ws)
	}
	for i := range w.Tensors() {
		x := &w.Tensors()[i]
		if y := g.Tensor(x.Name); y == nil || !slices.Equal(x.Shape, y.Shape) || !bytes.Equal(bytesOf(t, x), bytesOf(t, y)) {
			t.Errorf("tensor %s differs", x.Name)
		}
	}
	if len(g.Tensors()) != len(w.Tensors()) {
		t.Errorf("%d tensors: want %d", len(g.Tensors()), len(w.Tensors()))
	}
}

func bytesOf(t testing.TB, x *gguf.Tensor) []byte {
	t.Helper()
	b, err := x.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// A side file that is written in the layout in which others publish its kind, and imported, is the same again.
func TestImport(t *testing.T) {
	for _, name := range sideNames {
		t.Run(name, func(t *testing.T) {
			c := layouttest.Of(t, sides+name+".gguf")
			for _, x := range []string{c.Write(t, t.TempDir()), filepath.Join(c.Write(t, t.TempDir()), "model.safetensors")} {
				got, notes, err := imported(t, x, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Log(notes)
				sameSide(t, got, sides+name+".gguf")
			}
		})
	}
}

// renamed returns the checkpoint with other names for its tensors.
func renamed(c *layouttest.Checkpoint, change func(string) string) *layouttest.Checkpoint {
	var f sttest.File
	for _, name := range c.Names {
		f.Set(change(name), c.Tensors[name])
	}
	c.File = f
	return c
}

// The other layouts of the same kinds.
func TestImportVariants(t *testing.T) {
	prefix := func(p string) func(*layouttest.Checkpoint) {
		return func(c *layouttest.Checkpoint) { renamed(c, func(s string) string { return p + s }) }
	}
	embedding, head := layouttest.Values(t, open(t, sides+"target.gguf"), "token_embd.weight"),
		layouttest.Values(t, open(t, sides+"target.gguf"), "output.weight")
	if head == nil {
		head = embedding
	}
	copies := func(c *layouttest.Checkpoint) {
		c.Set("embed_tokens.weight", sttest.BF16(embedding, len(embedding)/32, 32))
		c.Set("layers.0.self_attn.rotary_emb.inv_freq", sttest.F32([]float32{1, 2}, 2))
	}
	for name, v := range map[string]struct {
		of     string
		change func(*layouttest.Checkpoint)
		says   string
	}{
		"medusa inside a model": {"medusa-own", prefix("medusa_head."), "2 heads"},
		"medusa of vLLM": {"medusa-own", func(c *layouttest.Checkpoint) {
			renamed(c, strings.NewReplacer("0.0.linear", "blocks.0.layers.0", "1.0.linear", "blocks.1.layers.0", "0.1.weight",
				"lm_heads.0.weight", "1.1.weight", "lm_heads.1.weight").Replace)
		}, "2 heads of 1 "},
		"medusa with the target's head": {"medusa-shared", func(c *layouttest.Checkpoint) {
			c.Set("lm_head.weight", sttest.F32(head, len(head)/32, 32))
		}, "copy of output.weight equals the target's"},
		"ppd in a model": {"ppd-4", func(c *layouttest.Checkpoint) {
			renamed(c, func(string) string { return "prompt_encoder.default.embedding.weight" })
		}, "3 prompt tokens of 4"},
		"eagle with the embedding": {"eagle", copies, "copy of token_embd.weight equals the target's within 0."},
		"eagle of vLLM":            {"eagle", prefix("model."), "tap -1"},
		"eagle3 of speculators": {"eagle3", func(c *layouttest.Checkpoint) {
			renamed(c, strings.NewReplacer("midlayer.", "layers.0.").Replace)
			layer := c.Config
			c.Config = map[string]any{"transformer_layer_config": layer, "eagle_aux_hidden_state_layer_ids": []int{1, 2, 3}}
			for _, key := range []string{"draft_vocab_size", "eagle_config"} {
				delete(layer, key)
			}
		}, "as vLLM reads it"},
		"eagle3 with the embedding": {"eagle3", copies, "left out"},
	} {
		t.Run(name, func(t *testing.T) {
			c := layouttest.Of(t, sides+v.of+".gguf")
			v.change(c)
			got, notes, err := imported(t, c.Write(t, t.TempDir()), nil)
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(notes, "; "); !strings.Contains(all, v.says) {
				t.Errorf("notes %q: want %q", all, v.says)
			}
			sameSide(t, got, sides+v.of+".gguf")
		})
	}
}

// A draft of EAGLE-3 with embeddings of its own keeps them; one whose configuration names no layers reads EAGLE-3's.
func TestImportOwn(t *testing.T) {
	c := layouttest.Of(t, sides+"eagle3.gguf")
	own := make([]float32, 260*32)
	for i := range own {
		own[i] = float32(i%17) - 8
	}
	c.Set("embed_tokens.weight", sttest.F32(own, 260, 32))
	got, notes, err := imported(t, c.Write(t, t.TempDir()), nil)
	if err != nil {
		t.Fatal(err)
	}
	f, _ := readSide(t, got)
	if v := layouttest.Values(t, f, "token_embd.weight"); !slices.Equal(v, own) || !strings.Contains(strings.Join(notes, ""),
		"keeps its own") {
		t.Errorf("%d embeddings, notes %q: want the checkpoint's", len(v), notes)
	}
	delete(c.Config, "eagle_config")
	_, _, err = imported(t, c.Write(t, t.TempDir()), nil)
	refused(t, err, "", tandem.Invalid, "tap 0: want a number of layers from 1") // 3 layers: 2, 1, 0
	got, _, err = imported(t, c.Write(t, t.TempDir()), func(o *ImportOptions) { o.Taps = []int{1, 3, 2} })
	if err != nil {
		t.Fatal(err)
	}
	if _, s := readSide(t, got); !slices.Equal(s.Taps, []int{1, 3, 2}) {
		t.Errorf("taps %d", s.Taps)
	}
}

// A GGUF file as llama.cpp makes it gives the same side file.
func TestImportGGUF(t *testing.T) {
	f, s := readSide(t, sides+"eagle3.gguf")
	w := gguf.NewWriter()
	llamaCpp(t, w, f, s)
	path := filepath.Join(t.TempDir(), "eagle3.gguf")
	write := func() string {
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		return sttest.Put(t, path, b.Bytes())
	}
	got, _, err := imported(t, write(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sameSide(t, got, sides+"eagle3.gguf")
	for says, change := range map[string]func(){
		`"eagle3.fc_norm" is true`:                     func() { w.Set("eagle3.fc_norm", true) },
		`"eagle3.target_hidden_size" is 64`:            func() { w.Set("eagle3.target_hidden_size", uint32(64)) },
		`"rope_freqs.weight" has shape [4]: want [8]`:  func() { w.Tensor("rope_freqs.weight", gguf.F32, []int{4}, make([]byte, 16)) },
		`"eagle3.rope.scaling.type" is "longrope"`:     func() { w.Set("eagle3.rope.scaling.type", "longrope") },
		`"eagle3.rope.scaling.yarn_log_multiplier" is`: func() { w.Set("eagle3.rope.scaling.yarn_log_multiplier", float32(1)) },
		`tensor "d2t" is missing`:                      func() { w.DropTensor("d2t") },
		`extract_layers`:                               func() { w.DropKey("eagle3.extract_layers") },
	} {
		w = gguf.NewWriter()
		llamaCpp(t, w, f, s)
		change()
		if _, _, err := imported(t, write(), nil); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("error %v: want %q", err, says)
		}
	}
}

// llamaCpp writes the draft as llama.cpp's converter does.
func llamaCpp(t testing.TB, w *gguf.Writer, f *gguf.File, s *side.Spec) {
	t.Helper()
	d := s.Draft
	w.Set("general.architecture", "eagle3")
	for key, v := range map[string]any{"block_count": uint32(1), "context_length": uint32(d.Context), "embedding_length": uint32(d.Width),
		"feed_forward_length": uint32(d.FFN), "attention.head_count": uint32(d.Heads), "attention.head_count_kv": uint32(d.KVHeads),
		"attention.layer_norm_rms_epsilon": float32(d.Eps), "rope.freq_base": float32(d.RopeBase),
		"rope.dimension_count": uint32(d.RopeDim),
		"vocab_size":           uint32(s.Vocab), "target_hidden_size": uint32(s.Dim), "norm_before_residual": false,
		"extract_layers": int32s(s.Taps)} {
		w.Set("eagle3."+key, v)
	}
	c := layouttest.Of(t, sides+"eagle3.gguf") // for the matrices side by side; its queries and keys are taken from f
	beside := func(name string, from ...string) {
		x := c.Tensors["fc.weight"]
		if name != "fc.weight" {
			x = besideOf(t, f, from...)
		}
		w.Tensor(name, gguf.F32, []int{x.Shape[1], x.Shape[0]}, x.Data)
	}
	beside("fc.weight")
	for _, m := range []string{"attn_q", "attn_k", "attn_v"} {
		beside("blk.0."+m+".weight", "blk.0."+m+".embd.weight", "blk.0."+m+".hidden.weight")
	}
	for ours, theirs := range map[string]string{"blk.0.attn_norm.weight": "", "blk.0.hidden_norm.weight": "blk.0.attn_norm_2.weight",
		"blk.0.attn_output.weight": "", "blk.0.ffn_norm.weight": "", "blk.0.ffn_gate.weight": "", "blk.0.ffn_up.weight": "",
		"blk.0.ffn_down.weight": "", "output_norm.weight": "", "output.weight": ""} {
		x := f.Tensor(ours)
		if theirs == "" {
			theirs = ours
		}
		w.Tensor(theirs, x.Type, x.Shape, bytesOf(t, x))
	}
	ids := make([]int64, len(d.IDs))
	for i, id := range d.IDs {
		ids[i] = int64(id)
	}
	w.Tensor("d2t", 27, []int{len(ids)}, sttest.I64(ids...).Data)
}

func int32s(values []int) (out []int32) {
	for _, v := range values {
		out = append(out, int32(v))
	}
	return out
}

// besideOf returns two matrices side by side.
func besideOf(t testing.TB, f *gguf.File, from ...string) sttest.Tensor {
	a, b := f.Tensor(from[0]), f.Tensor(from[1])
	x, y, n := bytesOf(t, a), bytesOf(t, b), 4*a.Shape[0]
	var all []byte
	for r := range a.Shape[1] {
		all = append(append(all, x[r*n:(r+1)*n]...), y[r*n:(r+1)*n]...)
	}
	return sttest.Tensor{Shape: []int{a.Shape[1], 2 * a.Shape[0]}, Data: all}
}

func TestImportRefuses(t *testing.T) {
	set := func(key string, v any) func(*layouttest.Checkpoint) {
		return func(c *layouttest.Checkpoint) { c.Config[key] = v }
	}
	drop := func(name string) func(*layouttest.Checkpoint) { return func(c *layouttest.Checkpoint) { c.Drop(name) } }
	give := func(name string, x sttest.Tensor) func(*layouttest.Checkpoint) {
		return func(c *layouttest.Checkpoint) { c.Set(name, x) }
	}
	noise := make([]float32, 260*32)
	for i := range noise {
		noise[i] = float32(i%7) - 3
	}
	nan := slices.Clone(noise[:32])
	nan[3] = float32(math.NaN())
	for name, v := range map[string]struct {
		of     string
		change func(*layouttest.Checkpoint)
		kind   tandem.Kind
		says   string
	}{
		"17 heads": {"medusa-own", func(c *layouttest.Checkpoint) {
			for k := range 17 {
				c.Set(strconv.Itoa(k)+".0.linear.weight", c.Tensors["0.0.linear.weight"])
			}
		}, tandem.Invalid, "17 heads of 1 residual blocks: want 1 to 16 of 1 to 4"},
		"one output": {"medusa-own", drop("1.1.weight"), tandem.Invalid, "1 of 2 heads have an output matrix"},
		"unknown tensor": {"medusa-own", give("model.layers.0.mlp.up_proj.weight", sttest.F32(nil, 0)), tandem.Unsupported,
			`"model.layers.0.mlp.up_proj.weight" has no place in a side file of medusa (1 such tensors)`},
		"two prefixes": {"medusa-own", give("medusa_head.0.0.linear.weight", sttest.F32(nil, 0)), tandem.Corrupt, "are the same one"},
		"wrong width": {"medusa-own", give("0.0.linear.weight", sttest.F32(noise[:32*16], 16, 32)), tandem.Invalid,
			`"0.0.linear.weight" has shape [16 32]: want [32 32]`},
		"whole numbers": {"medusa-own", give("0.0.linear.weight", sttest.Tensor{DType: "I8", Shape: []int{32, 32}, Data: make([]byte,
			1024)}),
			tandem.Unsupported, `"0.0.linear.weight" is I8: want F64`},
		"NaN": {"medusa-shared", give("0.0.linear.bias", sttest.F32(nan, 32)), tandem.Corrupt,
			`"medusa.0.0.bias": weight 3 of row 0 is NaN`},
		"another's head": {"medusa-own", give("lm_head.weight", sttest.F32(noise, 260, 32)), tandem.Invalid,
			`its copy of "output.weight" differs`},
		"no prompt tokens": {"ppd-4", set("num_special_tokens", 0), tandem.Invalid, "want adapter_config.json beside it"},
		"17 prompt tokens": {"ppd-4", set("num_special_tokens", 17), tandem.Invalid,
			"17 prompt tokens of 4 ensemble members: want 1 to 16"},
		"-1 prompt tokens": {"ppd-4", set("num_special_tokens", -1), tandem.Invalid, "-1 prompt tokens"},
		"other numbers": {"ppd-4", set("num_special_tokens", 4), tandem.Invalid,
			`"prompt_embeddings" has shape [12 32]: want [16 32]`},
		"decoder attention": {"ppd-4", set("vt_attention_type", "DECODER"), tandem.Unsupported,
			`vt_attention_type "DECODER" with 4 members`},
		"own head":           {"ppd-4", set("use_custom_lm_head", true), tandem.Unsupported, "use_custom_lm_head true"},
		"no configuration":   {"eagle", func(c *layouttest.Checkpoint) { c.Config = nil }, tandem.Invalid, "want config.json beside it"},
		"text for a number":  {"eagle", set("hidden_size", "many"), tandem.Corrupt, "config.json: json: cannot unmarshal string"},
		"no heads":           {"eagle", set("num_attention_heads", 0), tandem.Invalid, "num_attention_heads 0: want both"},
		"negative heads":     {"eagle", set("num_attention_heads", -4), tandem.Invalid, "num_attention_heads -4"},
		"another head count": {"eagle", set("num_key_value_heads", 3), tandem.Invalid, "no multiple of 3 key heads"},
		"rope scaling": {"eagle", set("rope_scaling", map[string]any{"rope_type": "dynamic", "factor": 8}), tandem.Unsupported,
			`rope scaling "dynamic" with factor 8: side files have linear, yarn and llama3`},
		"llama3 without its numbers": {"eagle", set("rope_scaling", map[string]any{"rope_type": "llama3", "factor": 8}),
			tandem.Unsupported, `rope scaling "llama3" over 16 elements from 0 positions`},
		"negative factor": {"eagle", set("rope_scaling", map[string]any{"type": "linear", "factor": -2}), tandem.Unsupported,
			`rope scaling "linear" with factor -2: want a number above 0`},
		"yarn to parts of pairs": {"eagle3", set("rope_scaling", map[string]any{"type": "yarn", "factor": 2, "truncate": false}),
			tandem.Unsupported, "truncate false"},
		"rope for each type": {"eagle3", set("rope_parameters", map[string]any{"sliding_attention": map[string]any{"factor": 2}}),
			tandem.Unsupported, "rope_parameters for each type of layer"},
		"windows in some layers": {"eagle3", set("layer_types", []string{"sliding_attention", "full_attention"}), tandem.Unsupported,
			"one kind of attention in all layers"},
		"a window of nothing": {"eagle3", set("layer_types", []string{"sliding_attention"}), tandem.Unsupported, "sliding_window 0"},
		"two norms": {"eagle3", func(c *layouttest.Checkpoint) {
			c.Config["fc_norm"], c.Config["norm_before_fc"] = true, true
		}, tandem.Invalid, "norm_before_fc and fc_norm are both true"},
		"no norm of states": {"eagle3", set("fc_norm", true), tandem.Invalid, `"fc_norm.0.weight" is missing`},
		"DSpark":            {"eagle", set("architectures", []string{"Qwen3DSparkModel"}), tandem.Unsupported, `"Qwen3DSparkModel" is DSpark`},
		"P-EAGLE": {"eagle3", set("architectures", []string{"PEagleDraftModel"}), tandem.Unsupported,
			`"PEagleDraftModel" is P-EAGLE`},
		"gelu":  {"eagle", set("hidden_act", "gelu"), tandem.Unsupported, `hidden_act "gelu"`},
		"no fc": {"eagle", drop("fc.weight"), tandem.Invalid, "the names of its tensors tell of none"},
		"no mlp": {"eagle", drop("layers.0.mlp.gate_proj.weight"), tandem.Invalid,
			`"layers.0.mlp.gate_proj.weight" is missing`},
		"no attention": {"eagle", drop("layers.0.self_attn.k_proj.weight"), tandem.Invalid,
			`"layers.0.self_attn.k_proj.weight" is missing`},
		"another's tokens": {"eagle", give("embed_tokens.weight", sttest.F32(noise, 260, 32)), tandem.Invalid,
			"want the target that it was made for"},
		"other vocabulary": {"eagle", give("embed_tokens.weight", sttest.F32(noise[:64], 2, 32)), tandem.Invalid,
			"has shape [2 32]: want [260 32]"},
		"other width": {"eagle", set("hidden_size", 64), tandem.Invalid, "a draft of width 64 for a target of 32"},
		"two layers": {"eagle3", set("eagle_config", map[string]any{"eagle_aux_hidden_state_layer_ids": []int{0, 1}}),
			tandem.Invalid, `"fc.weight" has shape [32 96]: want [32 64]`},
		"no aux states": {"eagle3", set("eagle_config", map[string]any{"use_aux_hidden_state": false}), tandem.Unsupported,
			"use_aux_hidden_state false"},
		"other draft vocabulary": {"eagle3", set("draft_vocab_size", 99), tandem.Invalid,
			`draft_vocab_size 99: tensor "lm_head.weight" is for 100 tokens`},
		"another's vocabulary": {"eagle", set("vocab_size", 32000), tandem.Invalid, "vocab_size 32000: the target has 260 tokens"},
		"other feed-forward": {"dovetail", set("intermediate_size", 11), tandem.Invalid,
			`intermediate_size 11: tensor "layers.0.mlp.gate_proj.weight" has 64 rows`},
		"t2d of numbers": {"eagle3", give("t2d", sttest.I64(append([]int64{5, -5}, make([]int64, 258)...)...)), tandem.Invalid,
			"t2d is 5 for token 0: want 0 or 1"},
		"nameless": {"medusa-own", give("model.", sttest.F32(nan, 32)), tandem.Unsupported, `"model." has no place`},
		"layer 9": {"eagle3", set("eagle_config", map[string]any{"eagle_aux_hidden_state_layer_ids": []int{0, 1, 8}}),
			tandem.Invalid, "it reads the state after layer 9, the target has 3"},
		"ids out of range": {"eagle3", func(c *layouttest.Checkpoint) { c.Tensors["d2t"].Data[1] = 9 }, tandem.Invalid, `"d2t" has `},
		"ids too few":      {"eagle3", give("d2t", sttest.I64(1, 2)), tandem.Invalid, `"d2t" has shape [2]: want [100]`},
		"t2d says otherwise": {"eagle3", give("t2d", sttest.Bools(make([]bool, 260)...)), tandem.Invalid,
			"which t2d says is not in the draft vocabulary"},
		"t2d of others": {"eagle3", give("t2d", sttest.Bools(make([]bool, 261)...)), tandem.Unsupported,
			`"t2d" has 261 elements: want at most 260`},
		"no d2t":  {"eagle3", drop("d2t"), tandem.Invalid, `"d2t" is missing: lm_head has 100 tokens, the target 260`},
		"no gate": {"dovetail", drop("gate.weight"), tandem.Invalid, `"gate.weight" is missing`},
	} {
		t.Run(name, func(t *testing.T) {
			c := layouttest.Of(t, sides+v.of+".gguf")
			v.change(c)
			out, _, err := imported(t, c.Write(t, t.TempDir()), nil)
			refused(t, err, out, v.kind, v.says)
		})
	}
}

// Pickles are recognised by their names and by their content; what begins like one but is none is read.
func TestImportPickle(t *testing.T) {
	for name, data := range map[string]string{"medusa_lm_head.pt": "anything", "weights": "PK\x03\x04abcdefgh", "other": "\x80\x02}q\x00(X",
		"x.safetensors": "\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00"} {
		dir := t.TempDir()
		path := sttest.Put(t, filepath.Join(dir, name), []byte(data))
		_, _, err := imported(t, path, nil)
		refused(t, err, "", tandem.Unsupported, "is a pickle file")
		if name == "medusa_lm_head.pt" {
			_, _, err = imported(t, dir, nil)
			refused(t, err, "", tandem.Unsupported, name+" is a pickle file")
		}
	}
	c := layouttest.Of(t, sides+"medusa-own.gguf")
	for n := range 4000 { // pad the header until its length begins with 80 02
		c.Metadata = map[string]string{"x": strings.Repeat("y", n)}
		if data := c.Bytes(); data[0] == 0x80 && data[1] >= 2 && data[1] <= 5 {
			if got, _, err := imported(t, c.Write(t, t.TempDir()), nil); err != nil {
				t.Error(err)
			} else {
				sameSide(t, got, sides+"medusa-own.gguf")
			}
			return
		}
	}
	t.Error("no header of that length")
}

func TestImportPaths(t *testing.T) {
	dir := t.TempDir()
	_, _, err := imported(t, dir, nil)
	refused(t, err, "", tandem.Invalid, "holds no *.safetensors")
	_, _, err = imported(t, filepath.Join(dir, "none"), nil)
	refused(t, err, "", tandem.Invalid, "no such file")
	_, _, err = imported(t, sides+"target.gguf", nil)
	refused(t, err, "", tandem.Invalid, `architecture "llama": want safetensors, or a GGUF file of architecture eagle3`)
	_, _, err = imported(t, sides+"eagle.gguf", nil)
	refused(t, err, "", tandem.Invalid, "is a side file already")
	c := layouttest.Of(t, sides+"medusa-own.gguf")
	c.Write(t, dir)
	if err := os.Link(filepath.Join(dir, "model.safetensors"), filepath.Join(dir, "b.safetensors")); err != nil {
		t.Fatal(err)
	}
	_, _, err = imported(t, dir, nil)
	refused(t, err, "", tandem.Invalid, "holds 2 files of weights, b.safetensors, model.safetensors: name one of them")
	_, _, err = imported(t, filepath.Join(dir, "b.safetensors"), func(o *ImportOptions) { o.Kind = side.Eagle })
	refused(t, err, "", tandem.Invalid, "num_attention_heads 0: want both")
	_, _, err = imported(t, filepath.Join(dir, "b.safetensors"), func(o *ImportOptions) { o.Taps = []int{2} })
	refused(t, err, "", tandem.Invalid, "taps [2]: side files of medusa have none to choose")
	_, _, err = imported(t, filepath.Join(dir, "b.safetensors"), func(o *ImportOptions) { o.Target.Vocab = 300 })
	refused(t, err, "", tandem.Invalid, "want [300 32]")
}

// A quantised target still equals the checkpoint's copy of its embeddings.
func TestImportForQuantised(t *testing.T) {
	c := layouttest.Of(t, sides+"eagle.gguf")
	embedding := layouttest.Values(t, open(t, sides+"target.gguf"), "token_embd.weight")
	c.Set("embed_tokens.weight", sttest.F32(embedding, 260, 32))
	in := c.Write(t, t.TempDir())
	for _, typ := range []string{"q8_0", "q5_0", "q4_0", "q4_k_m"} {
		small := filepath.Join(t.TempDir(), "small.gguf")
		if _, err := Quantize(t.Context(), sides+"target.gguf", small, typ, false, Options{}); err != nil {
			t.Fatal(err)
		}
		got, notes, err := imported(t, in, func(o *ImportOptions) { o.Target = targetAt(t, small) })
		if err != nil {
			t.Fatal(err)
		}
		t.Log(typ, notes)
		sameSide(t, got, sides+"eagle.gguf")
	}
}
