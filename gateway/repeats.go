package gateway

import "github.com/tandem-llm/tandem"

// repeats finds out when a text has begun to repeat one piece. It looks at committed tokens alone, so a text ends at the same token
// however it was drafted. A token costs MostPiece comparisons.
type repeats struct {
	limit int                       // tokens that end a text; 0: none do
	runs  [tandem.MostPiece + 1]int // [p]: how many of the latest tokens are the same as the one p before them
}

// until returns how many of tokens, which follow output, are committed before the text ends because its last limit tokens repeat a
// piece, and how many tokens that has: all and 0 if it does not end.
func (r *repeats) until(output, tokens []tandem.Token) (n, piece int) {
	if r.limit == 0 {
		return len(tokens), 0
	}
	at := func(i int) tandem.Token {
		if i < len(output) {
			return output[i]
		}
		return tokens[i-len(output)]
	}
	for n, t := range tokens {
		for p := 1; p < len(r.runs) && p <= len(output)+n; p++ {
			if t != at(len(output)+n-p) {
				r.runs[p] = 0
				continue
			}
			if r.runs[p]++; r.runs[p]+p >= r.limit && piece == 0 {
				piece = p
			}
		}
		if piece > 0 {
			return n + 1, piece
		}
	}
	return len(tokens), 0
}
