package convert

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

func open(t testing.TB, path string) *gguf.File {
	t.Helper()
	f, err := gguf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// quantized is a line of test/testdata/golden/quantized.jsonl: what another engine's tool makes of a model.
type quantized struct {
	Type    string
	Bytes   int64
	Head    string // digest of what stands before the tensors' data
	SHA256  string
	Tensors []struct{ Name, Type, SHA256 string }
	RMS     map[string]float64 // distance from the model's weights, by type
}

// TestEqualsOtherTool: the file equals that of the other tool plus the lineage, except for the types whose scales are searched: these must
// be at least as close to the weights.
func TestEqualsOtherTool(t *testing.T) {
	lines, err := os.ReadFile("../../test/testdata/golden/quantized.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range bytes.Lines(lines) {
		var want quantized
		if err := json.Unmarshal(line, &want); err != nil {
			t.Fatal(err)
		}
		n++
		t.Run(want.Type, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out.gguf")
			if _, err := Quantize(t.Context(), draft, out, want.Type, false, Options{}); err != nil {
				t.Fatal(err)
			}
			want.compare(t, open(t, out), open(t, draft))
		})
	}
	if n != 5 {
		t.Errorf("%d types: want 5", n)
	}
}

func (want *quantized) compare(t *testing.T, f, truth *gguf.File) {
	t.Helper()
	_, lineage := digest(t, truth.Path())
	if got, err := f.String(gguf.LineageKey); err != nil || got != lineage {
		t.Errorf("lineage %q, %v: want %q", got, err, lineage)
	}
	w := gguf.CopyOf(f)
	w.DropKey(gguf.LineageKey)
	var whole bytes.Buffer
	if _, err := w.WriteTo(&whole); err != nil {
		t.Fatal(err)
	}
	if int64(whole.Len()) != want.Bytes || len(f.Tensors()) != len(want.Tensors) {
		t.Fatalf("%d bytes, %d tensors: the other tool makes %d, %d", whole.Len(), len(f.Tensors()), want.Bytes, len(want.Tensors))
	}
	sum := func(b []byte) string { return fmt.Sprintf("%x", sha256.Sum256(b)) }
	head := whole.Len()
	for i := range f.Tensors() {
		got, theirs := &f.Tensors()[i], want.Tensors[i]
		head -= (got.Size() + f.Alignment() - 1) / f.Alignment() * f.Alignment()
		if got.Name != theirs.Name || got.Type.String() != theirs.Type {
			t.Errorf("tensor %d is %s, %s: want %s, %s", i, got.Name, got.Type, theirs.Name, theirs.Type)
			continue
		}
		b, err := got.Bytes()
		if err != nil {
			t.Fatal(err)
		}
		if _, searched := want.RMS[theirs.Type]; !searched && sum(b) != theirs.SHA256 {
			t.Errorf("tensor %s (%s) has other bytes", theirs.Name, theirs.Type)
		}
	}
	if sum(whole.Bytes()[:head]) != want.Head {
		t.Errorf("keys, or the list of tensors, are not byte for byte the other tool's")
	}
	if len(want.RMS) == 0 && sum(whole.Bytes()) != want.SHA256 {
		t.Error("not byte for byte the other tool's file")
	}
	for typ, other := range want.RMS {
		e := rmsError(t, f, truth, typ)
		t.Logf("%s: r.m.s. error %.4g, the other tool's %.4g: %.3f", typ, e, other, e/other)
		if !(e > 0 && e <= other) {
			t.Errorf("%s: r.m.s. error %g: want at most the other tool's %g", typ, e, other)
		}
	}
}

// rmsError returns the root of the mean squared difference of two models' weights of a type, over every eighth row.
func rmsError(t *testing.T, f, truth *gguf.File, typ string) float64 {
	var sum, n float64
	for i := range f.Tensors() {
		s := &f.Tensors()[i]
		if s.Type.String() != typ {
			continue
		}
		cols := s.Shape[0]
		got, want, buf := make([]float32, cols), make([]float32, cols), []byte(nil)
		for row := 0; row < s.Shape[1]; row += 8 {
			if err := errors.Join(readRows(s, got, cols, &buf, row, 1), readRows(truth.Tensor(s.Name), want, cols, &buf, row,
				1)); err != nil {
				t.Fatal(err)
			}
			for j := range got {
				e := float64(got[j]) - float64(want[j])
				sum += e * e
			}
			n += float64(cols)
		}
	}
	return math.Sqrt(sum / n)
}

