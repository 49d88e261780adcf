package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// TestPhilox checks the known answers published with Random123 (kat_vectors, philox4x32 10).
func TestPhilox(t *testing.T) {
	const f = ^uint32(0)
	for _, c := range []struct {
		ctr  [4]uint32
		key  [2]uint32
		want [4]uint32
	}{
		{[4]uint32{}, [2]uint32{}, [4]uint32{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
		{[4]uint32{f, f, f, f}, [2]uint32{f, f}, [4]uint32{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
		{[4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0},
			[4]uint32{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
	} {
		if got := philox(c.ctr, c.key); got != c.want {
			t.Errorf("philox(%x, %x) = %x, want %x", c.ctr, c.key, got, c.want)
		}
	}
}

func TestUniformIsUniform(t *testing.T) {
	const draws, cells = 200_000, 64
	var n [cells]int
	for i := range draws {
		u := Uniform(uint64(i%7), tandem.Position(i))
		if u < 0 || u >= 1 {
			t.Fatalf("Uniform = %v", u)
		}
		n[int(u*cells)]++
	}
	chi := 0.0
	for _, c := range n {
		d := float64(c) - draws/cells
		chi += d * d / (draws / cells)
	}
	if chi > 120 { // 63 degrees of freedom: 1 in 100,000
		t.Errorf("chi-square %v over %d cells", chi, cells)
	}
}

func TestExp(t *testing.T) {
	if exp(0) != 1 {
		t.Errorf("exp(0) = %v", exp(0))
	}
	for x := 0.0; x > -87.3; x -= 0.00137 {
		got, want := float64(exp(x)), math.Exp(x)
		if math.Abs(got-want) > want*6e-8 {
			t.Fatalf("exp(%v) = %v, want %v", x, got, want)
		}
	}
	for _, x := range []float64{-88, -1e9, math.Inf(-1), math.NaN()} {
		if exp(x) != 0 {
			t.Errorf("exp(%v) = %v, want 0", x, exp(x))
		}
	}
}

func TestArgmaxEdges(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		logits []float32
		want   tandem.Token
	}{
		{[]float32{1, 3, 3, 2}, 1},
		{[]float32{nan, -5, nan, -5}, 1},
		{[]float32{nan, nan}, 0},
		{[]float32{nan, -inf, -inf}, 1},
		{[]float32{0, inf, inf}, 1},
		{nil, 0},
	} {
		var s Sampler
		for _, p := range []tandem.Sampling{{TopP: 1}, {Temperature: math.NaN(), TopP: 1}, {Temperature: 1, TopK: 1, TopP: 1}, {Temperature: 1e-300, TopP: 1e-9}} {
			if got := s.Draw(c.logits, p, 3); got != c.want {
				t.Errorf("Draw(%v, %+v) = %d, want %d", c.logits, p, got, c.want)
			}
			if d := s.Distribution(c.logits, p); len(d) != 1 || d[0] != (Prob{c.want, 1}) {
				t.Errorf("Distribution(%v, %+v) = %v, want %d alone", c.logits, p, d, c.want)
			}
		}
	}
}

// twin is the definition of the set, written for reading: a full sort.
func twin(logits []float32, p tandem.Sampling) map[tandem.Token]bool {
	type cell struct {
		id tandem.Token
		v  float32
		w  float32
	}
	var all []cell
	peak := float32(math.Inf(-1))
	for i, v := range logits {
		if v == v {
			all = append(all, cell{tandem.Token(i), v, 1})
			peak = max(peak, v)
		}
	}
	sort.SliceStable(all, func(i, j int) bool { return all[i].v > all[j].v })
	if p.TopK > 0 && p.TopK < len(all) {
		all = all[:p.TopK]
	}
	sum := uint64(0)
	for i := range all {
		if all[i].v != peak {
			all[i].w = exp((float64(all[i].v) - float64(peak)) / p.Temperature)
		}
		sum += fixed(all[i].w)
	}
	slices.SortFunc(all, func(a, b cell) int {
		if a.w != b.w {
			if a.w > b.w {
				return -1
			}
			return 1
		}
		return int(a.id - b.id)
	})
	set := map[tandem.Token]bool{}
	held := uint64(0)
	for _, c := range all {
		if p.TopP < 1 && float64(held) >= math.Ceil(p.TopP*float64(sum)) {
			break
		}
		held += fixed(c.w)
		if c.w > 0 && float64(c.w) >= p.MinP {
			set[c.id] = true
		}
	}
	return set
}

func genLogits(r *rapid.T) []float32 {
	special := []float32{float32(math.NaN()), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1)), 1, 1, 2, -200}
	return rapid.SliceOfN(rapid.Custom(func(r *rapid.T) float32 {
		if rapid.IntRange(0, 3).Draw(r, "special") == 0 {
			return rapid.SampledFrom(special).Draw(r, "v")
		}
		return rapid.Float32Range(-8, 8).Draw(r, "v")
	}), 1, 60).Draw(r, "logits")
}

func genSampling(r *rapid.T) tandem.Sampling {
	return tandem.Sampling{
		Temperature: rapid.SampledFrom([]float64{0.1, 0.8, 1, 5}).Draw(r, "temperature"),
		TopK:        rapid.IntRange(0, 70).Draw(r, "k"),
		TopP:        rapid.SampledFrom([]float64{1, 0.999, 0.95, 0.5, 0.01}).Draw(r, "p"),
		MinP:        rapid.SampledFrom([]float64{0, 0, 0.01, 0.3, 1}).Draw(r, "min-p"),
		Seed:        rapid.Uint64().Draw(r, "seed"),
	}
}

func TestDistributionEqualsTwin(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits, p := genLogits(r), genSampling(r)
		want := twin(logits, p)
		var s Sampler
		d := s.Distribution(logits, p)
		if len(want) == 0 {
			if len(d) != 1 || d[0].Token != 0 {
				r.Fatalf("no numbers: %v", d)
			}
			return
		}
		sum, prev := 0.0, tandem.Token(-1)
		for _, x := range d {
			if !want[x.Token] || x.Token <= prev || !(x.P > 0) {
				r.Fatalf("%v of %v, want the set %v", x, d, want)
			}
			sum, prev = sum+x.P, x.Token
		}
		if len(d) != len(want) || math.Abs(sum-1) > 1e-9 {
			r.Fatalf("%v with sum %v, want the set %v", d, sum, want)
		}
		for pos := range tandem.Position(20) {
			if x := s.Draw(logits, p, pos); !want[x] {
				r.Fatalf("drew %d, set %v", x, want)
			}
		}
	})
}

// TestChiSquare compares 120,000 draws with exact probabilities, truncated in several ways.
func TestChiSquare(t *testing.T) {
	const draws = 120_000
	rng := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 24)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 1.5)
	}
	for _, p := range []tandem.Sampling{
		{Temperature: 1, TopP: 1}, {Temperature: 1, TopP: 0.9}, {Temperature: 1, TopP: 0.5},
		{Temperature: 0.8, TopK: 10, TopP: 1}, {Temperature: 1.7, TopK: 12, TopP: 0.8},
	} {
		var s Sampler
		p.Seed = 42
		set := twin(logits, p)
		want, sum := make([]float64, len(logits)), 0.0
		for id := range set {
			want[id] = math.Exp(float64(logits[id]) / p.Temperature)
			sum += want[id]
		}
		n := make([]int, len(logits))
		for pos := range tandem.Position(draws) {
			n[s.Draw(logits, p, pos)]++
		}
		chi, freedom := 0.0, -1.0
		for id, c := range n {
			if !set[tandem.Token(id)] {
				if c > 0 {
					t.Errorf("%+v: drew %d, which is outside the set", p, id)
				}
				continue
			}
			e := want[id] / sum * draws
			chi += (float64(c) - e) * (float64(c) - e) / e
			freedom++
		}
		if limit := freedom + 4.3*math.Sqrt(2*freedom) + 10; chi > limit {
			t.Errorf("%+v: chi-square %.1f with %v degrees of freedom, limit %.1f", p, chi, freedom, limit)
		}
	}
}

func vocabulary(n int) []float32 {
	rng := rand.New(rand.NewPCG(3, 4))
	logits := make([]float32, n)
	for i := range logits {
		logits[i] = float32(rng.NormFloat64() * 3)
	}
	return logits
}

func TestDrawDoesNotAllocate(t *testing.T) {
	logits := vocabulary(4096)
	var s Sampler
	p := tandem.Sampling{Temperature: 0.8, TopK: 200, TopP: 0.95, Seed: 1}
	s.Draw(logits, tandem.Sampling{Temperature: 1, TopP: 0.9}, 0)
	if n := testing.AllocsPerRun(100, func() { s.Draw(logits, p, 7) }); n != 0 {
		t.Errorf("%v allocations per draw", n)
	}
}

func BenchmarkDraw(b *testing.B) {
	logits := vocabulary(4096)
	for _, c := range []struct {
		name string
		p    tandem.Sampling
	}{
		{"all", tandem.Sampling{Temperature: 0.8, TopP: 1}},
		{"top-p", tandem.Sampling{Temperature: 0.8, TopP: 0.95}},
		{"top-k", tandem.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var s Sampler
			for i := range b.N {
				s.Draw(logits, c.p, tandem.Position(i))
			}
		})
	}
}
