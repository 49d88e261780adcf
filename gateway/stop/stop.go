// Package stop ends texts at stop sequences.
package stop

// Sequences ends a text before the first stop sequence in it. The text comes in pieces, one per token, and each
// part is passed on as soon as no sequence can begin in it any more; the pieces do not affect where the
// text ends. Not safe for concurrent use; without sequences it passes everything on.
//
// Of several sequences the one that begins first counts, even if another that begins later is complete before:
// then the text goes on until the earlier one is complete as well or turns out not to match. Of those that
// begin at the same place the shortest counts, which changes no text. Each byte is read once: every
// sequence has an automaton (Knuth, Morris and Pratt, 1977) that knows how much of it the text ends with.
type Sequences struct {
	sequences []sequence
	held      []byte // the end of the text, not passed on
	seen      int    // bytes of the whole text
	found     int    // the sequence that counts, as far as is known; -1: none
	begin     int    // where it begins
	done      bool   // found is certain
}

// sequence is a stop sequence and how much of it the text ends with.
type sequence struct {
	text    string
	border  []int // border[i]: the longest proper prefix of text[:i+1] that it also ends with
	matched int
}

// New returns the Sequences of one text, which end it at the first of texts. None of texts may be empty.
func New(texts []string) *Sequences {
	s := &Sequences{found: -1}
	for _, t := range texts {
		q := sequence{text: t, border: make([]int, len(t))}
		for i, n := 1, 0; i < len(t); i++ {
			for n > 0 && t[i] != t[n] {
				n = q.border[n-1]
			}
			if t[i] == t[n] {
				n++
			}
			q.border[i] = n
		}
		s.sequences = append(s.sequences, q)
	}
	return s
}

// step takes one byte and reports whether the text ends with the sequence now.
func (q *sequence) step(b byte) bool {
	if q.matched == len(q.text) {
		q.matched = q.border[q.matched-1]
	}
	for q.matched > 0 && q.text[q.matched] != b {
		q.matched = q.border[q.matched-1]
	}
	if q.text[q.matched] == b {
		q.matched++
	}
	return q.matched == len(q.text)
}

// Next takes the next piece of the text, and returns what can be passed on. stopped says that the text has ended at a stop sequence; then
// later pieces are ignored.
func (s *Sequences) Next(piece string) (out string, stopped bool) {
	switch {
	case s.done:
		return "", true
	case len(s.sequences) == 0:
		return piece, false
	}
	for i := range len(piece) {
		s.held, s.seen = append(s.held, piece[i]), s.seen+1
		for j := range s.sequences {
			q := &s.sequences[j]
			if begin := s.seen - len(q.text); q.step(piece[i]) && (s.found < 0 || begin < s.begin) {
				s.found, s.begin = j, begin
			}
		}
		if s.found >= 0 && s.earliest() >= s.begin {
			s.done = true
			break
		}
	}
	return s.release(s.earliest()), s.done
}

// End says that no more pieces come, and returns what is left to pass on. stopped says that a stop sequence has ended the text.
func (s *Sequences) End() (out string, stopped bool) {
	s.done = s.found >= 0
	return s.release(s.seen), s.done
}

// earliest returns where the first sequence begins that may still become complete.
func (s *Sequences) earliest() int {
	at := s.seen
	for _, q := range s.sequences {
		if q.matched < len(q.text) {
			at = min(at, s.seen-q.matched)
		} else {
			at = min(at, s.seen-q.border[q.matched-1])
		}
	}
	return at
}

// release passes the text on up to a position, at most to where the found sequence begins.
func (s *Sequences) release(to int) string {
	if s.found >= 0 {
		to = min(to, s.begin)
	}
	n := len(s.held) - (s.seen - to)
	out := string(s.held[:n])
	s.held = append(s.held[:0], s.held[n:]...)
	return out
}

// Text returns the stop sequence that has ended the text; "" if none has.
func (s *Sequences) Text() string {
	if !s.done {
		return ""
	}
	return s.sequences[s.found].text
}

// Done reports whether a stop sequence has ended the text.
func (s *Sequences) Done() bool { return s.done }