// tiny returns the path of a model of two layers, d 32 and ffn 64, with the values that weight gives.
func tiny(t testing.TB, typ gguf.Type, weight func(name string, i int) float32, change func(*gguf.Writer)) string {
	t.Helper()
	w := gguf.NewWriter()
	w.Set("general.architecture", "llama")
	w.Set("general.name", "tiny")
	w.Set("llama.block_count", uint32(2))
	w.Set("llama.embedding_length", uint32(32))
	w.Set("llama.feed_forward_length", uint32(64))
	w.Set("llama.attention.head_count", uint32(4))
	w.Set("llama.attention.head_count_kv", uint32(2))
	w.Set("llama.attention.layer_norm_rms_epsilon", float32(1e-5))
	add := func(name string, shape ...int) {
		n, typ := shape[0], typ
		if len(shape) == 1 {
			typ = gguf.F32
		} else {
			n *= shape[1]
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = weight(name, i)
		}
		elems, size := typ.Block()
		raw := make([]byte, n/elems*size)
		if err := encode(typ, raw, x); err != nil {
			t.Fatal(err)
		}
		w.Tensor(name, typ, shape, raw)
	}
	add("token_embd.weight", 32, 48)
	add("output_norm.weight", 32)
	for l := range 2 {
		for name, shape := range map[string][]int{"attn_norm": {32}, "ffn_norm": {32}, "attn_q": {32, 32}, "attn_k": {32, 16},
			"attn_v":      {32, 16},
			"attn_output": {32, 32}, "ffn_gate": {32, 64}, "ffn_up": {32, 64}, "ffn_down": {64, 32}} {
			add(fmt.Sprintf("blk.%d.%s.weight", l, name), shape...)
		}
	}
	if change != nil {
		change(w)
	}
	path := filepath.Join(t.TempDir(), "tiny.gguf")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.WriteTo(f); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return path
}

func wave(_ string, i int) float32 { return float32(math.Sin(float64(i))) }

// refused checks an error's kind and text, and that nothing was left in the folder of out.
func refused(t *testing.T, err error, out string, k tandem.Kind, parts ...string) {
	t.Helper()
	if !errors.Is(err, k) {
		t.Errorf("error %v of kind %v: want %v", err, tandem.KindOf(err), k)
		return
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", err, p)
		}
	}
	if list, _ := filepath.Glob(filepath.Join(filepath.Dir(out), ".*.tmp")); len(list) > 0 {
		t.Errorf("%v left behind after %v", list, err)
	}
}

func TestRefusedWeights(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out.gguf")
	bad := func(v float32) func(string, int) float32 {
		return func(name string, i int) float32 {
			if name == "blk.1.ffn_up.weight" && i == 32*5+7 {
				return v
			}
			return wave(name, i)
		}
	}
	for _, v := range []float32{float32(math.NaN()), float32(math.Inf(-1))} {
		in := tiny(t, gguf.F32, bad(v), nil)
		for _, typ := range Types() {
			_, err := Quantize(t.Context(), in, out, typ, false, Options{})
			refused(t, err, out, tandem.Corrupt, `"blk.1.ffn_up.weight"`, "weight 7 of row 5 is "+fmt.Sprint(v), "want finite numbers")
		}
		_, err := Expand(t.Context(), in, out, Shape{2, 64, 8, 4, 64, 0}, "", Options{})
		refused(t, err, out, tandem.Corrupt, `"blk.1.ffn_up.weight"`, "weight 7 of row 5 is ")
	}
	_, err := Quantize(t.Context(), tiny(t, gguf.F32, bad(1e9), nil), out, "f16", false, Options{})
	refused(t, err, out, tandem.Unsupported, `"blk.1.ffn_up.weight"`, "1e+09 is beyond f16")
	_, err = Quantize(t.Context(), tiny(t, gguf.F32, bad(1e9), nil), out, "q4_0", false, Options{})
	refused(t, err, out, tandem.Unsupported, `"blk.1.ffn_up.weight"`, "a scale of -1.25e+08")
	if _, err := os.Stat(out); err == nil {
		t.Error("a refused model was written")
	}
}

