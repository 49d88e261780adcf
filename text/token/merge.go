package token

import (
	"math"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// symbol is a part of the word that is being merged.
type symbol struct {
	start, size int32 // in word; size 0 once merged into another
	prev, next  int32 // -1 at the ends
	id          tandem.Token
}

// pair is a possible merge of two neighbours into the symbol id.
type pair struct {
	order uint64 // rank<<32 | left: the lowest is merged first
	right int32
	size  int32 // of both when the pair was found
	id    tandem.Token
}

const unmerged tandem.Token = -1 // a character of a SentencePiece word; with merges, one that no piece is

// scoreRank maps scores to ranks: the higher the score, the lower the rank; equal scores have equal ones.
func scoreRank(score float32) uint32 {
	b := math.Float32bits(score + 0) // -0 becomes 0
	if b>>31 == 0 {
		return ^(b | 1<<31)
	}
	return b
}

// merge encodes one word.
//
// Its characters, or bytes, are symbols of a doubly linked list. All neighbours that can be merged wait
// in a heap, the lowest rank first, of equal ranks the leftmost. The best pair is merged into its left
// symbol and pairs with the new neighbours are added; pairs whose symbols have changed since are
// dropped when they come up. Each merge removes a symbol and adds at most two pairs, so that the time is
// O(n log n).
func (e *encoder) merge(word string) {
	e.symbols(word)
	for i := range int32(len(e.syms) - 1) {
		e.consider(i, i+1)
	}
	for len(e.heap) > 0 {
		p := e.pop()
		at := int32(uint32(p.order))
		left, right := &e.syms[at], &e.syms[p.right]
		if left.size == 0 || right.size == 0 || left.size+right.size != p.size {
			continue
		}
		left.size, left.id, left.next = p.size, p.id, right.next
		right.size = 0
		if right.next >= 0 {
			e.syms[right.next].prev = at
			e.consider(at, right.next)
		}
		if left.prev >= 0 {
			e.consider(left.prev, at)
		}
	}
	for i := int32(0); i >= 0; i = e.syms[i].next {
		e.emit(&e.syms[i])
	}
}

// symbols begins a word, which is not empty.
func (e *encoder) symbols(word string) {
	e.word, e.syms, e.heap = word, e.syms[:0], e.heap[:0]
	for at := 0; at < len(word); {
		id, size := unmerged, 1
		switch {
		case e.v.byteLevel():
			id = e.v.bpe.table().bytes[word[at]]
		case word[at] >= utf8.RuneSelf:
			_, size = utf8.DecodeRuneInString(word[at:])
			fallthrough
		default:
			if t, ok := e.v.ids()[word[at:at+size]]; ok && e.v.bpe != nil {
				id = t
			}
		}
		i := int32(len(e.syms))
		e.syms = append(e.syms, symbol{start: int32(at), size: int32(size), prev: i - 1, next: i + 1, id: id})
		at += size
	}
	e.syms[len(e.syms)-1].next = -1
}

// consider adds the pair of two neighbours to the heap if they can be merged.
func (e *encoder) consider(left, right int32) {
	l, r := &e.syms[left], &e.syms[right]
	p := pair{right: right, size: l.size + r.size}
	var rank uint32
	if b := e.v.bpe; b != nil {
		m, ok := b.table().merges[mergeKey(l.id, r.id)]
		if !ok {
			return
		}
		rank, p.id = m.rank, m.symbol
	} else {
		if int(p.size) > e.v.longest {
			return
		}
		id, ok := e.v.ids()[e.word[l.start:l.start+p.size]]
		if !ok {
			return
		}
		rank, p.id = scoreRank(e.v.scores[id]), id
	}
	p.order = uint64(rank)<<32 | uint64(left)
	e.push(p)
}

func (e *encoder) emit(s *symbol) {
	text := e.word[s.start : s.start+s.size]
	id := s.id
	if id == unmerged {
		var ok bool
		if id, ok = e.v.ids()[text]; !ok {
			id = unmerged
		}
	}
	if id != unmerged && int(id) < len(e.v.pieces) {
		e.out = append(e.out, id)
		return
	}
	if !e.v.byteLevel() && text == space {
		text = " "
	}
	for i := range len(text) {
		if t := e.v.bytes[text[i]]; t >= 0 {
			e.out = append(e.out, t)
		}
	}
}

func (e *encoder) push(p pair) {
	e.heap = append(e.heap, p)
	h := e.heap
	i := len(h) - 1
	for i > 0 {
		up := (i - 1) / 2
		if h[up].order <= p.order {
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
		if down+1 < len(h) && h[down+1].order < h[down].order {
			down++
		}
		if h[down].order >= p.order {
			break
		}
		h[i] = h[down]
		i = down
	}
	h[i] = p
	return top
}
