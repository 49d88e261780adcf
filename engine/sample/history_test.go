package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tandem-llm/tandem"
)

// counted is what a history should hold, counted anew from the whole text.
func counted(s tandem.Sampling, text []tandem.Token, prompt int) (output, recent map[tandem.Token]int) {
	output, recent = map[tandem.Token]int{}, map[tandem.Token]int{}
	if prompt <= 0 {
		prompt = len(text)
	}
	if s.FrequencyPenalty != 0 || s.PresencePenalty != 0 {
		for _, t := range text[min(prompt, len(text)):] {
			output[t]++
		}
	}
	if s.RepeatPenalty != 0 && s.RepeatPenalty != 1 {
		last := s.RepeatLast
		if last == 0 {
			last = 64
		}
		for _, t := range text[max(0, len(text)-last):] {
			recent[t]++
		}
	}
	return output, recent
}

// naiveShape is the definition, one token after the other, in the plainest float arithmetic.
func naiveShape(logits []float32, s tandem.Sampling, text []tandem.Token, prompt int) []float32 {
	output, recent := counted(s, text, prompt)
	out := make([]float32, len(logits))
	for i := range logits {
		t, v := tandem.Token(i), float64(logits[i])
		for _, b := range s.Bias {
			if b.Token == t {
				v += float64(b.Add)
			}
		}
		if recent[t] > 0 && v > 0 {
			v /= s.RepeatPenalty
		} else if recent[t] > 0 {
			v *= s.RepeatPenalty
		}
		if output[t] > 0 {
			bill := float64(output[t]) * s.FrequencyPenalty
			v -= bill
			v -= s.PresencePenalty
		}
		out[i] = float32(v)
	}
	return out
}

func genShaping(r *rapid.T, vocab int) tandem.Sampling {
	s := tandem.Sampling{TopP: 1,
		RepeatPenalty:    rapid.SampledFrom([]float64{0, 1, 1.1, 1.3, 0.5, 10}).Draw(r, "repeat"),
		RepeatLast:       rapid.SampledFrom([]int{0, 1, 2, 3, 7, 100}).Draw(r, "last"),
		FrequencyPenalty: rapid.SampledFrom([]float64{0, 0.3, -0.7, 2}).Draw(r, "frequency"),
		PresencePenalty:  rapid.SampledFrom([]float64{0, 0.9, -2}).Draw(r, "presence"),
	}
	for t := range vocab {
		if rapid.IntRange(0, 3).Draw(r, "biased") == 0 {
			s.Bias = append(s.Bias, tandem.Bias{Token: tandem.Token(t), Add: rapid.Float32Range(-100, 100).Draw(r, "add")})
		}
	}
	return s
}

func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// TestShapeEqualsNaive lets a text grow token by token, as draws do, and compares with the definition over
// the whole text, and with a history that was made anew, as after an Open.
func TestShapeEqualsNaive(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits := genLogits(r)
		vocab := len(logits)
		s := genShaping(r, vocab)
		token := rapid.Custom(func(r *rapid.T) tandem.Token { return tandem.Token(rapid.IntRange(0, vocab-1).Draw(r, "token")) })
		text := rapid.SliceOfN(token, 1, 90).Draw(r, "prompt")
		prompt := len(text)
		h := NewHistory(s, text, rapid.SampledFrom([]int{0, prompt}).Draw(r, "told"))
		var grown, anew Sampler
		for range rapid.IntRange(0, 30).Draw(r, "steps") {
			x := token.Draw(r, "next")
			h.Push(x)
			text = append(text, x)
			want := naiveShape(logits, s, text, prompt)
			if got := grown.Shape(logits, s, h); !sameBits(got, want) {
				r.Fatalf("%+v after %v: got %v, want %v", s, text, got, want)
			}
			if got := anew.Shape(logits, s, NewHistory(s, text, prompt)); !sameBits(got, want) {
				r.Fatalf("%+v after %v, made anew: got %v, want %v", s, text, got, want)
			}
		}
		if h != nil && len(h.cells) != len(h.at) {
			r.Fatalf("%d cells, %d of them found", len(h.cells), len(h.at))
		}
	})
}

