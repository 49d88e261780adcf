package convert

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

const publishedDir = "testdata/published/" // checkpoints as published, with what their publishers' code computes: README.md there

// publishedTolerance bounds |ours - theirs| / (1 + |theirs|): the engine keeps keys and values in f16.
const publishedTolerance = 0.004

// A draft of each published layout, imported and run by the engine, gives the states and logits of its publisher's code.
func TestPublishedLayouts(t *testing.T) {
	for name, c := range map[string]struct {
		file  string // in the folder; "": the folder itself
		notes string
	}{
		"specforge":     {"", "as SGLang reads it"},
		"eagle31":       {"", "as SGLang reads it"},
		"speculators":   {"", "as vLLM reads it"},
		"speculators31": {"", "copy of token_embd.weight equals the target's"},
		"sglang":        {"", "keeps its own"},
		"llamacpp":      {"draft.gguf", "eagle3.extract_layers"},
	} {
		t.Run(name, func(t *testing.T) {
			path, notes, err := imported(t, filepath.Join(publishedDir, name, c.file), nil)
			if err != nil {
				t.Fatal(err)
			}
			if all := strings.Join(notes, "; "); !strings.Contains(all, c.notes) {
				t.Errorf("notes %q: want %q", all, c.notes)
			}
			for device, o := range map[string]engine.Options{"cpu": {Device: testdevice.CPU(t, 0)}, "ref": {Device: testdevice.Ref()}} {
				if a := publishedApart(t, path, name, o); !(a <= publishedTolerance) {
					t.Errorf("%s: states and logits differ by up to %.4f", device, a)
				} else {
					t.Logf("%s: up to %.4f apart", device, a)
				}
			}
		})
	}
}

// The golden files tell each setting from its opposite: a configuration without it gives other states and logits.
func TestPublishedSettings(t *testing.T) {
	for _, c := range []struct {
		name, key string
		value     any
	}{
		{"specforge", "rope_scaling", nil}, {"eagle31", "rope_scaling", nil}, {"eagle31", "norm_output", false},
		{"speculators", "norm_before_residual", false}, {"speculators", "rope_parameters", nil},
		{"speculators31", "norm_before_residual", false}, {"speculators31", "norm_output", false}, {"speculators31", "layer_types", nil},
	} {
		path, _, err := imported(t, changedConfig(t, c.name, c.key, c.value), nil)
		if err != nil {
			t.Errorf("%s with %s %v: %v", c.name, c.key, c.value, err)
		} else if a := publishedApart(t, path, c.name, engine.Options{Device: testdevice.CPU(t, 0)}); a < 10*publishedTolerance {
			t.Errorf("%s with %s %v: only %.4f apart", c.name, c.key, c.value, a)
		}
	}
	for _, key := range []string{"fc_norm", "norm_before_fc"} { // whose weights then have no place
		name := map[string]string{"fc_norm": "eagle31", "norm_before_fc": "speculators31"}[key]
		_, _, err := imported(t, changedConfig(t, name, key, false), nil)
		refused(t, err, "", tandem.Unsupported, "has no place in a side file of eagle3")
	}
}

