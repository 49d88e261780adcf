package grammar

import (
	"bytes"
	"cmp"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/tandem-llm/tandem"
)

// Vocabulary is a model's tokens as a trie over their bytes. It is built once, and is safe for concurrent use.
type Vocabulary struct {
	size  int
	ends  []tandem.Token
	text  []byte   // of all tokens, one after the other
	begin []uint32 // of each token in text, and text's length

	// The tokens that may stand in a JSON string as they are, and the others: mostly either kind needs no walk.
	inside, others tokenTrie
	strings        Mask           // the tokens in inside,
	byLength       []tandem.Token // and the same by their lengths in characters:
	shorter        []int32        // the number of those of at most so many

	groups []uint64 // what occurs below a node, by trieNode.below: a set of groups (see groupOf)
	all    Mask
	masks  maskCache

	finishes finishes
}

// tokenTrie is a trie in preorder; node 0 is the root. ids are the tokens in the same order: those of the subtree of a node are
// ids[node.first:nodes[node.skip].first], and those of the node itself come first.
type tokenTrie struct {
	nodes []trieNode
	ids   []tandem.Token
}

// trieNode takes 12 bytes, since there are several for each token.
type trieNode struct {
	skip   int32 // the first node behind its subtree
	first  int32 // see tokenTrie.ids
	below  uint16
	height uint8 // bytes below it in the longest token; longest at most
	byte   byte
}

// longest bounds what trieNode.height says; a longer subtree is never left out.
const longest = math.MaxUint8

// Mask is a set of tokens: bit t%64 of word t/64. It is shared: nobody changes it.
type Mask []uint64

// Has reports whether t is in m.
func (m Mask) Has(t tandem.Token) bool {
	return t >= 0 && int(t)>>6 < len(m) && m[t>>6]>>(t&63)&1 != 0
}

// NewVocabulary makes the trie of the tokens 0 to n−1. bytesOf returns the bytes of a token, none for a control token, which then matches
// never; it may reuse them. ends are the tokens that end a text: they are allowed exactly where it may end.
func NewVocabulary(bytesOf func(tandem.Token) []byte, n int, ends []tandem.Token) *Vocabulary {
	v := &Vocabulary{size: n, ends: slices.Clone(ends), begin: make([]uint32, n+1), all: make(Mask, (n+63)/64)}
	for t := range n {
		v.all[t>>6] |= 1 << (t & 63)
		if !slices.Contains(ends, tandem.Token(t)) {
			v.text = append(v.text, bytesOf(tandem.Token(t))...)
		}
		v.begin[t+1] = uint32(len(v.text))
	}
	v.text = slices.Clone(v.text) // without room to grow
	v.divide()
	v.groups = []uint64{math.MaxUint64} // of those that are too many to be told apart: everything may occur there
	known := map[uint64]uint16{}
	v.plant(&v.inside, known)
	v.plant(&v.others, known)
	return v
}

// divide puts each token that has bytes into one of the tries.
func (v *Vocabulary) divide() {
	v.strings, v.shorter = make(Mask, len(v.all)), []int32{0}
	for t := range tandem.Token(v.size) {
		text := v.bytes(t)
		switch len(text) {
		case 0:
			continue
		case 1:
			v.finishes.has[text[0]] = true
		}
		plain := func(b byte) bool { return b >= utf8.RuneSelf || inStrings>>groupOf[b]&1 != 0 }
		if !utf8.Valid(text) || slices.ContainsFunc(text, func(b byte) bool { return !plain(b) }) {
			v.others.ids = append(v.others.ids, t)
			continue
		}
		v.inside.ids = append(v.inside.ids, t)
		v.strings[t>>6] |= 1 << (t & 63)
	}
	v.finishes.all = !slices.Contains(v.finishes.has[:], false)
	for _, t := range v.inside.ids {
		n := utf8.RuneCount(v.bytes(t))
		v.shorter = append(v.shorter, make([]int32, max(0, n+1-len(v.shorter)))...)
		v.shorter[n]++
	}
	for i := 1; i < len(v.shorter); i++ {
		v.shorter[i] += v.shorter[i-1]
	}
	v.byLength = make([]tandem.Token, len(v.inside.ids))
	next := slices.Clone(v.shorter)
	for _, t := range v.inside.ids {
		n := utf8.RuneCount(v.bytes(t))
		next[n]--
		v.byLength[next[n]] = t
	}
}

