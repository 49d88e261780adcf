package convert

import (
	"bytes"
	"encoding/json"
	"math"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/tandem-llm/tandem/modelfile/gguf"
	"github.com/tandem-llm/tandem/modelfile/published/layouttest"
	"github.com/tandem-llm/tandem/modelfile/safetensors/sttest"
	"github.com/tandem-llm/tandem/modelfile/side"
)

// FuzzImport: whatever a checkpoint and its configuration say, importing it gives a side file that can be read, or an error that blames
// them, and no more memory or disk than their sizes allow.
func FuzzImport(f *testing.F) {
	for _, name := range sideNames {
		c := layouttest.Of(f, sides+name+".gguf")
		text, err := json.Marshal(c.Config)
		if err != nil {
			f.Fatal(err)
		}
		for i, n := range c.Names { // small tensors are changed sooner
			if i > 3 {
				delete(c.Tensors, n)
			}
		}
		c.Names = c.Names[:min(4, len(c.Names))]
		f.Add(c.Bytes(), text)
		f.Add(layouttest.Of(f, sides+name+".gguf").Bytes(), text)
	}
	target := targetAt(f, sides+"target.gguf")
	f.Fuzz(func(t *testing.T, data, config []byte) {
		dir := t.TempDir()
		sttest.Put(t, filepath.Join(dir, "model.safetensors"), data)
		sttest.Put(t, filepath.Join(dir, "config.json"), config)
		out := filepath.Join(dir, "out.gguf")
		r, _, err := Import(t.Context(), dir, out, ImportOptions{Target: target, Options: Options{Threads: 1}})
		check(t, out, err)
		if err != nil {
			return
		}
		if _, err := side.Read(open(t, out)); err != nil {
			t.Fatal(err)
		}
		if r.Bytes > 1<<17+64*int64(len(data)) {
			t.Fatalf("%d bytes made of %d", r.Bytes, len(data))
		}
	})
}

// FuzzImportGGUF: whatever a GGUF file of architecture eagle3 says, importing it gives a side file that can be read, or an error that
// blames it. A key is set to a value, and bytes of the file are replaced.
func FuzzImportGGUF(f *testing.F) {
	source, s := readSide(f, sides+"eagle3.gguf")
	keys := []string{"block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
		"attention.head_count_kv", "attention.key_length", "attention.value_length", "attention.layer_norm_rms_epsilon", "rope.freq_base",
		"rope.dimension_count", "target_hidden_size", "norm_before_residual", "extract_layers", "rope.scaling.type"}
	for i := range keys {
		f.Add(uint8(i), uint8(i%5), uint64(i*i), uint32(0), []byte(nil))
		f.Add(uint8(i), uint8(5), uint64(1)<<(4*i), uint32(1<<i), []byte("eagle3"))
	}
	target := targetAt(f, sides+"target.gguf")
	whole := gguf.NewWriter()
	llamaCpp(f, whole, source, s)
	var b bytes.Buffer
	if _, err := whole.WriteTo(&b); err != nil {
		f.Fatal(err)
	}
	right, err := gguf.Parse(b.Bytes())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, key, kind uint8, v uint64, at uint32, patch []byte) {
		values := []any{uint32(v), int64(v), math.Float32frombits(uint32(v)), v%2 == 0, strconv.FormatUint(v, 10),
			[]int32{int32(v % 5), int32(v / 5 % 5), int32(v / 25 % 5)}, []int32{int32(v), int32(v >> 32), 1}}
		w := gguf.CopyOf(right)
		w.Set("eagle3."+keys[int(key)%len(keys)], values[int(kind)%len(values)])
		var b bytes.Buffer
		if _, err := w.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		data := b.Bytes()
		copy(data[int(at)%len(data):], patch)
		dir := t.TempDir()
		in, out := sttest.Put(t, filepath.Join(dir, "in.gguf"), data), filepath.Join(dir, "out.gguf")
		_, _, err := Import(t.Context(), in, out, ImportOptions{Target: target, Options: Options{Threads: 1}})
		check(t, out, err)
		if err == nil {
			if _, err := side.Read(open(t, out)); err != nil {
				t.Fatal(err)
			}
		}
	})
}
