package engine_test

import (
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// mtpTargets are the tiny targets with an MTP layer, each with a side file of that kind.
var mtpTargets = []string{"qwen35", "qwen35moe"}

// TestMTPGolden: the layer inside a target's file and the one in a side file, which knows some tokens, give PyTorch's states and logits.
func TestMTPGolden(t *testing.T) {
	for _, name := range mtpTargets {
		o := engine.Options{Device: testdevice.CPU(t, 0), KVPages: engine.PagesFor(2, 64, 64)}
		inside := enginetest.OpenMTP(t, sidePath(name), o)
		draftGolden(t, name, inside, goldenStates(t, inside, name))
		m, err := engine.OpenDraft(sidePath(name+"-mtp"), sidePath(name), o)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		draftGolden(t, name+"-mtp", m, goldenStates(t, m, name))
		if names := m.Names(); names.Identity == inside.Names().Identity {
			t.Errorf("%s: another layer, and the same identity %s", name, names.Identity)
		}
		o.Device = testdevice.CPU(t, 0)
		if need, err := engine.MeasureDraft(sidePath(name+"-mtp"), sidePath(name), o); err != nil || need != engine.FootprintOf(m) ||
			need.Weights != engine.StoredBy(m) || need.Weights >= engine.FootprintOf(inside).Weights {
			t.Errorf("%s: planned %v, taken %v, the layer with all tokens takes %v: %v", name, need, engine.FootprintOf(m),
				engine.FootprintOf(inside), err)
		}
	}
}

// TestBadMTPSide: what is wrong with a side file that holds an MTP layer is said by name.
func TestBadMTPSide(t *testing.T) {
	set := func(key string, v any) func(w *gguf.Writer) { return func(w *gguf.Writer) { w.Set(key, v) } }
	tensor := func(name string, shape ...int) func(w *gguf.Writer) {
		return func(w *gguf.Writer) {
			n := 4
			for _, d := range shape {
				n *= d
			}
			w.Tensor(name, 0, shape, make([]byte, n))
		}
	}
	without := func(name string) func(w *gguf.Writer) { return func(w *gguf.Writer) { w.DropTensor(name) } }
	others, outside := strings.Repeat("0123456789abcdef", 2), append([]int32{260}, make([]int32, 99)...)
	for want, c := range map[string]struct {
		change func(w *gguf.Writer)
		kind   tandem.Kind
	}{
		"made for a target of lineage 0123456789abcdef":            {set(side.LineageKey, others), tandem.Invalid},
		`reads the state 1 of testdata`:                            {set("mtp.taps", []int32{1}), tandem.Invalid},
		"2 taps [-1 1]: mtp wants 1":                               {set("mtp.taps", []int32{-1, 1}), tandem.Corrupt},
		`"mtp.draft_vocab_size" is 9, but`:                         {set("mtp.draft_vocab_size", uint32(9)), tandem.Corrupt},
		"want 0 to 259":                                            {set("mtp.d2t", outside), tandem.Corrupt},
		"made for 64 tokens, the target has 260":                   {known64, tandem.Invalid},
		`eh_proj.weight" has shape [64 31]: the keys want [64 32]`: {tensor("blk.0.nextn.eh_proj.weight", 64, 31), tandem.Corrupt},
		`shared_head_norm.weight" is missing`:                      {without("blk.0.nextn.shared_head_norm.weight"), tandem.Corrupt},
		`"blk.0.attn_k.weight" is missing`:                         {without("blk.0.attn_k.weight"), tandem.Corrupt},
		`"blk.0.ffn_up.weight" has shape [32 65]`:                  {tensor("blk.0.ffn_up.weight", 32, 65), tandem.Corrupt},
		`sinks.weight" has no place in the mtp of qwen35 arch`:     {tensor("blk.0.attn_sinks.weight", 2), tandem.Unsupported},
		`"blk.1.attn_k.weight" has no place in a side`:             {tensor("blk.1.attn_k.weight", 32, 16), tandem.Unsupported},
		`embed_tokens.weight" has no place in a side`: {tensor("blk.0.nextn.embed_tokens.weight", 32, 260),
			tandem.Unsupported},
	} {
		m, err := engine.OpenDraft(editSide(t, "qwen35-mtp", c.change), sidePath("qwen35"), engine.Options{Device: testdevice.CPU(t, 1)})
		if err == nil {
			m.Close()
		}
		if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), want) {
			t.Errorf("%v of kind %v: want %q of kind %v", err, tandem.KindOf(err), want, c.kind)
		}
	}
	o := engine.Options{Device: testdevice.CPU(t, 1)}
	for _, target := range []string{"target", "qwen35moe"} {
		if _, err := engine.OpenDraft(sidePath("qwen35-mtp"), sidePath(target), o); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("opened with target %s: %v", target, err)
		}
	}
	if _, err := engine.Open(sidePath("qwen35-mtp"), o); err == nil || !strings.Contains(err.Error(), "side file") {
		t.Errorf("opened alone: %v", err)
	}
}

// known64 makes a side file one for a target of 64 tokens.
func known64(w *gguf.Writer) {
	w.Set("mtp.vocab_size", uint32(64))
	w.Set("mtp.d2t", []int32{1, 5})
	w.Set("mtp.draft_vocab_size", uint32(2))
}
