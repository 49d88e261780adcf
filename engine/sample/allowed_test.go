package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// bitset is a set of allowed tokens. asked counts the masks that were made.
type bitset struct {
	mask  []uint64
	masks int
}

func (b *bitset) Allows(t tandem.Token) bool { return b.mask[t/64]>>(t%64)&1 == 1 }
func (b *bitset) Mask() []uint64             { b.masks++; return b.mask }

// TestDrawAllowedIsMaskFirst: whatever shortcut it takes, DrawAllowed draws what the definition says: the forbidden tokens taken away, then
// temperature, top-k, top-p and min-p over what is left, then the draw with the noise of each token's id.
func TestDrawAllowedIsMaskFirst(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits, p, pos := genLogits(r), genSampling(r), tandem.Position(rapid.IntRange(0, 1<<20).Draw(r, "pos"))
		share, seed := rapid.SampledFrom([]float64{0, 0.02, 0.3, 0.9, 1}).Draw(r, "share"), rapid.Uint64().Draw(r, "allowed")
		b := &bitset{mask: make([]uint64, (len(logits)+63)/64)}
		var kept []tandem.Token
		random := rand.New(rand.NewPCG(seed, 0))
		for i := range logits {
			if random.Float64() < share {
				b.mask[i/64] |= 1 << (i % 64)
				kept = append(kept, tandem.Token(i))
			}
		}
		var s Sampler
		got, ok := s.DrawAllowed(logits, p, pos, b)
		sound := slices.DeleteFunc(slices.Clone(kept), func(t tandem.Token) bool { return logits[t] != logits[t] })
		if ok != (len(sound) > 0) {
			r.Fatalf("%v with %d tokens that may be drawn", ok, len(sound))
		}
		if !ok {
			return
		}
		few := make([]float32, len(kept)) // the definition: the others are not there at all
		for i, t := range kept {
			few[i] = logits[t]
		}
		best, want := math.Inf(-1), tandem.Token(0)
		var plain Sampler
		for _, c := range plain.Distribution(few, p) {
			id := kept[c.Token]
			if score := math.Log(c.P) + gumbel(noiseAt(p.Seed, pos).word(id)); score > best {
				best, want = score, id
			}
		}
		if got != want {
			r.Fatalf("drew %d: want %d of %v", got, want, kept)
		}
	})
}

// TestMasksAreSpared: where it is exact, no mask is made; with a top-p alone one is, whatever is drawn.
func TestMasksAreSpared(t *testing.T) {
	logits := vocabulary(6000)
	b := &bitset{mask: make([]uint64, (len(logits)+63)/64)}
	for i := range b.mask {
		b.mask[i] = 0xffffffff00000000 ^ uint64(i)<<7
	}
	const draws = 200
	for _, c := range []struct {
		p     tandem.Sampling
		least int
		most  int
	}{
		{tandem.Sampling{TopP: 1}, 0, draws},
		{tandem.Sampling{Temperature: 1, TopP: 1}, 1, draws - 1},
		{tandem.Sampling{Temperature: 1, TopK: 40, TopP: 0.95, MinP: 0.01}, 0, 0},
		{tandem.Sampling{Temperature: 1, TopP: 0.95}, draws, draws},
		{tandem.Sampling{Temperature: 1, TopP: 1, MinP: 0.1}, draws, draws},
		{tandem.Sampling{Temperature: 1, TopK: 1000, TopP: 1}, draws, draws},
	} {
		var s, whole Sampler
		b.masks = 0
		for pos := range draws {
			p := c.p
			p.Seed = uint64(pos)
			got, ok := s.DrawAllowed(logits, p, tandem.Position(pos), b)
			made := b.masks
			if want := whole.Draw(whole.Masked(logits, b), p, tandem.Position(pos)); !ok || got != want {
				t.Fatalf("%+v: drew %d, %v: want %d", p, got, ok, want)
			}
			b.masks = made
		}
		if b.masks < c.least || b.masks > c.most {
			t.Errorf("%+v: %d masks for %d draws: want %d to %d", c.p, b.masks, draws, c.least, c.most)
		}
	}
}

// TestUnmaskedTopPIsNotEnough: "draw, and mask only if the token is forbidden" is another distribution with a top-p: the shortcut that
// DrawAllowed must not take.
func TestUnmaskedTopPIsNotEnough(t *testing.T) {
	logits := []float32{3, 2.2, 2, 1.8, 1.6}
	b, p := &bitset{mask: []uint64{0b11110}}, tandem.Sampling{Temperature: 1, TopP: 0.5}
	differ := 0
	for pos := range tandem.Position(1000) {
		var s Sampler
		lazy := s.Draw(logits, p, pos)
		if !b.Allows(lazy) {
			lazy = s.Draw(s.Masked(logits, b), p, pos)
		}
		if got, _ := s.DrawAllowed(logits, p, pos, b); got != lazy {
			differ++
		}
	}
	if differ == 0 {
		t.Error("both draw the same in 1000 positions: the test shows nothing")
	}
}

func BenchmarkMasked(b *testing.B) {
	logits := vocabulary(152_000)
	all := &bitset{mask: make([]uint64, (len(logits)+63)/64)}
	for i := range all.mask {
		all.mask[i] = rand.Uint64()
	}
	var s Sampler
	for b.Loop() {
		s.Masked(logits, all)
	}
}
