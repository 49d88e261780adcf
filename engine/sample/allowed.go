package sample

import (
	"math"
	"math/bits"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Allowed says which tokens may be drawn.
type Allowed interface {
	// Allows reports whether t, a token of the vocabulary, may be drawn.
	Allows(t tandem.Token) bool
	// Mask has bit t%64 of word t/64 set if token t may be drawn. Tokens beyond its end may not. It is only read.
	Mask() []uint64
}

// candidatesTried is how many of the likeliest tokens are asked one by one before a mask is made: the most that likeliest inserts quickly.
const candidatesTried = 128

// DrawAllowed returns what Draw would draw from Masked. ok is false if no token may be drawn.
//
// It does without the mask where that is exact. Among all tokens, the largest logit, and at a temperature alone the largest sum with its
// noise, is also the largest of a subset that it belongs to. With a top-k the first k allowed tokens in the order of their logits are the
// subset that all further steps see. With a top-p or a min-p alone there is no such shortcut: the set that they keep is another one.
func (s *Sampler) DrawAllowed(logits []float32, p tandem.Sampling, pos tandem.Position, a Allowed) (t tandem.Token, ok bool) {
	all := p.TopK <= 0 || p.TopK >= len(logits)
	switch {
	case !(p.Temperature > 0), all && !(p.TopP > 0 && p.TopP < 1) && !(p.MinP > 0):
		if t = s.Draw(logits, p, pos); a.Allows(t) && logits[t] == logits[t] {
			return t, true
		}
	case !all && p.TopK <= candidatesTried/2:
		if s.first(logits, p.TopK, a) {
			return s.Draw(s.masked, p, pos), true
		}
	}
	t = s.Draw(s.Masked(logits, a), p, pos)
	return t, a.Allows(t) && logits[t] == logits[t]
}

// Masked returns logits with a NaN, which is never drawn, for each token that may not be drawn. It is valid until the sampler's next Masked
// or DrawAllowed.
func (s *Sampler) Masked(logits []float32, a Allowed) []float32 {
	s.masked = append(s.masked[:0], logits...)
	mask := a.Mask()
	for w := range (len(logits) + 63) / 64 {
		word := uint64(0)
		if w < len(mask) {
			word = mask[w]
		}
		part := s.masked[64*w : min(64*w+64, len(logits))]
		if bits.OnesCount64(word) > 32 { // whichever changes fewer of them: a branch for each would take ten times as long
			for no := ^word; no != 0; no &= no - 1 {
				if i := bits.TrailingZeros64(no); i < len(part) {
					part[i] = never[0]
				}
			}
			continue
		}
		copy(part, never[:])
		for ; word != 0; word &= word - 1 {
			if i := bits.TrailingZeros64(word); i < len(part) {
				part[i] = logits[64*w+i]
			}
		}
	}
	return s.masked
}

// never are logits that are never drawn. Read only.
var never = [64]float32(slices.Repeat([]float32{float32(math.NaN())}, 64))

// first sets masked to logits without all but the k likeliest allowed tokens. It reports whether they were among the likeliest of all.
func (s *Sampler) first(logits []float32, k int, a Allowed) bool {
	found := 0
	for _, t := range s.likeliest(logits, candidatesTried) {
		if found < k && a.Allows(t) {
			s.ids[found] = t
			found++
		}
	}
	if found < k {
		return false
	}
	s.masked = append(s.masked[:0], logits...)
	for w := 0; w < len(logits); w += len(never) {
		copy(s.masked[w:], never[:])
	}
	for _, t := range s.ids[:k] {
		s.masked[t] = logits[t]
	}
	return true
}
