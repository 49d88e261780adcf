package sample

import (
	"maps"
	"slices"

	"github.com/tandem-llm/tandem"
)

// History counts the tokens of a text for penalties: each token's occurrences in the output, if a frequency or
// presence penalty applies, and among the last tokens of prompt and output, if a repeat penalty does. The cost of
// a token does not depend on the text's length, and only the repeat penalty's window of the text is kept. Not
// safe for concurrent use.
//
// A text has one history, whatever trees its tokens came from: along a path of a tree each token is pushed before the next draw. Nothing is
// ever taken back, because a drawn token always becomes part of the text. To follow several paths, clone the history.
type History struct {
	cells   []cell               // of the tokens with a count, in no order
	at      map[tandem.Token]int // where a token's cell is
	outputs bool                 // output counts
	window  []tandem.Token       // the last tokens, a ring; cap is the window's size, 0 without one
	oldest  int                  // in window, once it is full
}

// cell holds the counts of one token.
type cell struct {
	token          tandem.Token
	output, recent int32
}

// NewHistory returns the history of tokens, for the penalties of s; nil if s has none. The first prompt tokens are not output; 0: none of
// tokens is output.
func NewHistory(s tandem.Sampling, tokens []tandem.Token, prompt int) *History {
	h := &History{outputs: s.FrequencyPenalty != 0 || s.PresencePenalty != 0}
	if s.RepeatPenalty != 0 && s.RepeatPenalty != 1 {
		size := s.RepeatLast
		if size <= 0 {
			size = tandem.DefaultRepeatLast
		}
		h.window = make([]tandem.Token, 0, size)
	}
	if !h.outputs && cap(h.window) == 0 {
		return nil
	}
	h.at = map[tandem.Token]int{}
	if prompt <= 0 || prompt > len(tokens) {
		prompt = len(tokens)
	}
	for _, t := range tokens[max(0, prompt-cap(h.window)):prompt] {
		h.see(t)
	}
	for _, t := range tokens[prompt:] {
		h.Push(t)
	}
	return h
}

// Push adds a token of the output. A nil history ignores it.
func (h *History) Push(t tandem.Token) {
	if h == nil {
		return
	}
	if h.outputs {
		h.cell(t).output++
	}
	h.see(t)
}

// Clone returns an independent copy; nil of a nil history.
func (h *History) Clone() *History {
	if h == nil {
		return nil
	}
	out := *h
	out.cells, out.at = slices.Clone(h.cells), maps.Clone(h.at)
	if h.window != nil {
		out.window = append(make([]tandem.Token, 0, cap(h.window)), h.window...) // its capacity is the window's size
	}
	return &out
}

// see moves the window forward to t.
func (h *History) see(t tandem.Token) {
	size := cap(h.window)
	if size == 0 {
		return
	}
	h.cell(t).recent++
	if len(h.window) < size {
		h.window = append(h.window, t)
		return
	}
	gone := h.window[h.oldest]
	h.window[h.oldest] = t
	if h.oldest++; h.oldest == size {
		h.oldest = 0
	}
	i := h.at[gone]
	if c := &h.cells[i]; c.recent > 1 || c.output > 0 {
		c.recent--
		return
	}
	last := len(h.cells) - 1
	h.cells[i] = h.cells[last]
	h.at[h.cells[i].token] = i
	h.cells = h.cells[:last]
	delete(h.at, gone)
}

// cell returns the counts of t for the caller to change.
func (h *History) cell(t tandem.Token) *cell {
	i, ok := h.at[t]
	if !ok {
		i = len(h.cells)
		h.at[t] = i
		h.cells = append(h.cells, cell{token: t})
	}
	return &h.cells[i]
}

// Shape returns logits with p's bias, and its penalties for the text that h has counted (nil: none). The result is logits itself if
// p.Shapes() is false, else a copy that is valid until the sampler's next Shape. Each token's logit is computed in float64, in the order
// bias, repeat, frequency and presence, and rounded once.
func (s *Sampler) Shape(logits []float32, p tandem.Sampling, h *History) []float32 {
	if !p.Shapes() {
		return logits
	}
	s.shaped = append(s.shaped[:0], logits...)
	s.added = s.added[:0]
	for _, b := range p.Bias {
		if i := int(b.Token); i >= 0 && i < len(logits) {
			s.added = append(s.added, shift{i, float64(logits[i]) + float64(b.Add)})
			s.shaped[i] = float32(s.added[len(s.added)-1].to)
		}
	}
	if h == nil {
		return s.shaped
	}
	for _, c := range h.cells {
		i := int(c.token)
		if i < 0 || i >= len(logits) {
			continue
		}
		s.shaped[i] = float32(penalize(s.biased(i, logits), p, c))
	}
	return s.shaped
}

// biased returns logit i with its bias.
func (s *Sampler) biased(i int, logits []float32) float64 {
	lo, hi := 0, len(s.added) // ascending, as Sampling.Bias is
	for lo < hi {
		if mid := (lo + hi) / 2; s.added[mid].at < i {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo < len(s.added) && s.added[lo].at == i {
		return s.added[lo].to
	}
	return float64(logits[i])
}

// penalize returns logit v with p's penalties for counts c. Products are converted explicitly so that no compiler
// fuses them with a sum.
func penalize(v float64, p tandem.Sampling, c cell) float64 {
	if c.recent > 0 && p.RepeatPenalty > 0 { // 1 changes nothing
		if v > 0 {
			v /= p.RepeatPenalty
		} else {
			v = float64(v * p.RepeatPenalty)
		}
	}
	if c.output > 0 {
		v -= float64(float64(c.output) * p.FrequencyPenalty)
		v -= p.PresencePenalty
	}
	return v
}
