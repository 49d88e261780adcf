package sample

import (
	"fmt"
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

// chiSquare returns the statistic of counts that should be equal.
func chiSquare(n []int) float64 {
	total, chi := 0, 0.0
	for _, c := range n {
		total += c
	}
	want := float64(total) / float64(len(n))
	for _, c := range n {
		chi += (float64(c) - want) * (float64(c) - want) / want
	}
	return chi
}

// TestNoise: the words of a draw are uniform, over tokens, positions and seeds, and so are pairs of neighbours in each.
func TestNoise(t *testing.T) {
	const draws, cells = 200_000, 8
	word := func(seed, pos, token int) uint64 {
		return noiseAt(uint64(seed), tandem.Position(pos)).word(tandem.Token(token))
	}
	for name, at := range map[string]func(i int) uint64{
		"tokens":    func(i int) uint64 { return word(3, 5, i) },
		"positions": func(i int) uint64 { return word(3, i, 17) },
		"seeds":     func(i int) uint64 { return word(i, 5, 17) },
	} {
		var n [cells * cells]int
		for i := range draws {
			w := at(i)
			if w>>53 != 0 {
				t.Fatalf("%s: word %#x: want 53 bits", name, w)
			}
			n[w>>50*cells+at(i+1)>>50]++
		}
		if chi := chiSquare(n[:]); chi > 120 { // 63 degrees of freedom: 1 in 100,000
			t.Errorf("%s: chi-square %v over %d cells", name, chi, len(n))
		}
		clear(n[:])
		for i := range draws {
			n[at(i)>>20&(cells*cells-1)]++ // low bits
		}
		if chi := chiSquare(n[:]); chi > 120 {
			t.Errorf("%s: chi-square %v of low bits", name, chi)
		}
	}
}

func TestGumbel(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for i := range 20_000 {
		w := r.Uint64() >> (11 + i%50)
		got, want := gumbel(w), -math.Log(-math.Log1p(-float64(w|1)/(1<<53)))
		if math.Abs(got-want) > 2e-15*math.Max(1, math.Abs(want)) || got > most(w) {
			t.Fatalf("word %#x: %v: want %v, at most %v", w, got, want, most(w))
		}
	}
	if least, largest := gumbel(1<<53-1), gumbel(0); !(least > -3.7 && least < -3.6 && largest > 36.7 && largest < 36.8) {
		t.Errorf("noise between %v and %v: want -3.61 and 36.74", least, largest)
	}
}

// TestDrawIsTheDefinition: a draw is the largest log-probability + Gumbel noise, without the shortcuts.
func TestDrawIsTheDefinition(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits, p, pos := genLogits(r), genSampling(r), tandem.Position(rapid.IntRange(0, 1<<20).Draw(r, "pos"))
		var s Sampler
		best, want := math.Inf(-1), tandem.Token(0)
		for _, c := range s.Distribution(logits, p) {
			if score := math.Log(c.P) + gumbel(noiseAt(p.Seed, pos).word(c.Token)); score > best {
				best, want = score, c.Token
			}
		}
		if got := s.Draw(logits, p, pos); got != want {
			r.Fatalf("drew %d: want %d", got, want)
		}
	})
}

// TestDrawNearThePeak: with a top-p, draws from large vocabularies of several shapes are those of the whole calculation, and most of them
// do without it.
func TestDrawNearThePeak(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	var quick, whole Sampler
	draws, sure := 0, 0
	for _, spread := range []float64{0.1, 1, 3, 6} {
		for _, p := range []tandem.Sampling{{Temperature: 0.8, TopP: 0.95}, {Temperature: 1, TopP: 0.5, MinP: 0.02},
			{Temperature: 0.3, TopP: 0.999}, {Temperature: 1.5, TopP: 0.9}} {
			logits := make([]float32, 6000)
			for i := range logits {
				logits[i] = float32(r.NormFloat64() * spread)
				switch r.IntN(50) {
				case 0:
					logits[i] = float32(math.NaN())
				case 1:
					logits[i] = logits[r.IntN(i+1)] // a tie
				}
			}
			for pos := range tandem.Position(200) {
				n := noiseAt(p.Seed, pos)
				whole.restrict(logits, p)
				want := n.pick(whole.ids, logits, p.Temperature)
				if got, ok := quick.nearly(logits, p, n); ok {
					if sure++; got != want {
						t.Fatalf("spread %v, %+v, position %d: %d, want %d", spread, p, pos, got, want)
					}
				}
				draws++
			}
		}
	}
	if t.Logf("%d of %d draws were sure", sure, draws); sure*100 < draws*90 {
		t.Errorf("only %d of %d draws were sure", sure, draws)
	}
}

