package engine

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/tandem-llm/tandem/kernels/cpu"
	"github.com/tandem-llm/tandem/kernels/testdevice"
)

// widerLatent returns a model whose latent vectors and turned keys a cache in q8_0 can hold.
func widerLatent(together bool) *naive {
	n := tinyLatent(2, 20, together)
	n.ropeDim, n.latent.rank, n.latent.key = 32, 64, 40
	n.with("attention.kv_lora_rank", uint32(64)).with("rope.dimension_count", uint32(32))
	if together {
		return n.with("attention.key_length", uint32(40))
	}
	return n.with("attention.key_length", uint32(96)).with("attention.value_length", uint32(64)).with(
		"attention.key_length_mla", uint32(40))
}

// TestLatentTrees: with keys and values in both types of cache, over several blocks, rows of trees that several sessions share are those
// computed alone, and all instruction sets give the same bits. Both layouts of a file are the same function.
func TestLatentTrees(t *testing.T) {
	for _, kvType := range []string{"f16", "q8_0"} {
		var first []float32
		for _, together := range []bool{false, true} {
			n := widerLatent(together)
			n.generate(7)
			if together { // the weights of the other layout
				sameWeights(n)
			}
			path := n.write(t, t.TempDir())
			for _, isa := range cpu.Supported() {
				o := Options{Device: testdevice.ISA(t, 2, isa), KVType: kvType, KVPages: PagesFor(5, 600, 64)}
				m := openTest(t, path, o)
				if !together {
					compareTrees(t, m, rand.New(rand.NewPCG(1, 9)), 80)
				}
				logits := inPieces(t, m, randomTokens(rand.New(rand.NewPCG(2, 9)), m, 300), []int{7, 250, 1, 42})
				if first == nil {
					first = logits
				}
				if err := sameBits(first, logits); err != nil {
					t.Errorf("%s, together %v, %v: %v", kvType, together, m.About().Kernels, err)
				}
			}
		}
	}
}

// sameWeights gives n, whose heads have keys and values in one tensor, the weights of widerLatent(false).
func sameWeights(n *naive) {
	of := widerLatent(false)
	of.generate(7)
	plain := n.latent.key - n.ropeDim
	for name, w := range of.weights {
		if !strings.Contains(name, "attn_k_b") && !strings.Contains(name, "attn_v_b") {
			n.weights[name] = w
			continue
		}
		at := strings.SplitAfterN(name, ".", 3)
		into := n.weights[at[0]+at[1]+"attn_kv_b.weight"]
		rank, each := n.latent.rank, plain+n.latent.value
		for i, x := range w {
			if strings.Contains(name, "attn_v_b") {
				into[(i/rank/n.latent.value*each+plain+i/rank%n.latent.value)*rank+i%rank] = x
			} else {
				into[(i/plain/rank*each+i%plain)*rank+i/plain%rank] = x
			}
		}
	}
}

// TestLatentMemory: a position takes the latent vector twice and the turned key once, and a pass reads the matrices of all heads, of both
// layouts as many bytes of the file.
func TestLatentMemory(t *testing.T) {
	var works []Work
	for _, together := range []bool{false, true} {
		n := widerLatent(together)
		n.generate(1)
		path := n.write(t, t.TempDir())
		m := openTest(t, path, Options{KVPages: 24})
		if got, want := m.Passes().KVBytes(), int64(2*2*(32+2*64)); got != want {
			t.Errorf("a position takes %d bytes, want %d", got, want)
		}
		works = append(works, m.Passes().Work())
	}
	if works[0] != works[1] {
		t.Errorf("work %+v, in one tensor %+v", works[0], works[1])
	}
}
