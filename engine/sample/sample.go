// Package sample draws tokens from logits. A draw depends only on the logits, the sampling options, the position
// and, with penalties, the text before it. It is the same on every machine, so plain and speculative
// decoding draw the same token.
package sample

import (
	"math"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Prob is one token of a distribution, and its probability.
type Prob struct {
	Token tandem.Token
	P     float64
}

// Sampler draws tokens. It keeps scratch memory between draws, so it is not safe for concurrent use;
// the zero value is ready.
//
// A draw works in five steps, after Shape has applied bias and penalties. (1) Candidates: with top-k the k largest logits,
// ties to lower ids, else all; never a NaN. (2) Weights: float32 e^((logit-max)/temperature). (3) With top-p the smallest
// set, heaviest first, ties to lower ids, that holds at least that share of the weight. Shares are summed in
// fixed point (2⁻⁴⁰), so that the order of summation does not matter and the set is found by digits (radix
// selection) without sorting. (4) With min-p no weight below that share of the largest. (5) The token with the
// largest logit + temperature · g, ties to lower ids, where g is Gumbel noise of (seed, position, token). Each token of the set wins
// with the chance that its weight has of the sum (Gumbel, 1954).
type Sampler struct {
	ids     []tandem.Token // candidates, ascending
	weights []float32      // of ids
	keys    []uint32
	shares  []uint64
	probs   []Prob
	shaped  []float32
	masked  []float32
	added   []shift
}

// shift is a logit before it is rounded.
type shift struct {
	at int
	to float64
}

// Draw returns the token that is drawn from logits at position pos. logits are (vocabulary), at least one; they are not changed.
// Temperature 0 or NaN means Argmax. TopP outside (0, 1) keeps everything, as 1 does.
func (s *Sampler) Draw(logits []float32, p tandem.Sampling, pos tandem.Position) tandem.Token {
	if !(p.Temperature > 0) {
		return Argmax(logits)
	}
	n := noiseAt(p.Seed, pos)
	if (p.TopK <= 0 || p.TopK >= len(logits)) && !(p.TopP > 0 && p.TopP < 1) && !(p.MinP > 0) {
		return n.pick(nil, logits, p.Temperature) // no need for weights
	}
	if t, sure := s.nearly(logits, p, n); sure {
		return t
	}
	s.restrict(logits, p)
	return n.pick(s.ids, logits, p.Temperature)
}

// nearly draws with top-p from the tokens near the peak. For the others, which are nearly all, it takes no exponential: it knows the sum of
// their shares well enough to say whether the token it draws is the right one. It is not sure in a few draws of a hundred, and never
// with a top-k, whose set is small anyway.
func (s *Sampler) nearly(logits []float32, p tandem.Sampling, n noise) (t tandem.Token, sure bool) {
	const reach = 10 // temperatures
	if p.TopK > 0 && p.TopK < len(logits) || !(p.TopP > 0 && p.TopP < 1) || !(p.Temperature > 1e-3 && p.Temperature < 1e3) {
		return 0, false
	}
	peak := logits[Argmax(logits)]
	if !(peak > -1e30 && peak < 1e30) {
		return 0, false
	}
	lo, hi := s.within(logits, peak, p.Temperature, reach)
	s.weigh(logits, peak, p.Temperature)
	sum := s.share()
	if wanted(p.TopP, sum+hi) > sum {
		return 0, false
	}
	least, surely := selectKey(s.keys, s.shares, min(wanted(p.TopP, sum+lo), sum)) // the set is no smaller
	key, ties := selectKey(s.keys, s.shares, wanted(p.TopP, sum+hi))               // and no larger
	if math.Float32frombits(key) < 1.01*exp(-reach) {
		return 0, false // others may weigh as much
	}
	s.keep(key, ties)
	s.floor(p.MinP)
	t = n.pick(s.ids, logits, p.Temperature)
	i, _ := slices.BinarySearch(s.ids, t)
	return t, key == least && ties == surely || math.Float32bits(s.weights[i]) > least
}

// nothing is the distance from the largest logit, in temperatures, beyond which a token's share is 0 in fixed point, with a margin: e⁻²⁸ <
// 2⁻⁴⁰.
const nothing = 28

// within fills ids with the tokens whose logits are less than so many temperatures below the peak. It returns bounds of the sum of the
// others' shares.
func (s *Sampler) within(logits []float32, peak float32, temperature float64, reach float32) (lo, hi uint64) {
	const per = 4                  // bins in a temperature
	var count [nothing*per + 1]int // of others, by distance
	s.ids = s.ids[:0]
	scale, near := per/float32(temperature), per*reach
	for i, v := range logits {
		d := (peak - v) * scale
		if d < near {
			s.ids = append(s.ids, tandem.Token(i))
		} else if d < nothing*per { // not a NaN either
			count[int(d)]++
		}
	}
	for d, n := range count {
		const slack = 1e-4 // d was rounded
		w := float64(n) * (1 << 40) * float64(exp(-float64(d)/per))
		lo += uint64(max(w*float64(exp(-1.0/per))*(1-slack)-float64(n), 0))
		hi += uint64(w*(1+slack)) + 1
	}
	return lo, hi
}

// Distribution returns the tokens among which Draw draws, ascending by id, with probabilities that sum to 1. It is valid until the
// sampler's next call.
func (s *Sampler) Distribution(logits []float32, p tandem.Sampling) []Prob {
	s.probs = s.probs[:0]
	if !(p.Temperature > 0) {
		return append(s.probs, Prob{Argmax(logits), 1})
	}
	total := s.restrict(logits, p)
	for i, w := range s.weights {
		if w > 0 {
			s.probs = append(s.probs, Prob{s.ids[i], float64(w) / total})
		}
	}
	if len(s.probs) == 0 {
		s.probs = append(s.probs, Prob{Argmax(logits), 1})
	}
	return s.probs
}

// restrict fills ids and weights with the set to draw from (and perhaps tokens of weight 0) and returns
// the weights' sum.
func (s *Sampler) restrict(logits []float32, p tandem.Sampling) float64 {
	s.candidates(logits, p.TopK)
	peak := float32(math.Inf(-1))
	if len(s.ids) > 0 {
		peak = logits[Argmax(logits)]
	}
	s.weigh(logits, peak, p.Temperature)
	if p.TopP > 0 && p.TopP < 1 {
		s.nucleus(p.TopP)
	}
	if p.MinP > 0 {
		s.floor(p.MinP)
	}
	total := 0.0
	for _, w := range s.weights {
		total += float64(w)
	}
	return total
}

// weigh fills weights with those of ids.
func (s *Sampler) weigh(logits []float32, peak float32, temperature float64) {
	s.weights = s.weights[:0]
	for _, id := range s.ids {
		w := float32(1)
		if v := logits[id]; v != peak { // an infinite peak minus itself is no number
			w = exp((float64(v) - float64(peak)) / temperature)
		}
		s.weights = append(s.weights, w)
	}
}

// candidates fills ids with the tokens of the k largest logits, or of all if k is 0 or less.
func (s *Sampler) candidates(logits []float32, k int) {
	s.ids = s.ids[:0]
	if k <= 0 || k >= len(logits) {
		for i, v := range logits {
			if v == v {
				s.ids = append(s.ids, tandem.Token(i))
			}
		}
		return
	}
	if k <= 128 {
		s.likeliest(logits, k) // by insertion, which takes a third of the time
		slices.Sort(s.ids)
		return
	}
	s.keys = s.keys[:0]
	for _, v := range logits {
		s.keys = append(s.keys, sortable(v))
	}
	key, ties := selectKey(s.keys, nil, uint64(k))
	for i, x := range s.keys {
		if x < key || x == 0 {
			continue
		}
		if x == key {
			if ties == 0 {
				continue
			}
			ties--
		}
		s.ids = append(s.ids, tandem.Token(i))
	}
}

// nucleus cuts ids and weights to the smallest set with at least the share p.
func (s *Sampler) nucleus(p float64) {
	sum := s.share()
	s.keep(selectKey(s.keys, s.shares, min(wanted(p, sum), sum)))
}

// wanted returns how much of a sum of shares the set must hold.
func wanted(p float64, sum uint64) uint64 { return max(uint64(math.Ceil(p*float64(sum))), 1) }

// share fills keys and shares for the weights and returns the shares' sum.
func (s *Sampler) share() (sum uint64) {
	s.keys, s.shares = s.keys[:0], s.shares[:0]
	for _, w := range s.weights {
		share := fixed(w)
		sum += share
		s.shares = append(s.shares, share)
		s.keys = append(s.keys, math.Float32bits(w)) // orders as w does: weights are not negative
	}
	return sum
}

// keep cuts ids and weights to those with larger keys, and the first ties with this key.
func (s *Sampler) keep(key uint32, ties uint64) {
	kept := 0
	for i, x := range s.keys {
		s.ids[kept], s.weights[kept] = s.ids[i], s.weights[i] // kept ≤ i; always written, to avoid a branch
		keep := 0
		if x > key {
			keep = 1
		}
		if x == key && ties > 0 {
			keep = 1
			ties--
		}
		kept += keep
	}
	s.ids, s.weights = s.ids[:kept], s.weights[:kept]
}

// floor cuts ids and weights to those of at least the share p of the largest weight, which is 1.
func (s *Sampler) floor(p float64) {
	kept := 0
	for i, w := range s.weights {
		if float64(w) >= p {
			s.ids[kept], s.weights[kept] = s.ids[i], w
			kept++
		}
	}
	s.ids, s.weights = s.ids[:kept], s.weights[:kept]
}

// fixed returns a weight of at most 1 in units of 2⁻⁴⁰.
func fixed(w float32) uint64 { return uint64(int64(float64(w) * (1 << 40))) }

// sortable maps a logit to a key of the same order, above 0; a NaN to 0.
func sortable(v float32) uint32 {
	if v != v {
		return 0
	}
	bits := math.Float32bits(v + 0) // -0 + 0 = +0: equal logits get equal keys
	return bits ^ (uint32(int32(bits)>>31) | 1<<31)
}

// selectKey takes keys from the largest down until their shares (nil: 1 each; equal keys have equal
// shares) add up to want. It returns the last key taken and how many equal to it are taken: all, if the
// total is less than want.
func selectKey(keys []uint32, shares []uint64, want uint64) (key uint32, ties uint64) {
	var above, each uint64 // shares of the keys taken already; share of the key that it stops at
	for _, digit := range [...]struct{ shift, bits uint32 }{{21, 11}, {10, 11}, {0, 10}} {
		var sums [1 << 11]uint64
		mask := ^uint32(0) << (digit.shift + digit.bits) // 0 at the first digit: a shift by 32
		for i, k := range keys {
			if k&mask != key {
				continue
			}
			each = 1
			if shares != nil {
				each = shares[i]
			}
			sums[k>>digit.shift%(1<<11)&(1<<digit.bits-1)] += each
		}
		d := len(sums) - 1
		for ; d > 0 && above+sums[d] < want; d-- {
			above += sums[d]
		}
		key |= uint32(d) << digit.shift
	}
	if i := slices.Index(keys, key); i >= 0 && shares != nil {
		each = shares[i]
	}
	if each == 0 {
		return key, uint64(len(keys))
	}
	return key, (want - above + each - 1) / each
}

// likeliest returns the n tokens with the largest logits, largest first, ties to lower ids; never a NaN. It is
// valid until the sampler's next call.
func (s *Sampler) likeliest(logits []float32, n int) []tandem.Token {
	best := s.ids[:0]
	least := float32(math.Inf(-1)) // of the best, once there are n
	for i, v := range logits {
		if n <= 0 || v != v || v <= least && len(best) == n {
			continue
		}
		if len(best) < n {
			best = append(best, 0)
		}
		j := len(best) - 1
		for ; j > 0 && v > logits[best[j-1]]; j-- {
			best[j] = best[j-1]
		}
		best[j] = tandem.Token(i)
		if len(best) == n {
			least = logits[best[n-1]]
		}
	}
	s.ids = best
	return best
}
