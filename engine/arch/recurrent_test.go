package arch_test

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels"
	"github.com/tandem-llm/tandem/kernels/cuda/emulated"
	"github.com/tandem-llm/tandem/kernels/layers"
	"github.com/tandem-llm/tandem/kernels/ref/device"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// recurrentDevices are those on which tests of recurrent models run.
func recurrentDevices(t testing.TB) map[string]kernels.Device {
	gpu, _ := testdevice.GPU(t, emulated.Options{})
	return map[string]kernels.Device{"ref": device.New(), "cpu": testdevice.CPU(t, 2), "cuda": gpu}
}

// TestRecurrentDevices: every kind of device gives the same bits, with keys and values in both types.
func TestRecurrentDevices(t *testing.T) {
	shares, _ := testdevice.GPU(t, emulated.Options{Integrated: true})
	apart, _ := testdevice.GPU(t, emulated.Options{})
	near, other := testdevice.CPU(t, 2), testdevice.CPU(t, 1)
	all := map[string]kernels.Device{"gpu": apart, "gpu that shares memory": shares, "definitions": testdevice.Ref(),
		"layers": enginetest.Fixed{Device: layers.New(layers.Config{Near: near, Far: apart}).With(2)}, "divided": enginetest.Halves(t,
			near, other, nil),
		"exchanged": enginetest.Halves(t, near, enginetest.Unshared{Device: other}, nil), "beside a gpu": enginetest.Halves(t, other,
			apart, nil)}
	for _, name := range []string{"qwen35", "qwen35moe"} {
		for kvType, long := range map[string]int{"f16": 280, "q8_0": 40} {
			path, o := enginetest.GoldenPath(t, name), engine.Options{KVType: kvType, KVPages: 24, MaxRows: 300, Device: near}
			want := enginetest.Dialogue(t, enginetest.Open(t, path, o), long)
			for on, d := range all {
				if on == "definitions" && long > 100 {
					continue // slow
				}
				o.Device = d
				if err := enginetest.SameBits(enginetest.Dialogue(t, enginetest.Open(t, path, o), long), want); err != nil {
					t.Errorf("%s, %s, %s: %v", name, kvType, on, err)
				}
			}
		}
	}
	m := enginetest.Open(t, enginetest.RecurrentPath(t), engine.Options{Device: apart, KVPages: engine.PagesFor(5, 300, 40)})
	enginetest.CompareTrees(t, m, rand.New(rand.NewPCG(1, 5)), 10)
}

// TestGoldenRecurrent compares tiny models with delta nets with another engine's figures, on each device. In one pass, token by token, and
// in random pieces the bits are the same. TestGolden2026 says who is nearer to float arithmetic.
func TestGoldenRecurrent(t *testing.T) {
	for _, name := range []string{"qwen35", "qwen35moe"} {
		c, path := enginetest.ReadFigures(t, name)
		for of, d := range recurrentDevices(t) {
			t.Run(name+" on "+of, func(t *testing.T) {
				m := enginetest.Open(t, path, engine.Options{KVPages: engine.PagesFor(4, 192, 0), Device: d})
				enginetest.CheckPrompt(t, m, c)
				enginetest.CheckGreedy(t, m, c)
				whole := enginetest.InPieces(t, m, c.Tokens, []int{len(c.Tokens)})
				if err := enginetest.SameBits(whole, enginetest.InPieces(t, m, c.Tokens, slices.Repeat([]int{1},
					len(c.Tokens)))); err != nil {
					t.Errorf("in one pass and token by token: %v", err)
				}
				random := rand.New(rand.NewPCG(1, 2))
				for range 3 {
					var pieces []int
					for left := len(c.Tokens); left > 0; left -= pieces[len(pieces)-1] {
						pieces = append(pieces, 1+random.IntN(min(left, 9)))
					}
					if err := enginetest.SameBits(whole, enginetest.InPieces(t, m, c.Tokens, pieces)); err != nil {
						t.Errorf("in one pass and in pieces %v: %v", pieces, err)
					}
				}
			})
		}
	}
}

// TestLeavesOutGuesses opens a model with a layer behind the last that guesses further tokens.
func TestLeavesOutGuesses(t *testing.T) {
	path := enginetest.ChangedFile(t, enginetest.RecurrentPath(t), func(w *gguf.Writer, _ *gguf.File) {
		w.Set("qwen35.nextn_predict_layers", uint32(1))
		w.Set("qwen35.block_count", uint32(5))
		w.Tensor("blk.4.nextn.eh_proj.weight", 0, []int{128}, make([]byte, 512))
	})
	tokens := []tandem.Token{5, 6, 7}
	m, plain := enginetest.Open(t, path, engine.Options{KVPages: 8}), enginetest.Open(t, enginetest.RecurrentPath(t),
		engine.Options{KVPages: 8})
	if err := enginetest.SameBits(enginetest.Alone(t, m, tokens), enginetest.Alone(t, plain, tokens)); err != nil {
		t.Error(err)
	}
	info, err := engine.Inspect(path)
	if err != nil || !slices.Contains(info.Traits, "1 layers that guess further tokens (MTP) are left out") {
		t.Errorf("%v, %v", info, err)
	}
}

// TestBrokenRecurrent opens recurrent models whose keys or tensors contradict each other; each is refused by name.
func TestBrokenRecurrent(t *testing.T) {
	key := func(name string, v any) enginetest.Change { return enginetest.SetKey("qwen35."+name, v) }
	for _, c := range []struct {
		name   string
		change enginetest.Change
		kind   tandem.Kind
		want   string
	}{
		{"interval 0", key("full_attention_interval", uint32(0)), tandem.Corrupt, "full_attention_interval"},
		{"interval 1", key("full_attention_interval", uint32(1)), tandem.Corrupt, "layer 0 is attention by key"},
		{"interval 3", key("full_attention_interval", uint32(3)), tandem.Corrupt, "layer 2 is attention by key"},
		{"interval 5", key("full_attention_interval", uint32(5)), tandem.Corrupt, "layer 3 is a delta net by key"},
		{"no taps", key("ssm.conv_kernel", uint32(0)), tandem.Corrupt, "ssm.conv_kernel"},
		{"one tap", key("ssm.conv_kernel", uint32(1)), tandem.Unsupported, "ssm.conv_kernel"},
		{"other taps", key("ssm.conv_kernel", uint32(3)), tandem.Corrupt, "ssm_conv1d"},
		{"inner size", key("ssm.inner_size", uint32(255)), tandem.Corrupt, "ssm.inner_size"},
		{"groups", key("ssm.group_count", uint32(3)), tandem.Corrupt, "ssm.time_step_rank"},
		{"no groups", key("ssm.group_count", uint32(0)), tandem.Corrupt, "ssm.group_count"},
		{"state size", key("ssm.state_size", uint32(0)), tandem.Corrupt, "ssm.state_size"},
		{"huge", key("ssm.state_size", uint32(1<<31)), tandem.Corrupt, "ssm.state_size"},
		{"all layers guess", key("nextn_predict_layers", uint32(4)), tandem.Corrupt, "nextn_predict_layers"},
		{"states that grow", func(w *gguf.Writer, _ *gguf.File) {
			w.Tensor("blk.0.ssm_a", 0, []int{4}, naive.BytesOfFloats([]float64{-1, -1, 0.5, -1}))
		},
			tandem.Corrupt, "ssm_a"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := enginetest.ChangedFile(t, enginetest.RecurrentPath(t), c.change)
			_, err := engine.Open(path, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 4})
			if tandem.KindOf(err) != c.kind || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v: want %v that names %s", err, c.kind, c.want)
			}
		})
	}
}
