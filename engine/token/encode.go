package token

import (
	"strings"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Encode turns text into tokens; special adds the tokens that begin and end a text where the model
// wants them. Any bytes will do: what no piece holds becomes byte tokens. Control tokens are never read
// out of text; user-defined tokens are, the leftmost first and of those the longest. A U+2581 in text
// cannot be told from a space. The time is O(n log n) in the length of the text.
func (v *Vocab) Encode(text string, special bool) []tandem.Token {
	e := encoder{v: v, out: make([]tandem.Token, 0, len(text)/3+4)}
	if special && v.addBOS {
		e.out = append(e.out, v.bos)
	}
	if text != "" {
		e.text(v.normalize(text))
	}
	if special && v.addEOS {
		e.out = append(e.out, v.eos)
	}
	return e.out
}

func (v *Vocab) normalize(text string) string {
	var b strings.Builder
	b.Grow(len(text) + (len(space)-1)*strings.Count(text, " ") + len(space))
	if v.spacePrefix {
		b.WriteString(space)
	}
	for {
		i := strings.IndexByte(text, ' ')
		if i < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(text[:i])
		b.WriteString(space)
		text = text[i+1:]
	}
}

// encoder is the state of one Encode.
//
// A text is cut at user-defined tokens, and what lies between them into words: before each space that
// no piece holds behind the character it follows, so that no merge can cross the cut. In a word,
// characters are symbols of a doubly linked list. All neighbours whose concatenation is a piece wait in
// a heap, the best score first, of equal scores the leftmost. The best pair is merged into its left
// symbol and pairs with the new neighbours are added; pairs whose symbols have changed since are
// dropped when they come up. Each merge removes a symbol and adds at most two pairs.
type encoder struct {
	v    *Vocab
	out  []tandem.Token
	word string
	syms []symbol
	heap []pair
}

type symbol struct {
	start, size int32 // in word; size 0 once merged into another
	prev, next  int32 // -1 at the ends
	id          tandem.Token
}

// pair is a possible merge of two neighbours into the piece id.
type pair struct {
	score       float32
	left, right int32
	size        int32 // of both when the pair was found
	id          tandem.Token
}

// before reports whether p is merged ahead of q.
func (p pair) before(q pair) bool {
	return p.score > q.score || p.score == q.score && p.left < q.left
}

const (
	unmerged tandem.Token = -1
	maxWord               = 1 << 28 // bytes; longer words are cut, so that offsets fit
)

func (e *encoder) text(s string) {
	if e.v.user == nil {
		e.words(s)
		return
	}
	from := 0
	for i := 0; i < len(s); {
		id, n := e.v.user.match(s[i:])
		if n == 0 {
			i++
			continue
		}
		e.words(s[from:i])
		e.out = append(e.out, id)
		i += n
		from = i
	}
	e.words(s[from:])
}

func (e *encoder) words(s string) {
	from, before := 0, rune(-1)
	for i, r := range s {
		if i > from && (r == spaceRune && !e.v.inside[before] || i-from >= maxWord) {
			e.merge(s[from:i])
			from = i
		}
		before = r
	}
	if from < len(s) {
		e.merge(s[from:])
	}
}

// merge encodes one word.
func (e *encoder) merge(word string) {
	e.word, e.syms, e.heap = word, e.syms[:0], e.heap[:0]
	for at := 0; at < len(word); {
		_, size := utf8.DecodeRuneInString(word[at:])
		i := int32(len(e.syms))
		e.syms = append(e.syms, symbol{start: int32(at), size: int32(size), prev: i - 1, next: i + 1, id: unmerged})
		at += size
	}
	last := int32(len(e.syms) - 1)
	e.syms[last].next = -1
	for i := range last {
		e.consider(i, i+1)
	}
	for len(e.heap) > 0 {
		p := e.pop()
		left, right := &e.syms[p.left], &e.syms[p.right]
		if left.size == 0 || right.size == 0 || left.size+right.size != p.size {
			continue
		}
		left.size, left.id, left.next = p.size, p.id, right.next
		right.size = 0
		if right.next >= 0 {
			e.syms[right.next].prev = p.left
			e.consider(p.left, right.next)
		}
		if left.prev >= 0 {
			e.consider(left.prev, p.left)
		}
	}
	for i := int32(0); i >= 0; i = e.syms[i].next {
		e.emit(&e.syms[i])
	}
}

// consider adds the pair of two neighbours to the heap if together they are a piece.
func (e *encoder) consider(left, right int32) {
	l, r := &e.syms[left], &e.syms[right]
	size := l.size + r.size
	if int(size) > e.v.longest {
		return
	}
	if id, ok := e.v.ids[e.word[l.start:l.start+size]]; ok {
		e.push(pair{score: e.v.scores[id], left: left, right: right, size: size, id: id})
	}
}

func (e *encoder) emit(s *symbol) {
	if s.id != unmerged {
		e.out = append(e.out, s.id)
		return
	}
	text := e.word[s.start : s.start+s.size]
	if id, ok := e.v.ids[text]; ok {
		e.out = append(e.out, id)
		return
	}
	if text == space {
		text = " "
	}
	for i := range len(text) {
		e.out = append(e.out, e.v.bytes[text[i]])
	}
}

func (e *encoder) push(p pair) {
	e.heap = append(e.heap, p)
	h := e.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if !p.before(h[up]) {
			break
		}
		h[i] = h[up]
		i = up
	}
	h[i] = p
}

func (e *encoder) pop() pair {
	h := e.heap
	top, p := h[0], h[len(h)-1]
	h = h[:len(h)-1]
	e.heap = h
	if len(h) == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= len(h) {
			break
		}
		if down+1 < len(h) && h[down+1].before(h[down]) {
			down++
		}
		if !h[down].before(p) {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = p
	return top
}
