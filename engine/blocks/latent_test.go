package blocks_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/engine"
	"github.com/tandem-llm/tandem/engine/enginetest"
	"github.com/tandem-llm/tandem/engine/naive"
	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// widerLatent returns a model whose latent vectors and turned keys a cache in q8_0 can hold.
func widerLatent(together bool) *naive.Model {
	n := naive.TinyLatent(2, 20, together)
	n.RopeDim, n.Latent.Rank, n.Latent.Key = 32, 64, 40
	n.With("attention.kv_lora_rank", uint32(64)).With("rope.dimension_count", uint32(32))
	if together {
		return n.With("attention.key_length", uint32(40))
	}
	return n.With("attention.key_length", uint32(96)).With("attention.value_length", uint32(64)).With(
		"attention.key_length_mla", uint32(40))
}

// TestLatentTrees: with keys and values in both types of cache, over several blocks, rows of trees that several sessions share are those
// computed alone, and all instruction sets give the same bits. Both layouts of a file are the same function.
func TestLatentTrees(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		var first []float32
		for _, together := range []bool{false, true} {
			n := widerLatent(together)
			n.Generate(7)
			if together { // the weights of the other layout
				sameWeights(n)
			}
			path := n.Write(t, t.TempDir())
			for _, isa := range cpu.Supported() {
				o := engine.Options{Device: testdevice.ISA(t, 2, isa), KVType: kvType, KVPages: engine.PagesFor(5, 600, 64)}
				m := enginetest.Open(t, path, o)
				if !together {
					enginetest.CompareTrees(t, m, rand.New(rand.NewPCG(1, 9)), 80)
				}
				logits := enginetest.InPieces(t, m, enginetest.RandomTokens(rand.New(rand.NewPCG(2, 9)), m, 300), []int{7, 250, 1, 42})
				if first == nil {
					first = logits
				}
				if err := enginetest.SameBits(first, logits); err != nil {
					t.Errorf("%s, together %v, %v: %v", kvType, together, m.About().Kernels, err)
				}
			}
		}
	}
}

// sameWeights gives n, whose heads have keys and values in one tensor, the weights of widerLatent(false).
func sameWeights(n *naive.Model) {
	of := widerLatent(false)
	of.Generate(7)
	plain := n.Latent.Key - n.RopeDim
	for name, w := range of.Weights {
		if !strings.Contains(name, "attn_k_b") && !strings.Contains(name, "attn_v_b") {
			n.Weights[name] = w
			continue
		}
		at := strings.SplitAfterN(name, ".", 3)
		into := n.Weights[at[0]+at[1]+"attn_kv_b.weight"]
		rank, each := n.Latent.Rank, plain+n.Latent.Value
		for i, x := range w {
			if strings.Contains(name, "attn_v_b") {
				into[(i/rank/n.Latent.Value*each+plain+i/rank%n.Latent.Value)*rank+i%rank] = x
			} else {
				into[(i/plain/rank*each+i%plain)*rank+i/plain%rank] = x
			}
		}
	}
}

// TestLatentMemory: a position takes the latent vector twice and the turned key once, and a pass reads the matrices of all heads, of both
// layouts as many bytes of the file.
func TestLatentMemory(t *testing.T) {
	var works []engine.Work
	for _, together := range []bool{false, true} {
		n := widerLatent(together)
		n.Generate(1)
		path := n.Write(t, t.TempDir())
		m := enginetest.Open(t, path, engine.Options{KVPages: 24})
		if got, want := m.Passes().KVBytes(), int64(2*2*(32+2*64)); got != want {
			t.Errorf("a position takes %d bytes, want %d", got, want)
		}
		works = append(works, m.Passes().Work())
	}
	if works[0] != works[1] {
		t.Errorf("work %+v, in one tensor %+v", works[0], works[1])
	}
}
