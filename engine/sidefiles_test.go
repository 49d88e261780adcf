package engine_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// editSide writes a changed copy of a file of testdata/sides.
func editSide(t testing.TB, name string, change func(w *gguf.Writer)) string {
	t.Helper()
	f, err := gguf.Open(sidePath(name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := gguf.CopyOf(f)
	change(w)
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		t.Fatal(err)
	}
	return writeSide(t, b.Bytes())
}

func writeSide(t testing.TB, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "side.gguf")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// openSideFile opens a side file of any kind with the tiny target.
func openSideFile(t testing.TB, path string, o engine.Options) error {
	t.Helper()
	o.Device, o.KVPages = testdevice.Ref(), 1
	if s, err := engine.SideOf(path); err != nil || s.Kind.IsDraft() {
		m, err := engine.OpenDraft(path, sidePath("target"), o)
		if err == nil {
			m.Close()
		}
		return err
	}
	m, err := engine.Open(sidePath("target"), o)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	return m.OpenSide(path)
}

// TestBadSideFiles: what is wrong with a side file is said, with the value and what would be right.
func TestBadSideFiles(t *testing.T) {
	set := func(key string, v any) func(w *gguf.Writer) { return func(w *gguf.Writer) { w.Set(key, v) } }
	drop := func(key string) func(w *gguf.Writer) { return func(w *gguf.Writer) { w.DropKey(key) } }
	tensor := func(name string, shape []int, v ...float64) func(w *gguf.Writer) {
		return func(w *gguf.Writer) {
			n := 1
			for _, d := range shape {
				n *= d
			}
			w.Tensor(name, 0, shape, naive.BytesOfFloats(append(v, make([]float64, n-len(v))...)))
		}
	}
	without := func(name string) func(w *gguf.Writer) { return func(w *gguf.Writer) { w.DropTensor(name) } }
	known := func(arch string, ids ...int32) func(w *gguf.Writer) {
		return func(w *gguf.Writer) {
			w.Set(arch+".d2t", ids)
			w.Set(arch+".draft_vocab_size", uint32(len(ids)))
		}
	}
	nan, inf := math.NaN(), math.Inf(1)
	const lineage, vocabulary = "tandem.target.lineage", "tandem.target.vocabulary"
	others := strings.Repeat("0123456789abcdef", 2)
	for _, c := range []struct {
		name   string
		change func(w *gguf.Writer)
		kind   tandem.Kind
		says   []string
	}{
		{"medusa-shared", set(lineage, others), tandem.Invalid, []string{others, "dd9a29545807bb2b924edc09679dc0eb"}},
		{"ppd-1", set(lineage, others), tandem.Invalid, []string{others, "dd9a29545807bb2b924edc09679dc0eb"}},
		{"dovetail", set(lineage, others), tandem.Invalid, []string{others, "dd9a29545807bb2b924edc09679dc0eb"}},
		{"eagle3", set(lineage, others), tandem.Invalid, []string{others, "dd9a29545807bb2b924edc09679dc0eb"}},
		{"ppd-4", set(vocabulary, others[:16]), tandem.Invalid, []string{others[:16], "934910ae626e7b3f"}},
		{"eagle", set(vocabulary, others[:16]), tandem.Invalid, []string{others[:16], "934910ae626e7b3f"}},
		{"medusa-own", set(lineage, "nobody"), tandem.Corrupt, []string{"nobody", "32 hexadecimal"}},
		{"medusa-own", drop(vocabulary), tandem.Corrupt, []string{vocabulary}},
		{"medusa-own", set("medusa.embedding_length", uint32(64)), tandem.Corrupt, []string{"[32 32]", "[64 64]"}},
		{"medusa-own", set("medusa.vocab_size", uint32(64)), tandem.Corrupt, []string{"[32 260]", "[32 64]"}},
		{"ppd-1", set("ppd.vocab_size", uint32(64)), tandem.Invalid, []string{"64 tokens", "260"}},
		{"medusa-own", set("medusa.head_count", uint32(0)), tandem.Corrupt, []string{"head_count", "0", "1 to 16"}},
		{"medusa-own", set("medusa.head_count", uint32(1000)), tandem.Corrupt, []string{"head_count", "1000", "1 to 16"}},
		{"medusa-own", set("medusa.head_count", uint32(3)), tandem.Corrupt, []string{"medusa.2.0.weight"}},
		{"medusa-own", set("medusa.head_count", uint32(1)), tandem.Unsupported, []string{"medusa.1."}},
		{"medusa-own", set("medusa.block_count", uint32(9)), tandem.Corrupt, []string{"block_count", "9", "1 to 4"}},
		{"medusa-own", set("medusa.taps", []int32{2}), tandem.Corrupt, []string{"tap 2", "-1"}},
		{"medusa-own", set("medusa.taps", []int32{-1, 1}), tandem.Corrupt, []string{"2 taps", "wants 1"}},
		{"medusa-own", without("medusa.1.output.weight"), tandem.Corrupt, []string{"1 of 2 heads", "output matrix"}},
		{"medusa-own", known("medusa", 5, 6), tandem.Corrupt, []string{"output matrices", "medusa.d2t"}},
		{"medusa-shared", known("medusa", 5, 260), tandem.Corrupt, []string{"260", "0 to 259"}},
		{"ppd-1", known("ppd", 5, 5), tandem.Corrupt, []string{"draft token 1", "5"}},
		{"medusa-own", without("medusa.0.output.weight"), tandem.Corrupt, []string{"1 of 2 heads", "output matrix"}},
		{"medusa-own", tensor("medusa.0.0.weight", []int{32, 16}), tandem.Corrupt, []string{"[32 16]", "[32 32]"}},
		{"medusa-shared", tensor("medusa.0.0.bias", []int{32}, 1, nan), tandem.Corrupt, []string{"medusa.0.0.bias", "number 1", "NaN"}},
		{"medusa-shared", tensor("extra", []int{4}), tandem.Unsupported, []string{"extra"}},
		{"ppd-1", set("ppd.token_count", uint32(0)), tandem.Corrupt, []string{"token_count", "0", "1 to 16"}},
		{"ppd-1", set("ppd.token_count", uint32(17)), tandem.Corrupt, []string{"token_count", "17", "1 to 16"}},
		{"ppd-4", set("ppd.ensemble_count", uint32(0)), tandem.Corrupt, []string{"ensemble_count", "0"}},
		{"ppd-4", set("ppd.ensemble_count", uint32(1024)), tandem.Corrupt, []string{"1024 ensemble", "at most 1024"}},
		{"ppd-4", set("ppd.ensemble_count", uint32(5)), tandem.Corrupt, []string{"[32 12]", "[32 15]"}},
		{"ppd-4", tensor("ppd.embd.weight", []int{32, 12}, 1, 2, inf), tandem.Corrupt, []string{"ppd.embd.weight", "number 2", "Inf"}},
		{"dovetail", set("dovetail.block_count", uint32(0)), tandem.Corrupt, []string{"block_count", "0"}},
		{"dovetail", set("dovetail.block_count", uint32(1000)), tandem.Corrupt, []string{"block_count", "1000", "1 to 8"}},
		{"dovetail", set("dovetail.block_count", uint32(3)), tandem.Corrupt, []string{"blk.2."}},
		{"dovetail", set("dovetail.taps", []int32{0}), tandem.Corrupt, []string{"tap 0", "from 1"}},
		{"dovetail", set("dovetail.taps", []int32{4}), tandem.Invalid, []string{"layer 4", "3"}},
		{"dovetail", set("dovetail.taps", []string{"a"}), tandem.Corrupt, []string{"dovetail.taps"}},
		{"dovetail", without("fuse.gate.embd.weight"), tandem.Corrupt, []string{"fuse.gate.embd.weight"}},
		{"dovetail", without("blk.1.attn_norm.weight"), tandem.Corrupt, []string{"blk.1.attn_norm.weight"}},
		{"dovetail", tensor("output_norm.weight", []int{32}, nan), tandem.Corrupt, []string{"output_norm.weight", "NaN"}},
		{"dovetail", tensor("token_embd.weight", []int{32, 260}), tandem.Unsupported, []string{"token_embd.weight"}},
		{"eagle", set("eagle.attention.head_count", uint32(5)), tandem.Corrupt, []string{"head"}},
		{"eagle", without("fc.hidden.weight"), tandem.Corrupt, []string{"fc.hidden.weight"}},
		{"eagle3", set("eagle3.taps", []int32{}), tandem.Corrupt, []string{"0 taps", "wants 1 to 8"}},
		{"eagle3", set("eagle3.d2t", []int32{1, 2}), tandem.Corrupt, []string{"2 ids", "100"}},
		{"eagle3", set("eagle3.d2t", make([]int32, 100)), tandem.Corrupt, []string{"target's 0", "earlier"}},
		{"eagle3", set("eagle3.d2t", append([]int32{260}, make([]int32, 99)...)), tandem.Corrupt, []string{"260"}},
		{"eagle3", drop("eagle3.draft_vocab_size"), tandem.Corrupt, []string{"draft_vocab_size"}},
		{"eagle3", set("eagle3.draft_length", uint32(64)), tandem.Corrupt, []string{"[32 32]"}},
		{"eagle3", without("blk.0.hidden_norm.weight"), tandem.Corrupt, []string{"blk.0.hidden_norm.weight"}},
		{"eagle", set("eagle.taps", []int32{-1, 2, -1}), tandem.Corrupt, []string{"[-1 2 -1]", "-1 is there twice"}},
		{"eagle", set("eagle.taps", []int32{1, 2, 3}), tandem.Corrupt, []string{"taps 1 and 2", "taps.0.weight", "taps.1.weight"}},
		{"eagle", set("eagle.taps", []int32{1, 2, 3, 4, 5, 6, 7, 8, 9}), tandem.Corrupt, []string{"9 taps", "wants 1 to 8"}},
		{"eagle", tensor("taps.0.weight", []int{32, 16}), tandem.Corrupt, []string{"taps.0.weight", "[32 16]", "[32 32]"}},
		{"eagle", tensor("taps.1.weight", []int{32, 32}), tandem.Unsupported, []string{"taps.1.weight"}},
		{"dovetail", tensor("output.weight", []int{32, 260}), tandem.Corrupt, []string{"output.weight", "dovetail.d2t"}},
		{"dovetail", known("dovetail", 5, 260), tandem.Corrupt, []string{"draft token 1", "target's 260", "0 to 259"}},
		{"dovetail", known("dovetail", 5, -1), tandem.Corrupt, []string{"dovetail.d2t"}},
		{"dovetail", known("dovetail", 5, 7, 5), tandem.Corrupt, []string{"draft token 2", "target's 5", "earlier"}},
		{"eagle", set("eagle.d2t", []int32{1, 2}), tandem.Corrupt, []string{"draft_vocab_size"}},
		{"eagle", set("eagle.draft_vocab_size", uint32(9)), tandem.Corrupt, []string{"d2t"}},
		{"eagle", func(w *gguf.Writer) {
			known("eagle", 4, 9)(w)
			tensor("output.weight", []int{32, 3})(w)
		}, tandem.Corrupt, []string{"output.weight", "[32 3]", "[32 2]"}},
		{"eagle3", without("fc.1.weight"), tandem.Corrupt, []string{"fc.1.weight"}},
	} {
		err := openSideFile(t, editSide(t, c.name, c.change), engine.Options{})
		if tandem.KindOf(err) != c.kind {
			t.Errorf("%s: kind %v, want %v: %v", c.name, tandem.KindOf(err), c.kind, err)
		}
		for _, s := range c.says {
			if err != nil && !strings.Contains(err.Error(), s) {
				t.Errorf("%s: %v: want %q in it", c.name, err, s)
			}
		}
	}
}

// TestTruncatedSideFiles: a file that ends early, at every 4 KiB and in the header, is refused.
func TestTruncatedSideFiles(t *testing.T) {
	for _, name := range append([]string{"medusa-shared", "medusa-own", "ppd-1", "ppd-4", "dflash"}, draftNames...) {
		whole, err := os.ReadFile(sidePath(name))
		if err != nil {
			t.Fatal(err)
		}
		for n := 0; n < len(whole); n += 4 << 10 {
			for _, cut := range []int{n, min(n+n/7+100, len(whole)-1)} {
				if err := openSideFile(t, writeSide(t, whole[:cut]), engine.Options{}); err == nil {
					t.Errorf("%s opened with %d of %d bytes", name, cut, len(whole))
				}
			}
		}
	}
}

// TestSidesInTheWrongPlace: side files where others are wanted, and the other way round.
func TestSidesInTheWrongPlace(t *testing.T) {
	m := openSides(t, engine.Options{}, "medusa-own", "ppd-4")
	for _, path := range []string{sidePath("dovetail"), sidePath("target"), enginetest.Draft, sidePath("medusa-shared"), sidePath("ppd-1"),
		"none.gguf"} {
		if err := m.OpenSide(path); tandem.KindOf(err) != tandem.Invalid {
			t.Errorf("opened %s: %v", path, err)
		}
	}
	if want := []tandem.SelfDraft{{Name: "medusa", Levels: 2}, {Name: "ppd", Levels: 3, Members: 4}}; !slices.Equal(m.SelfDrafts(), want) {
		t.Errorf("ways %v: want %v", m.SelfDrafts(), want)
	}
	o := engine.Options{Device: testdevice.CPU(t, 1), KVPages: 2}
	for _, name := range []string{"dovetail", "ppd-1"} {
		if _, err := engine.Open(sidePath(name), o); tandem.KindOf(err) != tandem.Invalid || !strings.Contains(err.Error(), "side file") {
			t.Errorf("opened %s alone: %v", name, err)
		}
	}
	if _, err := engine.OpenDraft(sidePath("ppd-1"), sidePath("target"), o); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("opened as a draft: %v", err)
	}
	for _, target := range []string{enginetest.Draft, "none.gguf", sidePath("eagle")} {
		if _, err := engine.OpenDraft(sidePath("eagle"), target, o); err == nil {
			t.Errorf("opened with target %s", target)
		}
	}
	d := openDraftTest(t, "eagle", engine.Options{})
	if err := d.OpenSide(sidePath("ppd-1")); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a draft with states got prompt tokens: %v", err)
	}
	tapped := engine.Options{Device: o.Device, Taps: []int{1}}
	if _, err := engine.OpenDraft(sidePath("eagle"), sidePath("target"), tapped); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a draft with states has taps: %v", err)
	}
	plain, err := engine.OpenDraft(sidePath("target"), "none.gguf", o)
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if features, own := plain.StateWidth(); features != 0 || own != 0 {
		t.Errorf("a plain model has states of %d and %d", features, own)
	}
}