// A published draft for an expanded target guesses what it did; one whose states have another width than their norm is refused.
func TestExpandPublished(t *testing.T) {
	dir, shape := t.TempDir(), Shape{5, 128, 0, 0, 256, 0}
	target, g := filepath.Join(dir, "target.gguf"), readGolden(t, "target")
	g.Fed = 12
	if _, err := Expand(t.Context(), sides+"target.gguf", target, shape, "f32", Options{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"specforge", "speculators", "speculators31", "sglang"} {
		small, _, err := imported(t, publishedDir+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		big := filepath.Join(dir, name+".gguf")
		if _, err := Expand(t.Context(), small, big, shape, "", Options{}); err != nil {
			t.Fatal(err)
		}
		if a := apart(guessed(t, sides+"target.gguf", small, g), guessed(t, target, big, g)); a > 1e-3 {
			t.Errorf("%s: logits differ by up to %g", name, a)
		}
	}
	small, _, err := imported(t, publishedDir+"eagle31", nil)
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "out.gguf")
	_, err = Expand(t.Context(), small, out, shape, "", Options{})
	refused(t, err, out, tandem.Invalid, "a draft of width 48 norms the target's states of 32")
}

// checkLevels compares guesses, of five tokens each, with logits.
func checkLevels(t *testing.T, levels, logits [][]float64) {
	t.Helper()
	if len(levels) != len(logits) {
		t.Fatalf("%d levels: want %d", len(levels), len(logits))
	}
	for i, level := range levels {
		want, most, all := logits[i], math.Inf(-1), 0.0
		for _, v := range want {
			most, all = max(most, v), all+math.Exp(v)
		}
		for j := 0; j < len(level); j += 2 {
			if id := int(level[j]); math.Abs(level[j+1]-(want[id]-math.Log(all))) > publishedTolerance {
				t.Errorf("level %d, token %d: log probability %.4f, want %.4f", i, id, level[j+1], want[id]-math.Log(all))
			}
		}
		if len(level) != 10 || want[int(level[0])] < most-publishedTolerance {
			t.Errorf("level %d: %v: want five tokens, and the likeliest first", i, level)
		}
	}
}

// Medusa's heads guess what its own code, and vLLM's with the target's output matrix, compute from the target's last state.
func TestPublishedMedusa(t *testing.T) {
	for _, name := range []string{"medusa", "medusa-vllm"} {
		var g struct {
			Rows   []int
			Logits [][]float64 // of each head, row by row
		}
		readJSON(t, publishedDir+name+"/golden.json", &g)
		path, notes, err := imported(t, publishedDir+name, nil)
		if err != nil {
			t.Fatal(err)
		}
		if all := strings.Join(notes, "; "); name == "medusa-vllm" && !strings.Contains(all, "output.weight equals the target's") {
			t.Errorf("notes %q: want the target's output matrix left out", all)
		}
		of := readGolden(t, "target")
		checkLevels(t, guessed(t, sides+"target.gguf", path, &golden{Tokens: of.Tokens, Rows: g.Rows}), g.Logits)
	}
}

// PARD's mask tokens, imported for the draft's own file, guess at each distance what PARD's program reads off its pass.
func TestPublishedPARD(t *testing.T) {
	var g struct {
		Text   []int
		Logits [][]float64 // of the last token, and of 11 mask tokens behind it
	}
	readJSON(t, publishedDir+"pard/golden.json", &g)
	path, notes, err := imported(t, publishedDir+"pard", nil)
	if err != nil {
		t.Fatal(err)
	}
	if all := strings.Join(notes, "; "); !strings.Contains(all, "11 rows of mask token 7") {
		t.Errorf("notes %q", all)
	}
	if _, s := readSide(t, path); s.Levels != 11 || s.Members != 1 {
		t.Errorf("%s: want 11 prompt tokens of one embedding", s)
	}
	levels := guessed(t, sides+"target.gguf", path, &golden{Tokens: g.Text, Rows: []int{len(g.Text) - 1}})
	checkLevels(t, levels, g.Logits[1:])
	for says, value := range map[string]int{"pard_token 260: want a token of the draft, 0 to 259": 260, "pard_token -1": -1} {
		_, _, err := imported(t, changedConfig(t, "pard", "pard_token", value), nil)
		refused(t, err, "", tandem.Invalid, says)
	}
	other, _, err := imported(t, changedConfig(t, "pard", "pard_token", 8), nil)
	if err != nil {
		t.Fatal(err)
	}
	if a := apart(levels, guessed(t, sides+"target.gguf", other, &golden{Tokens: g.Text, Rows: []int{len(g.Text) - 1}})); a < 0.05 {
		t.Errorf("another mask token gives guesses only %g apart", a)
	}
	_, _, err = imported(t, changedConfig(t, "eagle31", "pard_token", 8), nil)
	refused(t, err, "", tandem.Unsupported, "P-EAGLE")
}

// changedConfig copies a published checkpoint with another value for a key of its configuration, or of that of its layers.
func changedConfig(t *testing.T, name, key string, value any) string {
	t.Helper()
	var config map[string]any
	readJSON(t, publishedDir+name+"/config.json", &config)
	at := config
	if layer, ok := config["transformer_layer_config"].(map[string]any); ok {
		if _, inside := layer[key]; inside {
			at = layer
		}
	}
	at[key] = value
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	weights, err := os.ReadFile(publishedDir + name + "/model.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sttest.Put(t, filepath.Join(dir, "config.json"), text)
	sttest.Put(t, filepath.Join(dir, "model.safetensors"), weights)
	return dir
}

// tinyText is the text of the tiny target's golden file, with the states of its positions by taps.
type tinyText struct {
	Tokens []tandem.Token
	Taps   map[string][][]float32
}

// openedDraft opens the draft at path for a target, with a sequence of at most 64 positions; both are closed when the test ends.
func openedDraft(t *testing.T, target, path string, o engine.Options) (of tinyText, s *side.Spec, m *engine.Model, seq *engine.Sequence) {
	t.Helper()
	readJSON(t, sides+"target.json", &of)
	_, s = readSide(t, path)
	o.KVPages = engine.PagesFor(1, 64, 16)
	m, err := engine.OpenDraft(path, target, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	if seq, err = m.NewSequence(64, 16); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { seq.Close() })
	return of, s, m, seq
}

// publishedApart returns how far the draft at path is from the golden file of that name.
func publishedApart(t *testing.T, path, name string, o engine.Options) (apart float64) {
	t.Helper()
	var g struct{ States, Logits [][]float64 }
	readJSON(t, publishedDir+name+"/golden.json", &g)
	of, s, m, seq := openedDraft(t, sides+"target.gguf", path, o)
	var own []float32
	for i, token := range of.Tokens[1:] {
		state := engine.State{Own: own}
		if i < 12 {
			state = engine.State{Target: tapsOf(s, of.Taps, i)}
		}
		part := engine.Part{Seq: seq, Extend: []tandem.Token{token}, States: []engine.State{state}, Want: engine.WantAll}
		out, err := m.Forward([]engine.Part{part}, 0)
		if err != nil {
			t.Fatal(err)
		}
		own = append([]float32(nil), out.Hidden(0, 0)...)
		var logits []float32
		for _, id := range s.Draft.IDs {
			logits = append(logits, out.Logits(0)[id])
		}
		apart = max(apart, relative(own, g.States[i]), relative(logits, g.Logits[i]))
	}
	return apart
}

// tapsOf returns the target's states at a position that a draft reads.
func tapsOf(s *side.Spec, taps map[string][][]float32, position int) (all []float32) {
	for _, n := range s.Taps {
		text, _ := json.Marshal(n)
		all = append(all, taps[string(text)][position]...)
	}
	return all
}

// relative returns the largest |got - want| / (1 + |want|).
func relative(got []float32, want []float64) (most float64) {
	if len(got) != len(want) {
		return float64(len(got) + len(want))
	}
	for i, w := range want {
		most = max(most, max(float64(got[i])-w, w-float64(got[i]))/(1+max(w, -w)))
	}
	return most
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, into)
	}
	if err != nil {
		t.Fatal(path, err)
	}
}