func TestShapeValues(t *testing.T) {
	logits := []float32{2, -2, 1, 0.5}
	text := []tandem.Token{3, 0, 1, 1} // prompt 3 0, output 1 1
	for _, c := range []struct {
		name string
		s    tandem.Sampling
		want []float32
	}{
		{"repeat", tandem.Sampling{RepeatPenalty: 2}, []float32{1, -4, 1, 0.25}},
		{"repeat, the last two", tandem.Sampling{RepeatPenalty: 2, RepeatLast: 2}, []float32{2, -4, 1, 0.5}},
		{"frequency", tandem.Sampling{FrequencyPenalty: 0.5}, []float32{2, -3, 1, 0.5}},
		{"presence", tandem.Sampling{PresencePenalty: 0.5}, []float32{2, -2.5, 1, 0.5}},
		{"bias", tandem.Sampling{Bias: []tandem.Bias{{Token: 1, Add: 100}, {Token: 2, Add: -100}}}, []float32{2, 98, -99, 0.5}},
		{"all", tandem.Sampling{RepeatPenalty: 2, FrequencyPenalty: 0.5, PresencePenalty: 0.25, Bias: []tandem.Bias{{Token: 1, Add: 4}}},
			[]float32{1, -0.25, 1, 0.25}},
	} {
		var s Sampler
		got := s.Shape(logits, c.s, NewHistory(c.s, text, 2))
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
		if &got[0] == &logits[0] {
			t.Errorf("%s: the model's own logits were changed", c.name)
		}
	}
	for _, p := range []tandem.Sampling{{}, {RepeatPenalty: 1, RepeatLast: 9}, {Temperature: 1, TopP: 0.5, MinP: 0.1, Logprobs: true}} {
		var s Sampler
		if h := NewHistory(p, text, 2); h != nil {
			t.Errorf("%+v counts the text", p)
		}
		if got := s.Shape(logits, p, nil); &got[0] != &logits[0] {
			t.Errorf("%+v copies the logits", p)
		}
	}
}

// TestHistoryIsBounded pushes a long text: with a repeat penalty alone, no more than the window is kept.
func TestHistoryIsBounded(t *testing.T) {
	s := tandem.Sampling{RepeatPenalty: 1.1, RepeatLast: 50}
	h := NewHistory(s, []tandem.Token{1}, 1)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 100_000 {
		h.Push(tandem.Token(rng.IntN(1000)))
	}
	if len(h.cells) > 50 || len(h.at) > 50 || len(h.window) != 50 {
		t.Errorf("%d cells, %d found, a window of %d: want at most 50", len(h.cells), len(h.at), len(h.window))
	}
}

func TestMinP(t *testing.T) {
	ln := func(p float64) float32 { return float32(math.Log(p)) }
	logits := []float32{ln(0.5), ln(0.26), ln(0.13), ln(0.06), ln(0.05)}
	for _, c := range []struct {
		p    tandem.Sampling
		want []tandem.Token
	}{
		{tandem.Sampling{Temperature: 1, TopP: 1}, []tandem.Token{0, 1, 2, 3, 4}},
		{tandem.Sampling{Temperature: 1, TopP: 1, MinP: 0.11}, []tandem.Token{0, 1, 2, 3}},
		{tandem.Sampling{Temperature: 1, TopP: 1, MinP: 0.25}, []tandem.Token{0, 1, 2}},
		{tandem.Sampling{Temperature: 0.5, TopP: 1, MinP: 0.25}, []tandem.Token{0, 1}}, // after the temperature
		{tandem.Sampling{Temperature: 1, TopP: 1, MinP: 1}, []tandem.Token{0}},
		{tandem.Sampling{Temperature: 1, TopP: 0.7, MinP: 0.11}, []tandem.Token{0, 1}},
		{tandem.Sampling{Temperature: 0, TopP: 1, MinP: 0.11}, []tandem.Token{0}},
	} {
		var s Sampler
		var got []tandem.Token
		for _, x := range s.Distribution(logits, c.p) {
			got = append(got, x.Token)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%+v keeps %v, want %v", c.p, got, c.want)
		}
	}
}