// TestSideOf: what headers say.
func TestSideOf(t *testing.T) {
	for name, want := range map[string]string{"medusa-shared": "3 medusa heads of 2 blocks", "ppd-4": "3 prompt tokens, 4 embeddings each",
		"dovetail": "dovetail draft of 2 blocks, reads [-1]", "eagle3": "eagle3 draft of 1 blocks, reads [1 2 3]"} {
		s, err := engine.SideOf(sidePath(name))
		if err != nil || s.String() != want || s.Name != name || s.Dim != 32 || s.Vocab != 260 || s.Kind.IsDraft() && s.Draft.Width != 32 {
			t.Errorf("%s: %+v, %v", name, s, err)
		}
		if s.Kind.InVerifier() == s.Kind.IsDraft() {
			t.Errorf("%s belongs nowhere, or everywhere", name)
		}
	}
	if s, err := engine.SideOf(enginetest.Target); err != nil || s.Kind != "" || s.Kind.IsDraft() || s.Kind.InVerifier() {
		t.Errorf("a model is %+v, %v", s, err)
	}
}

// TestSideMemory: what Measure says is what is taken.
func TestSideMemory(t *testing.T) {
	o := engine.Options{Device: testdevice.CPU(t, 1), KVPages: 3, MaxRows: 40, Taps: []int{1, -1}}
	bare, err := engine.Measure(sidePath("target"), o)
	if err != nil {
		t.Fatal(err)
	}
	sides := []string{sidePath("medusa-own"), sidePath("ppd-4")}
	planned, err := engine.Measure(sidePath("target"), o, sides...)
	if err != nil {
		t.Fatal(err)
	}
	m := openSides(t, o, "medusa-own", "ppd-4")
	if engine.FootprintOf(m) != planned || planned.Weights != bare.Weights+engine.GuessesOf(m).Stored() || planned.Scratch <= bare.Scratch {
		t.Errorf("planned %v, taken %v, without side files %v", planned, engine.FootprintOf(m), bare)
	}
	o.Taps = nil
	if tapless, err := engine.Measure(sidePath("target"), o); err != nil || tapless.Scratch+40*32*4 > bare.Scratch {
		t.Errorf("%v without taps, %v with two, %v", tapless, bare, err)
	}
	if _, err := engine.Measure(sidePath("target"), o, sidePath("eagle")); tandem.KindOf(err) != tandem.Invalid {
		t.Errorf("a draft as a side file of the target: %v", err)
	}
	for _, name := range append([]string{"dflash"}, draftNames...) {
		d, err := engine.OpenDraft(sidePath(name), sidePath("target"), o)
		if err != nil {
			t.Fatal(err)
		}
		if planned, err := engine.MeasureDraft(sidePath(name), sidePath("target"), o); err != nil || planned != engine.FootprintOf(d) ||
			planned.Weights != engine.StoredBy(d) {
			t.Errorf("%s: planned %v, taken %v: %v", name, planned, engine.FootprintOf(d), err)
		}
		d.Close()
	}
}