// TestCoupled: the tokens with the largest logit + temperature × noise, without the shortcuts; the first is the draw of plain sampling.
func TestCoupled(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits, p, pos := genLogits(r), tandem.Sampling{TopP: 1, Seed: rapid.Uint64().Draw(r, "seed")}, tandem.Position(7)
		p.Temperature = rapid.SampledFrom([]float64{0, 0.3, 1, 2}).Draw(r, "temperature")
		k := rapid.IntRange(1, 20).Draw(r, "k")
		type scored struct {
			id tandem.Token
			v  float32
		}
		var want []scored
		for i, v := range logits {
			if v != v {
				continue
			}
			if p.Temperature > 0 {
				v = float32(float64(v) + p.Temperature*gumbel(noiseAt(p.Seed, pos).word(tandem.Token(i))))
			}
			want = append(want, scored{tandem.Token(i), v})
		}
		sort.SliceStable(want, func(i, j int) bool { return want[i].v > want[j].v })
		want = want[:min(k, len(want))]
		var s Sampler
		ids, scores := s.Coupled(logits, p, pos, k)
		if len(ids) != len(want) || len(scores) != len(want) {
			r.Fatalf("%d tokens: want %d", len(ids), len(want))
		}
		for i, w := range want {
			if ids[i] != w.id || scores[i] != w.v {
				r.Fatalf("place %d: %d with %v: want %d with %v", i, ids[i], scores[i], w.id, w.v)
			}
		}
		if len(ids) > 0 && !math.IsInf(float64(scores[0]), 0) {
			first := ids[0]
			if got := s.Draw(logits, p, pos); got != first {
				r.Fatalf("the first is %d, the draw %d", first, got)
			}
		}
	})
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
		for _, p := range []tandem.Sampling{{TopP: 1}, {Temperature: math.NaN(), TopP: 1}, {Temperature: 1, TopK: 1, TopP: 1},
			{Temperature: 1e-300, TopP: 1e-9}} {
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
			if n[s.Draw(logits, p, pos)]++; pos%100 == 0 {
				p.Seed++
			}
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

// A draw from 151,936 logits, and the best 64 tokens for a draft, of which the target's own draw is to cost at most 2 % of a pass.
func BenchmarkDraw(b *testing.B) {
	var s Sampler
	for _, vocab := range []int{4096, 151_936} {
		logits := vocabulary(vocab)
		for _, c := range []struct {
			name string
			p    tandem.Sampling
		}{
			{"all", tandem.Sampling{Temperature: 0.8, TopP: 1}},
			{"top-p", tandem.Sampling{Temperature: 0.8, TopP: 0.95}},
			{"top-k", tandem.Sampling{Temperature: 0.8, TopK: 40, TopP: 0.95}},
		} {
			b.Run(fmt.Sprintf("%d/%s", vocab, c.name), func(b *testing.B) {
				for i := range b.N {
					s.Draw(logits, c.p, tandem.Position(i))
				}
			})
		}
		b.Run(fmt.Sprintf("%d/coupled", vocab), func(b *testing.B) {
			for i := range b.N {
				s.Coupled(logits, tandem.Sampling{Temperature: 0.8}, tandem.Position(i), 64)
			}
		})
	}
}
