package arch_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// TestGemma4Trees: trees give the bits of plain decoding, with keys and values in both types. Layers differ in heads and head size, some
// read what others keep, and windows are shorter than the text.
func TestGemma4Trees(t *testing.T) {
	for _, name := range enginetest.Gemma4Files {
		for _, kv := range []string{"f16", "q8_0"} {
			m := enginetest.Open(t, enginetest.GoldenPath(t, name), engine.Options{Device: testdevice.CPU(t, 2), KVType: kv,
				KVPages: engine.PagesFor(5, 320, 64)})
			enginetest.CompareTrees(t, m, rand.New(rand.NewPCG(1, 4)), 40)
		}
	}
}

// TestGemma4Devices: every kind of device gives the same bits.
func TestGemma4Devices(t *testing.T) {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	near := testdevice.CPU(t, 2)
	for _, name := range enginetest.Gemma4Files {
		path := enginetest.GoldenPath(t, name)
		o := engine.Options{KVPages: 24, MaxRows: 64, Device: near}
		m := enginetest.Open(t, path, o)
		want := enginetest.Dialogue(t, m, 12)
		devices := map[string]kernels.Device{"gpu": gpu, "definitions": testdevice.Ref(),
			"layers":  enginetest.Fixed{Device: layers.New(layers.Config{Near: near, Far: testdevice.CPU(t, 1)}).With(2)},
			"divided": enginetest.Halves(t, testdevice.CPU(t, 1), testdevice.CPU(t, 1), nil)}
		if name == enginetest.Gemma4Files[0] { // experts are not streamed yet
			from, all := enginetest.Least(t, path, o), enginetest.WeightsOf(t, path, o)
			devices["streamed"] = enginetest.Streaming(t, from+(all-from)/4, t.TempDir())
		}
		for on, d := range devices {
			o.Device = d
			if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), 12), want); err != nil {
				t.Errorf("%s, %s: %v", name, on, err)
			}
		}
	}
}

// TestBrokenGemma4: keys and tensors that contradict each other are refused by name.
func TestBrokenGemma4(t *testing.T) {
	set := func(key string, v any) enginetest.Change { return enginetest.SetKey("gemma4."+key, v) }
	const dense, moe = "gemma4", "gemma4-moe"
	for name, c := range map[string]struct {
		of     string
		change enginetest.Change
		kind   tandem.Kind
		want   string
	}{
		"table of another width": {dense, enginetest.Resized("per_layer_token_embd.weight", 90, 1536), tandem.Corrupt,
			`"per_layer_token_embd.weight" has shape [90 1536]`},
		"input of another width":  {dense, set("embedding_length_per_layer_input", uint32(32)), tandem.Corrupt, "per_layer"},
		"input of -1":             {dense, set("embedding_length_per_layer_input", int32(-1)), tandem.Corrupt, "per_layer_input"},
		"input too wide":          {dense, set("embedding_length_per_layer_input", uint32(1<<20)), tandem.Corrupt, "per_layer_input"},
		"tensors without the key": {dense, set("embedding_length_per_layer_input", uint32(0)), tandem.Unsupported, "per_layer"},
		"gate of another width":   {dense, enginetest.Resized("blk.1.inp_gate.weight", 128, 8), tandem.Corrupt, "blk.1.inp_gate.weight"},
		"all layers shared":       {dense, set("attention.shared_kv_layers", uint32(6)), tandem.Corrupt, "shared_kv_layers"},
		"more than there are":     {dense, set("attention.shared_kv_layers", uint32(600)), tandem.Corrupt, "shared_kv_layers"},
		"no own layer of a kind":  {dense, set("attention.shared_kv_layers", uint32(4)), tandem.Corrupt, "layer 2, without a window"},
		"own layers without keys": {dense, set("attention.shared_kv_layers", uint32(2)), tandem.Corrupt, "blk.3.attn_k"},
		"other heads of a shared layer": {dense, set("attention.head_count_kv", []uint32{1, 1, 1, 1, 2, 1}), tandem.Corrupt,
			"layer 4 has 2 key-value heads: want the 1 of layer 1"},
		"window 0":  {dense, set("attention.sliding_window", uint32(0)), tandem.Corrupt, "sliding_window"},
		"no window": {dense, enginetest.DropKey("gemma4.attention.sliding_window"), tandem.Corrupt, "sliding_window"},
		"no pattern": {dense, enginetest.DropKey("gemma4.attention.sliding_window_pattern"), tandem.Corrupt,
			"sliding_window_pattern"},
		"pattern too short": {dense, set("attention.sliding_window_pattern", []bool{true, false}), tandem.Corrupt, "has 2 elements"},
		"pattern of others": {dense, set("attention.sliding_window_pattern", []bool{true, true, true, true, true, false}),
			tandem.Corrupt, "layer 5, without a window"},
		"widths too few":      {dense, set("feed_forward_length", []uint32{128, 128}), tandem.Corrupt, "feed_forward_length"},
		"head size of a kind": {dense, set("attention.key_length_swa", uint32(16)), tandem.Unsupported, "value length 32"},
		"rope of a kind":      {dense, set("rope.dimension_count_swa", uint32(34)), tandem.Corrupt, "rope dimension count 34"},
		"rope factors":        {dense, enginetest.Resized("rope_freqs.weight", 32), tandem.Corrupt, "rope factor 0 is 0"},
		"no v in a dense one": {dense, enginetest.DropTensor("blk.0.attn_k.weight"), tandem.Corrupt, "blk.0.attn_k.weight"},
		"soft cap":            {dense, set("final_logit_softcapping", float32(math.NaN())), tandem.Corrupt, "final_logit_softcapping"},
		"experts 0":           {moe, set("expert_count", uint32(0)), tandem.Unsupported, "blk.0."},
		"more used than are":  {moe, set("expert_used_count", uint32(9)), tandem.Corrupt, "expert_used_count"},
		"expert width":        {moe, set("expert_feed_forward_length", uint32(16)), tandem.Corrupt, "ffn_gate_up_exps"},
		"no expert width":     {moe, enginetest.DropKey("gemma4.expert_feed_forward_length"), tandem.Corrupt, "expert_feed_forward_length"},
		"no factors":          {moe, enginetest.DropTensor("blk.1.ffn_down_exps.scale"), tandem.Corrupt, "blk.1.ffn_down_exps.scale"},
		"no router norm":      {moe, enginetest.DropTensor("blk.1.ffn_gate_inp.scale"), tandem.Corrupt, "blk.1.ffn_gate_inp.scale"},
		"heads do not divide": {moe, set("attention.head_count_kv", []uint32{3, 2, 1}), tandem.Corrupt, "layer 0: 4 heads"},
		"kv of other heads":   {moe, set("attention.head_count_kv", []uint32{2, 2, 2}), tandem.Corrupt, "blk.2.attn_k.weight"},
	} {
		t.Run(name, func(t *testing.T) {
			path := enginetest.ChangedGolden(t, c.of, c.change)
			_, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 2})
			_, also := engine.Inspect(path)
			for _, err := range []error{err, also} {
				if tandem.KindOf(err) != c.kind || err == nil || !strings.Contains(err.Error(), c.want) {
					t.Errorf("error %v (kind %v): want kind %v that names %s", err, tandem.KindOf(err), c.kind, c.want)
				}
			}
		})
	}
}
