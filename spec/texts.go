package spec

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/tandem-llm/tandem"
)

// Texts keeps the latest tokens of texts that have ended, and finds in them where the end of another text stood before. What a new
// text has in common with kept ones is not kept again. Not safe for concurrent use.
//
// Tokens lie in a ring, so the oldest go first, one by one. Each place is linked to the one before it whose last gram tokens have the same
// hash, as in LZ77. A suffix automaton would find the same places; but it needs 100 bytes a token in place of 12, and cannot forget.
type Texts struct {
	most  int            // places, a power of 2
	ring  []tandem.Token // by place modulo its length, a power of 2; textBreak between texts
	prev  []uint32       // likewise: an older place of the same hash, or any older place
	heads []uint32       // by hash: the latest place of that hash, or any place
	end   uint32         // the next place; places count on over the ring's end, modulo 2³²
	run   int            // tokens since the last break
}

// Occurrence is where in Texts the latest tokens of a text stood: the last Length of them agree. The zero value is nowhere.
type Occurrence struct {
	Length int
	at     uint32 // of the last token that agrees
}

// Match says what followed an earlier place where the last Length tokens of a text stood.
type Match struct {
	Length int
	Count  int            // places of that length at which the same token followed
	Next   []tandem.Token // at least one
}

const (
	// textBreak stands before every text. It is no token, so nothing is found across it.
	textBreak = tandem.Token(-1)
	// gram is the length of the shortest match.
	gram = 1 << 2
	// firstPlaces is the initial size of the ring, which doubles as it fills.
	firstPlaces = 1 << 10
	// mostPlaces is how many places of a hash are looked at, latest first.
	mostPlaces = 1 << 5
	// mostMatch is the longest match that is searched for; one that is followed becomes longer.
	mostMatch = 1 << 8
	// nearby is the distance, in tokens, within which a place counts as near to the last one.
	nearby = 1 << 9
	// knownRun is the length from which a run of tokens that is kept already is not kept again, and textContext how many tokens of such
	// runs are kept with the new text beside them, so that both ends are found.
	knownRun, textContext = 1 << 6, 1 << 4
	// knownStep is the distance at which known runs are looked for; each is found if it is at least knownRun + knownStep long.
	knownStep = 1 << 4
)

// NewTexts returns an empty Texts. It holds as many tokens as the largest power of 2 up to most, at up to 12 bytes each.
func NewTexts(most int) *Texts {
	x := &Texts{most: 1 << (bits.Len(uint(min(max(most, 1), 1<<30))) - 1)}
	x.resize(min(firstPlaces, x.most))
	return x
}

// Bytes returns how much memory the tokens take.
func (x *Texts) Bytes() int { return 1 << 2 * (cap(x.ring) + cap(x.prev) + cap(x.heads)) }

// resize gives the ring that many places, and indexes it anew. Called before the ring is full.
func (x *Texts) resize(places int) {
	old := x.ring[:x.end]
	x.ring, x.prev, x.heads = make([]tandem.Token, places), make([]uint32, places), make([]uint32, places)
	x.end, x.run = 0, 0
	if len(old) == 0 {
		x.put(textBreak) // so that place 0, to which unused links lead, holds no token
	}
	for _, t := range old {
		x.put(t)
	}
}

// put appends a token or a break.
func (x *Texts) put(t tandem.Token) {
	if int(x.end) == len(x.ring) && len(x.ring) < x.most {
		x.resize(2 * len(x.ring))
	}
	at := x.end
	x.ring[x.slot(at)] = t
	x.end++
	if x.run++; t == textBreak {
		x.run = 0
	}
	if x.run >= gram {
		h := x.hash(func(i uint32) tandem.Token { return x.ring[x.slot(at-i)] })
		x.prev[x.slot(at)], x.heads[h] = x.heads[h], at
	}
}

func (x *Texts) slot(place uint32) int { return int(place & uint32(len(x.ring)-1)) }

// hash returns the hash of gram tokens; back(i) is the one i before the last.
func (x *Texts) hash(back func(i uint32) tandem.Token) uint64 {
	h := uint64(0)
	for i := range uint32(gram) {
		h = (h + uint64(uint32(back(i))) + 1) * 0x9e3779b97f4a7c15
		h ^= h >> 29
	}
	return h * 0xd6e8feb86659fd93 >> 40 & uint64(len(x.heads)-1)
}

// places calls f with the places where the last gram tokens of text stood, latest first, until f returns false.
func (x *Texts) places(text []tandem.Token, f func(at uint32) bool) {
	if len(text) < gram {
		return
	}
	h := x.hash(func(i uint32) tandem.Token { return text[len(text)-1-int(i)] })
	at, age := x.heads[h], uint32(0)
	for range mostPlaces {
		now := x.end - at
		if now <= age || int64(now) > int64(len(x.ring)) { // links lead to older places only, else they are left over
			return
		}
		if x.back(at, text, gram) == gram && !f(at) {
			return
		}
		at, age = x.prev[x.slot(at)], now
	}
}