func TestQuantizedSource(t *testing.T) {
	in := tiny(t, gguf.Q8_0, wave, nil)
	out := filepath.Join(t.TempDir(), "out.gguf")
	_, err := Quantize(t.Context(), in, out, "q4_0", false, Options{})
	refused(t, err, out, tandem.Invalid, "is q8_0: quantising again loses more", "--allow-requantize")
	if _, err = Quantize(t.Context(), in, out, "f16", true, Options{}); err != nil {
		t.Fatal(err)
	}
	if typ := open(t, out).Tensor("blk.0.attn_q.weight").Type; typ != gguf.F16 {
		t.Errorf("attn_q is %s: want f16", typ)
	}
	// What has its type already is copied, so nothing is lost and no leave is needed.
	if _, err = Quantize(t.Context(), in, out, "q8_0", false, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, in), open(t, out)
	for i := range a.Tensors() {
		want := &a.Tensors()[i]
		x, _ := want.Bytes()
		y, _ := b.Tensor(want.Name).Bytes()
		if !bytes.Equal(x, y) {
			t.Errorf("%s changed", want.Name)
		}
	}
}

func TestPaths(t *testing.T) {
	in := tiny(t, gguf.F16, wave, nil)
	dir := t.TempDir()
	there := filepath.Join(dir, "there.gguf")
	if err := os.WriteFile(there, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		in, out, typ string
		force        bool
		says         string
	}{
		{in, there, "q8_0", false, "there.gguf\" is there already: want another path, or --force"},
		{in, dir, "q8_0", true, "is no regular file (d"},
		{in, fifo, "q8_0", true, "is no regular file (p"},
		{in, in, "q8_0", true, "is the input: want another path"},
		{in, "", "q8_0", false, "the path of the output is empty"},
		{in, filepath.Join(dir, "no", "out.gguf"), "q8_0", false, "cannot be written: no such file or directory"},
		{in, filepath.Join(there, "out.gguf"), "q8_0", false, "cannot be written: not a directory"},
		{in, filepath.Join(dir, "out.gguf"), "q9", false, `type "q9": want one of f32, f16, bf16, q8_0, q4_0, q5_0, q4_k_m, q6_k, q3_k_m, q2_k`},
		{filepath.Join(dir, "none"), filepath.Join(dir, "out.gguf"), "q8_0", false, "none: no such file"},
	} {
		_, err := Quantize(t.Context(), c.in, c.out, c.typ, false, Options{Force: c.force})
		refused(t, err, c.out, tandem.Invalid, c.says)
	}
	if old, _ := os.ReadFile(there); string(old) != "old" {
		t.Error("a file was replaced without leave")
	}
	if _, err := Quantize(t.Context(), in, there, "Q8_0", false, Options{Force: true}); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(there); err != nil || st.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v: want 0644", st.Mode(), err)
	}
	list, err := os.ReadDir(dir)
	if err != nil || len(list) != 2 {
		t.Errorf("%v, %v: want there.gguf and fifo", list, err)
	}
}

// A run that is stopped, or whose disk is full, leaves nothing.
func TestStopped(t *testing.T) {
	in := tiny(t, gguf.F16, wave, nil)
	out := filepath.Join(t.TempDir(), "out.gguf")
	ctx, stop := context.WithCancel(t.Context())
	var seen []int64
	_, err := Quantize(ctx, in, out, "q8_0", false, Options{Progress: func(done, total int64) {
		if seen = append(seen, done); len(seen) == 3 {
			stop()
		}
	}})
	refused(t, err, out, tandem.Canceled, "stopped")
	if len(seen) != 3 || !slices.IsSorted(seen) {
		t.Errorf("progress %v: want three rising numbers", seen)
	}
	err = create(in, out, 1000, false, func(to io.Writer) error {
		if _, err := to.Write(make([]byte, 10)); err != nil {
			return err
		}
		return tandem.Errorf("gguf", tandem.Internal, "tensor: %w", &os.PathError{Op: "write", Path: "x", Err: syscall.ENOSPC})
	})
	refused(t, err, out, tandem.Exhausted, "out.gguf", "no space left on device: want room for 1000 bytes")
	if _, err := os.Stat(out); err == nil {
		t.Error("there is a file")
	}
}