func TestLogprobEqualsNaive(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		logits := genLogits(r)
		ids := []tandem.Token{} // likeliest first
		sum := 0.0
		for i, v := range logits {
			if v == v {
				ids = append(ids, tandem.Token(i))
				sum += math.Exp(float64(v))
			}
		}
		if sum == 0 {
			r.Skip("nothing is likely")
		}
		slices.SortStableFunc(ids, func(a, b tandem.Token) int {
			if logits[a] == logits[b] {
				return int(a - b)
			}
			if logits[a] > logits[b] {
				return -1
			}
			return 1
		})
		near := func(got float32, t tandem.Token) bool {
			want := max(float64(logits[t])-math.Log(sum), leastLogProb)
			return math.Abs(float64(got)-want) < 1e-6*max(1, -want) && got <= 0
		}
		var s Sampler
		token, n := ids[rapid.IntRange(0, len(ids)-1).Draw(r, "token")], rapid.IntRange(0, 20).Draw(r, "n")
		got := s.Logprob(logits, token, n)
		if !near(got.LogProb, token) || len(got.Top) != min(n, len(ids)) {
			r.Fatalf("token %d of %v: %+v", token, logits, got)
		}
		for i, x := range got.Top {
			if x.Token != ids[i] || !near(x.LogProb, x.Token) {
				r.Fatalf("likeliest %d of %v: %+v, want %d", i, logits, x, ids[i])
			}
		}
	})
}

func TestLogprobEdges(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	half := float32(math.Log(0.5))
	for _, c := range []struct {
		logits []float32
		t      tandem.Token
		want   float32
		top    []tandem.TopLogprob
	}{
		{[]float32{3, 3}, 1, half, []tandem.TopLogprob{{Token: 0, LogProb: half}, {Token: 1, LogProb: half}}},
		{[]float32{inf, 1, inf}, 2, half, []tandem.TopLogprob{{Token: 0, LogProb: half}, {Token: 2, LogProb: half}}},
		{[]float32{inf, 1, inf}, 1, leastLogProb, []tandem.TopLogprob{{Token: 0, LogProb: half}, {Token: 2, LogProb: half}}},
		{[]float32{nan, 1}, 0, leastLogProb, []tandem.TopLogprob{{Token: 1, LogProb: 0}}},
		{[]float32{-inf, 1}, 0, leastLogProb, []tandem.TopLogprob{{Token: 1, LogProb: 0}, {Token: 0, LogProb: leastLogProb}}},
		{[]float32{-3e38, 3e38}, 0, leastLogProb, []tandem.TopLogprob{{Token: 1, LogProb: 0}, {Token: 0, LogProb: leastLogProb}}},
	} {
		var s Sampler
		if got := s.Logprob(c.logits, c.t, 2); got.LogProb != c.want || !slices.Equal(got.Top, c.top) {
			t.Errorf("%v of %v: %+v, want %v, %v", c.t, c.logits, got, c.want, c.top)
		}
	}
}

func TestLog(t *testing.T) {
	if log(1) != 0 {
		t.Errorf("log 1 = %v", log(1))
	}
	for x := 1.0; x < 1e300; x *= 1.0371 {
		if got, want := log(x), math.Log(x); math.Abs(got-want) > 4e-16*max(1, want) {
			t.Fatalf("log %v = %v, want %v", x, got, want)
		}
	}
}

func TestShapingDoesNotAllocate(t *testing.T) {
	logits := vocabulary(4096)
	p := tandem.Sampling{Temperature: 0.8, TopP: 0.95, RepeatPenalty: 1.1, FrequencyPenalty: 0.2, Bias: []tandem.Bias{{Token: 5, Add: 1}}}
	h := NewHistory(p, []tandem.Token{1, 2, 3}, 1)
	for i := range 200 {
		h.Push(tandem.Token(i))
	}
	var s Sampler
	s.Draw(s.Shape(logits, p, h), p, 0)
	if n := testing.AllocsPerRun(100, func() { s.Draw(s.Shape(logits, p, h), p, 7); h.Push(150) }); n != 0 {
		t.Errorf("%v allocations per draw", n)
	}
}

func BenchmarkShape(b *testing.B) {
	logits := vocabulary(4096)
	p := tandem.Sampling{Temperature: 0.8, TopP: 1, RepeatPenalty: 1.1, FrequencyPenalty: 0.2}
	h := NewHistory(p, []tandem.Token{1}, 1)
	for i := range 500 {
		h.Push(tandem.Token(i * 7 % 4096))
	}
	var s Sampler
	b.Run("penalties", func(b *testing.B) {
		for range b.N {
			s.Shape(logits, p, h)
		}
	})
	b.Run("logprobs", func(b *testing.B) {
		for range b.N {
			s.Logprob(logits, 3, 20)
		}
	})
}