// back returns how many tokens up to a place agree with the last ones of text, at most most.
func (x *Texts) back(at uint32, text []tandem.Token, most int) (n int) {
	for most = min(most, len(text), len(x.ring)-int(x.end-at)+1); n < most && x.ring[x.slot(at-uint32(n))] == text[len(text)-1-n]; n++ {
	}
	return n
}

// after returns how many tokens from a place on agree with text.
func (x *Texts) after(at uint32, text []tandem.Token) (n int) {
	for n < len(text) && at+uint32(n) != x.end && x.ring[x.slot(at+uint32(n))] == text[n] {
		n++
	}
	return n
}

// forward returns the tokens from a place on, up to a break, at most most.
func (x *Texts) forward(at uint32, most int) []tandem.Token {
	var out []tandem.Token
	for ; len(out) < most && at != x.end && x.ring[x.slot(at)] != textBreak; at++ {
		out = append(out, x.ring[x.slot(at)])
	}
	return out
}

// Add keeps a text, except for long runs that are kept already.
func (x *Texts) Add(text []tandem.Token) {
	from := 0 // of what is new
	for i := gram; i <= len(text); {
		begin, end := x.known(text, i, from)
		if end-begin < knownRun {
			i += knownStep
			continue
		}
		x.keep(text, from, begin)
		from, i = end, end+gram
	}
	x.keep(text, from, len(text))
}

// known returns the longest run of kept tokens in text around position i, not before from.
func (x *Texts) known(text []tandem.Token, i, from int) (begin, end int) {
	if i-gram < from {
		return i, i
	}
	x.places(text[from:i], func(at uint32) bool {
		n, m := x.back(at, text[from:i], i-from), x.after(at+1, text[i:])
		if n+m > end-begin {
			begin, end = i-n, i+m
		}
		return true
	})
	return begin, end
}

// keep appends text[from:to] with some of what stands beside it.
func (x *Texts) keep(text []tandem.Token, from, to int) {
	if from >= to {
		return
	}
	x.put(textBreak)
	for _, t := range text[max(from-textContext, 0):min(to+textContext, len(text))] {
		x.put(t)
	}
}

// Follow returns where the end of text stood before; p is Follow's result for the text without its last token. If the place after p holds
// the last token, it is that place. Else it is the place where the most tokens agree: of several one near p, or else the latest.
func (x *Texts) Follow(p Occurrence, text []tandem.Token) Occurrence {
	if len(text) == 0 {
		return Occurrence{}
	}
	if next := p.at + 1; p.Length > 0 && x.held(next) && x.ring[x.slot(next)] == text[len(text)-1] {
		return Occurrence{Length: p.Length + 1, at: next}
	}
	near := func(at uint32) bool { return p.at != 0 && (at-p.at < nearby || p.at-at < nearby) }
	best := Occurrence{at: p.at} // nowhere, but near it
	x.places(text, func(at uint32) bool {
		n := x.back(at, text, mostMatch)
		if n > best.Length || n == best.Length && near(at) && !near(best.at) {
			best = Occurrence{Length: n, at: at}
		}
		return true
	})
	return best
}

// held reports whether a place has not been overwritten yet.
func (x *Texts) held(at uint32) bool { return int64(x.end-at) <= int64(len(x.ring)) && at != x.end }

// Matches returns what followed the places where the end of text stood before; p is one of them. It returns at most width matches, longest
// first, each with at most depth tokens in Next. No two begin with the same token.
func (x *Texts) Matches(p Occurrence, text []tandem.Token, depth, width int) []Match {
	var out []Match
	add := func(at uint32, length int) {
		next := at + 1
		if !x.held(next) || x.ring[x.slot(next)] == textBreak {
			return
		}
		i := slices.IndexFunc(out, func(m Match) bool { return m.Next[0] == x.ring[x.slot(next)] })
		switch {
		case i < 0:
			out = append(out, Match{Length: length, Count: 1, Next: x.forward(next, depth)})
		case length > out[i].Length:
			out[i] = Match{Length: length, Count: 1, Next: x.forward(next, depth)}
		case length == out[i].Length:
			out[i].Count++
			if len(out[i].Next) < depth { // one that ends soon says less
				if longer := x.forward(next, depth); len(longer) > len(out[i].Next) {
					out[i].Next = longer
				}
			}
		}
	}
	if p.Length > 0 && x.held(p.at) {
		add(p.at, p.Length)
	}
	x.places(text, func(at uint32) bool {
		if at != p.at || p.Length == 0 {
			add(at, x.back(at, text, max(mostMatch, p.Length)))
		}
		return true
	})
	slices.SortStableFunc(out, func(a, b Match) int { return cmp.Or(cmp.Compare(b.Length, a.Length), cmp.Compare(b.Count, a.Count)) })
	return out[:min(len(out), width)]
}