func (v *Vocabulary) bytes(t tandem.Token) []byte { return v.text[v.begin[t]:v.begin[t+1]] }

// plant makes the nodes of t's tokens.
func (v *Vocabulary) plant(t *tokenTrie, known map[uint64]uint16) {
	slices.SortFunc(t.ids, func(a, b tandem.Token) int { return cmp.Or(bytes.Compare(v.bytes(a), v.bytes(b)), int(a-b)) })
	same := func(i int) (n int) { // bytes that the token shares with the one before it
		if i == 0 {
			return 0
		}
		before, text := v.bytes(t.ids[i-1]), v.bytes(t.ids[i])
		for n < len(before) && n < len(text) && before[n] == text[n] {
			n++
		}
		return n
	}
	nodes := 2 // the root, and one behind all
	for i, id := range t.ids {
		nodes += len(v.bytes(id)) - same(i)
	}
	t.nodes = make([]trieNode, 1, nodes)
	path := []int32{0} // from the root to the last node
	leave := func(depth int) {
		for len(path) > depth+1 {
			t.nodes[path[len(path)-1]].skip = int32(len(t.nodes))
			path = path[:len(path)-1]
		}
	}
	for i, id := range t.ids {
		depth := same(i)
		leave(depth)
		for _, c := range v.bytes(id)[depth:] {
			path = append(path, int32(len(t.nodes)))
			t.nodes = append(t.nodes, trieNode{first: int32(i), byte: c})
		}
	}
	leave(0)
	t.nodes[0].skip = int32(len(t.nodes))
	t.nodes = append(t.nodes, trieNode{first: int32(len(t.ids)), skip: math.MaxInt32})
	v.describe(t, known)
}

// describe fills what t's nodes say of their subtrees. known are the indices of v.groups.
func (v *Vocabulary) describe(t *tokenTrie, known map[uint64]uint16) {
	sets := make([]uint64, len(t.nodes))
	for i := int32(len(t.nodes)) - 2; i >= 0; i-- {
		n := &t.nodes[i]
		for c := i + 1; c < n.skip; c = t.nodes[c].skip {
			child := &t.nodes[c]
			n.height = max(n.height, uint8(min(longest, int(child.height)+1)))
			if child.byte < utf8.RuneSelf {
				sets[i] |= sets[c] | 1<<groupOf[child.byte]
			} else {
				sets[i] |= t.wide(c, []byte{child.byte}, sets)
			}
		}
		below, ok := known[sets[i]]
		if !ok && len(v.groups) < math.MaxUint16 {
			below = uint16(len(v.groups))
			known[sets[i]] = below
			v.groups = append(v.groups, sets[i])
		}
		n.below = below
	}
}

// wide returns the groups below node i, at which a character of several bytes has begun: with its bytes so far.
func (t *tokenTrie) wide(i int32, so []byte, sets []uint64) (groups uint64) {
	if r, n := utf8.DecodeRune(so); n == len(so) && r != utf8.RuneError || string(so) == string(utf8.RuneError) {
		return sets[i] | 1<<wideGroup
	}
	n := &t.nodes[i]
	if utf8.FullRune(so) {
		return sets[i] | 1<<brokenGroup
	}
	if t.nodes[i+1].first > n.first { // a token ends here
		groups = 1 << brokenGroup
	}
	for c := i + 1; c < n.skip; c = t.nodes[c].skip {
		groups |= t.wide(c, append(so, t.nodes[c].byte), sets)
	}
	return groups
}
