package arch_test

import (
	"math"
	"testing"

	"github.com/tandem-llm/tandem"
	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/kernels/testdevice"
	"github.com/tandem-llm/tandem/modelfile/gguf"
)

// FuzzGemma4 sets keys of the small Gemma 4 models and of the assistant, with plain and with ordered embeddings, to any value, and entries
// of the latter's order: the file is refused, or runs.
func FuzzGemma4(f *testing.F) {
	files := []string{"gemma4", "gemma4-moe", enginetest.AssistantFile, enginetest.AssistantFile}
	paths := make([]string, len(files))
	for i, name := range files {
		paths[i] = enginetest.GoldenPath(f, name)
	}
	names := []string{"block_count", "attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.key_length_swa",
		"attention.value_length_swa", "rope.dimension_count", "rope.dimension_count_swa", "rope.freq_base_swa", "attention.sliding_window",
		"attention.sliding_window_pattern", "attention.shared_kv_layers", "embedding_length_per_layer_input", "feed_forward_length",
		"expert_count", "expert_used_count", "expert_feed_forward_length", "embedding_length_out", "final_logit_softcapping",
		"use_ordered_embeddings", "n_centroids", "centroid_top_k", "token_ordering"}
	value := func(kind uint8, v uint64) any {
		switch kind % 6 {
		case 0:
			return uint32(v)
		case 1:
			return math.Float32frombits(uint32(v))
		case 2:
			return int64(v)
		case 3:
			return []uint32{uint32(v & 3), uint32(v >> 2 & 3), uint32(v >> 4 & 3)}
		case 4:
			return []bool{v&1 != 0, v&2 != 0, v&4 != 0, v&8 != 0, v&16 != 0, v&32 != 0}[:3+v>>6%2*3]
		}
		return "text"
	}
	for i := range names {
		f.Add(uint8(i), uint8(i), uint8(0), uint64(i%5))
		f.Add(uint8(i+1), uint8(i), uint8(3+i%2), uint64(3*i))
	}
	for _, v := range []uint64{0, 1, 47, 48, 49, 1535, 1536, 1 << 31} {
		for i := len(names) - 4; i < len(names); i++ {
			f.Add(uint8(3), uint8(i), uint8(v&2), v)
		}
	}
	f.Fuzz(func(t *testing.T, which, key, kind uint8, v uint64) {
		name, path := files[int(which)%len(files)], paths[int(which)%len(files)]
		path = enginetest.ChangedFile(t, path, func(w *gguf.Writer, f *gguf.File) {
			arch, err := f.String("general.architecture")
			if err != nil {
				t.Fatal(err)
			}
			if int(which)%len(files) == 3 {
				o := enginetest.NewOrdering(48, 1536)
				if names[int(key)%len(names)] == "token_ordering" {
					o.Tokens[v>>32%1536] = int32(v)
				}
				o.Ordered(t, 5)(w, f)
			}
			w.Set(arch+"."+names[int(key)%len(names)], value(kind, v))
		})
		refused := func(err error) bool {
			switch tandem.KindOf(err) {
			case tandem.Corrupt, tandem.Unsupported, tandem.Invalid:
				return true
			}
			t.Fatalf("%v: kind %v: want corrupt, unsupported or invalid", err, tandem.KindOf(err))
			return false
		}
		target, side := path, ""
		if name == enginetest.AssistantFile {
			target, side = paths[0], path
		}
		m, err := engine.Open(target, engine.Options{Device: testdevice.CPU(t, 1), KVPages: 2, MaxRows: 8})
		if err != nil && refused(err) {
			return
		}
		defer m.Close()
		if side != "" {
			if err := m.OpenSide(side); err != nil && refused(err) {
				return
			}
		}
		s := enginetest.NewSeq(t, m, 16, 0)
		out := enginetest.Forward(t, m, 1, engine.Part{Seq: s, Extend: []tandem.Token{5, 9, 7}, Want: engine.WantTail})
		if side == "" {
			return
		}
		ask := engine.GuessAsk{SelfDraft: tandem.Assistant, Hidden: [][]float32{out.Hidden(0, 2)}, Seq: s, Token: 11}
		if _, err := m.Guess([]engine.GuessAsk{ask}, 4); err != nil {
			t.Fatal(err)
		}
	})
}