// FuzzSideHeader sets keys of side files to any value: the file is refused, or opens and runs.
func FuzzSideHeader(f *testing.F) {
	names := append([]string{"medusa-shared", "ppd-4"}, append(draftNames[:len(draftNames):len(draftNames)], "dflash")...)
	keys := []string{"embedding_length", "vocab_size", "taps", "head_count", "block_count", "token_count", "ensemble_count",
		"context_length", "feed_forward_length", "attention.head_count", "attention.head_count_kv",
		"attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count", "draft_length", "draft_vocab_size", "d2t",
		"attention.key_length", "block_size", "mask_token_id", "attention.sliding_window", "attention.causal_layers"}
	for i := range names {
		for j := range keys {
			f.Add(uint8(i), uint8(j), uint8(j%5), uint64(i+j*31))
			f.Add(uint8(i), uint8(j), uint8(i%5), uint64(1)<<(2*j))
		}
	}
	f.Fuzz(func(t *testing.T, file, key, kind uint8, v uint64) {
		values := []any{uint32(v), int64(v), math.Float32frombits(uint32(v)), []int32{int32(v), int32(v >> 32)}, fmt.Sprint(v),
			[]int32{int32(v % 5), int32(v / 5 % 5), int32(v / 25 % 5)}}
		name := names[int(file)%len(names)]
		arch, _, _ := strings.Cut(name, "-")
		path := editSide(t, name, func(w *gguf.Writer) { w.Set(arch+"."+keys[int(key)%len(keys)], values[int(kind)%len(values)]) })
		o := engine.Options{Device: testdevice.Ref(), KVPages: 2, Context: 64, MaxRows: 4}
		s, err := engine.SideOf(path)
		if err != nil || !s.Kind.IsDraft() {
			openSideFile(t, path, o)
			return
		}
		m, err := engine.OpenDraft(path, sidePath("target"), o)
		if err != nil {
			return
		}
		defer m.Close()
		seq := enginetest.NewSeq(t, m, 4, 0)
		features, own := m.StateWidth()
		text := engine.Part{Seq: seq, Extend: []tandem.Token{1, 2, 3}, Want: engine.WantAll,
			States: []engine.State{{}, {Target: make([]float32, features)}, {Own: make([]float32, own)}}}
		if b := m.Block(); b.Rows > 0 {
			enginetest.Forward(t, m, 2, text)
			seq.Close()
			block := enginetest.NewSeq(t, m, 4, 1)
			enginetest.Forward(t, m, 2, engine.Part{Seq: block, Extend: text.Extend[:1], States: text.States[:1]})
			enginetest.Forward(t, m, 2, engine.Part{Seq: block, Nodes: []tandem.Token{1}, Parents: []int32{-1}, States: text.States[:1],
				Want: engine.WantTail})
			return
		}
		out := enginetest.Forward(t, m, 2, text)
		if len(out.Hidden(0, 2)) != own || len(out.Logits(2)) != 260 {
			t.Errorf("%s: %d hidden, %d logits", name, len(out.Hidden(0, 2)), len(out.Logits(2)))
		}
	})
}
