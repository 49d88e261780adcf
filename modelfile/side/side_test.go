package side

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

const sides = "../../engine/testdata/sides/"

var names = []string{"medusa-shared", "medusa-own", "ppd-1", "ppd-4", "dovetail", "dovetail-bare", "eagle", "eagle3", "dflash",
	"qwen35-mtp", "qwen35moe-mtp"}

func load(t testing.TB, name string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(sides + name + ".gguf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// changed returns a side file with changes.
func changed(t testing.TB, name string, change func(*gguf.Writer)) []byte {
	t.Helper()
	w := gguf.CopyOf(load(t, name))
	change(w)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// The keys that SetKeys writes are those that Read reads.
func TestKeys(t *testing.T) {
	for _, name := range names {
		f := load(t, name)
		s, err := Read(f)
		if err != nil || !Is(f) {
			t.Errorf("%s: %v, a side file: %v", name, err, Is(f))
			continue
		}
		w := gguf.NewWriter()
		s.SetKeys(w)
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		again, err := gguf.Parse(b.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range f.Keys() {
			if strings.HasPrefix(k.Name, "general.") && k.Name != "general.architecture" {
				continue
			}
			if got, want := again.Describe(k.Name), f.Describe(k.Name); got != want {
				t.Errorf("%s: key %s is %s: want %s", name, k.Name, got, want)
			}
		}
	}
	for _, name := range []string{"target"} {
		if f := load(t, name); Is(f) {
			t.Errorf("%s is a side file", name)
		}
		_, err := Read(load(t, name))
		wantError(t, err, tandem.Invalid, `architecture "llama": want a side file, of [medusa ppd`)
	}
}

func wantError(t *testing.T, err error, kind tandem.Kind, says string) {
	t.Helper()
	if tandem.KindOf(err) != kind || err == nil || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v of kind %v: want kind %v and one line that says %q", err, tandem.KindOf(err), kind, says)
	}
}

func TestRefuses(t *testing.T) {
	set := func(key string, v any) func(*gguf.Writer) { return func(w *gguf.Writer) { w.Set(key, v) } }
	sets := func(a string, x uint32, b string, y uint32) func(*gguf.Writer) {
		return func(w *gguf.Writer) { w.Set(a, x); w.Set(b, y) }
	}
	drop := func(name string) func(*gguf.Writer) { return func(w *gguf.Writer) { w.DropTensor(name) } }
	give := func(name string, typ gguf.Type, bytes int, shape ...int) func(*gguf.Writer) {
		return func(w *gguf.Writer) { w.Tensor(name, typ, shape, make([]byte, bytes)) }
	}
	for _, c := range []struct {
		of     string
		change func(*gguf.Writer)
		kind   tandem.Kind
		says   string
	}{
		{"medusa-own", set(LineageKey, "00"), tandem.Corrupt, `"tandem.target.lineage" is "00": want 32 hexadecimal digits`},
		{"medusa-own", set(VocabularyKey, strings.Repeat("z", 16)), tandem.Corrupt, "want 16 hexadecimal digits"},
		{"medusa-own", func(w *gguf.Writer) { w.DropKey(LineageKey) }, tandem.Corrupt, LineageKey},
		{"medusa-own", set("medusa.head_count", uint32(0)), tandem.Corrupt, `"medusa.head_count" is 0`},
		{"medusa-own", set("medusa.head_count", uint32(1000)), tandem.Corrupt, `"medusa.head_count" is 1000`},
		{"medusa-own", set("medusa.head_count", uint32(3)), tandem.Corrupt, `"medusa.2.0.weight" is missing`},
		{"medusa-own", set("medusa.head_count", uint32(1)), tandem.Unsupported,
			`"medusa.1.0.weight" has no place in a side file of medusa`},
		{"medusa-own", set("medusa.taps", []int32{2}), tandem.Corrupt, "tap 2: heads want -1"},
		{"medusa-own", set("medusa.taps", []int32{}), tandem.Corrupt, "0 taps []: medusa wants 1"},
		{"medusa-own", set("medusa.embedding_length", uint32(31)), tandem.Corrupt,
			`"medusa.0.0.weight" has shape [32 32]: the keys want [31 31]`},
		{"medusa-own", set("medusa.vocab_size", uint32(261)), tandem.Corrupt, "the keys want [32 261]"},
		{"medusa-own", drop("medusa.0.output.weight"), tandem.Corrupt, "1 of 2 heads have an output matrix"},
		{"medusa-shared", give("medusa.0.0.bias", gguf.F16, 64, 32), tandem.Corrupt, `"medusa.0.0.bias" is f16: want f32 for a vector`},
		{"ppd-4", set("ppd.token_count", uint32(0)), tandem.Corrupt, `"ppd.token_count" is 0`},
		{"ppd-4", set("ppd.token_count", uint32(17)), tandem.Corrupt, `"ppd.token_count" is 17`},
		{"ppd-4", set("ppd.ensemble_count", uint32(512)), tandem.Corrupt,
			"3 prompt tokens of 512 ensemble members: want 1 to 16 tokens, and at most 1024"},
		{"ppd-4", set("ppd.ensemble_count", uint32(5)), tandem.Corrupt, "has shape [32 12]: the keys want [32 15]"},
		{"dovetail", set("dovetail.block_count", uint32(9)), tandem.Corrupt, `"dovetail.block_count" is 9`},
		{"dovetail", set("dovetail.attention.head_count_kv", uint32(3)), tandem.Corrupt, "no multiple of 3 key heads"},
		{"dovetail", set("dovetail.attention.layer_norm_rms_epsilon", float32(-1)), tandem.Corrupt, "want a number above 0"},
		{"dovetail", set("dovetail.rope.freq_base", float32(0)), tandem.Corrupt, "want a number above 0"},
		{"dovetail", set("dovetail.rope.dimension_count", uint32(3)), tandem.Corrupt, "RoPE over 3 elements"},
		{"dovetail", set("dovetail.attention.value_length", uint32(8)), tandem.Corrupt,
			`"dovetail.attention.value_length" is 8, but heads have keys of 16`},
		{"dovetail", set("dovetail.taps", []int32{0}), tandem.Corrupt, "tap 0: want a number of layers from 1"},
		{"dovetail", set("dovetail.taps", []int32{-2}), tandem.Corrupt, "dovetail.taps"},
		{"dovetail", drop("fuse.gate.hidden.weight"), tandem.Corrupt, `"fuse.gate.hidden.weight" is missing`},
		{"eagle", drop("blk.0.ffn_norm.weight"), tandem.Corrupt, `"blk.0.ffn_norm.weight" is missing`},
		{"eagle3", set("eagle3.block_count", uint32(2)), tandem.Corrupt, `"blk.1.attn_norm.weight" is missing`},
		{"eagle3", set("eagle3.draft_length", uint32(64)), tandem.Corrupt, "the keys want"},
		{"eagle3", set("eagle3.d2t", []int32{1, 2}), tandem.Corrupt, `"eagle3.draft_vocab_size" is 100, but "eagle3.d2t" has 2 ids`},
		{"eagle3", set("eagle3.d2t", make([]int32, 100)), tandem.Corrupt, "draft token 1 is the target's 0, as an earlier one is"},
		{"eagle3", func(w *gguf.Writer) {
			w.Set("eagle3.d2t", []int32{260})
			w.Set("eagle3.draft_vocab_size", uint32(1))
		}, tandem.Corrupt, "draft token 0 is the target's 260: want 0 to 259"},
		{"eagle3", give("rope_freqs.weight", gguf.F32, 16, 4), tandem.Corrupt,
			`"rope_freqs.weight" has shape [4]: the keys want [8]`},
		{"eagle3", set("eagle3.state_norm", "some"), tandem.Corrupt, `"eagle3.state_norm" is "some": want "each" or "all"`},
		{"eagle3", set("eagle3.state_norm", "all"), tandem.Corrupt, `"fc.0.norm.weight" is missing`},
		{"eagle3", set("eagle3.norm_output", "yes"), tandem.Corrupt, "eagle3.norm_output"},
		{"eagle3", set("eagle3.taps", []int32{1, 2, 3, 1, 2, 3, 1, 2, 3}), tandem.Corrupt,
			"9 taps [1 2 3 1 2 3 1 2 3]: eagle3 wants 1 to 8"},
		{"eagle3", set("eagle3.attention.sliding_window", uint32(0)), tandem.Corrupt, "eagle3.attention.sliding_window"},
		{"dflash", set("dflash.block_size", uint32(1)), tandem.Corrupt, "blocks of 1 rows: want 2 to 32, or 1 if the last token's row"},
		{"dflash", set("dflash.block_size", uint32(33)), tandem.Corrupt, `"dflash.block_size" is 33`},
		{"dflash", set("dflash.mask_token_id", uint32(260)), tandem.Corrupt, "mask token 260: want one of the target's, 0 to 259"},
		{"dflash", func(w *gguf.Writer) { w.DropKey("dflash.mask_token_id") }, tandem.Corrupt, "dflash.mask_token_id"},
		{"dflash", set("dflash.attention.causal_layers", []bool{true}), tandem.Corrupt,
			"causal layers [true]: want true or false for each of 2"},
		{"dflash", set("dflash.attention.sliding_window_pattern", []bool{false, false}), tandem.Corrupt,
			"windows of 5 positions in layers"},
		{"dflash", set("dflash.sample_from_anchor", uint32(1)), tandem.Corrupt, "dflash.sample_from_anchor"},
		{"dflash", set("dflash.conv_kernel_size", uint32(2)), tandem.Corrupt, "convolutions of 2 taps in groups of 0 columns"},
		{"dflash", sets("dflash.conv_kernel_size", 7, "dflash.conv_group_size", 8), tandem.Corrupt,
			"convolutions over 7 rows in blocks of 6: want 1 to 6"},
		{"dflash", sets("dflash.conv_kernel_size", 2, "dflash.conv_group_size", 5), tandem.Corrupt,
			"groups of 5 columns: want a number that divides the draft's width 32"},
		{"dflash", sets("dflash.conv_kernel_size", 2, "dflash.conv_group_size", 8), tandem.Corrupt, `"blk.0.attn_conv_base" is missing`},
		{"dflash", sets("dflash.selector_rank", 8, "dflash.selector_top_k", 65), tandem.Corrupt, "a selector of rank 8 for 65 candidates"},
		{"dflash", sets("dflash.selector_rank", 8, "dflash.selector_top_k", 4), tandem.Corrupt, `"selector_hidden.weight" is missing`},
		{"dflash", drop("hidden_norm.weight"), tandem.Corrupt, `"hidden_norm.weight" is missing`},
		{"dflash", drop("blk.1.attn_k_norm.weight"), tandem.Corrupt, `"blk.1.attn_k_norm.weight" is missing`},
		{"dflash", drop("blk.0.attn_norm.weight"), tandem.Corrupt, `"blk.0.attn_norm.weight" is missing`},
	} {
		f, err := gguf.Parse(changed(t, c.of, c.change))
		if err != nil {
			t.Fatal(err)
		}
		_, err = Read(f)
		wantError(t, err, c.kind, c.says)
	}
}

// Files cut at every 4 KiB, and at each byte of their headers, are refused.
func TestTruncated(t *testing.T) {
	for _, name := range names {
		data, err := os.ReadFile(filepath.Join(sides, name+".gguf"))
		if err != nil {
			t.Fatal(err)
		}
		for n := 4; n < len(data)-32; n += min(4096, max(1, n/8)) {
			f, err := gguf.Parse(data[:n])
			if err == nil {
				_, err = Read(f)
			}
			if k := tandem.KindOf(err); k != tandem.Corrupt {
				t.Fatalf("%s cut to %d of %d bytes: %v", name, n, len(data), err)
			}
		}
	}
}

// An EAGLE-3 draft of another width than its target needs matrices of its own.
func TestOwnWidth(t *testing.T) {
	s, err := Read(load(t, "eagle3"))
	if err != nil {
		t.Fatal(err)
	}
	s.Draft.Width = 64
	for _, lacks := range []string{"", "output.weight", "token_embd.weight"} {
		err := s.Complete(func(name string) bool { return name != lacks })
		if (err == nil) != (lacks == "") || err != nil && err.Error() != "a draft of width 64 has no \""+lacks+
			"\", and the rows of the target's have 32" {
			t.Errorf("without %q: %v", lacks, err)
		}
	}
}

func TestFits(t *testing.T) {
	s, err := Read(load(t, "eagle3"))
	if err != nil {
		t.Fatal(err)
	}
	right := Target{Path: "t.gguf", Lineage: s.Lineage, Vocabulary: s.Vocabulary, Dim: s.Dim, Vocab: s.Vocab, Layers: 3}
	if err := s.Fits("s.gguf", right); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*Target){
		"s.gguf does not belong to t.gguf: it was made for a target of lineage " + s.Lineage + ", this one has 00": func(
			t *Target) {
			t.Lineage = "00"
		},
		"for a vocabulary of fingerprint":                                  func(t *Target) { t.Vocabulary = "00" },
		"for 260 tokens, the target has 261":                               func(t *Target) { t.Vocab++ },
		"for width 32, the target was expanded to 64: tandem model expand": func(t *Target) { t.Dim = 64 },
		"for width 32, the target has 16":                                  func(t *Target) { t.Dim = 16 },
		"reads the state after layer 3, the target has 2":                  func(t *Target) { t.Layers = 2 },
	} {
		target := right
		change(&target)
		wantError(t, s.Fits("s.gguf", target), tandem.Invalid, says)
	}
}

// FuzzRead: whatever a file says, reading it gives an error that blames the file, or a spec whose slots are the file's tensors.
func FuzzRead(f *testing.F) {
	for _, name := range names {
		f.Add(changed(f, name, func(w *gguf.Writer) {}))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := gguf.Parse(data)
		if err != nil {
			return
		}
		s, err := Read(file)
		if err != nil {
			if k := tandem.KindOf(err); k != tandem.Corrupt && k != tandem.Unsupported && k != tandem.Invalid {
				t.Fatalf("%v of kind %v", err, k)
			}
			return
		}
		if err := s.Check(); err != nil {
			t.Fatal(err)
		}
		left := len(file.Tensors())
		for _, slot := range s.Slots() {
			if file.Tensor(slot.Name) != nil {
				left--
			} else if !slot.Optional {
				t.Fatalf("%s is missing", slot.Name)
			}
		}
		for i := range file.Tensors() {
			if others := s.Kind.layout().others; others != nil && others(file.Tensors()[i].Name) {
				left--
			}
		}
		if left != 0 {
			t.Fatalf("%d tensors have no slot", left)
		}
	})
}