func TestRecipe(t *testing.T) {
	var more []int
	m := &mix{recipe: &recipes[slices.IndexFunc(recipes, func(r recipe) bool { return r.name == "q4_k_m" })], layers: 32}
	for l := range 32 {
		if m.typeOf(fmt.Sprintf("blk.%d.ffn_down.weight", l), []int{1024, 8}, gguf.F16) == gguf.Q6_K {
			more = append(more, l)
		}
	}
	if want := []int{0, 1, 2, 3, 6, 9, 12, 15, 18, 21, 24, 27, 28, 29, 30, 31}; !slices.Equal(more, want) {
		t.Errorf("Q6_K in layers %v: want %v", more, want)
	}
	for _, c := range []struct {
		typ, name string
		cols      int
		tied      bool
		want      gguf.Type
	}{
		{"q4_k_m", "blk.0.attn_q.weight", 576, false, gguf.Q5_0}, {"q4_k_m", "blk.0.attn_v.weight", 576, false, gguf.Q8_0},
		{"q4_k_m", "blk.5.attn_v.weight", 512, false, gguf.Q4_K}, {"q4_k_m", "blk.0.attn_q.weight", 100, false, gguf.F16},
		{"q4_k_m", "output.weight", 512, false, gguf.Q6_K}, {"q4_k_m", "token_embd.weight", 512, true, gguf.Q6_K},
		{"q4_k_m", "token_embd.weight", 512, false, gguf.Q4_K}, {"q4_k_m", "output.weight", 576, false, gguf.Q8_0},
		{"q6_k", "blk.5.ffn_up.weight", 512, false, gguf.Q6_K}, {"q6_k", "blk.5.ffn_up.weight", 96, false, gguf.Q8_0},
		{"q5_0", "token_embd.weight", 512, true, gguf.Q6_K}, {"q8_0", "output.weight", 512, false, gguf.Q8_0},
		{"f16", "output.weight", 512, false, gguf.F16}, {"bf16", "blk.0.attn_q.weight", 100, false, gguf.BF16},
		{"q2_k", "blk.5.ffn_up.weight", 512, false, gguf.Q2_K}, {"q2_k", "blk.5.ffn_down.weight", 512, false, gguf.Q3_K},
		{"q2_k", "blk.5.attn_v.weight", 512, false, gguf.Q4_K}, {"q2_k", "blk.5.attn_output.weight", 512, false, gguf.Q3_K},
		{"q2_k", "token_embd.weight", 512, false, gguf.Q2_K}, {"q2_k", "token_embd.weight", 512, true, gguf.Q6_K},
		{"q2_k", "blk.5.ffn_up.weight", 96, false, gguf.Q4_0}, {"q2_k", "blk.5.attn_v.weight", 96, false, gguf.Q5_0},
		{"q3_k_m", "blk.5.attn_q.weight", 512, false, gguf.Q3_K}, {"q3_k_m", "blk.1.attn_v.weight", 512, false, gguf.Q6_K},
		{"q3_k_m", "blk.2.attn_v.weight", 512, false, gguf.Q4_K}, {"q3_k_m", "blk.1.ffn_down.weight", 512, false, gguf.Q6_K},
		{"q3_k_m", "blk.2.ffn_down.weight", 512, false, gguf.Q4_K}, {"q3_k_m", "blk.2.attn_output.weight", 512, false, gguf.Q4_K},
		{"q4_0", "blk.0.attn_q_norm.weight", 512, false, gguf.F16}, {"q4_0", "blk.0.ffn_gate_inp.weight", 512, false, gguf.F16},
		{"q4_k_m", "blk.0.ffn_down_exps.weight", 768, false, gguf.Q6_K}, {"q4_k_m", "blk.5.ffn_down_exps.weight", 768, false, gguf.Q4_K},
		{"q4_k_m", "blk.0.ffn_gate_exps.weight", 2048, false, gguf.Q4_K}, {"q8_0", "blk.0.ffn_up_exps.bias", 512, false, gguf.F16},
	} {
		r, err := findRecipe(c.typ)
		if err != nil {
			t.Fatal(err)
		}
		m := &mix{recipe: r, layers: 32, tied: c.tied}
		if got := m.typeOf(c.name, []int{c.cols, 64}, gguf.F16); got != c.want {
			t.Errorf("%s: %s with rows of %d is %s: want %s", c.typ, c.name, c.cols, got, c.want)
		}
		if got := m.typeOf(c.name, []int{c.cols}, gguf.F16); got != gguf.F32 {
			t.Errorf("%s: a vector %s is %s: want f32", c.typ, c.name, got)
		}
	}
}
